//! The writable layers of sandboxes with a root of their own: made, made ready for another start, and removed.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_isolation::process;
use offleash_store::{FileError, remove_directory, spread};
use rustix::fs::FlockOperation;

use super::python::LayerLink;
use super::{BaseError, make_private};

const SCRATCH: &str = "scratch";
/// What the name of a layer begins with that no sandbox has yet.
const NEW: &str = ".new-";
/// The file in a layer that says that it outlives the sandbox that wrote to it ([`keep`]).
const KEPT: &str = "kept";
/// How many layers of others are looked at when one is removed.
const LOOKED_AT: usize = 8;

/// Makes a part of a layer, or makes one ready that an earlier sandbox left: overlayfs refuses to work where it was cut
/// off before. Answers whether it is new.
pub fn prepare(layer: &Path, mode: u32) -> Result<bool, BaseError> {
    make_private(layer)?;
    let (upper, work) = (layer.join("upper"), layer.join("work"));
    let is_new = make_directory(&upper, mode)?;
    remove_directory(&work).map_err(|error| BaseError::Removing(Box::new(error)))?;
    make_private(&work)?;
    Ok(is_new)
}

/// Makes a directory that the sandbox sees with this mode; whether it was not there.
fn make_directory(path: &Path, mode: u32) -> Result<bool, BaseError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(BaseError::at("making", path))?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(BaseError::at("making", path)(error)),
    }
}

/// Puts a link into a new layer, in directories that are there below it.
pub(super) fn link(layer: &Path, link: &LayerLink) -> Result<(), BaseError> {
    let mut place = layer.join("upper");
    for (name, mode) in &link.directories {
        place.push(name);
        make_directory(&place, *mode)?;
    }
    place.push(link.name);
    symlink(link.to, &place).map_err(BaseError::at("making", &place))
}

/// A layer that is discarded with its sandbox; the next one discards it should we die before.
#[derive(Debug)]
pub struct ScratchLayer {
    path: PathBuf,
    /// Tells others that it is in use.
    _lock: OwnedFd,
    is_removed: bool,
}

impl ScratchLayer {
    /// Makes one for `id` in the state directory.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    pub fn new(state: &Path, id: &RunId) -> Result<Self, BaseError> {
        let scratch = state.join(SCRATCH);
        make_private(&scratch)?;
        if let Ok(Some(opened)) = super::open(&scratch) {
            spread(&opened);
        }
        // Under another name until it is locked, so that nobody takes it for abandoned.
        let new = new_of(state, id);
        DirBuilder::new()
            .mode(0o700)
            .create(&new)
            .map_err(BaseError::at("making", &new))?;
        Self::settle(state, id)
    }

    /// Takes the one that an earlier supervisor of the same sandbox left, since it was kept ([`keep`]).
    ///
    /// # Errors
    /// When there is none, or somebody uses it.
    pub fn kept(state: &Path, id: &RunId) -> Result<Self, BaseError> {
        let path = scratch_of(state, id);
        Ok(Self {
            _lock: lock_alone(&path)?,
            path,
            is_removed: false,
        })
    }

    /// Takes the one that was copied for `id` ([`super::copy()`]).
    ///
    /// # Errors
    /// When there is none.
    pub fn copied(state: &Path, id: &RunId) -> Result<Self, BaseError> {
        Self::settle(state, id)
    }

    fn settle(state: &Path, id: &RunId) -> Result<Self, BaseError> {
        let (new, path) = (new_of(state, id), scratch_of(state, id));
        let lock = lock_alone(&new)?;
        fs::rename(&new, &path).map_err(BaseError::at("naming", &path))?;
        Ok(Self {
            path,
            _lock: lock,
            is_removed: false,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it unless it is kept, and those whose sandboxes ended without; its sandbox must be gone.
    ///
    /// # Errors
    /// As [`remove_layer`].
    pub fn remove(mut self) -> Result<(), BaseError> {
        self.is_removed = true;
        let removed = remove_unless_kept(&self.path);
        // Now, and not when one is made, which somebody waits for.
        if let Some(scratch) = self.path.parent() {
            remove_abandoned(scratch);
        }
        removed
    }
}

impl Drop for ScratchLayer {
    fn drop(&mut self) {
        if !self.is_removed {
            // Something else failed, and that is told; what stays is abandoned and goes with the next one.
            let _removed = remove_unless_kept(&self.path);
        }
    }
}

/// Has the layer of `id` outlive its supervisor, whether that ends in good order or is killed; whether there is one. It lies
/// over that build of its template, if that is not the base.
///
/// # Errors
/// When the state directory cannot be written.
pub fn keep(state: &Path, id: &RunId, build: Option<&str>) -> io::Result<bool> {
    match fs::write(scratch_of(state, id).join(KEPT), build.unwrap_or_default()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Has the layer of `id`, and the mark that keeps it, written out to disk, with all else of the file system that it is on.
///
/// # Errors
/// When there is none, and when the disk cannot be written.
pub fn write_out(state: &Path, id: &RunId) -> io::Result<()> {
    let layer = super::open(&scratch_of(state, id))?.ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::fs::syncfs(&layer)?)
}

/// Has the layer of `id` go with its sandbox again. Nothing happens if it would.
///
/// # Errors
/// When the state directory cannot be written.
pub fn stop_keeping(state: &Path, id: &RunId) -> io::Result<()> {
    match fs::remove_file(scratch_of(state, id).join(KEPT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether there is a layer of `id` that outlives its supervisor.
pub fn is_kept(state: &Path, id: &RunId) -> bool {
    is_marked(&scratch_of(state, id))
}

/// Over which build of its template a layer lies that was kept; `None` where there is none, or it lies over the base.
pub fn kept_build(state: &Path, id: &RunId) -> Option<String> {
    let text = fs::read_to_string(scratch_of(state, id).join(KEPT)).ok()?;
    Some(text).filter(|build| !build.is_empty())
}

fn is_marked(layer: &Path) -> bool {
    layer.join(KEPT).exists()
}

fn remove_unless_kept(layer: &Path) -> Result<(), BaseError> {
    match is_marked(layer) {
        true => Ok(()),
        false => remove_layer(layer),
    }
}

fn lock_alone(directory: &Path) -> Result<OwnedFd, BaseError> {
    lock(directory)
        .and_then(|lock| lock.ok_or_else(|| io::ErrorKind::ResourceBusy.into()))
        .map_err(BaseError::at("locking", directory))
}

fn lock(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let Some(opened) = super::open(directory)? else {
        return Ok(None);
    };
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(opened)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where the layer of `id` is, or would be.
pub fn scratch_of(state: &Path, id: &RunId) -> PathBuf {
    state.join(SCRATCH).join(id.as_str())
}

/// Whether one was copied for `id` that its sandbox does not have yet.
pub fn is_copied(state: &Path, id: &RunId) -> bool {
    new_of(state, id).is_dir()
}

/// Where it is before the sandbox has it.
pub fn new_of(state: &Path, id: &RunId) -> PathBuf {
    state.join(SCRATCH).join(format!("{NEW}{id}"))
}

/// Removes the layer that the sandbox `id` left in the state directory, or that was copied for it; nothing happens if there
/// is none.
///
/// # Errors
/// As [`remove_layer`], and when the sandbox is not gone.
pub fn remove_left(state: &Path, id: &RunId) -> Result<(), BaseError> {
    if is_copied(state, id) {
        remove_layer(&new_of(state, id))?;
    }
    let path = scratch_of(state, id);
    let locked = lock(&path).map_err(BaseError::at("locking", &path))?;
    if locked.is_none() {
        if !path.exists() {
            return Ok(());
        }
        return Err(BaseError::at("locking", &path)(io::ErrorKind::ResourceBusy.into()));
    }
    remove_layer(&path)
}

/// Looks at some layers, so that removing one takes no longer the more there are; where there are few, at all. What cannot
/// be removed now stays until it is looked at again.
fn remove_abandoned(scratch: &Path) {
    let found = fs::read_dir(scratch).into_iter().flatten().flatten();
    let named = found.filter(|found| !found.file_name().to_string_lossy().starts_with(NEW));
    let all: Vec<PathBuf> = named.map(|found| found.path()).collect();
    for path in some_of(&all, random()) {
        if let Ok(Some(_lock)) = lock(path) {
            let _removed = remove_unless_kept(path);
        }
    }
}

/// At most [`LOOKED_AT`] of `all`, other ones for each `start`.
fn some_of<T>(all: &[T], start: usize) -> impl Iterator<Item = &T> {
    let start = start.checked_rem(all.len()).unwrap_or(0);
    all.iter().cycle().skip(start).take(all.len().min(LOOKED_AT))
}

fn random() -> usize {
    let mut bytes = [0; size_of::<usize>()];
    // Without random numbers it begins where it always does.
    let _filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    usize::from_ne_bytes(bytes)
}

/// Removes a layer with everything that sandboxes left in it; nothing happens if there is none. No sandbox may use it.
///
/// Files of subordinate ids are removed by a process that is the superuser of those ids. It is made only if need be, and
/// then the calling process must have one thread.
///
/// # Errors
/// When something cannot be removed; the rest may be gone.
pub fn remove_layer(layer: &Path) -> Result<(), BaseError> {
    let Err(error) = remove_directory(layer) else {
        return Ok(());
    };
    if offleash_sys::process::is_root() || !is_denied(&error) {
        return Err(BaseError::Removing(Box::new(error)));
    }
    let removed = process::as_superuser_of_range(|| remove_directory(layer).map_err(|error| error.source));
    removed.map_err(|source| BaseError::Subordinate {
        path: layer.to_owned(),
        source: Box::new(source),
    })
}

fn is_denied(error: &FileError) -> bool {
    error.source.kind() == io::ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_few_are_looked_at_and_each_of_them_some_time() {
        for count in [0, 1, LOOKED_AT, 1_000] {
            let all: Vec<usize> = (0..count).collect();
            let mut seen = BTreeSet::new();
            for start in 0..count.max(1) {
                let some: BTreeSet<usize> = some_of(&all, start + 7 * count).copied().collect();
                assert_eq!(some.len(), count.min(LOOKED_AT));
                seen.extend(some);
            }
            assert_eq!(seen.len(), count);
        }
    }

    #[test]
    fn a_layer_that_is_kept_outlives_who_wrote_to_it_and_is_taken_again() {
        let state = tempfile::tempdir().unwrap();
        fs::set_permissions(state.path(), Permissions::from_mode(0o700)).unwrap();
        let id: RunId = "r1".parse().unwrap();
        assert!(!keep(state.path(), &id, None).unwrap() && !is_kept(state.path(), &id));
        assert_eq!(
            write_out(state.path(), &id).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let scratch = ScratchLayer::new(state.path(), &id).unwrap();
        fs::write(scratch.path().join("left"), "").unwrap();
        assert!(keep(state.path(), &id, None).unwrap() && is_kept(state.path(), &id));
        assert_eq!(kept_build(state.path(), &id), None);
        assert!(keep(state.path(), &id, Some("b1")).unwrap());
        write_out(state.path(), &id).unwrap();
        assert_eq!(kept_build(state.path(), &id).as_deref(), Some("b1"));
        // Not while somebody uses it.
        ScratchLayer::kept(state.path(), &id).unwrap_err();
        scratch.remove().unwrap();
        remove_abandoned(&state.path().join(SCRATCH));
        // A try that fails leaves it, too.
        drop(ScratchLayer::kept(state.path(), &id).unwrap());
        let again = ScratchLayer::kept(state.path(), &id).unwrap();
        assert!(again.path().join("left").exists());
        stop_keeping(state.path(), &id).unwrap();
        stop_keeping(state.path(), &id).unwrap();
        again.remove().unwrap();
        assert!(!scratch_of(state.path(), &id).exists());
        ScratchLayer::kept(state.path(), &id).unwrap_err();
    }

    #[test]
    fn what_one_sandbox_left_is_removed_and_not_what_it_uses() {
        let state = tempfile::tempdir().unwrap();
        fs::set_permissions(state.path(), Permissions::from_mode(0o700)).unwrap();
        let id: RunId = "r1".parse().unwrap();
        remove_left(state.path(), &id).unwrap();
        let scratch = ScratchLayer::new(state.path(), &id).unwrap();
        fs::write(scratch.path().join("left"), "").unwrap();
        let error = remove_left(state.path(), &id).unwrap_err();
        assert!(
            matches!(error, BaseError::Step { .. }) && scratch.path().exists(),
            "{error:?}"
        );
        let path = scratch.path().to_owned();
        drop(scratch);
        fs::create_dir(&path).unwrap();
        remove_left(state.path(), &id).unwrap();
        assert!(!path.exists());
    }
}
