//! What a process has inherited that a child of it would inherit, too: by this one process can stand in for another.
//!
//! Deliberately not here: arguments, environment, the current directory and what is open, which can be handed over.

use std::io;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::rlimit::{self, LimitedResource};

/// The lines of `/proc/self/status` that say whose process it is and what it may do (proc_pid_status(5)).
const LINES: [&[u8]; 11] = [
    b"Umask:",
    b"Uid:",
    b"Gid:",
    b"Groups:",
    b"CapInh:",
    b"CapPrm:",
    b"CapEff:",
    b"CapBnd:",
    b"CapAmb:",
    b"Cpus_allowed:",
    b"Mems_allowed:",
];
/// Of these any value but 0 says that there may be more of which the kernel tells nobody: which filter, which Landlock
/// domain (landlock_restrict_self(2) asks for no_new_privs, or for `CAP_SYS_ADMIN`).
const HIDES_MORE: [&[u8]; 2] = [b"NoNewPrivs:", b"Seccomp:"];
/// Files whose whole contents count. A kernel without one of them has it for no process.
const FILES: [&str; 3] = [
    "/proc/self/cgroup",
    "/proc/self/attr/current",
    "/proc/self/oom_score_adj",
];
const NAMESPACES: [&str; 9] = [
    "/proc/self/ns/cgroup",
    "/proc/self/ns/ipc",
    "/proc/self/ns/mnt",
    "/proc/self/ns/net",
    "/proc/self/ns/pid",
    "/proc/self/ns/pid_for_children",
    "/proc/self/ns/time",
    "/proc/self/ns/user",
    "/proc/self/ns/uts",
];
const RESOURCES: [LimitedResource; 14] = [
    LimitedResource::AddressSpace,
    LimitedResource::Core,
    LimitedResource::CpuSeconds,
    LimitedResource::Data,
    LimitedResource::FileSize,
    LimitedResource::LockedMemory,
    LimitedResource::MessageQueues,
    LimitedResource::Nice,
    LimitedResource::OpenFiles,
    LimitedResource::Processes,
    LimitedResource::RealtimePriority,
    LimitedResource::RealtimeMicroseconds,
    LimitedResource::PendingSignals,
    LimitedResource::Stack,
];

/// Describes this process: ids, groups, capabilities, root directory, namespaces, control groups, security
/// label, resource limits, scheduling and personality. Two processes of one boot with the same description start
/// children that differ in nothing but what they are given.
///
/// # Errors
/// When `/proc` cannot be read; `Unsupported` for a process with a system call filter or no_new_privs, of which not all can
/// be told.
pub fn describe() -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(4096);
    let mut buffer = Vec::with_capacity(4096);
    read("/proc/self/status", &mut buffer)?;
    for line in buffer.split(|byte| *byte == b'\n') {
        if LINES.iter().any(|name| line.starts_with(name)) {
            add(&mut text, line);
        }
        let value = HIDES_MORE.iter().find_map(|name| line.strip_prefix(*name));
        if value.is_some_and(|value| value.trim_ascii() != b"0") {
            return Err(io::ErrorKind::Unsupported.into());
        }
    }
    let root = rustix::fs::statx(CWD, "/", AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    add_numbers(
        &mut text,
        [
            root.stx_dev_major.into(),
            root.stx_dev_minor.into(),
            root.stx_ino,
            root.stx_mnt_id,
        ],
    );
    for file in FILES {
        match read(file, &mut buffer) {
            Ok(()) => add(&mut text, &buffer),
            Err(Errno::NOENT | Errno::INVAL | Errno::OPNOTSUPP) => add(&mut text, b"-"),
            Err(error) => return Err(error.into()),
        }
    }
    for namespace in NAMESPACES {
        match rustix::fs::stat(namespace) {
            Ok(found) => add_numbers(&mut text, [found.st_dev, found.st_ino]),
            Err(Errno::NOENT) => add(&mut text, b"-"),
            Err(error) => return Err(error.into()),
        }
    }
    for resource in RESOURCES {
        let (soft, hard) = rlimit::current(resource);
        // What has no limit differs from all that has one (`RLIM_INFINITY`).
        add_numbers(&mut text, [soft, hard].map(|limit| limit.unwrap_or(u64::MAX)));
    }
    add_numbers(&mut text, scheduling());
    Ok(text)
}

/// Its policy and nice value, the priority of its input and output, and its personality.
fn scheduling() -> [u64; 4] {
    /// `IOPRIO_WHO_PROCESS` (ioprio_get(2)).
    const PROCESS: libc::c_int = 1;
    /// Asks for the personality and sets none (personality(2)).
    const ONLY_ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: it takes a number and touches no memory of ours; 0 is this process (sched_getscheduler(2)).
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: it takes numbers and touches no memory of ours; 0 is this process (ioprio_get(2)).
    let ioprio = unsafe { libc::syscall(libc::SYS_ioprio_get, PROCESS, 0) };
    // SAFETY: this value changes nothing (personality(2)).
    let personality = unsafe { libc::personality(ONLY_ASK) };
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    [policy.into(), nice.into(), ioprio, personality.into()].map(i64::cast_unsigned)
}

fn read(path: &str, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    buffer.clear();
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        buffer.reserve(4096);
        if rustix::io::read(&file, rustix::buffer::spare_capacity(buffer))? == 0 {
            return Ok(());
        }
    }
}

/// With its length, so that nothing can be taken for a part of what stands beside it.
fn add(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(&part.len().to_le_bytes());
    text.extend_from_slice(part);
}

fn add_numbers<const COUNT: usize>(text: &mut Vec<u8>, numbers: [u64; COUNT]) {
    numbers
        .into_iter()
        .for_each(|number| text.extend_from_slice(&number.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described_the_same_twice_and_otherwise_when_it_has_changed() {
        let before = match describe() {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return println!("SKIP: this process has a filter of system calls, or may gain no privileges");
            }
            described => described.unwrap(),
        };
        assert_eq!(describe().unwrap(), before);
        let (Some(soft), _) = rlimit::current(LimitedResource::Stack) else {
            return println!("SKIP: the stack has no limit");
        };
        rlimit::lower(LimitedResource::Stack, soft - 4096).unwrap();
        assert_ne!(describe().unwrap(), before);
    }
}
