//! The conditions that keep a program from others: their disk, their files' openers, their limits and priorities.

use super::all_options;
use super::arguments::{HIGH, OK, PLAIN, check};
use super::machine::{Call, run};
use crate::seccomp::FilterOptions;
use crate::seccomp::{emit, explain};
use libc::{EINVAL, EOPNOTSUPP, EPERM, SECCOMP_RET_ERRNO};

#[test]
fn no_space_is_reserved_in_files() {
    check(
        &PLAIN,
        &[
            ("fallocate", &[3, 0, 0, 1 << 40], EOPNOTSUPP),
            ("fallocate", &[3, 3, 0, 4096], EOPNOTSUPP),
            ("ioctl", &[3, 0x4030_5828], EOPNOTSUPP),
            ("ioctl", &[3, HIGH | 0x4030_582a], EOPNOTSUPP),
            ("ioctl", &[3, 0x4030_5839], EOPNOTSUPP),
            ("ioctl", &[3, 0x4004_9409], OK), // FICLONE
            ("ftruncate", &[3, 1 << 40], OK),
        ],
    );
}

#[test]
fn fcntl_makes_no_leases_and_knows_its_commands() {
    check(
        &PLAIN,
        &[
            ("fcntl", &[3, 1024, 1], EPERM),
            ("fcntl", &[3, HIGH | 1024, 1], EPERM),
            ("fcntl", &[3, 1026, 1], EPERM),
            ("fcntl", &[3, 0xffff_ffff_0000_0402, 1], EPERM),
            ("fcntl", &[3, 1039], EINVAL),
            ("fcntl", &[3, 1040, 1], EINVAL),
            ("fcntl", &[3, 0xffff_ffff], EINVAL),
            ("fcntl", &[3, 1025], OK),
            ("fcntl", &[3, 1030, 0], OK),
            ("fcntl", &[3, 1033, 0xf], OK),
            ("fcntl", &[3, 1038], OK),
        ],
    );
    for command in 0..1024 {
        check(&PLAIN, &[("fcntl", &[3, command], OK)]);
    }
}

#[test]
fn limits_are_set_for_oneself_and_read_for_everybody() {
    check(
        &PLAIN,
        &[
            ("prlimit64", &[0, 7, 0x7fff_0000_1000, 0], OK),
            ("prlimit64", &[HIGH, 7, 0x7fff_0000_1000, 0], OK),
            ("prlimit64", &[1, 7, 0, 0x7fff_0000_1000], OK),
            ("prlimit64", &[1, 7, 0x7fff_0000_1000, 0], EPERM),
            ("prlimit64", &[HIGH | 1, 7, 0x1000, 0], EPERM),
            ("prlimit64", &[1, 7, HIGH, 0], EPERM),
            ("prlimit64", &[4242, 7, 0x7fff_0000_0000, 0], EPERM),
            ("prlimit64", &[0xffff_ffff, 7, 0x1000, 0], EPERM),
            ("prlimit64", &[0, 4, 0, 0x7fff_0000_1000], OK),
            ("prlimit64", &[1, 4, 0, 0x7fff_0000_1000], OK),
            ("prlimit64", &[1, 4, 0x1000, 0], EPERM),
            ("prlimit64", &[0, 3, 0x1000, 0], OK),
            ("prlimit64", &[0, 5, 0x1000, 0], OK),
            ("prlimit64", &[0, 2, 0x1000, 0], OK),
        ],
    );
}

#[test]
fn what_bounds_memory_is_not_lifted_from_inside() {
    let watched = FilterOptions {
        watch_reservations: true,
        ..PLAIN
    };
    check(
        &watched,
        &[
            ("prlimit64", &[0, 2, 0x1000, 0], EPERM),
            ("prlimit64", &[0, 2, HIGH, 0], EPERM),
            ("prlimit64", &[0, HIGH | 2, 0x1000, 0x2000], EPERM),
            ("prlimit64", &[1, 2, 0x1000, 0], EPERM),
            ("prlimit64", &[0, 2, 0, 0x1000], OK),
            ("prlimit64", &[0, 7, 0x1000, 0], OK),
            ("setrlimit", &[2, 0x1000], EPERM),
            // Not said to be reserved, or not to be written.
            ("mmap", &[0, 1 << 44, 3, 0x22], OK),
            ("mmap", &[0, 1 << 44, 0, 0x4022], OK),
            ("mmap", &[0, 1 << 44, 1, 0x4022], OK),
        ],
    );
}

#[test]
fn setting_the_limit_of_core_dumps_does_nothing_and_says_nothing() {
    let number = explain("prlimit64").expect("it is in the table").number;
    for options in all_options() {
        let program = emit::program(&options);
        for arguments in [
            [0, 4, 0x7fff_0000_1000, 0],
            [0, 4, 0x7fff_0000_1000, 0x7fff_0000_2000],
            [HIGH, HIGH | 4, HIGH, 0],
        ] {
            let [pid, resource, new, old] = arguments;
            let answer = run(&program, &Call::of(number, [pid, resource, new, old, 0, 0]));
            assert_eq!(answer.action, SECCOMP_RET_ERRNO, "{arguments:x?} under {options:?}");
        }
    }
}

#[test]
fn the_first_process_is_scheduled_by_nobody_else() {
    check(
        &PLAIN,
        &[
            ("sched_setaffinity", &[1, 8, 0], EPERM),
            ("sched_setaffinity", &[HIGH | 1, 8, 0], EPERM),
            ("sched_setaffinity", &[0, 8, 0], OK),
            ("sched_setaffinity", &[4242, 8, 0], OK),
            ("sched_setscheduler", &[1, 0, 0], EPERM),
            ("sched_setscheduler", &[HIGH | 1, 5, 0], EPERM),
            ("sched_setscheduler", &[4242, 5, 0], OK),
            ("sched_setparam", &[1, 0], EPERM),
            ("sched_setattr", &[1, 0, 0], EPERM),
            ("setpriority", &[0, 1, 19], EPERM),
            ("setpriority", &[1, 1, 19], EPERM),
            ("setpriority", &[HIGH, HIGH | 1, 19], EPERM),
            ("setpriority", &[2, 0, 19], EPERM),
            ("setpriority", &[2, 1000, 19], EPERM),
            ("setpriority", &[0, 0, 19], OK),
            ("setpriority", &[0, 4242, 19], OK),
            ("setpriority", &[1, 0, 19], OK),
        ],
    );
}
