//! What of `/proc` and `/dev` a sandbox does not get.
//!
//! A fresh procfs shows the sandbox's processes and, beside them, files about the whole machine. Those that tell one
//! machine from another, show the kernel's insides or steer it are covered. Most are closed to ordinary users anyway;
//! they are covered nonetheless, because a sandbox may have to run with the host's uid 0 (THREATS P1 to P3).

/// Covered by an empty file that cannot be opened.
pub(crate) const FILES: [&str; 18] = [
    "proc/config.gz",
    "proc/iomem",
    "proc/ioports",
    "proc/kallsyms",
    "proc/kcore",
    "proc/key-users",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/modules",
    "proc/sched_debug",
    "proc/slabinfo",
    "proc/sysrq-trigger",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/vmallocinfo",
    "proc/cmdline",
    "proc/interrupts",
];

/// Covered by an empty directory that cannot be entered.
pub(crate) const DIRECTORIES: [&str; 5] = ["proc/acpi", "proc/bus", "proc/irq", "proc/scsi", "proc/fs"];

/// Made read-only.
pub(crate) const READ_ONLY: &str = "proc/sys";

/// Replaced by a value of the sandbox's own, since it would tell that two sandboxes run on one machine.
pub(crate) const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// The device nodes that a sandbox has; each is the host's, none can be made.
pub(super) const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// Symbolic links in `/dev`.
pub(super) const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
