//! As whom a thread makes files: its ids for that, and the bits of their modes.
//!
//! A server of files makes each for whoever asked, with one thread for many requests, so both belong to the thread and not to
//! the process. Deliberately not here: whom a request may speak for.

use std::io;

use rustix::thread::{CapabilitiesSecureBits, UnshareFlags};

/// What `setfsuid` answers without changing anything: an id that none is.
const NO_ID: u32 = u32::MAX;

/// Gives this thread a directory and a mask for modes of its own, and empties the mask: modes of files are as asked for.
///
/// # Errors
/// `ENOMEM`, or `EPERM` under a filter.
pub fn own_file_mask() -> io::Result<()> {
    // SAFETY: without `FILES` no descriptor changes; only directory, root and mask are no longer shared (unshare(2)).
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
    rustix::process::umask(rustix::fs::Mode::empty());
    Ok(())
}

/// Has this thread keep its capabilities whoever it makes files for (`SECBIT_NO_SETUID_FIXUP`, capabilities(7)).
///
/// # Errors
/// `EPERM` without `CAP_SETPCAP`.
pub fn keep_capabilities_for_other_owners() -> io::Result<()> {
    let held = rustix::thread::capabilities_secure_bits()?;
    if held.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP) {
        return Ok(());
    }
    rustix::thread::set_capabilities_secure_bits(held | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    Ok(())
}

/// Has this thread make files for `uid` and `gid` (setfsuid(2), setfsgid(2)).
///
/// # Errors
/// `EINVAL` where an id is not mapped, or this thread may not become it; the thread may then have one of the two.
pub fn make_files_for(uid: u32, gid: u32) -> io::Result<()> {
    if uid == NO_ID || gid == NO_ID {
        return Err(rustix::io::Errno::INVAL.into());
    }
    // The group first: the user might not be allowed to change it.
    // SAFETY: takes a number and touches no memory; it changes this thread alone (setfsgid(2)).
    unsafe { libc::setfsgid(gid) };
    // SAFETY: as above (setfsuid(2)).
    unsafe { libc::setfsuid(uid) };
    // Neither says whether it did it; asked for what is no id, both say what is so.
    // SAFETY: as above.
    let group = unsafe { libc::setfsgid(NO_ID) };
    // SAFETY: as above.
    let user = unsafe { libc::setfsuid(NO_ID) };
    if u32::try_from(group) == Ok(gid) && u32::try_from(user) == Ok(uid) {
        Ok(())
    } else {
        Err(rustix::io::Errno::INVAL.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, DirBuilder};
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    #[test]
    fn a_mask_of_its_own_is_nobody_elses() {
        let base = tempfile::TempDir::new().unwrap();
        let mode_of_new = |name: &str| {
            DirBuilder::new().mode(0o777).create(base.path().join(name)).unwrap();
            fs::metadata(base.path().join(name)).unwrap().mode() & 0o777
        };
        let before = mode_of_new("before");
        let own = std::thread::scope(|scope| {
            let made = scope.spawn(|| {
                own_file_mask().unwrap();
                mode_of_new("own")
            });
            made.join().unwrap()
        });
        assert_eq!(own, 0o777);
        assert_eq!(mode_of_new("after"), before);
    }

    #[test]
    fn files_are_made_for_others_by_one_thread_alone() {
        if !rustix::process::getuid().is_root() {
            println!("SKIP: only the superuser makes files for others");
            assert!(make_files_for(0, 0).is_err());
            return;
        }
        let base = tempfile::TempDir::new().unwrap();
        let owner_of_new = |name: &str| {
            fs::write(base.path().join(name), b"").unwrap();
            let made = fs::metadata(base.path().join(name)).unwrap();
            (made.uid(), made.gid())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                keep_capabilities_for_other_owners().unwrap();
                make_files_for(1234, 4321).unwrap();
                // The directory is the superuser's, so capabilities are still there.
                assert_eq!(owner_of_new("theirs"), (1234, 4321));
                make_files_for(5, 6).unwrap();
                assert_eq!(owner_of_new("others"), (5, 6));
                assert!(make_files_for(u32::MAX, 0).is_err());
            });
        });
        assert_eq!(owner_of_new("ours"), (0, 0));
    }
}
