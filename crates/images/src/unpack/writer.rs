//! Makes of entries what overlayfs shows.

use std::collections::BTreeMap;
use std::io::{Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use offleash_store::copy_contents;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::{AttributeWriter, FileAttributes};
use super::beneath::{Beneath, is_directory, is_whiteout, make_opaque, stat_at};
use super::entry_path::EntryPath;
use super::lower::{LowerEntry, LowerLayers};
use super::{LayerError, LayerOwnership, LayerRefusal, LayerReport};
use crate::tar::{Archive, EntryKind, TarEntry};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE_WHITEOUT: &[u8] = b".wh..wh..opq";
/// Names that AUFS kept for itself, such as `.wh..wh.plnk`.
const OF_AUFS: &[u8] = b".wh..wh.";
const BUFFER: usize = 128 << 10;

/// The directory of a layer that is unpacked.
pub(super) struct LayerWriter {
    root: Beneath,
    lowers: LowerLayers,
    attributes: AttributeWriter,
    /// What directories are given at the end: until then we must be able to enter them.
    directories: BTreeMap<EntryPath, FileAttributes>,
    /// The directory that the last entry was in; most are in the same.
    recent: Option<(EntryPath, Rc<OwnedFd>)>,
    buffer: Vec<u8>,
}

/// What was at a place before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlaceBefore {
    Nothing,
    Directory,
    Whiteout,
}

impl LayerWriter {
    pub(super) fn new(root: Beneath, lowers: LowerLayers, ownership: LayerOwnership) -> Self {
        Self {
            root,
            lowers,
            attributes: AttributeWriter {
                ownership,
                report: LayerReport::default(),
            },
            directories: BTreeMap::new(),
            recent: None,
            buffer: vec![0; BUFFER],
        }
    }

    /// Makes what an entry says.
    pub(super) fn add<R: Read>(&mut self, entry: &TarEntry, archive: &mut Archive<R>) -> Result<(), LayerRefusal> {
        match entry.kind {
            EntryKind::Device => {
                self.attributes.report.devices += 1;
                return Ok(());
            }
            EntryKind::Other => {
                self.attributes.report.other_kinds += 1;
                return Ok(());
            }
            _ => {}
        }
        let path = EntryPath::of(&entry.path)?;
        if path.is_root() {
            return match entry.kind {
                EntryKind::Directory => {
                    self.directories.insert(path, FileAttributes::of_entry(entry));
                    Ok(())
                }
                _ => Err(LayerRefusal::BadName),
            };
        }
        let (parent, name) = path.split();
        if name.starts_with(WHITEOUT) {
            return self.whiteout(&parent, name);
        }
        let directory = self.directory(&parent)?;
        self.attributes.report.entries += 1;
        match entry.kind {
            EntryKind::Directory => self.add_directory(directory.as_fd(), &path, FileAttributes::of_entry(entry)),
            EntryKind::File => self.add_file(directory.as_fd(), name, entry, archive),
            EntryKind::HardLink => self.add_hard_link(directory.as_fd(), name, &entry.link),
            EntryKind::Symlink => self.add_symlink(directory.as_fd(), name, entry),
            EntryKind::Fifo => self.add_fifo(directory.as_fd(), name, entry),
            EntryKind::Device | EntryKind::Other => Ok(()),
        }
    }

    /// Gives all directories what belongs to them, those within others first.
    pub(super) fn finish(mut self) -> Result<LayerReport, LayerError> {
        self.directories
            .entry(EntryPath::root())
            .or_insert_with(FileAttributes::implied);
        for (path, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            let opened = match self.root.readable(path) {
                // Something else has taken its place.
                Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => continue,
                opened => opened.map_err(|error| LayerRefusal::kernel("opening it", error)),
            };
            opened
                .and_then(|opened| self.attributes.give(&opened, attributes, true))
                .map_err(|refusal| refusal.at(path.bytes()))?;
        }
        Ok(self.attributes.report)
    }

    /// The directory `path`, which is made if no entry made it.
    fn directory(&mut self, path: &EntryPath) -> Result<Rc<OwnedFd>, LayerRefusal> {
        if let Some((_, directory)) = self.recent.as_ref().filter(|(recent, _)| recent == path) {
            return Ok(Rc::clone(directory));
        }
        let directory = match self.root.directory(path) {
            Err(Errno::NOENT | Errno::NOTDIR) => self.make_all(path),
            opened => opened.map_err(refusal_of_walk),
        };
        let directory = Rc::new(directory?);
        self.recent = Some((path.clone(), Rc::clone(&directory)));
        Ok(directory)
    }

    /// Makes the directories that lead to `path` where there are none, as lower layers have them.
    fn make_all(&mut self, path: &EntryPath) -> Result<OwnedFd, LayerRefusal> {
        for step in path.ancestors() {
            let (parent, name) = step.split();
            let directory = self.root.directory(&parent).map_err(refusal_of_walk)?;
            let before = stat_at(&directory, name).map_err(|error| LayerRefusal::kernel("examining it", error))?;
            match before {
                Some(stat) if is_directory(&stat) => {}
                Some(stat) if !is_whiteout(&stat) => {
                    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
                    return Err(match is_link {
                        true => LayerRefusal::ThroughLink,
                        false => LayerRefusal::ThroughFile,
                    });
                }
                _ => {
                    let lower = self.lowers.find(&step);
                    let lower = lower.map_err(|error| LayerRefusal::kernel("examining lower layers", error))?;
                    let attributes = match lower {
                        Some(lower) if is_directory(&lower.stat) && before.is_none() => {
                            FileAttributes::of_stat(&lower.stat)
                        }
                        _ => FileAttributes::implied(),
                    };
                    self.add_directory(directory.as_fd(), &step, attributes)?;
                }
            }
        }
        self.root.directory(path).map_err(refusal_of_walk)
    }

    /// Makes room for an entry: what an earlier one made there goes, but for a directory.
    fn clear(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        is_for_directory: bool,
    ) -> Result<PlaceBefore, LayerRefusal> {
        let before = stat_at(parent, name).map_err(refusal_of_name)?;
        let Some(stat) = before else {
            return Ok(PlaceBefore::Nothing);
        };
        if is_directory(&stat) && is_for_directory {
            return Ok(PlaceBefore::Directory);
        }
        let flags = match is_directory(&stat) {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        if is_directory(&stat) {
            self.recent = None;
        }
        match rustix::fs::unlinkat(parent, name, flags) {
            Ok(()) if is_whiteout(&stat) => Ok(PlaceBefore::Whiteout),
            Ok(()) => Ok(PlaceBefore::Nothing),
            Err(Errno::NOTEMPTY) => Err(LayerRefusal::ReplacesDirectory),
            Err(error) => Err(LayerRefusal::kernel("removing what was there", error)),
        }
    }

    fn add_directory(
        &mut self,
        parent: BorrowedFd<'_>,
        path: &EntryPath,
        attributes: FileAttributes,
    ) -> Result<(), LayerRefusal> {
        let (_, name) = path.split();
        let before = self.clear(parent, name, true)?;
        if before != PlaceBefore::Directory {
            rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(refusal_of_name)?;
        }
        if before == PlaceBefore::Whiteout {
            make_opaque(parent, name).map_err(|error| LayerRefusal::kernel("making it opaque", error))?;
        }
        self.directories.insert(path.clone(), attributes);
        Ok(())
    }

    fn add_file<R: Read>(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        entry: &TarEntry,
        archive: &mut Archive<R>,
    ) -> Result<(), LayerRefusal> {
        self.clear(parent, name, false)?;
        let mut file = new_file(parent, name)?;
        let written = match &entry.sparse {
            None => copy(archive, &mut file, entry.stored, &mut self.buffer),
            Some(map) => {
                let mut written = Ok(());
                for (offset, length) in &map.pieces {
                    written = written.and_then(|()| {
                        let place = file.seek(SeekFrom::Start(*offset));
                        place.map_err(|error| LayerRefusal::kernel("writing it", error))?;
                        copy(archive, &mut file, *length, &mut self.buffer)
                    });
                }
                let sized = file.set_len(map.size);
                written.and(sized.map_err(|error| LayerRefusal::kernel("writing it", error)))
            }
        };
        written?;
        self.attributes.report.bytes += entry.stored;
        self.attributes.give(&file, &FileAttributes::of_entry(entry), false)
    }

    fn add_symlink(&mut self, parent: BorrowedFd<'_>, name: &[u8], entry: &TarEntry) -> Result<(), LayerRefusal> {
        if entry.link.is_empty() || entry.link.contains(&0) {
            return Err(LayerRefusal::BadName);
        }
        self.clear(parent, name, false)?;
        rustix::fs::symlinkat(entry.link.as_slice(), parent, name).map_err(refusal_of_name)?;
        self.attributes.give_at(parent, name, &FileAttributes::of_entry(entry))
    }

    fn add_fifo(&mut self, parent: BorrowedFd<'_>, name: &[u8], entry: &TarEntry) -> Result<(), LayerRefusal> {
        self.clear(parent, name, false)?;
        rustix::fs::mknodat(parent, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(refusal_of_name)?;
        self.attributes
            .give_at(parent, name, &FileAttributes::of_entry(entry))?;
        let mode = self.attributes.mode(entry.mode, false);
        rustix::fs::chmodat(parent, name, Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|error| LayerRefusal::kernel("giving it its mode", error))
    }

    fn add_hard_link(&mut self, parent: BorrowedFd<'_>, name: &[u8], link: &[u8]) -> Result<(), LayerRefusal> {
        let target = EntryPath::of(link).map_err(|refusal| match refusal {
            LayerRefusal::Escapes => LayerRefusal::LinkOutside,
            other => other,
        })?;
        if target.is_root() {
            return Err(LayerRefusal::LinkToDirectory);
        }
        let (target_parent, target_name) = target.split();
        let found = match self.root.directory(&target_parent) {
            Ok(directory) => {
                let stat = stat_at(&directory, target_name).map_err(refusal_of_name)?;
                stat.map(|stat| (directory, stat))
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(refusal_of_walk(error)),
        };
        let directory = match found {
            Some((_, stat)) if is_whiteout(&stat) => return Err(LayerRefusal::LinkMissing),
            Some((_, stat)) if is_directory(&stat) => return Err(LayerRefusal::LinkToDirectory),
            // A link to itself says nothing.
            Some((directory, _)) if target_name == name && is_same(&directory, parent)? => return Ok(()),
            Some((directory, _)) => directory,
            None => self.copy_up(&target)?,
        };
        self.clear(parent, name, false)?;
        rustix::fs::linkat(&directory, target_name, parent, name, AtFlags::empty())
            .map_err(|error| LayerRefusal::kernel("making a hard link", error))
    }

    /// Takes a file of a lower layer into this one, and answers the directory that it is in: overlayfs knows no link from
    /// one layer into another.
    fn copy_up(&mut self, path: &EntryPath) -> Result<OwnedFd, LayerRefusal> {
        let kernel = |error: Errno| LayerRefusal::kernel("reading lower layers", error);
        let lower = self
            .lowers
            .find(path)
            .map_err(kernel)?
            .ok_or(LayerRefusal::LinkMissing)?;
        let (parent, name) = path.split();
        let directory = self.make_all(&parent)?;
        match lower.kind() {
            FileType::RegularFile => self.copy_file(directory.as_fd(), name, &lower)?,
            FileType::Symlink => {
                let target = lower.target().map_err(kernel)?;
                rustix::fs::symlinkat(target.as_slice(), &directory, name).map_err(refusal_of_name)?;
                let attributes = FileAttributes::of_stat(&lower.stat);
                self.attributes.give_at(&directory, name, &attributes)?;
            }
            FileType::Directory => return Err(LayerRefusal::LinkToDirectory),
            _ => return Err(LayerRefusal::LinkMissing),
        }
        Ok(directory)
    }

    fn copy_file(&mut self, directory: BorrowedFd<'_>, name: &[u8], lower: &LowerEntry) -> Result<(), LayerRefusal> {
        let from = lower
            .file()
            .map_err(|error| LayerRefusal::kernel("reading lower layers", error))?;
        let to = new_file(directory, name)?;
        let (from, to) = (from.into(), OwnedFd::from(to));
        // What it holds was bounded when that layer was unpacked; holes would not be.
        let size = lower.stat.st_size;
        copy_contents(&from, &to, size).map_err(|error| LayerRefusal::kernel("copying it", error))?;
        self.attributes.report.bytes += u64::try_from(size).unwrap_or(0);
        self.attributes.give(&to, &FileAttributes::of_stat(&lower.stat), false)
    }

    fn whiteout(&mut self, parent: &EntryPath, name: &[u8]) -> Result<(), LayerRefusal> {
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(LayerRefusal::BadWhiteout);
        }
        if self.lowers.is_empty() || (name.starts_with(OF_AUFS) && name != OPAQUE_WHITEOUT) {
            // There is nothing below that it could hide, or it is a note of AUFS to itself.
            return Ok(());
        }
        let directory = match self.directory(parent) {
            // What this layer has in the directory's place hides all of that. Tools that compare two trees say both.
            Err(LayerRefusal::ThroughLink | LayerRefusal::ThroughFile) => return Ok(()),
            opened => opened?,
        };
        self.attributes.report.entries += 1;
        let opaque = |error| LayerRefusal::kernel("making it opaque", error);
        if name == OPAQUE_WHITEOUT {
            return match parent.is_root() {
                true => make_opaque(&*directory, b".").map_err(opaque),
                false => {
                    let (above, own) = parent.split();
                    let above = self.root.directory(&above).map_err(refusal_of_walk)?;
                    make_opaque(above, own).map_err(opaque)
                }
            };
        }
        // Whiteouts are about lower layers alone: what this one has stays.
        match stat_at(&*directory, hidden).map_err(refusal_of_name)? {
            Some(stat) if is_directory(&stat) => make_opaque(&*directory, hidden).map_err(opaque),
            Some(_) => Ok(()),
            None => {
                let made = rustix::fs::mknodat(&*directory, hidden, FileType::CharacterDevice, Mode::empty(), 0);
                made.map_err(|error| LayerRefusal::kernel("making a whiteout", error))
            }
        }
    }
}

fn new_file(parent: BorrowedFd<'_>, name: &[u8]) -> Result<std::fs::File, LayerRefusal> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(refusal_of_name)?;
    Ok(file.into())
}

fn copy<R: Read>(
    archive: &mut Archive<R>,
    file: &mut std::fs::File,
    length: u64,
    buffer: &mut [u8],
) -> Result<(), LayerRefusal> {
    let mut left = length;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = archive
            .read_contents(&mut buffer[..most])
            .map_err(LayerRefusal::of_reading)?;
        if read == 0 {
            return Err(LayerRefusal::Truncated);
        }
        file.write_all(&buffer[..read])
            .map_err(|error| LayerRefusal::kernel("writing it", error))?;
        left -= read as u64;
    }
    Ok(())
}

/// Whether both are the same directory.
fn is_same(one: &OwnedFd, other: BorrowedFd<'_>) -> Result<bool, LayerRefusal> {
    let examined = rustix::fs::fstat(one).and_then(|one| Ok((one, rustix::fs::fstat(other)?)));
    let (one, other) = examined.map_err(|error| LayerRefusal::kernel("examining it", error))?;
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn refusal_of_walk(error: Errno) -> LayerRefusal {
    match error {
        Errno::LOOP => LayerRefusal::ThroughLink,
        Errno::NOTDIR => LayerRefusal::ThroughFile,
        Errno::NAMETOOLONG => LayerRefusal::NameTooLong,
        error => LayerRefusal::kernel("opening its directory", error),
    }
}

fn refusal_of_name(error: Errno) -> LayerRefusal {
    match error {
        Errno::NAMETOOLONG => LayerRefusal::NameTooLong,
        error => LayerRefusal::kernel("making it", error),
    }
}
