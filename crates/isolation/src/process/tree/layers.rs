//! Overlays: the writable view of a directory, and the read-only one.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_sys::mount::{self, MountRestrictions};
use rustix::fs::{Mode, OFlags};

use super::root::{RootBuilder, TargetKind};
use super::{SEALED, WRITABLE, new_tmpfs};

/// Where parts are kept while overlays are made of them, on the foundation; gone before anything runs.
const STAGING: &str = ".staging";

/// With more lower layers than these their names are numbers alone.
const MAX_NAMED: usize = 8;

/// What becomes of the parts once their overlay is made.
#[derive(Debug)]
pub(super) enum PartStaging {
    /// They go at once: the foundation is to be the sandbox's root.
    Cleared,
    /// They go with the foundation, which another root replaces; as many overlays were made so far. Each time that
    /// something is detached the kernel waits for all processors, which on a busy machine takes milliseconds.
    Abandoned(usize),
}

impl PartStaging {
    /// A directory of the foundation for the parts of one more overlay.
    fn place(&mut self) -> PathBuf {
        match self {
            Self::Cleared => STAGING.into(),
            Self::Abandoned(made) => {
                *made += 1;
                format!("{STAGING}-{made}").into()
            }
        }
    }
}

/// A detached tree that an overlay lies over.
#[derive(Debug)]
pub(super) struct DetachedPart {
    tree: OwnedFd,
    /// The directory in it that is meant; the whole tree if empty.
    below: &'static str,
}

/// The directory of a layer that holds what was written.
pub(crate) const UPPER: &str = "upper";

impl From<OwnedFd> for DetachedPart {
    fn from(tree: OwnedFd) -> Self {
        Self { tree, below: "" }
    }
}

impl DetachedPart {
    /// A directory in it, and nothing else.
    pub(super) fn below(self, below: &'static str) -> Self {
        Self { below, ..self }
    }
}

/// An overlay of `lowers`, the topmost first, whose changes go to `layer`, which holds `upper` and `work`.
pub(super) fn writable(
    root: &mut RootBuilder,
    staging: &mut PartStaging,
    lowers: &[DetachedPart],
    layer: &OwnedFd,
) -> io::Result<OwnedFd> {
    // `volatile`: nothing in a sandbox needs to survive a power failure, and without it unmounting would write back
    // the host's whole file system. `userxattr`: the form that needs no privilege.
    const OPTIONS: &[(&CStr, &[u8])] = &[(c"userxattr", b""), (c"volatile", b""), (c"index", b"off")];
    // An option has room for 255 bytes (fsconfig(2)).
    let name = |index| match lowers.len() {
        0..=MAX_NAMED => format!("lower{index}"),
        _ => format!("{index}"),
    };
    let names = (0..lowers.len()).map(name).collect::<Vec<_>>();
    let named = names.iter().zip(lowers).map(|(name, lower)| match lower.below {
        "" => name.clone(),
        below => format!("{name}/{below}"),
    });
    let lowerdir = named.collect::<Vec<_>>().join(":");
    let named: [(&CStr, &[u8]); 3] = [
        (c"lowerdir", lowerdir.as_bytes()),
        (c"upperdir", b"layer/upper"),
        (c"workdir", b"layer/work"),
    ];
    let mut parts: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(lowers.iter().map(|lower| lower.tree.as_fd()))
        .collect();
    parts.push(("layer", layer.as_fd()));
    overlay(root, staging, &parts, &[&named, OPTIONS].concat(), WRITABLE)
}

/// An overlay without a writable layer over `lower`.
///
/// A mount that is read-only still lets a program connect to a unix socket that lies in it, such as that of a
/// container engine. A socket of an overlay is another one, to which nobody listens.
pub(super) fn read_only(root: &mut RootBuilder, staging: &mut PartStaging, lower: &OwnedFd) -> io::Result<OwnedFd> {
    // An overlay without a writable layer needs two to read from; the second is empty.
    let empty = new_tmpfs(Some(4096), Some(1), 0o555, SEALED)?;
    let options: [(&CStr, &[u8]); 2] = [(c"lowerdir", b"lower:layer"), (c"userxattr", b"")];
    let parts = [("lower", lower.as_fd()), ("layer", empty.as_fd())];
    overlay(root, staging, &parts, &options, SEALED)
}

/// Made of parts that are attached for the time being. They are named relative to where that is, so that the mount
/// table inside says `lower` and not where they are on the host.
///
/// From Linux 6.15 on overlayfs takes detached trees, too; but each of them is unmounted alone when it is closed.
fn overlay(
    root: &mut RootBuilder,
    staging: &mut PartStaging,
    parts: &[(&str, BorrowedFd<'_>)],
    options: &[(&CStr, &[u8])],
    attributes: MountRestrictions,
) -> io::Result<OwnedFd> {
    let place = staging.place();
    for (name, _) in parts {
        root.directory(&place.join(name))?;
    }
    if matches!(staging, PartStaging::Cleared) {
        // A mount of its own, with which the parts go at once.
        mount::repeat(&place, &place)?;
    }
    let opened = rustix::fs::openat(root.mount(), &place, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for (name, part) in parts {
        mount::attach_at(*part, opened.as_fd(), Path::new(name))?;
    }
    rustix::process::fchdir(&opened)?;
    let overlay = mount::new_filesystem(c"overlay", options, attributes);
    rustix::process::fchdir(root.mount())?;
    if matches!(staging, PartStaging::Cleared) {
        mount::detach(&place)?;
        for (name, _) in parts {
            root.remove(&place.join(name), TargetKind::Directory)?;
        }
        root.remove(&place, TargetKind::Directory)?;
    }
    overlay
}
