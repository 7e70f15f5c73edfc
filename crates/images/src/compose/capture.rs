//! What a sandbox wrote, as the archive of a layer.
//!
//! Nothing in it is trusted: directories are opened below the layer's own without following a link, and everything is bounded.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::PathBuf;

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::LayerArchive;
use crate::error::ImageError;
use crate::store::IdNamespace;
use crate::tar::{EntryKind, NewEntry};
use crate::unpack::beneath::{Beneath, is_opaque, is_whiteout, stat_at};
use crate::unpack::entry_path::EntryPath;

/// More entries than a layer may have when it is unpacked again.
const MAX_ENTRIES: u64 = 1_000_000;
/// How many ids a sandbox has at most, and the one that stands for any other.
const IDS: u32 = 65_536;
const NOBODY: u32 = 65_534;
/// How much of the list of a file's attributes, and of one's value, is taken.
const MAX_ATTRIBUTE: usize = 64 << 10;

/// What was written, and how it is to be understood.
#[derive(Debug)]
pub struct CaptureOrder<'a> {
    /// The directory that overlayfs wrote to.
    pub upper: PathBuf,
    /// To whom its files belong in the image.
    pub owner: CapturedOwner,
    /// Files that the sandbox has of its own, and not of what was run in it.
    pub excluded: &'a [ExcludedFile],
}

/// What the owners of files mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturedOwner {
    /// Ids of a range that begins with these.
    Range {
        /// The user that is the superuser inside.
        uid: u32,
        /// The same of groups.
        gid: u32,
    },
    /// Ids of the caller's own range, as whose superuser it is read.
    CallerRange,
    /// One user, who is the superuser in the image.
    Single,
}

/// A file that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedFile {
    /// Its path, without a slash at the beginning.
    pub path: Vec<u8>,
    /// What it says if it is to be left out; whatever it says, if absent.
    pub contents: Option<Vec<u8>>,
}

impl LayerArchive {
    /// Fills it with what a sandbox wrote, which has ended.
    ///
    /// # Errors
    /// When something cannot be read; when there is too much.
    pub fn fill_captured(&self, order: &CaptureOrder<'_>, ids: &dyn IdNamespace) -> Result<(), ImageError> {
        let mut body = || capture(self, order);
        match order.owner {
            CapturedOwner::CallerRange => ids.run(&mut body).map_err(|source| ImageError::Ids { source }),
            _ => body().map_err(ImageError::file("reading what was written to", &order.upper)),
        }
    }
}

fn capture(archive: &LayerArchive, order: &CaptureOrder<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = Beneath::new(rustix::fs::open(&order.upper, flags, Mode::empty())?);
    let mut writer = archive.writer()?;
    let mut linked: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    let mut todo = vec![EntryPath::root()];
    let mut entries = 0;
    while let Some(path) = todo.pop() {
        let directory = root.readable(&path)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort();
        if is_opaque(std::os::fd::AsFd::as_fd(&directory)) {
            let marker = below(&path, b".wh..wh..opq");
            writer.add(&NewEntry::empty(&marker, EntryKind::File), &mut io::empty())?;
        }
        let mut directories = Vec::new();
        for name in names {
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(Errno::FBIG.into());
            }
            let whole = below(&path, &name);
            let Some(stat) = stat_at(&directory, &name)? else {
                continue;
            };
            if is_whiteout(&stat) {
                if !order.excluded.iter().any(|excluded| excluded.path == whole) {
                    let marker = below(&path, &[b".wh.", name.as_slice()].concat());
                    writer.add(&NewEntry::empty(&marker, EntryKind::File), &mut io::empty())?;
                }
                continue;
            }
            let kind = FileType::from_raw_mode(stat.st_mode);
            let mut entry = described(&whole, &stat, order.owner);
            match kind {
                FileType::Directory => {
                    entry.kind = EntryKind::Directory;
                    writer.add(&entry, &mut io::empty())?;
                    directories.push(EntryPath::of(&whole).map_err(io::Error::other)?);
                }
                FileType::RegularFile => {
                    let is_linked = stat.st_nlink > 1;
                    if let Some(first) = linked.get(&(stat.st_dev, stat.st_ino)).filter(|_| is_linked) {
                        entry.kind = EntryKind::HardLink;
                        entry.link = first;
                        entry.size = 0;
                        writer.add(&entry, &mut io::empty())?;
                        continue;
                    }
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&directory, name.as_slice(), flags, Mode::empty())?;
                    let mut file = std::fs::File::from(file);
                    if is_excluded(order, &whole, &mut file)? {
                        continue;
                    }
                    let attributes = attributes_of(&file);
                    entry.attributes = &attributes;
                    writer.add_file(&entry, &mut file)?;
                    if is_linked {
                        linked.insert((stat.st_dev, stat.st_ino), whole.clone());
                    }
                }
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&directory, name.as_slice(), Vec::new())?;
                    entry.kind = EntryKind::Symlink;
                    entry.link = target.as_bytes();
                    entry.size = 0;
                    writer.add(&entry, &mut io::empty())?;
                }
                FileType::Fifo => {
                    entry.kind = EntryKind::Fifo;
                    entry.size = 0;
                    writer.add(&entry, &mut io::empty())?;
                }
                // Sockets are of programs that have ended, and a sandbox makes no devices.
                _ => {}
            }
        }
        todo.extend(directories.into_iter().rev());
    }
    writer.finish().map(drop)
}

fn below(path: &EntryPath, name: &[u8]) -> Vec<u8> {
    match path.is_root() {
        true => name.to_vec(),
        false => [path.bytes(), name].join(&b'/'),
    }
}

fn described<'a>(path: &'a [u8], stat: &Stat, owner: CapturedOwner) -> NewEntry<'a> {
    let within = |id: u32, first: u32| id.checked_sub(first).filter(|id| *id < IDS).unwrap_or(NOBODY);
    let (uid, gid) = match owner {
        CapturedOwner::Range { uid, gid } => (within(stat.st_uid, uid), within(stat.st_gid, gid)),
        CapturedOwner::CallerRange => (within(stat.st_uid, 0), within(stat.st_gid, 0)),
        CapturedOwner::Single => (0, 0),
    };
    let size = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => u64::try_from(stat.st_size).unwrap_or(0),
        _ => 0,
    };
    NewEntry {
        mode: stat.st_mode & 0o7777,
        uid,
        gid,
        modified: (stat.st_mtime, 0),
        size,
        ..NewEntry::empty(path, EntryKind::File)
    }
}

/// Whether a file is one of the sandbox's own; what was read of it is read again otherwise.
fn is_excluded(order: &CaptureOrder<'_>, path: &[u8], file: &mut std::fs::File) -> io::Result<bool> {
    let Some(excluded) = order.excluded.iter().find(|excluded| excluded.path == path) else {
        return Ok(false);
    };
    let Some(contents) = &excluded.contents else {
        return Ok(true);
    };
    let mut found = Vec::new();
    let limit = contents.len() as u64 + 1;
    file.by_ref().take(limit).read_to_end(&mut found)?;
    io::Seek::rewind(file)?;
    Ok(found == *contents)
}

/// The attributes of users; those of overlays mean nothing elsewhere.
fn attributes_of(file: &std::fs::File) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = vec![0; MAX_ATTRIBUTE];
    // A file system that has none says so.
    let Ok(length) = rustix::fs::flistxattr(file, &mut list[..]) else {
        return Vec::new();
    };
    let names = list[..length].split(|byte| *byte == 0);
    let kept = names.filter(|name| name.starts_with(b"user.") && !name.starts_with(b"user.overlay."));
    let with_value = kept.filter_map(|name| {
        let mut value = vec![0; MAX_ATTRIBUTE];
        let length = rustix::fs::fgetxattr(file, name, &mut value[..]).ok()?;
        value.truncate(length);
        Some((name.to_vec(), value))
    });
    with_value.collect()
}
