//! Programs: memory, threads, processes, identity, signals, scheduling, time.

use libc::*;

use crate::seccomp::numbers::{
    SYS_futex_requeue, SYS_futex_wait, SYS_futex_wake, SYS_getrlimit, SYS_map_shadow_stack, SYS_mseal, SYS_setrlimit,
};
use crate::seccomp::rule::TableEntry;

pub(super) static MEMORY: &[TableEntry] = &[
    allow!(SYS_brk, "every program"),
    switch!(SYS_mmap, ALLOW, watch_reservations => MMAP, "every program"),
    allow!(SYS_munmap, "every program"),
    allow!(SYS_mprotect, "the dynamic loader, JIT compilers, thread stacks"),
    allow!(SYS_mremap, "realloc"),
    allow!(SYS_madvise, "allocators, garbage collectors"),
    allow!(SYS_msync, "databases"),
    allow!(SYS_mincore, "Go, glibc's stack guard, Java"),
    allow!(
        SYS_mlock,
        "GnuPG and others who keep keys out of swap; bounded by RLIMIT_MEMLOCK"
    ),
    allow!(SYS_munlock, "as mlock"),
    absent!(SYS_mlock2, "newer form of mlock, to which callers fall back"),
    quiet!(SYS_mlockall, "pins all memory of a program; nobody needs it to work"),
    quiet!(SYS_munlockall, "as mlockall"),
    absent!(SYS_mseal, "hardening that callers do without"),
    absent!(
        SYS_remap_file_pages,
        "replaced by mmap; has a history of its own (CVE-2024-0646 and others near it)"
    ),
    absent!(SYS_pkey_alloc, "protection keys, which callers probe and do without"),
    absent!(SYS_pkey_free, "as pkey_alloc"),
    absent!(
        SYS_pkey_mprotect,
        "as pkey_alloc; C libraries use mprotect where there is no key"
    ),
    absent!(
        SYS_map_shadow_stack,
        "shadow stacks, which C libraries probe and do without"
    ),
    absent!(
        SYS_get_mempolicy,
        "NUMA placement; libnuma takes this answer for a machine without NUMA"
    ),
    absent!(SYS_set_mempolicy, "as get_mempolicy"),
    absent!(SYS_mbind, "as get_mempolicy"),
    absent!(SYS_set_mempolicy_home_node, "as get_mempolicy"),
    quiet!(SYS_migrate_pages, "moves the memory of other processes"),
    absent!(
        SYS_move_pages,
        "moves the memory of other processes and shows where it lies"
    ),
    absent!(
        SYS_process_madvise,
        "steers the memory of other processes; allocators probe it"
    ),
    absent!(SYS_process_mrelease, "frees the memory of other processes"),
    refuse!(
        SYS_userfaultfd,
        "stops the kernel in the middle of a copy, which kernel exploits build on"
    ),
];

pub(super) static THREADS: &[TableEntry] = &[
    allow!(SYS_futex, "every threaded program"),
    absent!(SYS_futex_waitv, "waits for many locks at once; Wine falls back"),
    absent!(SYS_futex_wake, "newer form of futex, to which callers fall back"),
    absent!(SYS_futex_wait, "newer form of futex, to which callers fall back"),
    absent!(SYS_futex_requeue, "newer form of futex, to which callers fall back"),
    allow!(SYS_set_robust_list, "every C library at start"),
    quiet!(
        SYS_get_robust_list,
        "reads a pointer out of another process; only checkpointing uses it"
    ),
    allow!(SYS_set_tid_address, "every C library at start"),
    allow!(SYS_gettid, "every threaded program"),
    allow!(SYS_rseq, "glibc and tcmalloc at start"),
    allow!(SYS_membarrier, "Java, .NET, liburcu"),
    switch!(SYS_clone, CLONE, count_forks => COUNTED_CLONE, "every program that starts a thread or a program"),
    absent!(
        SYS_clone3,
        "carries its flags in memory, where no filter can see them; C libraries fall back to clone"
    ),
    allow!(SYS_exit, "the end of a thread"),
    allow!(SYS_getcpu, "allocators, run-times"),
];

pub(super) static PROCESSES: &[TableEntry] = &[
    allow!(SYS_execve, "shells, every program starter"),
    allow!(SYS_execveat, "fexecve, container tools"),
    allow!(SYS_exit_group, "every program"),
    allow!(SYS_wait4, "shells, every program starter"),
    allow!(SYS_waitid, "Rust, Go, Python"),
    allow!(SYS_getpid, "every program"),
    allow!(SYS_getppid, "shells, test tools"),
    allow!(SYS_getpgid, "shells"),
    allow!(SYS_setpgid, "shells"),
    allow!(SYS_getsid, "shells"),
    allow!(SYS_setsid, "daemons, test tools"),
    allow!(SYS_getrusage, "shells, benchmarks"),
    allow!(SYS_getrlimit, "Go before 1.21, older programs"),
    quiet!(SYS_setrlimit, "older form of prlimit64, which C libraries use"),
    switch!(
        SYS_prlimit64,
        PRLIMIT,
        watch_reservations => WATCHED_PRLIMIT,
        "shells, run-times; cannot raise a limit, sets only those of the caller, named as 0, and leaves that of cores"
    ),
    allow!(SYS_uname, "configure scripts, Python"),
    switch!(SYS_sysinfo, ALLOW, show_memory => MEDIATE, "free, run-times that size themselves"),
    allow!(SYS_getrandom, "every program at start"),
    switch!(SYS_prctl, PRCTL, hands_out => PRCTL_OF_ZYGOTES, "thread names, PR_SET_PDEATHSIG, allocators"),
    switch!(SYS_personality, PERSONALITY, allow_ptrace => PERSONALITY_OF_DEBUGGERS, "run-times that read it"),
    allow!(
        SYS_pidfd_open,
        "Go, Rust, Python; reaches only processes that the sandbox sees"
    ),
];

/// Only on x86_64: what newer architectures have in another form.
#[cfg(target_arch = "x86_64")]
pub(super) static OLD: &[TableEntry] = &[
    allow!(SYS_arch_prctl, "every C library at start"),
    switch!(SYS_fork, ALLOW, count_forks => ADMIT, "older programs, musl"),
    switch!(SYS_vfork, ALLOW, count_forks => ADMIT, "Python's subprocess, posix_spawn in musl"),
    allow!(SYS_getpgrp, "shells"),
    allow!(SYS_alarm, "timeout, Perl"),
    allow!(SYS_pause, "shells, test tools"),
    allow!(SYS_time, "older programs"),
    absent!(SYS_set_thread_area, "32-bit programs only"),
    absent!(SYS_get_thread_area, "32-bit programs only"),
    refuse!(SYS_modify_ldt, "changes the processor's segment table (CVE-2015-5157)"),
    refuse!(SYS_iopl, "reaches hardware ports"),
    refuse!(SYS_ioperm, "reaches hardware ports"),
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) static OLD: &[TableEntry] = &[];

pub(super) static DEBUGGING: &[TableEntry] = &[
    debugger!(
        SYS_ptrace,
        "reads and steers other processes; debuggers and strace need it"
    ),
    debugger!(
        SYS_process_vm_readv,
        "reads the memory of other processes; debuggers need it"
    ),
    debugger!(
        SYS_process_vm_writev,
        "writes the memory of other processes; debuggers need it"
    ),
    debugger!(SYS_pidfd_getfd, "takes open files out of other processes"),
    switch!(SYS_kcmp, REFUSED_QUIETLY, allow_ptrace => ALLOW, "compares kernel objects of other processes"),
];

pub(super) static IDENTITY: &[TableEntry] = &[
    allow!(SYS_getuid, "every program"),
    allow!(SYS_getgid, "every program"),
    allow!(SYS_geteuid, "every program"),
    allow!(SYS_getegid, "every program"),
    allow!(SYS_getresuid, "shells, OpenSSH"),
    allow!(SYS_getresgid, "shells, OpenSSH"),
    allow!(SYS_getgroups, "id, shells"),
    allow!(
        SYS_setuid,
        "daemons and package managers that drop to the user they already are"
    ),
    allow!(SYS_setgid, "as setuid"),
    allow!(SYS_setreuid, "as setuid"),
    allow!(SYS_setregid, "as setuid"),
    allow!(SYS_setresuid, "as setuid"),
    allow!(SYS_setresgid, "as setuid"),
    allow!(SYS_setgroups, "as setuid"),
    quiet!(SYS_setfsuid, "file servers that act for other users"),
    quiet!(SYS_setfsgid, "as setfsuid"),
    allow!(SYS_capget, "ls, package managers; there is none to get"),
    allow!(SYS_capset, "daemons that drop capabilities; there is none to gain"),
];

pub(super) static SIGNALS: &[TableEntry] = &[
    allow!(SYS_rt_sigaction, "every program"),
    allow!(SYS_rt_sigprocmask, "every program"),
    allow!(SYS_rt_sigreturn, "every signal handler"),
    allow!(SYS_rt_sigsuspend, "shells"),
    allow!(SYS_rt_sigpending, "run-times"),
    allow!(SYS_rt_sigtimedwait, "run-times, timeout"),
    quiet!(
        SYS_rt_sigqueueinfo,
        "sends signals with particulars of the sender's choice; kill does for nearly all"
    ),
    quiet!(SYS_rt_tgsigqueueinfo, "as rt_sigqueueinfo"),
    allow!(SYS_sigaltstack, "run-times with stack-overflow handlers"),
    allow!(SYS_kill, "shells; reaches only processes that the sandbox sees"),
    allow!(SYS_tkill, "musl, older run-times"),
    allow!(SYS_tgkill, "abort, pthread_kill, Go"),
    allow!(
        SYS_pidfd_send_signal,
        "Go, Rust, Python; reaches only processes that the sandbox sees"
    ),
    allow!(SYS_signalfd4, "event loops, supervisors"),
    allow!(
        SYS_restart_syscall,
        "the kernel itself, after a stopped process goes on"
    ),
];

pub(super) static SCHEDULING: &[TableEntry] = &[
    allow!(SYS_sched_yield, "run-times, spin locks"),
    allow!(SYS_sched_getaffinity, "run-times that count processors"),
    switches!(
        SYS_sched_setaffinity,
        AFFINITY,
        kept_to_cpus => KEEPS_AFFINITY,
        host_namespaces => OWN_AFFINITY,
        "OpenMP, taskset"
    ),
    allow!(SYS_sched_getparam, "glibc's pthread_getschedparam"),
    allow!(SYS_sched_getscheduler, "glibc's pthread_getschedparam"),
    allow!(SYS_sched_get_priority_max, "run-times that map thread priorities"),
    allow!(SYS_sched_get_priority_min, "run-times that map thread priorities"),
    switch!(
        SYS_sched_setscheduler,
        SCHEDULER,
        host_namespaces => OWN_SCHEDULER,
        "run-times that ask for SCHED_OTHER, SCHED_BATCH or SCHED_IDLE"
    ),
    quiet!(SYS_sched_setparam, "real-time priorities"),
    quiet!(
        SYS_sched_setattr,
        "carries its policy in memory, where no filter can see real-time scheduling"
    ),
    quiet!(SYS_sched_getattr, "as sched_setattr"),
    quiet!(SYS_sched_rr_get_interval, "real-time scheduling"),
    allow!(SYS_getpriority, "nice"),
    switch!(SYS_setpriority, PRIORITY, host_namespaces => OWN_PRIORITY, "nice; cannot raise"),
    quiet!(SYS_ioprio_get, "as ioprio_set"),
    quiet!(SYS_ioprio_set, "changes the share of the machine's disks"),
];

pub(super) static TIME: &[TableEntry] = &[
    allow!(SYS_clock_gettime, "every program where the vDSO cannot answer"),
    allow!(SYS_clock_getres, "Python, Java"),
    allow!(SYS_gettimeofday, "every program where the vDSO cannot answer"),
    allow!(SYS_nanosleep, "sleep"),
    allow!(SYS_clock_nanosleep, "sleep with glibc"),
    allow!(SYS_times, "shells, make"),
    allow!(SYS_getitimer, "Perl, test tools"),
    allow!(SYS_setitimer, "timeout, profilers"),
    allow!(SYS_timer_create, "Java, Go's profiler, timeout"),
    allow!(SYS_timer_settime, "as timer_create"),
    allow!(SYS_timer_gettime, "as timer_create"),
    absent!(
        SYS_timer_getoverrun,
        "counts missed ticks of a timer, which hardly any program asks for"
    ),
    allow!(SYS_timer_delete, "as timer_create"),
    allow!(SYS_timerfd_create, "event loops"),
    allow!(SYS_timerfd_settime, "event loops"),
    allow!(SYS_timerfd_gettime, "event loops"),
    refuse!(SYS_settimeofday, "sets the machine's clock"),
    refuse!(SYS_clock_settime, "sets the machine's clock"),
    quiet!(SYS_adjtimex, "steers the machine's clock"),
    quiet!(SYS_clock_adjtime, "steers the machine's clock"),
];
