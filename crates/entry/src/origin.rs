//! What a process has inherited that a child of it would inherit, too: by this one process can stand in for another.
//!
//! Deliberately not here: arguments, environment, the current directory and what is open, which can be handed over.

use core::ffi::CStr;

use crate::buffer::Buffer;
use crate::kernel::{self, HERE};
use crate::strings;

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
const FILES: [&CStr; 3] = [
    c"/proc/self/cgroup",
    c"/proc/self/attr/current",
    c"/proc/self/oom_score_adj",
];
const NAMESPACES: [&CStr; 9] = [
    c"/proc/self/ns/cgroup",
    c"/proc/self/ns/ipc",
    c"/proc/self/ns/mnt",
    c"/proc/self/ns/net",
    c"/proc/self/ns/pid",
    c"/proc/self/ns/pid_for_children",
    c"/proc/self/ns/time",
    c"/proc/self/ns/user",
    c"/proc/self/ns/uts",
];
/// All resources of getrlimit(2).
const RESOURCES: core::ops::Range<u32> = 0..16;

/// Describes this process: ids, groups, capabilities, root directory, namespaces, control groups, security
/// label, resource limits, scheduling and personality. Two processes of one boot with the same description start
/// children that differ in nothing but what they are given. `scratch` is overwritten.
///
/// Errors are those of the kernel; `ENOTSUP` for a process with a system call filter or no_new_privs, of which not all can
/// be told.
pub(crate) fn describe(text: &mut Buffer<'_>, scratch: &mut Buffer<'_>) -> Result<(), i32> {
    scratch.clear();
    kernel::read_file(c"/proc/self/status", scratch)?;
    let status = scratch.text().ok_or(libc::EFBIG)?;
    for line in status.split(|byte| *byte == b'\n') {
        let starts = |name: &&[u8]| strings::after(line, name).is_some();
        if LINES.iter().any(starts) {
            text.add_sized(line);
        }
        let value = HIDES_MORE.iter().find_map(|name| strings::after(line, name));
        if value.is_some_and(|value| value.iter().any(|byte| !matches!(byte, b'0' | b' ' | b'\t'))) {
            return Err(libc::ENOTSUP);
        }
    }
    let root = kernel::mounted(c"/")?;
    root.into_iter().for_each(|number| text.add_number(number));
    for file in &FILES {
        scratch.clear();
        match kernel::read_file(file, scratch) {
            Ok(()) => text.add_sized(scratch.text().ok_or(libc::EFBIG)?),
            Err(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP) => text.add_sized(b"-"),
            Err(error) => return Err(error),
        }
    }
    for namespace in &NAMESPACES {
        match kernel::stat(HERE, namespace) {
            Ok(found) => {
                text.add_number(found.device);
                text.add_number(found.inode);
            }
            Err(libc::ENOENT) => text.add_sized(b"-"),
            Err(error) => return Err(error),
        }
    }
    for resource in RESOURCES {
        let [soft, hard] = kernel::limits(resource)?;
        text.add_number(soft);
        text.add_number(hard);
    }
    kernel::scheduling()
        .into_iter()
        .for_each(|number| text.add_number(number));
    Ok(())
}
