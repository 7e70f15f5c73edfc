//! What the conditions mean, as a table of calls and answers.

use super::machine::{Call, run};
use crate::seccomp::{FilterOptions, emit, explain};
use libc::{
    EAFNOSUPPORT, EINVAL, ENOSYS, EPERM, EPROTONOSUPPORT, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF,
};

pub(super) const OK: i32 = 0;
pub(super) const HIGH: u64 = 1 << 32;

pub(super) const PLAIN: FilterOptions = FilterOptions {
    allow_ptrace: false,
    notify: false,
    observe_connect: false,
    deny_memfd: false,
    host_namespaces: false,
    count_forks: false,
    hands_out: false,
    kept_to_cpus: false,
    show_memory: false,
    watch_reservations: false,
    superuser: false,
    allow_set_id: false,
    offer_renames: false,
};

fn action(options: &FilterOptions, name: &str, arguments: &[u64]) -> u32 {
    let number = explain(name)
        .unwrap_or_else(|| panic!("{name} is not in the table"))
        .number;
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    run(&emit::program(options), &Call::of(number, six)).action
}

pub(super) fn check(options: &FilterOptions, cases: &[(&str, &[u64], i32)]) {
    for (name, arguments, errno) in cases {
        let wanted = match errno {
            0 => SECCOMP_RET_ALLOW,
            errno => SECCOMP_RET_ERRNO | errno.cast_unsigned(),
        };
        assert_eq!(
            action(options, name, arguments),
            wanted,
            "{name} {arguments:x?} under {options:?}"
        );
    }
}

#[test]
fn a_superuser_may_change_its_root_and_set_ids_only_where_nobody_else_runs_them() {
    let superuser = FilterOptions {
        superuser: true,
        ..PLAIN
    };
    let alone = FilterOptions {
        allow_set_id: true,
        ..superuser
    };
    for (options, name, arguments, allowed) in [
        (&PLAIN, "chroot", &[0][..], false),
        (&superuser, "chroot", &[0], true),
        (&superuser, "fchmod", &[3, 0o4755], false),
        (&alone, "fchmod", &[3, 0o4755], true),
        (&alone, "fchmodat", &[3, 0, 0o2755], true),
        (&alone, "mknodat", &[3, 0, 0o060_644], false),
        (&alone, "mount", &[0], false),
        (&alone, "unshare", &[0x1000_0000], false),
        (&alone, "setns", &[3], false),
        (&alone, "keyctl", &[0], false),
        (&alone, "bpf", &[0], false),
    ] {
        let found = action(options, name, arguments);
        assert_eq!(
            found == libc::SECCOMP_RET_ALLOW,
            allowed,
            "{name} {arguments:?}: {found:#x}"
        );
    }
}

#[test]
fn terminal_injection_is_refused_by_the_low_half_of_the_command() {
    check(
        &PLAIN,
        &[
            ("ioctl", &[0, 0x5412], EPERM),
            ("ioctl", &[0, HIGH | 0x5412], EPERM),
            ("ioctl", &[0, 0xffff_ffff_0000_5412], EPERM),
            ("ioctl", &[0, 0x541c], EPERM),
            ("ioctl", &[0, 0x541d], EPERM),
            ("ioctl", &[0, HIGH | 0x5423], EPERM),
            ("ioctl", &[0, 0x5401], OK),
            ("ioctl", &[0, 0x5413], OK),
            ("ioctl", &[0, 0x5421], OK),
        ],
    );
}

#[test]
fn sockets_are_unix_tcp_udp_or_netlink_route() {
    let cloexec = 0o2_000_000;
    check(
        &PLAIN,
        &[
            ("socket", &[1, 1, 0], OK),
            ("socket", &[1, 5 | cloexec, 0], OK),
            ("socket", &[2, 1, 0], OK),
            ("socket", &[2, 1 | cloexec, 6], OK),
            ("socket", &[10, 2 | cloexec | 0o4000, 17], OK),
            ("socket", &[10, 2, 0], OK),
            ("socket", &[16, 3, 0], OK),
            ("socket", &[16, 3 | cloexec, 0], OK),
            ("socket", &[16, 3, 4], EPROTONOSUPPORT),
            ("socket", &[16, 3, 15], EPROTONOSUPPORT),
            ("socket", &[2, 3, 0], EPERM),
            ("socket", &[2, 3 | cloexec, 1], EPERM),
            ("socket", &[10, 3, 58], EPERM),
            ("socket", &[2, 10, 768], EPERM),
            ("socket", &[2, HIGH | 3, 0], EPERM),
            ("socket", &[2, 2, 1], EPROTONOSUPPORT),
            ("socket", &[10, 2, 58], EPROTONOSUPPORT),
            ("socket", &[2, 1, 132], EPROTONOSUPPORT),
            ("socket", &[2, 1, 262], EPROTONOSUPPORT),
            ("socket", &[38, 5, 0], EAFNOSUPPORT),
            ("socket", &[40, 1, 0], EAFNOSUPPORT),
            ("socket", &[HIGH | 40, 1, 0], EAFNOSUPPORT),
            ("socket", &[17, 3, 768], EAFNOSUPPORT),
            ("socket", &[44, 3, 0], EAFNOSUPPORT),
            ("socket", &[31, 3, 0], EAFNOSUPPORT),
            ("socketpair", &[1, 1, 0], OK),
            ("socketpair", &[30, 1, 0], EAFNOSUPPORT),
        ],
    );
    for family in (0..64).filter(|family| ![1, 2, 10, 16].contains(family)) {
        check(&PLAIN, &[("socket", &[family, 1, 0], EAFNOSUPPORT)]);
    }
}

#[test]
fn without_a_network_no_socket_opens_but_pairs_do() {
    let options = FilterOptions {
        host_namespaces: true,
        ..PLAIN
    };
    let cloexec = 0o2_000_000;
    check(
        &options,
        &[
            ("socket", &[1, 1, 0], EPERM),
            ("socket", &[2, 1, 0], EPERM),
            ("socket", &[40, 1, 0], EPERM),
            ("socketpair", &[1, 1, 0], OK),
            ("socketpair", &[1, 5 | cloexec, 0], OK),
            ("socketpair", &[1, 2, 0], EPERM),
            ("socketpair", &[1, HIGH | 2 | cloexec, 0], EPERM),
            ("socketpair", &[1, 3, 0], EPERM),
            ("socketpair", &[30, 1, 0], EAFNOSUPPORT),
        ],
    );
}

#[test]
fn a_sandbox_that_is_kept_to_processors_chooses_none() {
    let calls: &[(&str, &[u64], i32)] = &[
        ("sched_setaffinity", &[0, 128, 0], EPERM),
        ("sched_getaffinity", &[0, 128, 0], OK),
    ];
    for host_namespaces in [false, true] {
        let options = FilterOptions {
            kept_to_cpus: true,
            host_namespaces,
            ..PLAIN
        };
        check(&options, calls);
    }
}

#[test]
fn among_the_host_s_processes_a_program_schedules_only_itself() {
    let options = FilterOptions {
        host_namespaces: true,
        ..PLAIN
    };
    check(
        &options,
        &[
            ("setpriority", &[0, 0, 5], OK),
            ("setpriority", &[0, HIGH, 5], OK),
            ("setpriority", &[0, 4242, 5], EPERM),
            ("setpriority", &[1, 0, 5], EPERM),
            ("setpriority", &[2, 0, 5], EPERM),
            ("sched_setaffinity", &[0, 128, 0], OK),
            ("sched_setaffinity", &[4242, 128, 0], EPERM),
            ("sched_setscheduler", &[0, 5, 0], OK),
            ("sched_setscheduler", &[0, 1, 0], EPERM),
            ("sched_setscheduler", &[4242, 5, 0], EPERM),
        ],
    );
}

#[test]
fn modes_and_times_are_left_to_the_supervisor_where_landlock_is_the_first_wall() {
    let alone = FilterOptions {
        host_namespaces: true,
        ..PLAIN
    };
    let supervised = FilterOptions { notify: true, ..alone };
    let calls: [(&str, &[u64]); 8] = [
        ("chmod", &[0, 0o777]),
        ("fchmod", &[3, 0o777]),
        ("fchmodat", &[0, 0, 0o777]),
        ("chown", &[0, 0, 0]),
        ("lchown", &[0, 0, 0]),
        ("fchown", &[3, 0, 0]),
        ("fchownat", &[0, 0, 0, 0, 0]),
        ("utimensat", &[0, 0, 0, 0]),
    ];
    for (name, arguments) in calls.into_iter().filter(|(name, _)| explain(name).is_some()) {
        assert_eq!(action(&supervised, name, arguments), SECCOMP_RET_USER_NOTIF, "{name}");
        check(&alone, &[(name, arguments, EPERM)]);
    }
    for name in [
        "setxattr",
        "lsetxattr",
        "fsetxattr",
        "removexattr",
        "lremovexattr",
        "fremovexattr",
    ] {
        check(&alone, &[(name, &[], libc::EOPNOTSUPP)]);
    }
}

#[test]
fn without_an_ipc_namespace_shared_memory_of_the_host_does_not_exist() {
    let options = FilterOptions {
        host_namespaces: true,
        ..PLAIN
    };
    for name in ["shmget", "shmat", "shmdt", "shmctl", "semget", "msgget", "mq_open"] {
        check(&options, &[(name, &[], ENOSYS)]);
    }
}

#[test]
fn namespaces_cannot_be_made_or_entered() {
    for bit in [17, 25, 26, 27, 28, 29, 30] {
        check(
            &PLAIN,
            &[("clone", &[1 << bit | 17], EPERM), ("clone", &[HIGH | 1 << bit], EPERM)],
        );
    }
    check(
        &PLAIN,
        &[
            ("clone", &[17], OK),
            ("clone", &[0x003d_0f00], OK),
            ("clone", &[0x0120_0011], OK),
            ("clone", &[0x4111], OK),
            ("clone3", &[], ENOSYS),
            ("unshare", &[0], EPERM),
            ("setns", &[0, 0], EPERM),
        ],
    );
}

#[test]
fn no_file_becomes_setuid_or_setgid_and_no_device_is_made() {
    let (create, temporary) = (0o101, 0o20_200_002);
    check(
        &PLAIN,
        &[
            ("fchmod", &[3, 0o4755], EPERM),
            ("fchmod", &[3, 0o2755], EPERM),
            ("fchmod", &[3, HIGH | 0o6755], EPERM),
            ("fchmod", &[3, 0o1777], OK),
            ("fchmodat", &[3, 0, 0o4755], EPERM),
            ("fchmodat", &[3, 0, 0o755], OK),
            ("fchmodat2", &[3, 0, 0o755, 0], ENOSYS),
            ("openat", &[3, 0, create, 0o4755], EPERM),
            ("openat", &[3, 0, temporary, 0o2755], EPERM),
            ("openat", &[3, 0, HIGH | create, HIGH | 0o4755], EPERM),
            ("openat", &[3, 0, create, 0o644], OK),
            ("openat", &[3, 0, 0, 0o4755], OK),
            ("openat2", &[3, 0, 0, 24], ENOSYS),
            ("mknodat", &[3, 0, 0o020_644, 0x103], EPERM),
            ("mknodat", &[3, 0, 0o060_644, 0x800], EPERM),
            ("mknodat", &[3, 0, 0x1_0000 | 0o060_644, 0x800], EPERM),
            ("mknodat", &[3, 0, 0o104_755, 0], EPERM),
            ("mknodat", &[3, 0, 0o010_644, 0], OK),
            ("mknodat", &[3, 0, 0o140_755, 0], OK),
            ("mknodat", &[3, 0, 0o644, 0], OK),
            ("mkdirat", &[3, 0, 0o2755], OK),
        ],
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_older_calls_have_the_same_conditions() {
    check(
        &PLAIN,
        &[
            ("chmod", &[0, 0o4755], EPERM),
            ("chmod", &[0, 0o755], OK),
            ("creat", &[0, 0o4755], EPERM),
            ("creat", &[0, 0o644], OK),
            ("open", &[0, 0o101, 0o4755], EPERM),
            ("open", &[0, 0o101, 0o644], OK),
            ("open", &[0, 0, 0o4755], OK),
            ("mknod", &[0, 0o020_644], EPERM),
            ("mknod", &[0, 0o060_644], EPERM),
            ("mknod", &[0, 0o104_755], EPERM),
            ("mknod", &[0, 0o010_644], OK),
        ],
    );
}

#[test]
fn prctl_knows_its_options() {
    check(
        &PLAIN,
        &[
            ("prctl", &[35], EPERM),
            ("prctl", &[HIGH | 35], EPERM),
            ("prctl", &[62], EPERM),
            ("prctl", &[79], EINVAL),
            ("prctl", &[0xffff_ffff], EINVAL),
            ("prctl", &[15], OK),
            ("prctl", &[22], OK),
            ("prctl", &[38], OK),
            ("prctl", &[78], OK),
            ("prctl", &[0x5356_4d41], OK),
            ("prctl", &[0x5961_6d61], OK),
        ],
    );
}

#[test]
fn real_time_scheduling_is_refused() {
    let reset = 0x4000_0000;
    for (policy, errno) in [
        (0, OK),
        (3, OK),
        (5, OK),
        (1, EPERM),
        (2, EPERM),
        (4, EPERM),
        (6, EPERM),
        (7, EPERM),
    ] {
        let high: [u64; 2] = [0, HIGH | policy];
        check(
            &PLAIN,
            &[
                ("sched_setscheduler", &[0, policy], errno),
                ("sched_setscheduler", &[0, reset | policy], errno),
            ],
        );
        check(&PLAIN, &[("sched_setscheduler", &high, errno)]);
    }
    check(&PLAIN, &[("sched_setattr", &[0, 0, 0], EPERM)]);
}

#[test]
fn debuggers_get_their_calls_only_when_allowed() {
    let calls = ["ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"];
    let debugger = FilterOptions {
        allow_ptrace: true,
        ..PLAIN
    };
    for call in calls {
        check(&PLAIN, &[(call, &[], EPERM)]);
        check(&debugger, &[(call, &[], OK)]);
    }
    let personality = |fixed| -> [(&str, &[u64], i32); 5] {
        [
            ("personality", &[0], OK),
            ("personality", &[0xffff_ffff], OK),
            ("personality", &[HIGH | 8], EPERM),
            ("personality", &[0x0400_0000], EPERM),
            ("personality", &[0x0004_0000], fixed),
        ]
    };
    check(&PLAIN, &personality(EPERM));
    check(&debugger, &personality(OK));
}

#[test]
fn memfd_is_hidden_on_request() {
    check(&PLAIN, &[("memfd_create", &[], OK)]);
    check(
        &FilterOptions {
            deny_memfd: true,
            ..PLAIN
        },
        &[("memfd_create", &[], ENOSYS)],
    );
}

#[test]
fn ways_around_the_filter_are_closed() {
    check(
        &PLAIN,
        &[
            ("io_uring_setup", &[], ENOSYS),
            ("io_uring_enter", &[], ENOSYS),
            ("io_uring_register", &[], ENOSYS),
            ("seccomp", &[1, 8], ENOSYS),
            ("mount", &[], EPERM),
            ("fsopen", &[], EPERM),
            ("open_tree", &[], EPERM),
            ("move_mount", &[], EPERM),
            ("mount_setattr", &[], EPERM),
            ("bpf", &[], EPERM),
            ("userfaultfd", &[], EPERM),
            ("keyctl", &[], EPERM),
            ("open_by_handle_at", &[], EPERM),
            ("memfd_secret", &[], ENOSYS),
            ("landlock_create_ruleset", &[], ENOSYS),
        ],
    );
}

#[test]
fn only_what_no_ordinary_program_does_is_told() {
    let options = FilterOptions { notify: true, ..PLAIN };
    let told: [(&str, &[u64]); 17] = [
        ("mount", &[]),
        ("unshare", &[0]),
        ("setns", &[]),
        ("clone", &[1 << 28]),
        ("ptrace", &[]),
        ("bpf", &[]),
        ("keyctl", &[]),
        ("perf_event_open", &[]),
        ("io_uring_setup", &[]),
        ("reboot", &[]),
        ("init_module", &[]),
        ("kexec_load", &[]),
        ("socket", &[40, 1, 0]),
        ("open_by_handle_at", &[]),
        ("mknodat", &[3, 0, 0o060_644]),
        ("fchmod", &[3, 0o4755]),
        ("ioctl", &[0, HIGH | 0x5412]),
    ];
    for (name, arguments) in told {
        assert_eq!(
            action(&options, name, arguments),
            SECCOMP_RET_USER_NOTIF,
            "{name} {arguments:x?}"
        );
    }
    check(
        &options,
        &[
            ("clone3", &[], ENOSYS),
            ("openat2", &[], ENOSYS),
            ("get_mempolicy", &[], ENOSYS),
            ("socket", &[2, 1, 262], EPROTONOSUPPORT),
            ("prctl", &[1000], EINVAL),
            ("sync", &[], EPERM),
            ("read", &[], OK),
            ("connect", &[], OK),
        ],
    );
    let observing = FilterOptions {
        observe_connect: true,
        ..PLAIN
    };
    assert_eq!(action(&observing, "connect", &[]), SECCOMP_RET_USER_NOTIF);
    check(&observing, &[("mount", &[], EPERM)]);
}
