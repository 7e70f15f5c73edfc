//! What is in a volume, as the host reads and writes it while sandboxes may change it at the same time.
//!
//! Every path is resolved from the volume's own directory, through no symbolic link and no mount; nothing is opened but
//! directories and regular files. A file is written beside the volume's data and then given its name, so that nobody sees
//! half of one, and one that its writer never finished is in nobody's way.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use offleash_core::text::Text;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::error::VolumeError;
use super::record::VolumeOwners;
use super::uploads::UploadShare;
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeKind, kind_of};
use crate::removal::remove_tree;
use crate::tree::{TreeRoot, chmod, entries_in, stat_at};

/// Longest path, bytes: `PATH_MAX`.
const MAX_PATH: usize = 4095;
/// How many entries a list has at most.
const MAX_LISTED: usize = 10_000;
/// How many directories in one another are listed or made at most.
const MAX_LISTED_DEPTH: usize = 64;
/// How many directories in one another are given away; those below are as they were.
const MAX_OWNED_DEPTH: usize = 1024;
/// The permission bits that anything in a volume can have: set-user-id means nothing there.
const MODE_BITS: u32 = 0o1777;

/// A path in a volume, relative to its top, of plain names alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath(PathBuf);

impl VolumePath {
    /// Reads a path as callers write it: absolute in the volume; what is relative begins at its top.
    ///
    /// # Errors
    /// `Path` for `..`, NUL bytes, and what is too long.
    pub fn parse(given: &[u8]) -> Result<Self, VolumeError> {
        let refuse = |why| VolumeError::Path {
            path: Text(given.to_vec()),
            why,
        };
        if given.len() > MAX_PATH {
            return Err(refuse("it is too long"));
        }
        if given.contains(&0) {
            return Err(refuse("it contains a NUL byte"));
        }
        let mut path = PathBuf::new();
        for component in Path::new(OsStr::from_bytes(given)).components() {
            match component {
                Component::Normal(name) if name.len() > 255 => return Err(refuse("a name in it is too long")),
                Component::Normal(name) => path.push(name),
                Component::ParentDir => return Err(refuse("it contains `..`")),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Ok(Self(path))
    }

    /// How many entries it takes at most to make it, with the directories that lead to it if they are made, too.
    pub fn entries(&self, with_parents: bool) -> u64 {
        match with_parents {
            true => self.0.components().count() as u64,
            false => 1,
        }
    }

    /// Relative to the volume's top, where it is empty.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// As callers write it: from `/`.
    pub fn shown(&self) -> Text {
        Text::from(&Path::new("/").join(&self.0))
    }

    fn is_top(&self) -> bool {
        self.0.as_os_str().is_empty()
    }
}

/// An entry of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Relative to the volume's top.
    pub path: PathBuf,
    /// What it is.
    pub kind: NodeKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner, as sandboxes see it.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// When it was last read.
    pub accessed: SystemTime,
    /// When its contents were last changed.
    pub modified: SystemTime,
    /// When anything of it was last changed.
    pub changed: SystemTime,
    /// Where a symbolic link points.
    pub target: Option<PathBuf>,
}

/// Who something belongs to that the host makes, and its permission bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryOwner {
    /// Its user id in sandboxes; whoever works there if absent.
    pub uid: Option<u32>,
    /// Its group id in sandboxes.
    pub gid: Option<u32>,
    /// Its permission bits.
    pub mode: Option<u32>,
}

/// The files of one volume.
#[derive(Debug)]
pub struct VolumeContent {
    pub(super) tree: TreeRoot,
    pub(super) incoming: OwnedFd,
    pub(super) owners: VolumeOwners,
}

/// A file that is being written; it has its name once that is done, and is gone if it never is.
#[derive(Debug)]
pub struct VolumeWriter {
    pub(super) content: VolumeContent,
    pub(super) path: VolumePath,
    pub(super) name: String,
    file: File,
    /// How many bytes may be written, with all other files that are on their way into the volume.
    room: u64,
    share: UploadShare,
    full: VolumeError,
    pub(super) is_done: bool,
}

impl VolumeContent {
    pub(super) fn open(data: &Path, incoming: &Path, owners: VolumeOwners) -> Result<Self, VolumeError> {
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).tried("opening", path)
        };
        Ok(Self {
            tree: TreeRoot::ours(open(data)?),
            incoming: open(incoming)?,
            owners,
        })
    }

    /// Gives everything that belongs to another user of a sandbox to whoever works there, for a sandbox that has no other;
    /// nothing happens where there is one owner. What is made or moved meanwhile may be left out.
    ///
    /// # Errors
    /// When something cannot be listed or given away.
    pub fn give_all_to_worker(&self) -> Result<(), VolumeError> {
        let worker = (VolumeOwners::WORKER, VolumeOwners::WORKER);
        let (VolumeOwners::Range { .. }, Some(ids)) = (self.owners, self.owners.outside(worker)) else {
            return Ok(());
        };
        let (uid, gid) = (Some(Uid::from_raw(ids.0)), Some(Gid::from_raw(ids.1)));
        let mut todo = vec![PathBuf::new()];
        while let Some(directory) = todo.pop() {
            let shown = VolumePath(directory.clone());
            let opened = match self.tree.readable(&directory) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened.map_err(at("opening", &shown))?,
            };
            for (name, kind) in entries_in(&opened).map_err(at("listing", &shown))? {
                let stat = stat_at(&opened, name.as_os_str()).map_err(at("examining", &shown))?;
                if stat.is_some_and(|stat| (stat.st_uid, stat.st_gid) != ids) {
                    match rustix::fs::chownat(&opened, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => return Err(at("giving away", &shown)(error)),
                    }
                }
                if kind == NodeKind::Directory && directory.components().count() < MAX_OWNED_DEPTH {
                    todo.push(directory.join(name));
                }
            }
        }
        Ok(())
    }

    /// What is at `path`; a link itself.
    ///
    /// # Errors
    /// `NoEntry`, `Changed` where the way there leads through a link.
    pub fn entry(&self, path: &VolumePath) -> Result<VolumeEntry, VolumeError> {
        let stat = match path.is_top() {
            true => rustix::fs::fstat(self.tree.root()),
            false => {
                let (parent, name) = self.parent(path)?;
                let stat = stat_at(&parent, name).map_err(at("examining", path))?;
                let mut entry = self.entry_of(path.0.clone(), &stat.ok_or_else(|| missing(path))?);
                entry.target = target(&parent, name, entry.kind).map_err(at("reading", path))?;
                return Ok(entry);
            }
        };
        Ok(self.entry_of(PathBuf::new(), &stat.map_err(at("examining", path))?))
    }

    /// What is in the directory `path`, down to `depth` directories in one another; 1 is what is in it alone. Parents
    /// come before children.
    ///
    /// # Errors
    /// `NoEntry`, `OtherKind`, `TooLarge`, `Changed`.
    pub fn list(&self, path: &VolumePath, depth: usize) -> Result<Vec<VolumeEntry>, VolumeError> {
        self.require(path, NodeKind::Directory)?;
        let depth = depth.clamp(1, MAX_LISTED_DEPTH);
        let mut found = Vec::new();
        let mut todo = vec![(path.0.clone(), 1)];
        while let Some((directory, level)) = todo.pop() {
            let opened = match self.tree.readable(&directory) {
                // Removed, or replaced, since its name was read.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if level > 1 => continue,
                opened => opened.map_err(at("opening", &VolumePath(directory.clone())))?,
            };
            let mut names = entries_in(&opened).map_err(at("listing", &VolumePath(directory.clone())))?;
            names.sort_by(|one, other| one.0.cmp(&other.0));
            let mut below = Vec::new();
            for (name, _) in names {
                let Some(stat) = stat_at(&opened, name.as_os_str()).map_err(at("examining", path))? else {
                    continue;
                };
                if found.len() >= MAX_LISTED {
                    return Err(too_large(path, "entries", MAX_LISTED));
                }
                let mut entry = self.entry_of(directory.join(&name), &stat);
                entry.target = target(&opened, name.as_os_str(), entry.kind).unwrap_or_default();
                if entry.kind == NodeKind::Directory && level < depth {
                    below.push((entry.path.clone(), level + 1));
                }
                found.push(entry);
            }
            todo.extend(below.into_iter().rev());
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Opens the regular file at `path` for reading.
    ///
    /// # Errors
    /// `NoEntry`, `OtherKind`, `Changed`.
    pub fn read(&self, path: &VolumePath) -> Result<(File, VolumeEntry), VolumeError> {
        self.require(path, NodeKind::File)?;
        let file = self.tree.file(&path.0).map_err(at("opening", path))?;
        let stat = rustix::fs::fstat(&file).map_err(at("examining", path))?;
        Ok((file, self.entry_of(path.0.clone(), &stat)))
    }

    /// Makes the directory `path`, and those above it if `parents`.
    ///
    /// # Errors
    /// `EntryExists` unless `parents` and it is a directory, `NoEntry`, `OtherKind`, `Changed`.
    pub fn make_directory(
        &self,
        path: &VolumePath,
        owner: EntryOwner,
        parents: bool,
    ) -> Result<VolumeEntry, VolumeError> {
        if parents {
            self.make_parents(path)?;
        }
        match (path.is_top(), parents) {
            (true, true) => return self.entry(path),
            (true, false) => return Err(VolumeError::EntryExists { path: path.shown() }),
            _ => {}
        }
        let (parent, name) = self.parent(path)?;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => self.give(path, owner, 0o755)?,
            Err(Errno::EXIST) if parents => self.require(path, NodeKind::Directory)?,
            Err(Errno::EXIST) => return Err(VolumeError::EntryExists { path: path.shown() }),
            Err(error) => return Err(at("making", path)(error)),
        }
        self.entry(path)
    }

    /// Gives what is at `path` another owner or other permission bits.
    ///
    /// # Errors
    /// `NoEntry`, `Changed`, `OneOwner`, `NoId`.
    pub fn change(&self, path: &VolumePath, owner: EntryOwner) -> Result<VolumeEntry, VolumeError> {
        let before = self.entry(path)?;
        let place = self.tree.place(&path.0);
        let is_link = before.kind == NodeKind::Symlink;
        if !is_link {
            let place = place.map_err(at("opening", path))?;
            let owner = EntryOwner {
                uid: owner.uid.or(owner.gid.map(|_| before.uid)),
                gid: owner.gid.or(owner.uid.map(|_| before.gid)),
                ..owner
            };
            self.give_place(&place, path, owner, before.mode)?;
        }
        self.entry(path)
    }

    /// Removes what is at `path`, with all that is in it; links are removed, not followed.
    ///
    /// # Errors
    /// `NoEntry`, `Path` for the top itself, `Changed`; the first entry that cannot be removed.
    pub fn remove(&self, path: &VolumePath) -> Result<(), VolumeError> {
        if path.is_top() {
            return Err(VolumeError::Path {
                path: path.shown(),
                why: "the top of a volume stays as long as that",
            });
        }
        let (parent, name) = self.parent(path)?;
        if stat_at(&parent, name).map_err(at("examining", path))?.is_none() {
            return Err(missing(path));
        }
        Ok(remove_tree(&parent, name)?)
    }

    /// Begins to write the file at `path`; of it, and of all others that are being written, there may be `room` bytes. `full` is what
    /// more of them is.
    ///
    /// # Errors
    /// `OtherKind` for a directory, `NoEntry` without its parent, which is made if `parents`; `Changed`.
    pub fn write(
        self,
        path: VolumePath,
        parents: bool,
        room: u64,
        full: VolumeError,
    ) -> Result<VolumeWriter, VolumeError> {
        if path.is_top() {
            return Err(other_kind(&path, NodeKind::Directory));
        }
        if parents {
            self.make_parents(&path)?;
        }
        let (parent, name) = self.parent(&path)?;
        if let Some(stat) = stat_at(&parent, name).map_err(at("examining", &path))?
            && kind_of(&stat) == NodeKind::Directory
        {
            return Err(other_kind(&path, NodeKind::Directory));
        }
        let share = UploadShare::of(&self.incoming).map_err(at("examining", &path))?;
        let (name, file) = self.new_file()?;
        Ok(VolumeWriter {
            content: self,
            path,
            name,
            file,
            room,
            share,
            full,
            is_done: false,
        })
    }

    /// A new file beside the data, by the name that it has there.
    pub(super) fn new_file(&self) -> Result<(String, File), VolumeError> {
        let random = super::random().tried("drawing a name in", super::INCOMING)?;
        let name = format!("{random:032x}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&self.incoming, &*name, flags, Mode::RUSR | Mode::WUSR).tried("creating", &name)?;
        Ok((name, file.into()))
    }

    /// The directory that holds `path`, and the name in it.
    pub(super) fn parent<'p>(&self, path: &'p VolumePath) -> Result<(OwnedFd, &'p OsStr), VolumeError> {
        self.tree.parent(&path.0).map_err(at("opening", path))
    }

    fn make_parents(&self, path: &VolumePath) -> Result<(), VolumeError> {
        let mut above: Vec<&Path> = path.0.ancestors().skip(1).collect();
        above.retain(|path| !path.as_os_str().is_empty());
        if above.len() > MAX_LISTED_DEPTH {
            return Err(too_large(path, "directories in one another", MAX_LISTED_DEPTH));
        }
        for directory in above.into_iter().rev() {
            let directory = VolumePath(directory.to_owned());
            let (parent, name) = self.parent(&directory)?;
            match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                Ok(()) => self.give(&directory, EntryOwner::default(), 0o755)?,
                Err(Errno::EXIST) => self.require(&directory, NodeKind::Directory)?,
                Err(error) => return Err(at("making", &directory)(error)),
            }
        }
        Ok(())
    }

    /// Gives what was made at `path` to its owner.
    pub(super) fn give(&self, path: &VolumePath, owner: EntryOwner, usual: u32) -> Result<(), VolumeError> {
        let place = self.tree.place(&path.0).map_err(at("opening", path))?;
        let owner = EntryOwner {
            uid: owner.uid.or(Some(VolumeOwners::WORKER)),
            gid: owner.gid.or(Some(VolumeOwners::WORKER)),
            ..owner
        };
        self.give_place(&place, path, owner, usual)
    }

    /// `usual` are the permission bits where `owner` says nothing of them. Changing the owner may take bits away, so it comes
    /// first.
    fn give_place(&self, place: &OwnedFd, path: &VolumePath, owner: EntryOwner, usual: u32) -> Result<(), VolumeError> {
        if let (Some(uid), Some(gid)) = (owner.uid, owner.gid) {
            let (uid, gid) = self.outside(uid, gid)?;
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(place, "", uid, gid, AtFlags::EMPTY_PATH).map_err(at("giving away", path))?;
        }
        let mode = owner.mode.unwrap_or(usual) & MODE_BITS;
        chmod(place, mode).map_err(at("changing the mode of", path))
    }

    fn outside(&self, uid: u32, gid: u32) -> Result<(u32, u32), VolumeError> {
        let too_high = [uid, gid].into_iter().find(|id| *id >= VolumeOwners::COUNT);
        match (too_high, self.owners.outside((uid, gid))) {
            (Some(id), _) => Err(VolumeError::NoId { id }),
            (None, Some(ids)) => Ok(ids),
            (None, None) => Err(VolumeError::OneOwner),
        }
    }

    fn require(&self, path: &VolumePath, kind: NodeKind) -> Result<(), VolumeError> {
        let found = self.entry(path)?.kind;
        match found == kind {
            true => Ok(()),
            false => Err(other_kind(path, found)),
        }
    }

    fn entry_of(&self, path: PathBuf, stat: &Stat) -> VolumeEntry {
        let (uid, gid) = self.owners.inside((stat.st_uid, stat.st_gid));
        VolumeEntry {
            path,
            kind: kind_of(stat),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            uid,
            gid,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            target: None,
        }
    }
}

impl VolumeWriter {
    /// Writes what follows.
    ///
    /// # Errors
    /// `Full`, once the volume has no room for more; when the disk has none.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), VolumeError> {
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if !self.share.grow(length, self.room) {
            let path = self.path.shown();
            return Err(std::mem::replace(&mut self.full, VolumeError::Changed { path }));
        }
        Ok(self.file.write_all(piece).tried("writing", &self.path.0)?)
    }

    /// How many bytes were written.
    pub fn written(&self) -> u64 {
        self.share.bytes()
    }

    /// Gives the file its owner and its name; what had the name is gone.
    ///
    /// # Errors
    /// `OneOwner`, `NoId`, `Changed`, `OtherKind` when a directory has the name now.
    pub fn finish(mut self, owner: EntryOwner) -> Result<VolumeEntry, VolumeError> {
        self.give_to(owner)?;
        let content = &self.content;
        let (parent, name) = content.parent(&self.path)?;
        match rustix::fs::renameat(&content.incoming, &*self.name, &parent, name) {
            Ok(()) => {}
            Err(Errno::ISDIR) => return Err(other_kind(&self.path, NodeKind::Directory)),
            Err(error) => return Err(at("naming", &self.path)(error)),
        }
        self.is_done = true;
        self.content.entry(&self.path)
    }

    /// Gives what was written to its owner.
    pub(super) fn give_to(&self, owner: EntryOwner) -> Result<(), VolumeError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::openat(&self.content.incoming, &*self.name, flags, Mode::empty());
        let place = place.tried("opening", &self.name)?;
        let owner = EntryOwner {
            uid: owner.uid.or(Some(VolumeOwners::WORKER)),
            gid: owner.gid.or(Some(VolumeOwners::WORKER)),
            ..owner
        };
        self.content.give_place(&place, &self.path, owner, 0o644)
    }
}

impl Drop for VolumeWriter {
    fn drop(&mut self) {
        if !self.is_done {
            // It is where nobody looks.
            let _removed = rustix::fs::unlinkat(&self.content.incoming, &*self.name, AtFlags::empty());
        }
    }
}

fn target(parent: &OwnedFd, name: &OsStr, kind: NodeKind) -> Result<Option<PathBuf>, Errno> {
    if kind != NodeKind::Symlink {
        return Ok(None);
    }
    let target = rustix::fs::readlinkat(parent, name, Vec::new())?;
    Ok(Some(PathBuf::from(OsStr::from_bytes(target.to_bytes()))))
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(whole),
        false => UNIX_EPOCH.checked_add(whole),
    };
    time.and_then(|time| time.checked_add(part)).unwrap_or(UNIX_EPOCH)
}

/// What a call's error means for a path of the volume.
pub(super) fn at(tried: &'static str, path: &VolumePath) -> impl FnOnce(Errno) -> VolumeError {
    let path = path.clone();
    move |error| match error {
        Errno::NOENT => missing(&path),
        Errno::LOOP | Errno::XDEV | Errno::INVAL => VolumeError::Changed { path: path.shown() },
        Errno::NOTDIR => other_kind(&path, NodeKind::File),
        error => FileError::new(tried, path.shown().as_path(), error).into(),
    }
}

fn missing(path: &VolumePath) -> VolumeError {
    VolumeError::NoEntry { path: path.shown() }
}

pub(super) fn other_kind(path: &VolumePath, kind: NodeKind) -> VolumeError {
    VolumeError::OtherKind {
        path: path.shown(),
        found: match kind {
            NodeKind::File => "a file, or lies beneath one",
            NodeKind::Directory => "a directory",
            NodeKind::Symlink => "a symbolic link",
            NodeKind::Fifo => "a named pipe",
            NodeKind::Socket => "a socket",
            NodeKind::Device => "a device",
        },
    }
}

pub(super) fn too_large(path: &VolumePath, what: &'static str, most: usize) -> VolumeError {
    VolumeError::TooLarge {
        path: path.shown(),
        what,
        most,
    }
}
