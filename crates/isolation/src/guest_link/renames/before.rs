//! What was there before the sandbox: the lower layers of its overlays, and where these are inside.
//!
//! A directory that has no namesake there was made inside, and the kernel gives it another name by itself.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use offleash_core::plan::{Plan, PlanNode};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::PLACE;
use crate::process::UPPER;

/// The overlays of a sandbox.
#[derive(Debug)]
pub(super) struct OverlayTable(Vec<KnownOverlay>);

#[derive(Debug)]
struct KnownOverlay {
    /// Where it is inside.
    target: PathBuf,
    lowers: Vec<PathBuf>,
}

impl OverlayTable {
    pub(super) fn of(plan: &Plan) -> Self {
        let overlay = |target: &Path, lowers: Vec<PathBuf>| {
            let target = Path::new("/").join(target);
            KnownOverlay { target, lowers }
        };
        let overlays = plan.entries.iter().filter_map(|entry| match &entry.node {
            PlanNode::Overlay { lower, .. } => Some(overlay(&entry.target, vec![lower.clone()])),
            PlanNode::Base {
                lower, stack, snapshot, ..
            } if !stack.is_empty() => {
                let snapshot = snapshot.iter().map(|layer| layer.join(UPPER));
                let layers = snapshot.chain(stack.iter().map(|layer| lower.join(layer)));
                Some(overlay(&entry.target, layers.collect()))
            }
            PlanNode::Base {
                lower,
                template,
                snapshot,
                skeleton,
                ..
            } => {
                let built = [snapshot, template]
                    .into_iter()
                    .flatten()
                    .map(|layer| layer.join(UPPER));
                let others = built.chain(skeleton.clone());
                Some(overlay(&entry.target, others.chain([lower.clone()]).collect()))
            }
            _ => None,
        });
        Self(overlays.collect())
    }

    /// Whether a directory of an overlay may have been there before; only what certainly was not is not.
    pub(super) fn may_have(&self, directory: &OwnedFd) -> bool {
        let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let Ok(path) = rustix::fs::readlink(link, Vec::new()) else {
            return true;
        };
        self.may_have_at(Path::new(std::ffi::OsStr::from_bytes(path.as_bytes())))
    }

    fn may_have_at(&self, path: &Path) -> bool {
        let above = self.0.iter().filter_map(|overlay| {
            let below = path.strip_prefix(&overlay.target).ok()?;
            Some((overlay, below))
        });
        // Of overlays in one another the innermost has it, which leaves the shortest way.
        let innermost = above.min_by_key(|(_, below)| below.as_os_str().len());
        innermost.is_none_or(|(overlay, below)| overlay.lowers.iter().any(|lower| may_be_in(lower, below)))
    }
}

fn may_be_in(lower: &Path, below: &Path) -> bool {
    let below = if below.as_os_str().is_empty() {
        Path::new(".")
    } else {
        below
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat(CWD, lower, PLACE | OFlags::DIRECTORY, Mode::empty())
        .and_then(|lower| openat2(&lower, below, PLACE | OFlags::NOFOLLOW, Mode::empty(), resolve));
    !matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_lower_layer_of_the_innermost_overlay_has_was_made_inside() {
        let place = tempfile::tempdir().unwrap();
        for name in ["root/usr/old", "usr/kept", "skeleton/made"] {
            std::fs::create_dir_all(place.path().join(name)).unwrap();
        }
        std::fs::write(place.path().join("usr/file"), "").unwrap();
        let overlay = |target: &str, lowers: &[&str]| KnownOverlay {
            target: target.into(),
            lowers: lowers.iter().map(|lower| place.path().join(lower)).collect(),
        };
        let before = OverlayTable(vec![overlay("/", &["root"]), overlay("/usr", &["skeleton", "usr"])]);
        for path in ["/usr", "/usr/kept", "/usr/made", "/", "elsewhere", "/usr/file"] {
            assert!(before.may_have_at(Path::new(path)), "{path}");
        }
        for path in ["/usr/old", "/new", "/usr/file/below", "/usr/kept/new"] {
            assert!(!before.may_have_at(Path::new(path)), "{path}");
        }
    }
}
