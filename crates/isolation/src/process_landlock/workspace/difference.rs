//! Turns a copy that code has worked on into a layer of changes.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::{CopiedNode, CopyManifest, OpenedDirectory, names, open_ours, open_root, stat_at};

/// Removes from `upper` what was not touched since it was copied, and marks what is gone.
///
/// What remains is what an overlay would have left, except that a file may be there that is equal to the host's, which
/// is no change to those who compare. Nothing may run in `upper` any more.
///
/// # Errors
/// When something cannot be read, removed or marked. What remains then still describes every change but removals.
pub(crate) fn reduce(upper: &Path, manifest: &CopyManifest) -> io::Result<()> {
    let root = open_root_of_ours(upper)?;
    let mut levels = vec![DiffLevel::enter(PathBuf::new(), root, manifest)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.left.pop() {
            let deeper = level.entry(&name, manifest)?;
            levels.extend(deeper);
            continue;
        }
        let Some(done) = levels.pop() else { break };
        let path = done.path.clone();
        let is_empty = done.leave()?;
        if let (true, Some(parent)) = (is_empty, levels.last()) {
            parent.remove_if_unchanged(path.file_name().unwrap_or_default())?;
        }
    }
    Ok(())
}

fn open_root_of_ours(upper: &Path) -> io::Result<OpenedDirectory> {
    let parent = open_root(upper.parent().unwrap_or(Path::new("/")))?;
    Ok(open_ours(parent.as_fd(), upper.file_name().unwrap_or_default())?)
}

/// A directory that was copied and is still one.
///
/// New ones are not entered, since all in them is new; so there are at most as many levels as were copied, however deep
/// the code made its own.
struct DiffLevel<'a> {
    path: PathBuf,
    directory: OpenedDirectory,
    copied: &'a HashMap<OsString, CopiedNode>,
    /// What is there and was not looked at yet.
    left: Vec<OsString>,
    /// What was copied and is not there any more.
    gone: Vec<&'a OsStr>,
}

impl<'a> DiffLevel<'a> {
    fn enter(path: PathBuf, directory: OpenedDirectory, manifest: &'a CopyManifest) -> io::Result<Self> {
        let left = names(directory.as_fd())?;
        let copied = manifest.directories.get(&path).ok_or(io::ErrorKind::InvalidInput)?;
        let here: HashSet<&OsStr> = left.iter().map(OsString::as_os_str).collect();
        let gone = copied
            .keys()
            .map(OsString::as_os_str)
            .filter(|name| !here.contains(name))
            .collect();
        Ok(Self {
            path,
            directory,
            copied,
            left,
            gone,
        })
    }

    /// Removes one entry if it was not touched; a directory that was copied is returned, to be looked into first.
    fn entry(&self, name: &OsStr, manifest: &'a CopyManifest) -> io::Result<Option<Self>> {
        let Some(copied) = self.copied.get(name) else {
            return Ok(None);
        };
        let stat = stat_at(self.directory.as_fd(), name)?;
        let path = self.path.join(name);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return if manifest.directories.contains_key(&path) {
                let directory = open_ours(self.directory.as_fd(), name)?;
                Self::enter(path, directory, manifest).map(Some)
            } else {
                Ok(None)
            };
        }
        if CopiedNode::of(&stat) == *copied {
            rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?;
        }
        Ok(None)
    }

    /// Marks what is gone, and gives the directory its permissions back; answers whether nothing is left in it.
    fn leave(self) -> io::Result<bool> {
        for name in &self.gone {
            whiteout(self.directory.as_fd(), name)?;
        }
        Ok(names(self.directory.as_fd())?.is_empty())
    }

    /// Removes an empty directory that has the permissions with which it was copied.
    fn remove_if_unchanged(&self, name: &OsStr) -> io::Result<()> {
        let Some(copied) = self.copied.get(name) else {
            return Ok(());
        };
        if stat_at(self.directory.as_fd(), name)?.st_mode == copied.mode {
            rustix::fs::unlinkat(&self.directory, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }
}

/// Marks `name` as removed: with a device 0/0, which any user may make (Linux 5.8), or with an attribute.
fn whiteout(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => {}
        other => return Ok(other?),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR)?;
    Ok(rustix::fs::fsetxattr(
        &file,
        "user.overlay.whiteout",
        b"y",
        XattrFlags::empty(),
    )?)
}
