//! The base template: what a root of a sandbox's own lies over, made ready once for many sandboxes.
//!
//! ```text
//! base/STAMP/root            the root directory: /etc, empty directories, links
//! base/STAMP/skeleton/NAME   the directories of /usr and the like, and nothing else
//! scratch/ID                 the layer of a sandbox that is discarded with it
//! scratch/ID/stacks.json     what it lies over, of a sandbox of the daemon
//! ```
//!
//! The stamp says what of the host it was made from and for whom. A template that another process uses stays; others
//! go when a newer one is made. Deliberately not here: which mounts a sandbox gets (`planning`), and making them.

mod accounts;
mod content;
mod copy;
mod error;
mod layer;
mod python;
mod skeleton;
mod snapshot;
mod stacks;
mod stamp;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use offleash_core::plan::SandboxUser;
use offleash_store::remove_directory;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub use self::copy::{CopyAnswer, CopyOrder, copy};
pub use self::error::BaseError;
pub use self::layer::{
    ScratchLayer, is_copied, is_kept, keep, kept_build, new_of, prepare, remove_layer, remove_left, scratch_of,
    stop_keeping, write_out,
};
pub use self::snapshot::{SnapshotOrder, SnapshotStep, make_snapshot, remove_snapshot};
pub use self::stacks::{
    ChangesAnswer, ChangesOrder, ListedChange, ListedChanges, MAX_PATCH, ShownPatch, note_stacks, show_changes,
};
use crate::base_entries::{BasePart, BaseTemplate};
use crate::system::ROOT_NAMES;

/// Directories of the host that a root of its own shows below a layer, where they exist and are no links. They are what
/// packages write to and what is too large to be copied.
const PARTS: [&str; 2] = ["/usr", "/var/lib/dpkg"];

/// Directories whose own files a skeleton holds, too: `dpkg` locks them and makes links of them, which for the host's
/// takes their owner. All else it replaces as a whole.
const OWN_FILES: [&str; 2] = ["/var/lib/dpkg", "/var/lib/dpkg/triggers"];

/// The file in the directory of templates that whoever makes one has locked.
const MAKING: &str = ".making";
/// How long one is waited for that another process makes, and how often it is looked whether it is there.
const MAX_MAKING: Duration = Duration::from_secs(60);
const MAKING_LOOK: Duration = Duration::from_millis(10);

/// A template that is ready, and is not removed as long as this lives.
#[derive(Debug)]
pub struct ReadyBase {
    directory: PathBuf,
    parts: Vec<PathBuf>,
    has_skeletons: bool,
    /// What a new layer gets.
    python: Option<python::LayerLink>,
    _lock: OwnedFd,
}

impl ReadyBase {
    /// Finds the template of this host for sandboxes with these users in the state directory, or makes it.
    ///
    /// Several processes may ask at once: one makes it, and the others wait for it.
    ///
    /// # Errors
    /// When the state directory cannot be written, or a directory of the host cannot be read.
    pub fn ready(state: &Path, users: &[SandboxUser]) -> Result<Self, BaseError> {
        let base = state.join("base");
        make_private(&base)?;
        // It may be a link to where there is more room; mounts are made of what it leads to.
        let base = fs::canonicalize(&base).map_err(BaseError::at("finding", &base))?;
        let parts = parts();
        let has_skeletons = needs_skeletons();
        let directory = base.join(stamp::of_host(&parts, users, has_skeletons));
        // Twice at most: whoever removes templates may be faster than we between making one and holding it.
        for _ in 0..3 {
            let mut lock = hold(&directory).map_err(BaseError::at("locking", &directory))?;
            let mut turn = None;
            if lock.is_none() {
                turn = turn_to_make(&base)?;
                // Somebody else may have made it meanwhile.
                lock = hold(&directory).map_err(BaseError::at("locking", &directory))?;
            }
            if let Some(lock) = lock {
                return Ok(Self {
                    directory,
                    parts,
                    has_skeletons,
                    python: python::missing(),
                    _lock: lock,
                });
            }
            make(&base, &directory, &parts, users, has_skeletons)?;
            remove_others(&base, &directory);
            drop(turn);
        }
        Err(BaseError::at("keeping", &directory)(io::ErrorKind::ResourceBusy.into()))
    }

    /// Whether [`Self::ready`] would find this one for sandboxes with these users.
    pub fn is_current(&self, users: &[SandboxUser]) -> bool {
        let parts = parts();
        let name = stamp::of_host(&parts, users, needs_skeletons());
        parts == self.parts && self.directory.file_name().is_some_and(|directory| *directory == *name)
    }

    /// What a sandbox that writes to `layer` is made of. Makes what is missing of the layer, and gives each of its parts a
    /// new directory for overlayfs to work in.
    ///
    /// `built` is the layer that a template was built in and `snapshot` that of a snapshot, if they lie between. A new layer
    /// that lies over the host alone gets the name `python` where the host has none; those have it already, or did away with
    /// it.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn over(&self, layer: &Path, built: Option<&Path>, snapshot: Option<&Path>) -> Result<BaseTemplate, BaseError> {
        let root = Path::new("/");
        let mut parts = vec![self.part(root, self.directory.join("root"), None, layer)?];
        for target in &self.parts {
            let skeleton = self.has_skeletons.then(|| self.skeleton(target));
            parts.push(self.part(target, target.clone(), skeleton, layer)?);
        }
        let python = self.python.as_ref().filter(|_| built.is_none() && snapshot.is_none());
        for (part, is_new) in &parts {
            if let Some(link) = python.filter(|_| *is_new && part.target == Path::new(python::PART)) {
                layer::link(&part.layer, link)?;
            }
        }
        let mut parts: Vec<BasePart> = parts.into_iter().map(|(part, _)| part).collect();
        for part in &mut parts {
            // One that was built on a host with other such directories has nothing of this one.
            let held =
                |built: &Path| Some(built.join(name_of(&part.target))).filter(|layer| layer.join("upper").is_dir());
            (part.template, part.snapshot) = (built.and_then(held), snapshot.and_then(held));
        }
        Ok(BaseTemplate {
            parts,
            variables: Vec::new(),
        })
    }

    /// Which packages the host has, as far as that is told by times: another text when they change.
    pub fn system_stamp() -> String {
        stamp::of_system(&parts())
    }

    fn part(
        &self,
        target: &Path,
        lower: PathBuf,
        skeleton: Option<PathBuf>,
        layer: &Path,
    ) -> Result<(BasePart, bool), BaseError> {
        let layer = layer.join(name_of(target));
        let mode = fs::metadata(&lower).map_err(BaseError::at("examining", &lower))?.mode();
        let is_new = layer::prepare(&layer, mode & 0o777)?;
        let part = BasePart {
            target: target.to_owned(),
            lower,
            stack: Vec::new(),
            template: None,
            snapshot: None,
            skeleton,
            layer,
        };
        Ok((part, is_new))
    }

    fn skeleton(&self, target: &Path) -> PathBuf {
        self.directory.join("skeleton").join(name_of(target))
    }
}

/// The name of each part of a layer on this host, and where it is inside.
pub fn part_places() -> Vec<(String, PathBuf)> {
    let root = PathBuf::from("/");
    let all = std::iter::once(root).chain(parts());
    all.map(|place| (name_of(&place), place)).collect()
}

/// Gives the directory `home`, which a template has and which belongs to an id that the sandbox does not have, to the one id
/// that it has. What is in it stays there to be read. The layer of `root` is new.
///
/// # Errors
/// When the layer cannot be written.
pub fn inherit(root: &BasePart, home: &Path) -> Result<(), BaseError> {
    let (Some(template), Ok(below)) = (
        root.snapshot.as_ref().or(root.template.as_ref()),
        home.strip_prefix("/"),
    ) else {
        return Ok(());
    };
    let is_anothers = fs::symlink_metadata(template.join("upper").join(below))
        .is_ok_and(|found| found.is_dir() && found.uid() != rustix::process::geteuid().as_raw());
    let names = is_anothers.then_some(below).into_iter().flat_map(Path::components);
    let mut directory = root.layer.join("upper");
    for name in names {
        directory.push(name);
        match DirBuilder::new().mode(0o755).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(BaseError::at("making", &directory))?,
        }
    }
    Ok(())
}

/// Where the owners of the host's files can be mapped by the mount itself, no skeleton is needed.
fn needs_skeletons() -> bool {
    !offleash_sys::process::is_root()
}

fn parts() -> Vec<PathBuf> {
    let names = ROOT_NAMES.iter().map(|name| Path::new("/").join(name));
    let all = PARTS.iter().map(PathBuf::from).chain(names);
    all.filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()))
        .collect()
}

/// The name of a part in layers and templates.
fn name_of(target: &Path) -> String {
    let names: Vec<_> = target.iter().skip(1).map(|name| name.to_string_lossy()).collect();
    if names.is_empty() {
        "root".to_owned()
    } else {
        names.join("-")
    }
}

fn make_private(directory: &Path) -> Result<(), BaseError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(BaseError::at("making", directory)(error)),
        _ => Ok(()),
    }
}

/// Makes a template under a name of its own, and then gives it the right one, unless another process was faster.
fn make(
    base: &Path,
    directory: &Path,
    parts: &[PathBuf],
    users: &[SandboxUser],
    has_skeletons: bool,
) -> Result<(), BaseError> {
    let new = base.join(format!(".new-{}-{:x}", std::process::id(), random()?));
    make_private(&new)?;
    // Whoever finds it without a lock knows that its maker is no more.
    let _lock = hold(&new).map_err(BaseError::at("locking", &new))?;
    let filled = fill(&new, parts, users, has_skeletons).and_then(|()| {
        let renamed = rustix::fs::renameat_with(
            rustix::fs::CWD,
            &new,
            rustix::fs::CWD,
            directory,
            rustix::fs::RenameFlags::NOREPLACE,
        );
        match renamed {
            Err(Errno::EXIST) => remove_directory(&new).map_err(|error| BaseError::Removing(error.into())),
            renamed => renamed.map_err(|error| BaseError::at("naming", directory)(error.into())),
        }
    });
    if filled.is_err() {
        // The first failure is what is told; what stays goes with the next template.
        let _removed = remove_directory(&new);
    }
    filled
}

fn fill(new: &Path, parts: &[PathBuf], users: &[SandboxUser], has_skeletons: bool) -> Result<(), BaseError> {
    content::make(&new.join("root"), parts, users)?;
    let skeletons = new.join("skeleton");
    make_private(&skeletons)?;
    for part in parts.iter().filter(|_| has_skeletons) {
        let skeleton = skeletons.join(name_of(part));
        skeleton::copy(part, &skeleton)?;
        for directory in OWN_FILES
            .iter()
            .filter_map(|own| Path::new(own).strip_prefix(part).ok())
        {
            skeleton::copy_files(&part.join(directory), &skeleton.join(directory))?;
        }
    }
    Ok(())
}

fn random() -> Result<u64, BaseError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| BaseError::at("drawing a name in", "base")(error.into()))?;
    Ok(u64::from_le_bytes(bytes))
}

/// A lock that keeps a template in place; `None` if it is not there.
fn hold(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let Some(opened) = open(directory)? else {
        return Ok(None);
    };
    rustix::fs::flock(&opened, FlockOperation::LockShared)?;
    // It may have been removed between the two.
    is_at(&opened, directory).map(|is_there| is_there.then_some(opened))
}

/// Waits until nobody else makes a template: several at once take longer than one, and all but one are for nothing. `None`
/// if that takes longer than any making: one who was stopped keeps nobody from working.
fn turn_to_make(base: &Path) -> Result<Option<OwnedFd>, BaseError> {
    let path = base.join(MAKING);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| BaseError::at("opening", &path)(error.into()))?;
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < MAX_MAKING => std::thread::sleep(MAKING_LOOK),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(BaseError::at("locking", &path)(error.into())),
        }
    }
}

fn open(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_at(opened: &OwnedFd, directory: &Path) -> io::Result<bool> {
    let held = rustix::fs::fstat(opened)?;
    match rustix::fs::lstat(directory) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes templates that nobody uses, and what is left of those whose maker was ended; whatever cannot be removed stays
/// until the next time. It is the caller's turn to make one: nobody else has one that is not locked yet.
fn remove_others(base: &Path, kept: &Path) {
    let found = fs::read_dir(base).into_iter().flatten().flatten();
    for other in found.map(|found| found.path()).filter(|path| path != kept) {
        let Ok(Some(opened)) = open(&other) else { continue };
        if rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let gone = base.join(format!(".new-old-{:x}", random().unwrap_or_default()));
        if fs::rename(&other, &gone).is_ok() {
            let _removed = remove_directory(&gone);
        }
    }
}

#[cfg(test)]
mod tests;
