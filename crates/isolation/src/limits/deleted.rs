//! Finds files that are open but have no name any more: they take disk that no walk over directories sees.
//!
//! Not found are files that are only mapped, or on their way between processes in a socket; the size of each is
//! bounded by the `file_size` limit.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// The bytes on disk of open files without a name in `processes`, of those that live on a disk.
///
/// Each file counts once, however many descriptors refer to it. Descriptors are looked at through `/proc/PID/fd`, which
/// never opens what they refer to; a process that does not let us look is passed over.
pub(super) fn open_bytes(processes: &[u32]) -> u64 {
    let mut seen = HashSet::new();
    let mut bytes = 0_u64;
    for pid in processes {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::open(format!("/proc/{pid}/fd"), flags, Mode::empty()) else {
            continue;
        };
        for entry in entries.flatten() {
            bytes = bytes.saturating_add(nameless_bytes(&directory, &entry.file_name(), &mut seen).unwrap_or(0));
        }
    }
    bytes
}

fn nameless_bytes(directory: &OwnedFd, fd: &std::ffi::OsStr, seen: &mut HashSet<(u64, u64)>) -> Option<u64> {
    // Following the link is meant: it leads to the open file itself, not along a path.
    let stat = rustix::fs::statat(directory, fd, AtFlags::empty()).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_nlink != 0 || !on_a_disk(directory, fd) || !seen.insert((stat.st_dev, stat.st_ino)) {
        return None;
    }
    u64::try_from(stat.st_blocks).ok()?.checked_mul(512)
}

/// Whether the file is not in memory: those of tmpfs and memfd count as memory.
fn on_a_disk(directory: &OwnedFd, fd: &std::ffi::OsStr) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(directory, fd, flags, Mode::empty()) else {
        return false;
    };
    let Ok(found) = rustix::fs::fstatfs(&file) else {
        return false;
    };
    !matches!(u64::try_from(found.f_type), Ok(TMPFS_MAGIC | HUGETLBFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_open_file_counts_once_after_its_name_is_gone_and_not_before() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = directory.path().join("hidden");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&vec![1; 3 << 20]).unwrap();
        file.sync_all().unwrap();
        let other = file.try_clone().unwrap();
        let named = open_bytes(&[std::process::id()]);
        fs::remove_file(&path).unwrap();
        // Other tests of this process may have nameless files too, but no two that are this large.
        let nameless = open_bytes(&[std::process::id()]);
        drop((file, other));
        assert!(named < 3 << 20, "{named}");
        assert!((3 << 20..6 << 20).contains(&nameless), "{nameless}");
    }
}
