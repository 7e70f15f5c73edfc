//! The table on each processor, against the kernel's own numbers: those of aarch64 are judged on x86-64 as well.

use std::collections::BTreeMap;

use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, sock_filter};

use super::all_options;
use super::machine::{Call, run};
use crate::seccomp::emit;
use crate::seccomp::rule::{CallRule, TableEntry};
use crate::seccomp::{FilterOptions, explain, known_names, table};

/// `AUDIT_ARCH_AARCH64` and `AUDIT_ARCH_ARM`, which is what a 32-bit program is on the same processor.
const AARCH64: u32 = 0xc000_00b7;
const ARM: u32 = 0x4000_0028;

/// The kernel's calls on a processor, by number.
fn calls(listing: &'static str) -> BTreeMap<usize, &'static str> {
    let lines = listing.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(' ').expect("a number and a name"));
    pairs
        .map(|(number, name)| (number.parse().expect("a number"), name))
        .collect()
}

fn of_aarch64() -> BTreeMap<usize, &'static str> {
    calls(include_str!("aarch64.calls"))
}

fn of_x86_64() -> BTreeMap<usize, &'static str> {
    calls(include_str!("x86_64.calls"))
}

/// The lines by their numbers on aarch64, from the table of the processor that this test is built for.
fn lines_on_aarch64() -> Vec<Option<&'static TableEntry>> {
    let calls = of_aarch64();
    let line_of = |number| {
        let name = calls.get(&number)?;
        table::entries().find(|entry| entry.name == *name)
    };
    (0..table::END).map(line_of).collect()
}

/// The program for aarch64.
fn program_on_aarch64(lines: &[Option<&'static TableEntry>], options: &FilterOptions) -> Vec<sock_filter> {
    emit::program_on(AARCH64, |number| lines.get(number).copied().flatten(), options)
}

fn call_on_aarch64(number: u32) -> Call {
    Call {
        architecture: AARCH64,
        ..Call::of(number, [0; 6])
    }
}

#[test]
fn every_line_has_the_number_that_the_kernel_gives_it() {
    let ours = match cfg!(target_arch = "x86_64") {
        true => of_x86_64(),
        false => of_aarch64(),
    };
    // What the kernel's headers name no more, and no kernel has had for years.
    let removed = ["_sysctl", "epoll_ctl_old", "epoll_wait_old"];
    for name in known_names().filter(|name| !removed.contains(name)) {
        let number = explain(name).expect("a known name").number as usize;
        let named = ours.get(&number).copied();
        assert_eq!(named, Some(name), "number {number}");
    }
}

/// So each call of aarch64 has the line, and the reason, that the same call has on x86-64, where more is tested.
#[test]
fn no_call_is_of_aarch64_alone() {
    let x86_64: Vec<_> = of_x86_64().into_values().collect();
    for (number, name) in of_aarch64() {
        assert!(x86_64.contains(&name), "{number} {name}");
    }
}

/// What the kernel has and the table does not name: `ENOSYS` on both processors.
#[test]
fn the_calls_without_a_line_are_known() {
    let unnamed = |calls: BTreeMap<usize, &'static str>| -> Vec<_> {
        let unnamed = calls.into_values().filter(|name| explain(name).is_none());
        unnamed.collect()
    };
    assert_eq!(unnamed(of_aarch64()), ["listns", "rseq_slice_yield"]);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(
            unnamed(of_x86_64()),
            ["uretprobe", "uprobe", "listns", "rseq_slice_yield"]
        );
    }
}

#[test]
fn on_aarch64_every_number_gets_what_that_call_gets_by_its_name() {
    let lines = lines_on_aarch64();
    for options in all_options() {
        let program = program_on_aarch64(&lines, &options);
        for number in 0..640 {
            let allowed = run(&program, &call_on_aarch64(number)).action == SECCOMP_RET_ALLOW;
            let line = lines.get(number as usize).copied().flatten();
            let expected = line.is_some_and(|line| match line.rule(&options).decide(&[0; 6]) {
                CallRule::Allow => true,
                CallRule::Offer => !options.notify,
                _ => false,
            });
            assert_eq!(allowed, expected, "number {number} under {options:?}");
        }
    }
}

/// By numbers written here, so that neither a list nor a constant is believed.
#[test]
fn on_aarch64_no_option_opens_a_way_past_the_filter() {
    const WAYS: [(u32, &str); 30] = [
        (40, "mount"),
        (39, "umount2"),
        (41, "pivot_root"),
        (89, "acct"),
        (97, "unshare"),
        (104, "kexec_load"),
        (105, "init_module"),
        (112, "clock_settime"),
        (116, "syslog"),
        (142, "reboot"),
        (217, "add_key"),
        (218, "request_key"),
        (219, "keyctl"),
        (224, "swapon"),
        (241, "perf_event_open"),
        (262, "fanotify_init"),
        (265, "open_by_handle_at"),
        (273, "finit_module"),
        (280, "bpf"),
        (282, "userfaultfd"),
        (294, "kexec_file_load"),
        (425, "io_uring_setup"),
        (426, "io_uring_enter"),
        (427, "io_uring_register"),
        (428, "open_tree"),
        (430, "fsopen"),
        (435, "clone3"),
        (437, "openat2"),
        (442, "mount_setattr"),
        (467, "open_tree_attr"),
    ];
    let (calls, lines) = (of_aarch64(), lines_on_aarch64());
    for (number, name) in WAYS {
        assert_eq!(calls[&(number as usize)], name);
    }
    for options in all_options() {
        let program = program_on_aarch64(&lines, &options);
        for (number, name) in WAYS {
            let mut call = call_on_aarch64(number);
            assert_ne!(
                run(&program, &call).action,
                SECCOMP_RET_ALLOW,
                "{name} under {options:?}"
            );
            // The same call of a 32-bit program, and of one for x86-64.
            for architecture in [ARM, 0xc000_003e] {
                call.architecture = architecture;
                assert_eq!(run(&program, &call).action, SECCOMP_RET_KILL_PROCESS, "{name}");
            }
        }
    }
}

/// Numbers that the kernel keeps for one architecture (244 to 259), and those of 32-bit Arm alone (`cacheflush`, `set_tls`).
#[test]
fn on_aarch64_numbers_of_one_architecture_do_not_exist() {
    let program = program_on_aarch64(&lines_on_aarch64(), &FilterOptions::default());
    let enosys = SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    for number in (244..260).chain(0xf_0000..0xf_0010) {
        let answer = run(&program, &call_on_aarch64(number)).action;
        assert_eq!(answer, enosys, "number {number}");
    }
}
