//! A root directory of its own: the parts of the base template, below layers that the sandbox writes to.
//!
//! What an earlier sandbox left in those layers is not trusted: it is addressed below the new root only, and no symbolic
//! link is followed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_core::exec::UserIds;
use offleash_sys::mount;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};

use super::layers::{self, DetachedPart};
use super::root::{RootBuilder, TargetKind};
use super::{RootAssembly, SEALED, kernel, snapshot_number, step, template_number};
use crate::process::handshake::StepFailure;

/// Where the root is put together, on the tmpfs that goes afterwards.
const PLACE: &str = ".base";
/// Where the layers of an image are while an overlay is made of them, likewise.
const STACK: &str = ".stack";
/// What a new home directory is filled with.
const SKELETON: &str = "etc/skel";
/// Files of it up to this size.
const COPIED_UP_TO: usize = 64 << 10;

/// What an overlay of the base template lies over.
#[derive(Debug, Clone, Copy)]
pub(super) struct LowerParts<'a> {
    pub(super) lower: &'a Path,
    /// Directories in it that are meant instead, the topmost first.
    pub(super) stack: &'a [PathBuf],
    /// What a template holds of it, above all of the host's.
    pub(super) template: Option<&'a Path>,
    /// What a snapshot holds of it, above that.
    pub(super) snapshot: Option<&'a Path>,
    pub(super) skeleton: Option<&'a Path>,
}

impl RootAssembly<'_> {
    /// Adds a part of the base template; the root directory comes first.
    pub(super) fn base(
        &mut self,
        number: usize,
        LowerParts {
            lower,
            stack,
            template,
            snapshot,
            skeleton,
        }: LowerParts<'_>,
        layer: &Path,
        target: &Path,
    ) -> Result<(), StepFailure> {
        let mut lowers = Vec::new();
        if let Some(snapshot) = snapshot {
            lowers.push(self.built(snapshot_number(number), snapshot)?);
        }
        if let Some(template) = template {
            lowers.push(self.built(template_number(number), template)?);
        }
        if let Some(skeleton) = skeleton {
            lowers.push(
                mount::clone_resolved(skeleton)
                    .map_err(step("opening", skeleton))?
                    .into(),
            );
        }
        let source = self.source(number, lower)?;
        match stack {
            [] => lowers.push(source.into()),
            stack => {
                let layers = self.stacked(source, stack).map_err(step("opening layers in", lower))?;
                lowers.extend(layers.into_iter().map(DetachedPart::from));
            }
        }
        let layer = self.layer(number, layer)?;
        let overlay = layers::writable(&mut self.foundation, &mut self.staging, &lowers, &layer)
            .map_err(step("mounting an overlay over", lower))?;
        if !target.as_os_str().is_empty() {
            return self
                .root()
                .attach(overlay.as_fd(), TargetKind::Directory, target)
                .map_err(step("mounting the overlay of", lower));
        }
        let root = enter(&mut self.foundation, overlay).map_err(step("mounting the new root", ""))?;
        self.own_root = Some(root);
        Ok(())
    }
}

impl RootAssembly<'_> {
    /// The directories `stack` in a tree, which stays on the foundation and goes with that.
    fn stacked(&mut self, tree: OwnedFd, stack: &[PathBuf]) -> io::Result<Vec<OwnedFd>> {
        let place = Path::new(STACK);
        self.foundation.attach(tree.as_fd(), TargetKind::Directory, place)?;
        let clones = stack
            .iter()
            .map(|layer| mount::clone_tree(self.foundation.mount(), &place.join(layer)));
        clones.collect()
    }
}

/// Makes the overlay the root, with what the foundation has of the kernel.
fn enter(foundation: &mut RootBuilder, overlay: OwnedFd) -> io::Result<RootBuilder> {
    let place = Path::new(PLACE);
    foundation.attach(overlay.as_fd(), TargetKind::Directory, place)?;
    let mut root = RootBuilder::over(overlay);
    for name in [kernel::PROC, kernel::DEV] {
        let tree = mount::clone_tree(foundation.mount(), Path::new(name))?;
        root.attach(tree.as_fd(), TargetKind::Directory, Path::new(name))?;
    }
    Ok(root)
}

/// Seals what was taken from the foundation, which is sealed as a whole elsewhere, and cuts all off from the host.
pub(super) fn seal(root: &RootBuilder) -> io::Result<()> {
    let dev = mount::open_below(root.mount(), Path::new(kernel::DEV))?;
    mount::restrict_mount(dev.as_fd(), SEALED)?;
    mount::make_private(root.mount())
}

/// Makes a home directory with what is in `/etc/skel`, unless it is there.
pub(super) fn home(root: &mut RootBuilder, target: &Path, owner: UserIds, mode: u32) -> io::Result<()> {
    let Some(home) = root.new_directory(target)? else {
        return Ok(());
    };
    // A system without such files is none the worse for it.
    if let Ok(skeleton) = root.read_directory(Path::new(SKELETON)) {
        fill(home.as_fd(), skeleton.as_fd(), owner)?;
    }
    rustix::fs::chmodat(&home, ".", Mode::from_raw_mode(mode), AtFlags::empty())?;
    give(home.as_fd(), Path::new("."), owner)
}

fn fill(home: BorrowedFd<'_>, skeleton: BorrowedFd<'_>, owner: UserIds) -> io::Result<()> {
    for entry in Dir::read_from(skeleton)? {
        let entry = entry?;
        if entry.file_type() != FileType::RegularFile {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = rustix::fs::openat(skeleton, entry.file_name(), flags, Mode::empty())?;
        let mut contents = vec![0; COPIED_UP_TO];
        let length = rustix::io::read(&from, &mut contents[..])?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(home, entry.file_name(), flags, Mode::from(0o644))?;
        let mut rest = contents.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let written = rustix::io::write(&to, rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        rustix::fs::fchown(&to, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    }
    Ok(())
}

fn give(directory: BorrowedFd<'_>, path: &Path, owner: UserIds) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    Ok(rustix::fs::chownat(
        directory,
        path,
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}
