//! The directories of a run before anything has happened in it, and what overlayfs adds to them when it mounts.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{FailedCall, FileError};
use crate::run::{UPPER, layer_name};
use crate::state::PRIVATE;
use crate::tree::names_in;

/// What overlayfs works in, beside [`UPPER`].
pub(crate) const WORK: &str = "work";

/// What overlayfs makes in a layer: `work/work`, and in it the mark of a volatile mount. In the order of removal.
const MADE_BY_OVERLAYFS: [(&str, AtFlags); 4] = [
    ("work/work/incompat/volatile/dirty", AtFlags::empty()),
    ("work/work/incompat/volatile", AtFlags::REMOVEDIR),
    ("work/work/incompat", AtFlags::REMOVEDIR),
    ("work/work", AtFlags::REMOVEDIR),
];
/// How many steps [`unmake`] has.
pub(crate) const UNMAKE_STEPS: usize = MADE_BY_OVERLAYFS.len();

/// Makes layer `index` in a run's directory.
pub(crate) fn make_layer(directory: &OwnedFd, index: usize, mode: u32) -> Result<(), FileError> {
    let layer = layer_name(index);
    rustix::fs::mkdirat(directory, &*layer, PRIVATE).tried("creating", &layer)?;
    for part in [UPPER, WORK] {
        let path = format!("{layer}/{part}");
        rustix::fs::mkdirat(directory, &*path, PRIVATE).tried("creating", &path)?;
    }
    let upper = format!("{layer}/{UPPER}");
    rustix::fs::chmodat(directory, &*upper, Mode::from_raw_mode(mode), AtFlags::empty())
        .tried("changing the mode of", &upper)
}

/// One step of removing what overlayfs made in layer `index`; what is not there is no error.
pub(crate) fn unmake(directory: &OwnedFd, index: usize, step: usize) -> Result<(), Errno> {
    let layer = layer_name(index);
    let (path, flags) = MADE_BY_OVERLAYFS[step];
    let path = format!("{layer}/{path}");
    let removed = match rustix::fs::unlinkat(directory, path.as_str(), flags) {
        // Overlayfs makes these directories without any permission.
        Err(Errno::ACCESS) => {
            for (name, _) in MADE_BY_OVERLAYFS.iter().rev().filter(|(_, flags)| !flags.is_empty()) {
                rustix::fs::chmodat(directory, format!("{layer}/{name}"), PRIVATE, AtFlags::empty())?;
            }
            rustix::fs::unlinkat(directory, path.as_str(), flags)
        }
        other => other,
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes what is known to be in a run's directory of `layers` layers. What is left over, or in the way, stays.
pub(crate) fn remove_known(directory: &OwnedFd, layers: usize) {
    for index in 0..layers {
        for step in 0..UNMAKE_STEPS {
            let _ = unmake(directory, index, step);
        }
        let layer = layer_name(index);
        for part in ["/work", "/upper", ""] {
            let _ = rustix::fs::unlinkat(directory, format!("{layer}{part}"), AtFlags::REMOVEDIR);
        }
    }
}

/// Whether there is nothing in a run's directory but one layer, and nothing in that but its two parts.
pub(crate) fn is_bare(directory: &OwnedFd) -> bool {
    let layer = layer_name(0);
    names_of(directory, ".").is_ok_and(|names| names == [Path::new(&layer)])
        && names_of(directory, &layer).is_ok_and(|names| names == [Path::new(UPPER), Path::new(WORK)])
}

/// The names in a directory below `directory`, which is not a link.
pub(crate) fn names_of(directory: &OwnedFd, path: &str) -> Result<Vec<std::path::PathBuf>, Errno> {
    names_in(&open_below(directory, path)?)
}

pub(crate) fn open_below(directory: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, path, flags, Mode::empty())
}
