//! Files of a directory, or of the layers of an image as an overlay of them would show them.
//!
//! Links lead where they would with the tree as the root; none is followed by the kernel.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use crate::error::ImageError;
use crate::store::ImageRoot;
use crate::unpack::beneath::Beneath;
use crate::unpack::entry_path::EntryPath;
use crate::unpack::lower::{LowerEntry, LowerLayers};

/// As many links are followed as the kernel does (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// A tree of files to be read.
#[derive(Debug)]
pub struct LayerTree {
    layers: LowerLayers,
    shown: String,
}

impl LayerTree {
    /// The files of an image.
    ///
    /// # Errors
    /// When a layer cannot be opened.
    pub fn of_image(root: &ImageRoot) -> Result<Self, ImageError> {
        Self::open(&root.layers, root.name.clone())
    }

    /// The files of a directory, which may be a link itself.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn of_directory(path: &Path) -> Result<Self, ImageError> {
        let resolved = std::fs::canonicalize(path).map_err(ImageError::file("finding", path))?;
        Self::open(&[resolved], path.display().to_string())
    }

    /// The same tree, called so in messages.
    #[must_use]
    pub fn called(self, shown: &str) -> Self {
        Self {
            shown: shown.to_owned(),
            ..self
        }
    }

    fn open(layers: &[std::path::PathBuf], shown: String) -> Result<Self, ImageError> {
        let mut opened = Vec::with_capacity(layers.len());
        for layer in layers {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let layer = rustix::fs::open(layer, flags, Mode::empty()).map_err(ImageError::file("opening", layer))?;
            opened.push(Beneath::new(layer));
        }
        Ok(Self {
            layers: LowerLayers::new(opened),
            shown,
        })
    }

    /// Whether a program in it would find something at `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn has(&self, path: &str) -> Result<bool, ImageError> {
        let resolved = self.resolve(path.as_bytes(), true)?;
        Ok(self.find(&resolved)?.is_some())
    }

    /// What it is called in messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn find(&self, path: &EntryPath) -> Result<Option<LowerEntry>, ImageError> {
        self.layers
            .find(path)
            .map_err(|error| self.failed("examining", path, error))
    }

    pub(super) fn names(&self, path: &EntryPath) -> Result<BTreeSet<Vec<u8>>, ImageError> {
        self.layers
            .names(path)
            .map_err(|error| self.failed("listing", path, error))
    }

    pub(super) fn failed(&self, tried: &'static str, path: &EntryPath, error: impl Into<std::io::Error>) -> ImageError {
        let path = String::from_utf8_lossy(path.bytes()).into_owned();
        ImageError::file(tried, Path::new(&self.shown).join(path))(error)
    }

    pub(super) fn is_directory(&self, path: &EntryPath) -> Result<bool, ImageError> {
        Ok(path.is_root()
            || self
                .find(path)?
                .is_some_and(|found| found.kind() == FileType::Directory))
    }

    /// Where `path` leads, its last name included if `follows_last`; what is not there stays as it is called.
    pub(super) fn resolve(&self, path: &[u8], follows_last: bool) -> Result<EntryPath, ImageError> {
        let names = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|byte| *byte == b'/');
            let kept = names.filter(|name| !matches!(*name, b"" | b"."));
            kept.map(<[u8]>::to_vec).collect()
        };
        let mut todo: VecDeque<Vec<u8>> = names(path).into();
        let mut current: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == b".." {
                current.pop();
                continue;
            }
            current.push(name);
            if todo.is_empty() && !follows_last {
                break;
            }
            let here = self.entry_path(&current)?;
            let Some(found) = self.find(&here)? else { continue };
            if found.kind() != FileType::Symlink {
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(self.failed("following links of", &here, rustix::io::Errno::LOOP));
            }
            let target = found.target().map_err(|error| self.failed("reading", &here, error))?;
            current.pop();
            if target.starts_with(b"/") {
                current.clear();
            }
            for name in names(&target).into_iter().rev() {
                todo.push_front(name);
            }
        }
        self.entry_path(&current)
    }

    fn entry_path(&self, names: &[Vec<u8>]) -> Result<EntryPath, ImageError> {
        EntryPath::of(&names.join(&b'/')).map_err(|refusal| ImageError::malformed("a path", refusal))
    }
}
