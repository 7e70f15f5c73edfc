//! The filter of a process of our own in which strangers' code is simulated: memory, threads, time, and the descriptors that it has.
//!
//! It opens, makes and names nothing: no file, no socket, no program, no other process. What it needs of the machine it asks for over
//! the one socket that it holds. Everything else fails with `EPERM`.

use libc::sock_filter;

use super::rule::{ArgumentTest, CallRefusal, CallRule, number_of};
use super::service::{ALLOW, NO_CODE, READ_LIMIT, REFUSE, WHOLE, equals, when};

static NOT_THERE: CallRule = CallRule::Refuse(CallRefusal {
    errno: 38,
    notified: false,
    reason: None,
});

const _: () = assert!(libc::ENOSYS == 38, "what `NOT_THERE` answers");

// clone(flags, …): threads of this process alone. The kernel refuses namespaces beside that flag.
static THREADS: CallRule = when(
    0,
    WHOLE,
    ArgumentTest::AnyBit(libc::CLONE_THREAD.cast_unsigned()),
    &ALLOW,
    &REFUSE,
);

// fcntl(descriptor, command): flags are only read.
static FCNTL: CallRule = equals(1, libc::F_GETFL, &ALLOW, &FCNTL_GETFD);
static FCNTL_GETFD: CallRule = equals(1, libc::F_GETFD, &ALLOW, &REFUSE);

/// The list, by number; what is not in it fails.
static CALLS: &[(libc::c_long, &CallRule)] = &[
    // The socket, and words on standard error.
    (libc::SYS_read, &ALLOW),
    (libc::SYS_write, &ALLOW),
    (libc::SYS_writev, &ALLOW),
    (libc::SYS_sendto, &ALLOW),
    (libc::SYS_recvfrom, &ALLOW),
    (libc::SYS_close, &ALLOW),
    (libc::SYS_fcntl, &FCNTL),
    (libc::SYS_ppoll, &ALLOW),
    // Threads, which parse what is long.
    (libc::SYS_clone, &THREADS),
    // Its arguments are in memory; the C library goes on with `clone`.
    (libc::SYS_clone3, &NOT_THERE),
    (libc::SYS_set_robust_list, &ALLOW),
    (libc::SYS_rseq, &ALLOW),
    (libc::SYS_futex, &ALLOW),
    (libc::SYS_sched_yield, &ALLOW),
    (libc::SYS_sched_getaffinity, &ALLOW),
    (libc::SYS_restart_syscall, &ALLOW),
    // Time and randomness.
    (libc::SYS_clock_gettime, &ALLOW),
    (libc::SYS_clock_nanosleep, &ALLOW),
    (libc::SYS_nanosleep, &ALLOW),
    (libc::SYS_gettimeofday, &ALLOW),
    (libc::SYS_getrandom, &ALLOW),
    // Memory.
    (libc::SYS_mmap, &NO_CODE),
    (libc::SYS_mprotect, &NO_CODE),
    (libc::SYS_munmap, &ALLOW),
    (libc::SYS_mremap, &ALLOW),
    (libc::SYS_madvise, &ALLOW),
    (libc::SYS_brk, &ALLOW),
    // Who it is; its end, by its own signals too.
    (libc::SYS_prlimit64, &READ_LIMIT),
    (libc::SYS_getpid, &ALLOW),
    (libc::SYS_gettid, &ALLOW),
    (libc::SYS_rt_sigaction, &ALLOW),
    (libc::SYS_rt_sigprocmask, &ALLOW),
    (libc::SYS_rt_sigreturn, &ALLOW),
    (libc::SYS_sigaltstack, &ALLOW),
    (libc::SYS_exit, &ALLOW),
    (libc::SYS_exit_group, &ALLOW),
];

/// What newer architectures have in another form.
#[cfg(target_arch = "x86_64")]
static OLD_CALLS: &[(libc::c_long, &CallRule)] = &[(libc::SYS_poll, &ALLOW), (libc::SYS_time, &ALLOW)];
#[cfg(not(target_arch = "x86_64"))]
static OLD_CALLS: &[(libc::c_long, &CallRule)] = &[];

// mprotect(address, length, protection): what is code is not written to.
static CODE_OR_DATA: CallRule = when(
    2,
    WHOLE,
    ArgumentTest::AnyBit(libc::PROT_EXEC.cast_unsigned()),
    &CODE_ALONE,
    &ALLOW,
);
static CODE_ALONE: CallRule = when(
    2,
    WHOLE,
    ArgumentTest::AnyBit(libc::PROT_WRITE.cast_unsigned()),
    &REFUSE,
    &ALLOW,
);

// membarrier(command): that no thread of this process goes on with instructions it fetched before they were compiled. Wasmtime asks for
// it on aarch64, whose caches of code do not follow writes (`pipeline_flush_mt`), and takes a failure for its own.
static BARRIER: CallRule = equals(
    0,
    libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
    &ALLOW,
    &BARRIER_TO_COME,
);
static BARRIER_TO_COME: CallRule = equals(
    0,
    libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
    &ALLOW,
    &REFUSE,
);

// newfstatat(directory, path, answer, flags): of a descriptor. A path that is not empty would lead through an empty root.
static STAT_OF_DESCRIPTOR: CallRule = equals(3, libc::AT_EMPTY_PATH, &ALLOW, &REFUSE);

/// The same for a process that compiles strangers' code.
pub(super) fn code_program() -> Vec<sock_filter> {
    super::emit::program_by(code_rule, libc::EPERM)
}

/// The same for one that is handed files of code as well, and has an empty root.
pub(super) fn script_program() -> Vec<sock_filter> {
    let rule_of = |number: u32| {
        let is = |call| number == number_of(call);
        match () {
            () if is(libc::SYS_recvmsg) || is(libc::SYS_fstat) => Some(&ALLOW),
            () if is(libc::SYS_newfstatat) => Some(&STAT_OF_DESCRIPTOR),
            () => code_rule(number),
        }
    };
    super::emit::program_by(rule_of, libc::EPERM)
}

fn code_rule(number: u32) -> Option<&'static CallRule> {
    let is = |call| number == number_of(call);
    match () {
        () if is(libc::SYS_mprotect) => Some(&CODE_OR_DATA),
        () if is(libc::SYS_membarrier) => Some(&BARRIER),
        () => super::emit::rule_in([CALLS, OLD_CALLS], number),
    }
}

pub(super) fn program() -> Vec<sock_filter> {
    super::emit::program_of_lists([CALLS, OLD_CALLS], libc::EPERM)
}
