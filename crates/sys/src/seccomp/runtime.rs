//! The filter of an OCI runtime in namespaces of ours: what reaches the machine, and nothing that belongs to namespaces.
//!
//! A runtime makes namespaces, mounts and filters of its own, so most calls are left to it. It has no capability outside of
//! its user namespace, so what is refused here are doors of the kernel that need none there, or had flaws that gave some.

use libc::{ENOSYS, sock_filter};

use super::HypervisorSupply;
use super::rule::{ArgumentTest, ArgumentWord, CallRefusal, CallRule, number_of};

static ALLOW: CallRule = CallRule::Allow;
static REFUSE: CallRule = CallRule::Refuse(CallRefusal {
    errno: 1,
    notified: false,
    reason: None,
});

/// What is refused, by number; `EPERM`.
static REFUSED: &[libc::c_long] = &[
    // Programs in the kernel, and its counters.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    // Keys are no part of a namespace.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Calls by another way, which no filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Faults that wait for a program, and files by number.
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // The machine's.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_vhangup,
];

/// What newer architectures do not have.
#[cfg(target_arch = "x86_64")]
static OLD_REFUSED: &[libc::c_long] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
static OLD_REFUSED: &[libc::c_long] = &[];

/// What a hypervisor is refused besides: it makes no namespace and no mount, and has to do with no other process.
static HYPERVISOR_REFUSED: &[libc::c_long] = &[
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_mknodat,
    libc::SYS_name_to_handle_at,
    libc::SYS_personality,
    libc::SYS_lookup_dcookie,
    libc::SYS_vmsplice,
    libc::SYS_memfd_secret,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_shmget,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
];

// openat(directory, path, flags): exactly for reading and writing, which is how QEMU opens the file of its memory
// (`file_ram_open`, softmmu/physmem.c), whatever it does with it; exactly that and O_CLOEXEC, which is how it opens KVM's device
// (`kvm_init`, accel/kvm/kvm-all.c); and nothing else in its house.
static SUPPLY: CallRule = CallRule::Supply;
const fn opened_for_both(flags: u8, alone: bool, otherwise: &'static CallRule) -> CallRule {
    CallRule::When {
        word: ArgumentWord::Low(flags),
        mask: !0x2_8000, // O_LARGEFILE, which some C libraries set, and O_NOFOLLOW: one or the other by architecture
        test: ArgumentTest::Equals(if alone { 0x8_0002 } else { 2 }), // O_RDWR, and O_CLOEXEC
        then: &SUPPLY,
        otherwise,
    }
}
/// By which call files are opened, and the rules of what is supplied: memory, the device, both.
type OpenRules = (libc::c_long, &'static CallRule, &'static CallRule, &'static CallRule);
static MEMORY: CallRule = opened_for_both(2, false, &ALLOW);
static DEVICE: CallRule = opened_for_both(2, true, &ALLOW);
static BOTH: CallRule = opened_for_both(2, false, &DEVICE);
/// open(path, flags), where there is one: what musl opens files with.
#[cfg(target_arch = "x86_64")]
static OLD_OPEN: Option<OpenRules> = Some((libc::SYS_open, &OLD_MEMORY, &OLD_DEVICE, &OLD_BOTH));
#[cfg(target_arch = "x86_64")]
static OLD_MEMORY: CallRule = opened_for_both(1, false, &ALLOW);
#[cfg(target_arch = "x86_64")]
static OLD_DEVICE: CallRule = opened_for_both(1, true, &ALLOW);
#[cfg(target_arch = "x86_64")]
static OLD_BOTH: CallRule = opened_for_both(1, false, &OLD_DEVICE);
#[cfg(not(target_arch = "x86_64"))]
static OLD_OPEN: Option<OpenRules> = None;
/// A file that others map as well keeps what is in it. The hypervisor drops its own copy of the page then (madvise(2)),
/// and does not where this fails.
static TAKEN_FOR_DONE: CallRule = CallRule::Refuse(CallRefusal {
    errno: 0,
    notified: false,
    reason: None,
});

pub(super) fn program() -> Vec<sock_filter> {
    refusing(&[], &[])
}

pub(super) fn hypervisor_program(supplied: HypervisorSupply) -> Vec<sock_filter> {
    let opens = [Some((libc::SYS_openat, &MEMORY, &DEVICE, &BOTH)), OLD_OPEN];
    let rule_of = |(number, memory, device, both): OpenRules| match (supplied.memory, supplied.device) {
        (false, false) => None,
        (true, false) => Some((number, memory)),
        (false, true) => Some((number, device)),
        (true, true) => Some((number, both)),
    };
    let mut rules: Vec<_> = opens.into_iter().flatten().filter_map(rule_of).collect();
    rules.extend(supplied.memory.then_some((libc::SYS_fallocate, &TAKEN_FOR_DONE)));
    refusing(HYPERVISOR_REFUSED, &rules)
}

fn refusing(more: &[libc::c_long], rules: &[(libc::c_long, &'static CallRule)]) -> Vec<sock_filter> {
    let rule_of = |number: u32| {
        if let Some((_, rule)) = rules.iter().find(|(ruled, _)| number_of(*ruled) == number) {
            return Some(*rule);
        }
        let mut refused = REFUSED.iter().chain(OLD_REFUSED).chain(more);
        Some(match refused.any(|refused| number_of(*refused) == number) {
            true => &REFUSE,
            false => &ALLOW,
        })
    };
    super::emit::program_by(rule_of, ENOSYS)
}
