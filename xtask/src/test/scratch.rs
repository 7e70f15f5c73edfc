//! Where tests write: memory, where it can be had.
//!
//! Tests make and remove some hundred thousand files. ext4 without a journal looks at each inode that was freed lately before it gives
//! one out, and half of what a server's tests took of processors was that.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use offleash_sys::mount::{self, MountRestrictions};
use offleash_sys::namespaces;

/// Gives this thread, and what it starts, an empty file system of memory at each of `directories`. Nobody else sees them, and they are
/// gone with the last who does.
///
/// # Errors
/// `EPERM` for who is not root; nothing is mounted then.
pub(super) fn keep_in_memory(directories: &[&Path]) -> io::Result<()> {
    namespaces::unshare_mounts()?;
    for directory in directories {
        let options: [(&std::ffi::CStr, &[u8]); 1] = [(c"mode", b"755")];
        let memory = mount::new_filesystem(c"tmpfs", &options, MountRestrictions::default())?;
        mount::attach(memory.as_fd(), mount::open_place(directory)?.as_fd())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asked_sees_what_is_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("before"), "").unwrap();
        let path = directory.path();
        let seen = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                keep_in_memory(&[path])?;
                std::fs::write(path.join("inside"), "")?;
                Ok::<_, io::Error>(path.join("before").exists())
            });
            asking.join().unwrap()
        });
        match seen {
            Ok(seen) => assert!(!seen, "what is on the disk is covered"),
            Err(error) if error.raw_os_error() == Some(1) => println!("SKIP: only root mounts: {error}"),
            Err(error) => panic!("{error}"),
        }
        assert!(path.join("before").exists());
        assert!(!path.join("inside").exists());
    }
}
