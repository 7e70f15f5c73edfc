//! What the layers below have at a path, as an overlay of them would show it.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::beneath::{Beneath, is_directory, is_opaque, is_whiteout, stat_at};
use super::entry_path::EntryPath;

/// The layers below one that is unpacked, the topmost first.
#[derive(Debug)]
pub(super) struct LowerLayers(Vec<Beneath>);

/// Something of a lower layer.
#[derive(Debug)]
pub(super) struct LowerEntry {
    pub(super) stat: Stat,
    directory: OwnedFd,
    name: Vec<u8>,
}

impl LowerEntry {
    /// Opens a regular file for reading.
    pub(super) fn file(&self) -> Result<std::fs::File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, &*self.name, flags, Mode::empty()).map(Into::into)
    }

    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// What a symbolic link says.
    pub(super) fn target(&self) -> Result<Vec<u8>, Errno> {
        rustix::fs::readlinkat(&self.directory, &*self.name, Vec::new()).map(std::ffi::CString::into_bytes)
    }
}

impl LowerLayers {
    pub(super) fn new(layers: Vec<Beneath>) -> Self {
        Self(layers)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What they show at `path`.
    pub(super) fn find(&self, path: &EntryPath) -> Result<Option<LowerEntry>, Errno> {
        for layer in &self.0 {
            match look(layer, path)? {
                Look::Found(entry) => return Ok(Some(entry)),
                Look::Hidden => return Ok(None),
                Look::Below => {}
            }
        }
        Ok(None)
    }
}

enum Look {
    Found(LowerEntry),
    /// It hides what others below have.
    Hidden,
    /// It says nothing.
    Below,
}

fn look(layer: &Beneath, path: &EntryPath) -> Result<Look, Errno> {
    let mut hides = false;
    for step in path.ancestors() {
        let (parent, name) = step.split();
        let directory = layer.readable(&parent)?;
        hides |= is_opaque(std::os::fd::AsFd::as_fd(&directory));
        let Some(stat) = stat_at(&directory, name)? else {
            return Ok(if hides { Look::Hidden } else { Look::Below });
        };
        if is_whiteout(&stat) {
            return Ok(Look::Hidden);
        }
        if step == *path {
            let name = name.to_vec();
            return Ok(Look::Found(LowerEntry { stat, directory, name }));
        }
        if !is_directory(&stat) {
            return Ok(Look::Hidden);
        }
    }
    Ok(Look::Below)
}
