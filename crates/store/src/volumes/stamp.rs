//! Which files a volume has, and whether one is still what it was: for who brings a volume and something else to the same
//! while sandboxes may write to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::content::{EntryOwner, VolumeContent, VolumePath, VolumeWriter, at, other_kind, too_large};
use super::error::VolumeError;
use crate::failure::FailedCall;
use crate::node::{NodeKind, kind_of};
use crate::tree::{entries_in, stat_at};

/// How many directories in one another are looked through.
const MAX_DEPTH: usize = 256;
/// How many of the entries that are no files are named.
const NAMED: usize = 20;

/// What tells whether a file was written since. The time of its last change cannot be set by a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// Bytes.
    pub size: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The files of a volume.
#[derive(Debug, Clone, Default)]
pub struct FoundFiles {
    /// Regular files, by their paths.
    pub files: BTreeMap<PathBuf, FileStamp>,
    /// What is neither a file nor a directory, with what it is; some of it.
    pub others: Vec<(PathBuf, &'static str)>,
    /// How much of that there is.
    pub other_count: u64,
}

impl FileStamp {
    fn of(stat: &Stat) -> Self {
        Self {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            inode: stat.st_ino,
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
        }
    }

    /// Whether it is the same file with the same contents; a new name alone changes the last of its times.
    fn is_same_file(&self, other: &Self) -> bool {
        (self.inode, self.size, self.modified) == (other.inode, other.size, other.modified)
    }
}

impl VolumeContent {
    /// All files, at most `most` of them and of directories.
    ///
    /// # Errors
    /// `TooLarge`; when a directory cannot be read.
    pub fn files(&self, most: usize) -> Result<FoundFiles, VolumeError> {
        let mut found = FoundFiles::default();
        let mut todo = vec![(PathBuf::new(), 0)];
        let mut seen = 0;
        while let Some((directory, depth)) = todo.pop() {
            let shown = VolumePath::parse(directory.as_os_str().as_encoded_bytes())?;
            let opened = match self.tree.readable(&directory) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if depth > 0 => continue,
                opened => opened.map_err(at("opening", &shown))?,
            };
            for (name, kind) in entries_in(&opened).map_err(at("listing", &shown))? {
                seen += 1;
                if seen > most {
                    return Err(too_large(&shown, "files and directories", most));
                }
                let path = directory.join(&name);
                match kind {
                    NodeKind::Directory if depth >= MAX_DEPTH => {
                        return Err(too_large(&shown, "directories in one another", MAX_DEPTH));
                    }
                    NodeKind::Directory => todo.push((path, depth + 1)),
                    NodeKind::File => {
                        let stat = stat_at(&opened, name.as_os_str()).map_err(at("examining", &shown))?;
                        let stat = stat.filter(|stat| kind_of(stat) == NodeKind::File);
                        found.files.extend(stat.map(|stat| (path, FileStamp::of(&stat))));
                    }
                    NodeKind::Symlink => found.other(path, "a symbolic link"),
                    NodeKind::Fifo => found.other(path, "a named pipe"),
                    NodeKind::Socket => found.other(path, "a socket"),
                    NodeKind::Device => found.other(path, "a device"),
                }
            }
        }
        Ok(found)
    }

    /// What tells whether the file at `path` was written since; `None` where there is none.
    ///
    /// # Errors
    /// `Changed`, `OtherKind` for what is no file.
    pub fn stamp(&self, path: &VolumePath) -> Result<Option<FileStamp>, VolumeError> {
        let (parent, name) = match self.tree.parent(path.as_path()) {
            Err(Errno::NOENT) => return Ok(None),
            found => found.map_err(at("opening", path))?,
        };
        let stat = stat_at(&parent, name).map_err(at("examining", path))?;
        match stat.map(|stat| (kind_of(&stat), FileStamp::of(&stat))) {
            None => Ok(None),
            Some((NodeKind::File, stamp)) => Ok(Some(stamp)),
            Some((kind, _)) => Err(other_kind(path, kind)),
        }
    }

    /// What tells the same of a file that was opened.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn stamp_of(&self, file: &File) -> Result<FileStamp, VolumeError> {
        let stat = rustix::fs::fstat(file).tried("examining", "an open file")?;
        Ok(FileStamp::of(&stat))
    }

    /// Removes the file at `path` if it is what it was.
    ///
    /// # Errors
    /// `Changed` when it is not; it stays.
    pub fn remove_unchanged(&self, path: &VolumePath, expected: &FileStamp) -> Result<(), VolumeError> {
        let changed = || VolumeError::Changed { path: path.shown() };
        if self.stamp(path)?.as_ref() != Some(expected) {
            return Err(changed());
        }
        let (parent, name) = self.parent(path)?;
        // Where nobody else can write to it, so that what is looked at is what is removed.
        let aside = format!("{:032x}", super::random().tried("drawing a name in", super::INCOMING)?);
        let noreplace = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&parent, name, &self.incoming, &*aside, noreplace).map_err(at("moving", path))?;
        let taken = stat_at(&self.incoming, aside.as_ref()).map_err(at("examining", path))?;
        let is_it =
            taken.is_some_and(|stat| kind_of(&stat) == NodeKind::File && FileStamp::of(&stat).is_same_file(expected));
        if !is_it {
            let back = rustix::fs::renameat_with(&self.incoming, &*aside, &parent, name, noreplace);
            return Err(back.map_or_else(at("moving back", path), |()| changed()));
        }
        rustix::fs::unlinkat(&self.incoming, &*aside, AtFlags::empty()).map_err(at("removing", path))
    }
}

impl VolumeWriter {
    /// Gives the file its name if what has that is still `expected`: nothing, or a file that was not written since. Nothing that
    /// a sandbox wrote meanwhile is replaced.
    ///
    /// # Errors
    /// `Changed` when it is something else, which stays.
    pub fn finish_unless_changed(mut self, expected: Option<&FileStamp>) -> Result<FileStamp, VolumeError> {
        let changed = || VolumeError::Changed {
            path: self.path.shown(),
        };
        if self.content.stamp(&self.path)?.as_ref() != expected {
            return Err(changed());
        }
        self.give_to(EntryOwner::default())?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let ours = rustix::fs::openat(&self.content.incoming, &*self.name, flags, Mode::empty());
        let ours = File::from(ours.tried("opening", &self.name)?);
        ours.sync_all().tried("writing", self.path.as_path())?;
        let (parent, name) = self.content.parent(&self.path)?;
        let incoming = &self.content.incoming;
        let rename = |how| rustix::fs::renameat_with(incoming, &*self.name, &parent, name, how);
        match expected {
            None => match rename(RenameFlags::NOREPLACE) {
                Ok(()) => self.is_done = true,
                Err(Errno::EXIST) => return Err(changed()),
                Err(error) => return Err(at("naming", &self.path)(error)),
            },
            // The two change places, so that it is seen what was replaced. It is removed as what was not finished would be.
            Some(expected) => {
                rename(RenameFlags::EXCHANGE).map_err(at("naming", &self.path))?;
                let replaced = stat_at(incoming, self.name.as_ref()).map_err(at("examining", &self.path))?;
                let is_it = replaced.is_some_and(|stat| {
                    kind_of(&stat) == NodeKind::File && FileStamp::of(&stat).is_same_file(expected)
                });
                if !is_it {
                    let back = rename(RenameFlags::EXCHANGE);
                    // What could not be moved back is not ours to remove.
                    self.is_done = back.is_err();
                    return Err(back.map_or_else(at("moving back", &self.path), |()| changed()));
                }
            }
        }
        self.content.stamp_of(&ours)
    }
}

impl FoundFiles {
    fn other(&mut self, path: PathBuf, what: &'static str) {
        self.other_count += 1;
        if self.others.len() < NAMED {
            self.others.push((path, what));
        }
    }

    /// The file at `path`.
    pub fn get(&self, path: &Path) -> Option<&FileStamp> {
        self.files.get(path)
    }
}
