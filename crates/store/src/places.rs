//! Lists of paths in a run's directory: what was applied, and what the host had when the run ended.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{FailedCall, FileError};

/// Layers and paths in them.
pub(crate) type LayerPaths = HashSet<(usize, PathBuf)>;

/// The list `name`; empty if there is none.
pub(crate) fn read(directory: &OwnedFd, name: &str) -> Result<LayerPaths, FileError> {
    let bytes = read_bytes(directory, name)?.unwrap_or_default();
    let mut fields = bytes.split(|byte| *byte == 0);
    let mut places = LayerPaths::new();
    while let (Some(layer), Some(path)) = (fields.next(), fields.next()) {
        if let Some(layer) = std::str::from_utf8(layer).ok().and_then(|layer| layer.parse().ok()) {
            places.insert((layer, PathBuf::from(OsStr::from_bytes(path))));
        }
    }
    Ok(places)
}

/// Replaces the list `name` as a whole, so that a list cut short by a crash is never in the way.
pub(crate) fn replace(directory: &OwnedFd, name: &str, places: &LayerPaths) -> Result<(), FileError> {
    let mut bytes = Vec::new();
    for (layer, path) in places {
        bytes.extend_from_slice(format!("{layer}\0").as_bytes());
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes.push(0);
    }
    replace_bytes(directory, name, &bytes)
}

/// What the file `name` holds; `None` if there is none.
pub(crate) fn read_bytes(directory: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>, FileError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.tried("opening", name)?,
    };
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes).tried("reading", name)?;
    Ok(Some(bytes))
}

/// Replaces the file `name` as a whole.
pub(crate) fn replace_bytes(directory: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), FileError> {
    let new = format!("{name}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, &*new, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(opened.tried("creating", &new)?);
    file.write_all(bytes)
        .and_then(|()| file.sync_data())
        .tried("writing", &new)?;
    rustix::fs::renameat(directory, &*new, directory, name).tried("replacing", name)
}
