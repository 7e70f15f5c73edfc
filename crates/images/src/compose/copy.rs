//! Files that are copied into a layer: which ones, what they hold, and where they are put.
//!
//! What is there already decides where a name leads: links of the layers below are followed as a program inside would
//! follow them, and nothing is written but an archive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};

use offleash_core::build::patterns::{IgnoreRules, RelativePattern};
use rustix::fs::FileType;

use super::LayerArchive;
use super::tree::LayerTree;
use crate::digest::{DigestHasher, ImageDigest};
use crate::error::ImageError;
use crate::tar::header::{BLOCK, Block};
use crate::tar::{Archive, EntryKind, NewEntry, SparseMap, TarEntry, TarWriter};
use crate::unpack::decompressed;
use crate::unpack::entry_path::EntryPath;

/// More entries than a layer may have when it is unpacked again.
const MAX_ENTRIES: usize = 1_000_000;
/// The largest file whose holes are read as what they are not.
const MAX_FILLED: u64 = 64 << 30;
/// How archives begin that nobody here unpacks.
const FOREIGN: [(&[u8], &str); 2] = [
    (b"\xfd7zXZ\0", "it is compressed with xz"),
    (b"BZh", "it is compressed with bzip2"),
];

/// What is to be selected.
#[derive(Debug)]
pub struct CopyOrder<'a> {
    /// Where files come from.
    pub tree: &'a LayerTree,
    /// Their paths in it, with wildcards.
    pub sources: &'a [String],
    /// What of it is left out.
    pub ignore: &'a IgnoreRules,
    /// Whether archives are unpacked.
    pub extracts: bool,
}

/// Where files are put, and as whose.
#[derive(Debug)]
pub struct CopyTarget<'a> {
    /// What lies below.
    pub below: &'a LayerTree,
    /// The path there.
    pub destination: &'a str,
    /// To whom they belong, as user and group; to the superuser, or to whom an archive says, if absent.
    pub owner: Option<(u32, u32)>,
    /// Their permission bits; as they are if absent.
    pub mode: Option<u32>,
}

/// Files that were found.
#[derive(Debug, Default)]
pub struct CopySelection {
    sources: Vec<SelectedSource>,
}

/// What one source turned out to be.
#[derive(Debug)]
enum SelectedSource {
    /// A directory, whose contents are meant.
    Directory(Vec<SelectedEntry>),
    File {
        name: Vec<u8>,
        entry: SelectedEntry,
    },
    Archive(SelectedEntry),
}

#[derive(Debug)]
struct SelectedEntry {
    /// Where it is below the source.
    relative: EntryPath,
    kind: EntryKind,
    mode: u32,
    modified: i64,
    size: u64,
    link: Vec<u8>,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Path(EntryPath),
    Text(Vec<u8>),
}

impl CopySelection {
    /// Files that are given as they are, each by its name.
    pub fn of_texts(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let file = |(name, text): (String, String)| SelectedSource::File {
            name: name.into_bytes(),
            entry: SelectedEntry {
                relative: EntryPath::root(),
                kind: EntryKind::File,
                mode: 0o644,
                modified: 0,
                size: text.len() as u64,
                link: Vec::new(),
                contents: Contents::Text(text.into_bytes()),
            },
        };
        Self {
            sources: files.into_iter().map(file).collect(),
        }
    }

    /// Finds what an order names.
    ///
    /// # Errors
    /// [`ImageError::NothingToCopy`]; [`ImageError::Archive`]; when something cannot be read.
    pub fn of(order: &CopyOrder<'_>) -> Result<Self, ImageError> {
        let mut found = Selecting {
            order,
            count: 0,
            sources: Vec::new(),
        };
        for source in order.sources {
            let before = found.sources.len();
            for path in found.matching(source)? {
                found.add(source, &path)?;
            }
            if found.sources.len() == before {
                return Err(ImageError::NothingToCopy {
                    source_path: source.clone(),
                    place: format!("`{}`", order.tree.shown()),
                });
            }
        }
        Ok(Self { sources: found.sources })
    }

    /// A digest of all that is copied: names, kinds, permission bits and contents.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn digest(&self, tree: Option<&LayerTree>) -> Result<ImageDigest, ImageError> {
        let mut hasher = DigestHasher::default();
        let mut buffer = vec![0; 128 << 10];
        let mut add = |name: &[u8], entry: &SelectedEntry| {
            let head = format!(
                "{:?} {:o} {} {} {}\n",
                entry.kind,
                entry.mode,
                entry.size,
                name.len(),
                entry.link.len()
            );
            hasher.update(head.as_bytes());
            hasher.update(name);
            hasher.update(&entry.link);
            if let Some((file, map)) = entry.between_holes(tree)? {
                for (offset, length) in map.pieces {
                    hasher.update(format!("{offset} {length}\n").as_bytes());
                    let mut piece = &file;
                    piece
                        .seek(SeekFrom::Start(offset))
                        .map_err(|error| entry.failed(tree, error))?;
                    let mut piece = piece.take(length);
                    copy_to(&mut piece, &mut hasher, &mut buffer).map_err(|error| entry.failed(tree, error))?;
                }
                return Ok(());
            }
            let mut contents = entry.open(tree)?;
            copy_to(&mut contents, &mut hasher, &mut buffer).map_err(|error| entry.failed(tree, error))
        };
        for source in &self.sources {
            match source {
                SelectedSource::Directory(entries) => {
                    for entry in entries {
                        add(entry.relative.bytes(), entry)?;
                    }
                }
                SelectedSource::File { name, entry } => add(name, entry)?,
                SelectedSource::Archive(entry) => add(b"", entry)?,
            }
        }
        Ok(hasher.finish())
    }
}

fn copy_to(from: &mut dyn Read, hasher: &mut DigestHasher, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match from.read(buffer)? {
            0 => return Ok(()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

impl SelectedEntry {
    fn open(&self, tree: Option<&LayerTree>) -> Result<Box<dyn Read + '_>, ImageError> {
        match (&self.contents, self.kind, tree) {
            (Contents::Text(text), ..) => Ok(Box::new(text.as_slice())),
            (Contents::Path(path), EntryKind::File, Some(tree)) => Ok(Box::new(open_file(tree, path)?)),
            _ => Ok(Box::new(io::empty())),
        }
    }

    /// What is between the holes of a file; `None` for one without, or of more of them than is kept.
    fn between_holes(&self, tree: Option<&LayerTree>) -> Result<Option<(File, SparseMap)>, ImageError> {
        let (Contents::Path(path), EntryKind::File, Some(tree)) = (&self.contents, self.kind, tree) else {
            return Ok(None);
        };
        let file = open_file(tree, path)?;
        match SparseMap::of_file(&file, self.size) {
            Ok(map) => Ok(map.map(|map| (file, map))),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge && self.size <= MAX_FILLED => Ok(None),
            Err(error) => Err(tree.failed("reading", path, error)),
        }
    }

    fn failed(&self, tree: Option<&LayerTree>, error: io::Error) -> ImageError {
        match (&self.contents, tree) {
            (Contents::Path(path), Some(tree)) => tree.failed("reading", path, error),
            _ => ImageError::file("reading", "a file of the step")(error),
        }
    }
}

fn open_file(tree: &LayerTree, path: &EntryPath) -> Result<File, ImageError> {
    let gone = || tree.failed("opening", path, rustix::io::Errno::NOENT);
    let found = tree.find(path)?.ok_or_else(gone)?;
    let file = found.file().map_err(|error| tree.failed("opening", path, error))?;
    // It may have been replaced since.
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        _ => Err(gone()),
    }
}

/// A selection under way.
struct Selecting<'a> {
    order: &'a CopyOrder<'a>,
    count: usize,
    sources: Vec<SelectedSource>,
}

impl Selecting<'_> {
    /// The paths that a source means, as they are written.
    fn matching(&self, source: &str) -> Result<Vec<Vec<u8>>, ImageError> {
        if !source.contains(['*', '?', '[']) {
            return Ok(vec![source.as_bytes().to_vec()]);
        }
        let malformed =
            |error: offleash_core::build::patterns::PathPatternError| ImageError::malformed("a source", error);
        let mut found: Vec<Vec<u8>> = vec![Vec::new()];
        for part in source.split('/').filter(|part| !matches!(*part, "" | ".")) {
            let is_literal = !part.contains(['*', '?', '[', '\\']);
            let pattern = RelativePattern::parse(if part == ".." { "" } else { part }).map_err(malformed)?;
            let mut next = Vec::new();
            for directory in found {
                let join = |name: &[u8]| match directory.is_empty() {
                    true => name.to_vec(),
                    false => [directory.as_slice(), name].join(&b'/'),
                };
                if is_literal {
                    next.push(join(part.as_bytes()));
                    continue;
                }
                let resolved = self.order.tree.resolve(&directory, true)?;
                if self.order.tree.is_directory(&resolved)? {
                    let names = self.order.tree.names(&resolved)?.into_iter();
                    next.extend(names.filter(|name| pattern.matches(&[name])).map(|name| join(&name)));
                }
            }
            found = next;
        }
        Ok(found)
    }

    fn leaves_out(&self, path: &EntryPath) -> bool {
        let names: Vec<&[u8]> = path.bytes().split(|byte| *byte == b'/').collect();
        !path.is_root() && self.order.ignore.leaves_out(&names)
    }

    fn add(&mut self, source: &str, written: &[u8]) -> Result<(), ImageError> {
        let tree = self.order.tree;
        let path = tree.resolve(written, true)?;
        if tree.is_directory(&path)? {
            let entries = self.directory(&path)?;
            let is_out = self.leaves_out(&path) && entries.is_empty();
            if !is_out {
                self.sources.push(SelectedSource::Directory(entries));
            }
            return Ok(());
        }
        if self.leaves_out(&path) {
            return Ok(());
        }
        let Some(entry) = self.entry(&path, EntryPath::root())? else {
            return Ok(());
        };
        if self.order.extracts && entry.kind == EntryKind::File && is_archive(tree, &path, source)? {
            self.sources.push(SelectedSource::Archive(entry));
            return Ok(());
        }
        let name = written.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        self.sources.push(SelectedSource::File {
            name: name.unwrap_or_default().to_vec(),
            entry,
        });
        Ok(())
    }

    /// What is in a directory, each directory before what is in it.
    fn directory(&mut self, path: &EntryPath) -> Result<Vec<SelectedEntry>, ImageError> {
        let tree = self.order.tree;
        let mut entries = Vec::new();
        let mut todo = vec![(path.clone(), EntryPath::root())];
        while let Some((path, relative)) = todo.pop() {
            let mut directories = Vec::new();
            for name in tree.names(&path)? {
                let (path, relative) = (join(&path, &name)?, join(&relative, &name)?);
                let is_out = self.leaves_out(&path);
                if is_out && !self.order.ignore.lets_in() {
                    continue;
                }
                let Some(entry) = self.entry(&path, relative.clone())? else {
                    continue;
                };
                if entry.kind == EntryKind::Directory {
                    directories.push((path, relative));
                }
                if !is_out {
                    entries.push(entry);
                }
            }
            todo.extend(directories.into_iter().rev());
        }
        Ok(entries)
    }

    /// What is at a path; `None` for what is not copied, as sockets are not.
    fn entry(&mut self, path: &EntryPath, relative: EntryPath) -> Result<Option<SelectedEntry>, ImageError> {
        self.count += 1;
        if self.count > MAX_ENTRIES {
            return Err(ImageError::TooLarge {
                what: "what is copied",
                found: self.count as u64,
                limit: MAX_ENTRIES as u64,
            });
        }
        let tree = self.order.tree;
        let Some(found) = tree.find(path)? else { return Ok(None) };
        let kind = match found.kind() {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            FileType::Fifo => EntryKind::Fifo,
            _ => return Ok(None),
        };
        let link = match kind {
            EntryKind::Symlink => found.target().map_err(|error| tree.failed("reading", path, error))?,
            _ => Vec::new(),
        };
        let size = match kind {
            EntryKind::File => u64::try_from(found.stat.st_size).unwrap_or(0),
            _ => 0,
        };
        Ok(Some(SelectedEntry {
            relative,
            kind,
            mode: found.stat.st_mode & 0o7777,
            modified: found.stat.st_mtime,
            size,
            link,
            contents: Contents::Path(path.clone()),
        }))
    }
}

fn join(path: &EntryPath, name: &[u8]) -> Result<EntryPath, ImageError> {
    let whole = [path.bytes(), name].join(&b'/');
    EntryPath::of(&whole).map_err(|refusal| ImageError::malformed("a path", refusal))
}

/// Whether a file is an archive that is unpacked.
fn is_archive(tree: &LayerTree, path: &EntryPath, source: &str) -> Result<bool, ImageError> {
    let mut start = Vec::new();
    let file = open_file(tree, path)?;
    let read = file.take(8).read_to_end(&mut start);
    read.map_err(|error| tree.failed("reading", path, error))?;
    if let Some((_, reason)) = FOREIGN.iter().find(|(begin, _)| start.starts_with(begin)) {
        return Err(ImageError::Archive {
            source_path: source.to_owned(),
            reason: (*reason).to_owned(),
        });
    }
    // What cannot be decompressed is a file like any other.
    let Ok(mut plain) = decompressed(open_file(tree, path)?) else {
        return Ok(false);
    };
    let mut block = [0; BLOCK];
    let is_whole = plain.read_exact(&mut block).is_ok() && block.iter().any(|byte| *byte != 0);
    Ok(is_whole && Block::checked(block).is_ok())
}

impl LayerArchive {
    /// Fills it with files that were selected from `tree`.
    ///
    /// # Errors
    /// [`ImageError::Archive`]; when something cannot be read; when there is too much.
    pub fn fill_copied(
        &self,
        tree: Option<&LayerTree>,
        selection: &CopySelection,
        target: &CopyTarget<'_>,
    ) -> Result<(), ImageError> {
        let writing = |error: io::Error| ImageError::file("writing", self.staged.place())(error);
        let mut copying = Copying {
            writer: self.writer().map_err(writing)?,
            tree,
            target,
            places: BTreeMap::new(),
            made: BTreeSet::new(),
        };
        copying.all(selection)?;
        copying.writer.finish().map(drop).map_err(writing)
    }
}

/// Files on their way into an archive.
struct Copying<'a, W> {
    writer: TarWriter<W>,
    tree: Option<&'a LayerTree>,
    target: &'a CopyTarget<'a>,
    /// Where directories are, links followed.
    places: BTreeMap<EntryPath, EntryPath>,
    made: BTreeSet<EntryPath>,
}

impl<W: io::Write> Copying<'_, W> {
    fn all(&mut self, selection: &CopySelection) -> Result<(), ImageError> {
        let target = self.target;
        let whole = target.below.resolve(target.destination.as_bytes(), false)?;
        let ends = target.destination.ends_with('/') || target.destination.ends_with("/.");
        let leads_to = target.below.resolve(target.destination.as_bytes(), true)?;
        let is_directory = ends || selection.sources.len() > 1 || target.below.is_directory(&leads_to)?;
        for source in &selection.sources {
            match source {
                SelectedSource::Directory(entries) => {
                    self.directory(&whole, 0o755, 0)?;
                    for entry in entries {
                        let path = join(&whole, entry.relative.bytes())?;
                        self.add(&path, entry)?;
                    }
                }
                SelectedSource::File { name, entry } if is_directory => {
                    // It is no file that is copied, so it has not the mode of those.
                    self.directory_of_mode(&whole, 0o755, 0)?;
                    let path = join(&whole, name)?;
                    self.add(&path, entry)?;
                }
                SelectedSource::File { entry, .. } => self.add(&whole, entry)?,
                SelectedSource::Archive(entry) => {
                    self.directory(&whole, 0o755, 0)?;
                    self.unpack(&whole, entry)?;
                }
            }
        }
        Ok(())
    }

    /// Where a directory is, links of lower layers followed.
    fn place(&mut self, directory: &EntryPath) -> Result<EntryPath, ImageError> {
        if let Some(place) = self.places.get(directory) {
            return Ok(place.clone());
        }
        let place = self.target.below.resolve(directory.bytes(), true)?;
        self.places.insert(directory.clone(), place.clone());
        Ok(place)
    }

    fn owner(&self) -> (u32, u32) {
        self.target.owner.unwrap_or((0, 0))
    }

    /// Makes a directory unless it is there.
    fn directory(&mut self, path: &EntryPath, mode: u32, modified: i64) -> Result<(), ImageError> {
        self.directory_of_mode(path, self.target.mode.unwrap_or(mode), modified)
    }

    /// The same, with these permission bits whatever was asked for.
    fn directory_of_mode(&mut self, path: &EntryPath, mode: u32, modified: i64) -> Result<(), ImageError> {
        let place = self.place(path)?;
        if self.target.below.is_directory(&place)? || !self.made.insert(place.clone()) {
            return Ok(());
        }
        let (uid, gid) = self.owner();
        let entry = NewEntry {
            mode,
            uid,
            gid,
            modified: (modified, 0),
            ..NewEntry::empty(place.bytes(), EntryKind::Directory)
        };
        self.write(&entry, &mut io::empty())
    }

    fn write(&mut self, entry: &NewEntry<'_>, contents: &mut dyn Read) -> Result<(), ImageError> {
        let path = String::from_utf8_lossy(entry.path).into_owned();
        let written = self.writer.add(entry, contents);
        written.map_err(ImageError::file("copying to", path))
    }

    /// The path of something in a directory, links on the way followed.
    fn placed(&mut self, path: &EntryPath) -> Result<EntryPath, ImageError> {
        let (parent, name) = path.split();
        let name = name.to_vec();
        join(&self.place(&parent)?, &name)
    }

    fn add(&mut self, path: &EntryPath, entry: &SelectedEntry) -> Result<(), ImageError> {
        if entry.kind == EntryKind::Directory {
            return self.directory(path, entry.mode, entry.modified);
        }
        let place = self.placed(path)?;
        if place.is_root() {
            return Err(ImageError::malformed(
                "the destination",
                "a file cannot be the root directory",
            ));
        }
        let (uid, gid) = self.owner();
        let new = NewEntry {
            kind: entry.kind,
            link: &entry.link,
            mode: self.target.mode.unwrap_or(entry.mode),
            uid,
            gid,
            modified: (entry.modified, 0),
            size: entry.size,
            ..NewEntry::empty(place.bytes(), entry.kind)
        };
        if let (Contents::Path(path), EntryKind::File, Some(tree)) = (&entry.contents, entry.kind, self.tree) {
            let mut file = open_file(tree, path)?;
            let shown = || String::from_utf8_lossy(new.path).into_owned();
            let written = self.writer.add_copied(&new, &mut file);
            return written.map_err(|error| ImageError::file("copying to", shown())(error));
        }
        let mut contents = entry.open(self.tree)?;
        self.write(&new, &mut contents)
    }

    /// Puts what an archive holds below a directory.
    fn unpack(&mut self, directory: &EntryPath, entry: &SelectedEntry) -> Result<(), ImageError> {
        let (Contents::Path(path), Some(tree)) = (&entry.contents, self.tree) else {
            return Ok(());
        };
        let shown = String::from_utf8_lossy(path.bytes()).into_owned();
        let refused = |reason: String| ImageError::Archive {
            source_path: shown.clone(),
            reason,
        };
        let plain = decompressed(open_file(tree, path)?).map_err(|error| refused(error.to_string()))?;
        let mut archive = Archive::new(plain);
        let mut count = 0;
        while let Some(found) = archive.next().map_err(|error| refused(error.to_string()))? {
            count += 1;
            if count > MAX_ENTRIES {
                return Err(refused(format!("it has more than {MAX_ENTRIES} entries")));
            }
            let inside = |name: &[u8]| EntryPath::of(name).map_err(|refusal| refused(refusal.to_string()));
            let path = inside(&found.path)?;
            if path.is_root() || matches!(found.kind, EntryKind::Device | EntryKind::Other) {
                continue;
            }
            if found.sparse.is_some() {
                return Err(refused(format!(
                    "`{}` is a sparse file",
                    String::from_utf8_lossy(path.bytes())
                )));
            }
            let path = join(directory, path.bytes())?;
            let link = match found.kind {
                EntryKind::HardLink => {
                    let target = join(directory, inside(&found.link)?.bytes())?;
                    self.placed(&target)?.bytes().to_vec()
                }
                _ => found.link.clone(),
            };
            self.unpack_entry(&path, &found, &link, &mut archive)?;
        }
        Ok(())
    }

    fn unpack_entry<R: Read>(
        &mut self,
        path: &EntryPath,
        found: &TarEntry,
        link: &[u8],
        archive: &mut Archive<R>,
    ) -> Result<(), ImageError> {
        let known = |id: u64| u32::try_from(id).ok().filter(|id| *id < 65_536).unwrap_or(65_534);
        let (uid, gid) = self.target.owner.unwrap_or((known(found.uid), known(found.gid)));
        let place = match found.kind {
            EntryKind::Directory => self.place(path)?,
            _ => self.placed(path)?,
        };
        let entry = NewEntry {
            kind: found.kind,
            link,
            mode: self.target.mode.unwrap_or(found.mode),
            uid,
            gid,
            modified: (found.modified.0, 0),
            size: found.stored,
            ..NewEntry::empty(place.bytes(), found.kind)
        };
        self.write(&entry, &mut ArchiveContents(archive))
    }
}

/// The contents of an archive's present entry.
struct ArchiveContents<'a, R>(&'a mut Archive<R>);

impl<R: Read> Read for ArchiveContents<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_contents(buffer)
    }
}
