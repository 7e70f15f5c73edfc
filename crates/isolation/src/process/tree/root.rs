//! The root file system under construction: what is made where.
//!
//! Nothing of a sandbox runs yet, and the tmpfs that everything is put on is reachable from nowhere else. What lies in
//! directories that were made here is therefore addressed by its path; whatever leads through something that was
//! mounted is opened below the root first, without following a symbolic link.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_sys::mount::{self, MountRestrictions};
use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags};
use rustix::io::Errno;

/// What kind of thing a target must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetKind {
    Directory,
    File,
}

/// A root under construction. Paths are relative to it, and it is the current directory.
#[derive(Debug)]
pub(super) struct RootBuilder {
    mount: OwnedFd,
    /// Directories that were made here and not mounted upon, nor anything above them.
    own: HashSet<PathBuf>,
}

impl RootBuilder {
    pub(super) fn new(mount: OwnedFd) -> io::Result<Self> {
        rustix::process::fchdir(&mount)?;
        let own = HashSet::from([PathBuf::new()]);
        Ok(Self { mount, own })
    }

    /// A root that an earlier sandbox may have written to: nothing in it is addressed by its path, and it is not the
    /// current directory.
    pub(super) fn over(mount: OwnedFd) -> Self {
        Self {
            mount,
            own: HashSet::new(),
        }
    }

    pub(super) fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Makes `target` and what leads to it, unless it exists.
    pub(super) fn directory(&mut self, target: &Path) -> io::Result<()> {
        if self.own.contains(target) || target.as_os_str().is_empty() {
            return Ok(());
        }
        if self.make(target, TargetKind::Directory)? {
            if self.is_in_own(target) {
                self.own.insert(target.to_owned());
            }
            return Ok(());
        }
        // It must be one, and not a link to one.
        self.open(target).map(drop)
    }

    /// Mounts `tree` at `target`, which is made as `kind` if it does not exist.
    pub(super) fn attach(&mut self, tree: BorrowedFd<'_>, kind: TargetKind, target: &Path) -> io::Result<()> {
        let made = self.make(target, kind)?;
        if self.is_in_own(target) && (made || self.own.contains(target)) {
            mount::attach_at(tree, self.mount(), target)?;
        } else {
            mount::attach(tree, self.open(target)?.as_fd())?;
        }
        self.own.retain(|own| !own.starts_with(target));
        Ok(())
    }

    /// Mounts a new file system of kind `name` at `target`, which is made as a directory if it does not exist.
    pub(super) fn mount_new(
        &mut self,
        name: &CStr,
        options: &[(&CStr, &[u8])],
        attributes: MountRestrictions,
        target: &Path,
    ) -> io::Result<()> {
        let made = self.make(target, TargetKind::Directory)?;
        if !self.is_in_own(target) || !(made || self.own.contains(target)) {
            let tree = mount::new_filesystem(name, options, attributes)?;
            return self.attach(tree.as_fd(), TargetKind::Directory, target);
        }
        mount::mount_new(name, options, attributes, target)?;
        self.own.retain(|own| !own.starts_with(target));
        Ok(())
    }

    /// Makes the file `target`, which must not exist.
    pub(super) fn file(&mut self, contents: &[u8], mode: Mode, target: &Path) -> io::Result<()> {
        let parent = self.parent(target)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(self.place(&parent), name_in(&parent, target), flags, mode)?;
        write_all(file.as_fd(), contents)
    }

    /// Makes the symbolic link `target`, which must not exist.
    pub(super) fn symlink(&mut self, to: &Path, target: &Path) -> io::Result<()> {
        let parent = self.parent(target)?;
        Ok(rustix::fs::symlinkat(
            to,
            self.place(&parent),
            name_in(&parent, target),
        )?)
    }

    /// Removes what is at `target`, unless it is a directory or is not there.
    pub(super) fn clear(&mut self, target: &Path) -> io::Result<()> {
        let parent = self.parent(target)?;
        match rustix::fs::unlinkat(self.place(&parent), name_in(&parent, target), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the directory `target`, and answers it opened; `None` if something is there.
    pub(super) fn new_directory(&mut self, target: &Path) -> io::Result<Option<OwnedFd>> {
        match self.make(target, TargetKind::Directory)? {
            true => self.open(target).map(Some),
            false => Ok(None),
        }
    }

    /// Opens the directory `target` for reading.
    pub(super) fn read_directory(&self, target: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.open(target)?, ".", flags, Mode::empty())?)
    }

    /// Removes a file or an empty directory of ours.
    pub(super) fn remove(&mut self, target: &Path, kind: TargetKind) -> io::Result<()> {
        let flags = match kind {
            TargetKind::Directory => AtFlags::REMOVEDIR,
            TargetKind::File => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(&self.mount, target, flags) {
            Ok(()) | Err(Errno::NOENT) => {
                self.own.remove(target);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it was made; false if something is there.
    fn make(&mut self, target: &Path, kind: TargetKind) -> io::Result<bool> {
        if target.as_os_str().is_empty() || self.own.contains(target) {
            return Ok(false);
        }
        let parent = self.parent(target)?;
        let (place, name) = (self.place(&parent), name_in(&parent, target));
        let made = match kind {
            TargetKind::Directory => rustix::fs::mkdirat(place, name, Mode::from(0o755)),
            TargetKind::File => {
                rustix::fs::mknodat(place, name, FileType::RegularFile, Mode::from(0o644), Dev::default())
            }
        };
        match made {
            Ok(()) => Ok(true),
            // A read-only file system says so only of what does not exist.
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The directory that holds `target`, made if need be: opened, unless it is our own.
    fn parent(&mut self, target: &Path) -> io::Result<Option<OwnedFd>> {
        let parent = target.parent().unwrap_or(Path::new(""));
        self.directory(parent)?;
        if self.own.contains(parent) {
            return Ok(None);
        }
        self.open(parent).map(Some)
    }

    /// Opens what is at `target`, following no symbolic link.
    fn open(&self, target: &Path) -> io::Result<OwnedFd> {
        let is_top = target.as_os_str().is_empty();
        mount::open_below(self.mount(), if is_top { Path::new(".") } else { target })
    }

    fn place<'a>(&'a self, parent: &'a Option<OwnedFd>) -> BorrowedFd<'a> {
        parent.as_ref().map_or(self.mount(), AsFd::as_fd)
    }

    fn is_in_own(&self, target: &Path) -> bool {
        target.parent().is_some_and(|parent| self.own.contains(parent))
    }
}

/// What names `target` in its parent, or, without one, in the root.
fn name_in<'a>(parent: &Option<OwnedFd>, target: &'a Path) -> &'a Path {
    match parent {
        Some(_) => target.file_name().map_or(Path::new(""), Path::new),
        None => target,
    }
}

fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::write(file, bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}
