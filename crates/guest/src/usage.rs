//! What the sandbox holds beyond what the host can see from outside: its own tmpfs and shared memory.

use alloc::vec::Vec;

use offleash_protocol::{SandboxUsage, TmpfsUsage};

use crate::processes::{self, GuestRole};

/// A sandbox has a handful; more would be of no use to the host.
const MAX_TMPFS: usize = 64;

/// Measures now. A subreaper has no mounts and no IPC namespace of its own, so it reports neither.
pub(crate) fn measure(role: GuestRole) -> SandboxUsage {
    let processes = u32::try_from(processes::all(role).len()).unwrap_or(u32::MAX);
    match role {
        GuestRole::Init => SandboxUsage {
            processes,
            shm_bytes: shared_memory(),
            tmpfs: every_tmpfs(),
            ..SandboxUsage::default()
        },
        GuestRole::Subreaper => SandboxUsage {
            processes,
            ..SandboxUsage::default()
        },
    }
}

/// Resident and swapped bytes of all System V segments: the last two columns of `/proc/sysvipc/shm` (proc(5)).
fn shared_memory() -> u64 {
    let table = processes::read(b"/proc/sysvipc/shm");
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    lines
        .flat_map(|line| fields(line).rev().take(2).filter_map(number))
        .fold(0, u64::saturating_add)
}

fn fields(line: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|field| !field.is_empty())
}

fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// The tmpfs among the mounts: the second and third column of `/proc/self/mounts` are path and type.
fn every_tmpfs() -> Vec<TmpfsUsage> {
    let table = processes::read(b"/proc/self/mounts");
    let paths = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut columns = fields(line).skip(1);
        let path = columns.next()?;
        (columns.next()? == b"tmpfs").then(|| unescaped(path))
    });
    paths.filter_map(tmpfs).take(MAX_TMPFS).collect()
}

/// Whether nothing more goes into one of them.
pub(crate) fn has_full_tmpfs() -> bool {
    let is_full = |tmpfs: &TmpfsUsage| {
        let (bytes, files) = (tmpfs.total > 0, tmpfs.files_total > 0);
        bytes && tmpfs.used >= tmpfs.total || files && tmpfs.files_used >= tmpfs.files_total
    };
    every_tmpfs().iter().any(is_full)
}

fn tmpfs(path: Vec<u8>) -> Option<TmpfsUsage> {
    /// `ST_RDONLY` (statfs(2)): what the supervisor put there, a few pages that many mounts show.
    const READ_ONLY: u8 = 1;
    let status = rustix::fs::statfs(&path[..])
        .ok()
        .filter(|status| status.f_flags.to_ne_bytes()[0] & READ_ONLY == 0)?;
    let block = u64::try_from(status.f_bsize).ok()?;
    Some(TmpfsUsage {
        used: status.f_blocks.saturating_sub(status.f_bfree).saturating_mul(block),
        total: status.f_blocks.saturating_mul(block),
        files_used: status.f_files.saturating_sub(status.f_ffree),
        files_total: status.f_files,
        path,
    })
}

/// Undoes the octal escapes of blank, tab, newline and backslash.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after)
            }
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_mount_paths_are_undone() {
        for (escaped, plain) in [
            (&b"/a\\040b"[..], &b"/a b"[..]),
            (b"\\134", b"\\"),
            (b"/x\\04", b"/x\\04"),
            (b"\\777", b"\\777"),
            (b"\\", b"\\"),
        ] {
            assert_eq!(unescaped(escaped), plain);
        }
    }
}
