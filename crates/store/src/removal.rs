//! Removes a tree that a sandbox made, whatever its modes, names and depth.
//!
//! A directory nested deeper than [`NESTING`] is moved up to the root of the tree before it is emptied, so that
//! time is proportional to the number of entries and the number of open descriptors is bounded at any depth.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::failure::{FailedCall, FileError};
use crate::node::{NodeKind, kind_of};
use crate::tree::{chmod, names_in, stat_at};

/// How many levels are walked with one descriptor each.
const NESTING: usize = 16;

/// Removes `name` in `parent` with everything beneath; nothing happens if there is no such name.
///
/// Symbolic links are removed, never followed. Directories that we own and that forbid us to enter are opened up first.
///
/// # Errors
/// The first entry that cannot be removed, for instance because another user owns its directory; the rest may be gone.
pub(crate) fn remove_tree(parent: &OwnedFd, name: &OsStr) -> Result<(), FileError> {
    let Some(stat) = stat_at(parent, name).tried("examining", name)? else {
        return Ok(());
    };
    if kind_of(&stat) != NodeKind::Directory {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty()).tried("removing", name);
    }
    let top = open_unlocked(parent, name)?;
    TreeRemoval { top: &top, moved: 0 }.empty(&top)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).tried("removing", name)
}

/// Removes the directory `path` with everything beneath; nothing happens if there is none. No symbolic link is followed
/// below its parent.
///
/// # Errors
/// As `remove_tree`; the parent cannot be opened.
pub fn remove_directory(path: &Path) -> Result<(), FileError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL).tried("removing", path);
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).tried("opening", parent)?;
    remove_tree(&parent, name)
}

struct TreeRemoval<'top> {
    top: &'top OwnedFd,
    moved: u64,
}

impl TreeRemoval<'_> {
    /// Emptying once leaves what was moved up meanwhile, so it is repeated until nothing is left.
    fn empty(&mut self, top: &OwnedFd) -> Result<(), FileError> {
        loop {
            let names = reread(top)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                self.remove(top, name.as_os_str(), 1)?;
            }
        }
    }

    fn remove(&mut self, parent: &OwnedFd, name: &OsStr, level: usize) -> Result<(), FileError> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(FileError::new("removing", name, error)),
        }
        let directory = open_unlocked(parent, name)?;
        if level >= NESTING {
            return self.move_up(parent, name);
        }
        for child in names_in(&directory).tried("listing", name)? {
            self.remove(&directory, child.as_os_str(), level + 1)?;
        }
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).tried("removing", name)
    }

    fn move_up(&mut self, parent: &OwnedFd, name: &OsStr) -> Result<(), FileError> {
        loop {
            self.moved += 1;
            let above = format!("moved-{}", self.moved);
            match rustix::fs::renameat_with(parent, name, self.top, &*above, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                other => return other.tried("moving", name),
            }
        }
    }
}

/// Opens a directory of ours with full permissions for us.
fn open_unlocked(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, FileError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(parent, name, OFlags::PATH | flags, Mode::empty()).tried("opening", name)?;
    let mode = rustix::fs::fstat(&place).tried("examining", name)?.st_mode & 0o7777;
    if mode & 0o700 != 0o700 {
        // Fails for a directory that another user owns; then opening it says so better.
        let _ = chmod(&place, mode | 0o700);
    }
    rustix::fs::openat(parent, name, OFlags::RDONLY | flags, Mode::empty()).tried("opening", name)
}

/// Lists a directory from its start, although its descriptor may have been read to the end.
fn reread(directory: &OwnedFd) -> Result<Vec<std::path::PathBuf>, FileError> {
    let again = rustix::fs::openat(
        directory,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .tried("opening", Path::new("."))?;
    names_in(&again).tried("listing", Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::testing::{chmod, is_root, name, write};

    fn remove(root: &Path) {
        let parent = rustix::fs::open(root.parent().unwrap(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        remove_tree(&parent, root.file_name().unwrap()).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn what_a_sandbox_leaves_can_be_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        for evil in [&b"new\nline"[..], b"\xff", b"moved-1", b"moved-2", &[b'x'; 255]] {
            write(root.join(name(evil)).join("f"), "x");
        }
        write(root.join("a/b/c"), "x");
        std::os::unix::fs::symlink("/", root.join("a/link")).unwrap();
        for closed in ["a/b/c", "a/b", "a", "moved-1"] {
            chmod(root.join(closed), 0);
        }
        if is_root() {
            std::os::unix::fs::chown(root.join("moved-2"), Some(70_000), Some(70_000)).unwrap();
        }
        remove(&root);
    }

    #[test]
    fn f8_depth_costs_neither_descriptors_nor_stack() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        std::fs::create_dir(&root).unwrap();
        crate::change::make_deep(&root, 5000);
        remove(&root);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        write(scratch.path().join("kept/f"), "x");
        std::os::unix::fs::symlink(scratch.path().join("kept"), scratch.path().join("root")).unwrap();
        remove(&scratch.path().join("root"));
        assert!(scratch.path().join("kept/f").exists());
        remove_tree(
            &rustix::fs::open(scratch.path(), OFlags::PATH, Mode::empty()).unwrap(),
            OsStr::new("none"),
        )
        .unwrap();
    }
}
