//! What the layers below have at a path, as an overlay of them would show it.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::beneath::{Beneath, is_directory, is_opaque, is_whiteout, stat_at};
use super::entry_path::EntryPath;

/// The layers below one that is unpacked, the topmost first.
#[derive(Debug)]
pub(crate) struct LowerLayers(Vec<Beneath>);

/// Something of a lower layer.
#[derive(Debug)]
pub(crate) struct LowerEntry {
    pub(crate) stat: Stat,
    directory: OwnedFd,
    name: Vec<u8>,
}

impl LowerEntry {
    /// Opens a regular file for reading.
    pub(crate) fn file(&self) -> Result<std::fs::File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, &*self.name, flags, Mode::empty()).map(Into::into)
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// What a symbolic link says.
    pub(crate) fn target(&self) -> Result<Vec<u8>, Errno> {
        rustix::fs::readlinkat(&self.directory, &*self.name, Vec::new()).map(std::ffi::CString::into_bytes)
    }
}

impl LowerLayers {
    pub(crate) fn new(layers: Vec<Beneath>) -> Self {
        Self(layers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What they show at `path`.
    pub(crate) fn find(&self, path: &EntryPath) -> Result<Option<LowerEntry>, Errno> {
        for layer in &self.0 {
            match look(layer, path)? {
                Look::Found(entry) => return Ok(Some(entry)),
                Look::Hidden => return Ok(None),
                Look::Below => {}
            }
        }
        Ok(None)
    }

    /// The names that they show in the directory `path`; none where it is no directory.
    pub(crate) fn names(&self, path: &EntryPath) -> Result<BTreeSet<Vec<u8>>, Errno> {
        let (mut names, mut hidden) = (BTreeSet::new(), BTreeSet::new());
        for layer in &self.0 {
            if !path.is_root() {
                match look(layer, path)? {
                    Look::Found(entry) if is_directory(&entry.stat) => {}
                    Look::Found(_) | Look::Hidden => break,
                    Look::Below => continue,
                }
            }
            let directory = layer.readable(path)?;
            for entry in Dir::read_from(&directory)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if matches!(name.as_slice(), b"." | b"..") {
                    continue;
                }
                let is_hidden = match stat_at(&directory, &name)? {
                    Some(stat) => is_whiteout(&stat),
                    None => continue,
                };
                match is_hidden {
                    true => drop(hidden.insert(name)),
                    false if !hidden.contains(&name) => drop(names.insert(name)),
                    false => {}
                }
            }
            if hides_below(layer, path)? {
                break;
            }
        }
        Ok(names)
    }
}

/// Whether a directory, or one that it is in, hides what lower layers have there.
fn hides_below(layer: &Beneath, path: &EntryPath) -> Result<bool, Errno> {
    let above = std::iter::once(EntryPath::root()).chain(path.ancestors());
    for step in above {
        if is_opaque(layer.readable(&step)?.as_fd()) {
            return Ok(true);
        }
    }
    Ok(false)
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
        hides |= is_opaque(directory.as_fd());
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
