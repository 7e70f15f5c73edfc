//! Packs the layer of a sandbox as an archive that `unpack` takes again: a layer of OCI, with whiteouts as names.
//!
//! What is in the layer is not trusted: it is opened by directory descriptor, and no link is followed.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::tar::{EntryKind, NewEntry, TarWriter};

/// How deep directories may be in one another.
const MAX_DEPTH: usize = 200;
/// Longest attribute (`XATTR_SIZE_MAX`), and longest list of them.
const MAX_ATTRIBUTE: usize = 65_536;

/// A part of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedPart {
    /// Where it is in the archive, without a slash at either end; empty for the root.
    pub place: Vec<u8>,
    /// Its directory.
    pub directory: PathBuf,
    /// Which uid and gid are the superuser's.
    pub superuser: (u32, u32),
}

/// Writes `parts` as one archive, after a file of that name and contents. Files keep their holes.
///
/// # Errors
/// When something cannot be read or written, for names that an archive keeps for itself, and for what is more than is read again.
pub fn pack_layer(parts: &[PackedPart], description: (&str, &[u8]), out: &mut impl Write) -> io::Result<()> {
    let mut writer = TarWriter::new(out, u64::MAX);
    let header = NewEntry {
        size: description.1.len() as u64,
        mode: 0o600,
        ..NewEntry::empty(description.0.as_bytes(), EntryKind::File)
    };
    writer.add(&header, &mut &*description.1)?;
    for part in parts {
        let mut packing = PartPacking {
            out: &mut writer,
            superuser: part.superuser,
            linked: HashMap::new(),
        };
        let root = open(rustix::fs::CWD, &part.directory)?;
        packing.directory(&root, &part.place, 0)?;
    }
    writer.finish().map(drop)
}

struct PartPacking<'out, W> {
    out: &'out mut TarWriter<W>,
    superuser: (u32, u32),
    linked: HashMap<(u64, u64), Vec<u8>>,
}

impl<W: Write> PartPacking<'_, W> {
    fn directory(&mut self, directory: &OwnedFd, path: &[u8], depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other("directories are too deep in one another"));
        }
        let stat = rustix::fs::fstat(directory)?;
        let attributes = attributes(&by_descriptor(directory, c"."))?;
        let name = [path, if path.is_empty() { b"./" } else { b"/" }].concat();
        let header = NewEntry {
            attributes: &attributes,
            ..self.header(&stat, &name, EntryKind::Directory)
        };
        self.out.add(&header, &mut io::empty())?;
        if is_opaque(directory) {
            self.empty(joined(path, b".wh..wh..opq"))?;
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            self.entry(directory, &name, path, depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, parent: &OwnedFd, name: &CString, above: &[u8], depth: usize) -> io::Result<()> {
        let path = joined(above, name.to_bytes());
        if name.to_bytes().starts_with(b".wh.") {
            let what = String::from_utf8_lossy(&path).escape_debug().to_string();
            return Err(io::Error::other(format!(
                "`{what}` has a name that archives keep for themselves"
            )));
        }
        let stat = rustix::fs::statat(parent, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let below = open(parent, OsStr::from_bytes(name.to_bytes()))?;
                return self.directory(&below, &path, depth + 1);
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let whiteout = [b".wh.", name.to_bytes()].concat();
                return self.empty(joined(above, &whiteout));
            }
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {}
            // Sockets have nobody behind them, and devices nobody could make.
            _ => return Ok(()),
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)) {
                let header = NewEntry {
                    link: first,
                    ..self.header(&stat, &path, EntryKind::HardLink)
                };
                return self.out.add(&header, &mut io::empty());
            }
            self.linked.insert((stat.st_dev, stat.st_ino), path.clone());
        }
        let attributes = attributes(&by_descriptor(parent, name))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(parent, name.as_c_str(), Vec::new())?.into_bytes();
                let header = NewEntry {
                    link: &link,
                    ..self.header(&stat, &path, EntryKind::Symlink)
                };
                self.out.add(&header, &mut io::empty())
            }
            FileType::Fifo => {
                let header = self.header(&stat, &path, EntryKind::Fifo);
                self.out.add(&header, &mut io::empty())
            }
            _ => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let mut file = File::from(rustix::fs::openat(parent, name.as_c_str(), flags, Mode::empty())?);
                let header = NewEntry {
                    size: u64::try_from(stat.st_size).unwrap_or(0),
                    attributes: &attributes,
                    ..self.header(&stat, &path, EntryKind::File)
                };
                let added = self.out.add_file(&header, &mut file);
                added.map_err(|error| match error.kind() {
                    io::ErrorKind::FileTooLarge => {
                        let what = String::from_utf8_lossy(&path).escape_debug().to_string();
                        io::Error::new(io::ErrorKind::FileTooLarge, format!("`{what}`: {error}"))
                    }
                    _ => error,
                })
            }
        }
    }

    fn empty(&mut self, path: Vec<u8>) -> io::Result<()> {
        let header = NewEntry {
            mode: 0o600,
            ..NewEntry::empty(&path, EntryKind::File)
        };
        self.out.add(&header, &mut io::empty())
    }

    fn header<'path>(&self, stat: &Stat, path: &'path [u8], kind: EntryKind) -> NewEntry<'path> {
        NewEntry {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid.saturating_sub(self.superuser.0),
            gid: stat.st_gid.saturating_sub(self.superuser.1),
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            ..NewEntry::empty(path, kind)
        }
    }
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    match above {
        b"" => name.to_vec(),
        above => [above, b"/", name].concat(),
    }
}

fn open(parent: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn by_descriptor(directory: &OwnedFd, name: &CStr) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(OsStr::from_bytes(name.to_bytes()))
}

fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 8];
    let read = rustix::fs::fgetxattr(directory, "user.overlay.opaque", value.as_mut_slice());
    read.is_ok_and(|length| value[..length] == *b"y")
}

/// Those of users; overlayfs's own are said in other ways.
fn attributes(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = vec![0_u8; MAX_ATTRIBUTE];
    let length = match rustix::fs::llistxattr(path, list.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let names = list[..length].split(|byte| *byte == 0);
    let kept = names.filter(|name| name.starts_with(b"user.") && !name.starts_with(b"user.overlay."));
    let mut found = Vec::new();
    for name in kept {
        let mut value = vec![0_u8; MAX_ATTRIBUTE];
        let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
        value.truncate(length);
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;
    use crate::unpack::{LayerOwnership, UnpackLimits, unpack_archive};

    #[test]
    fn what_is_packed_is_unpacked_as_it_was() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        for directory in ["from/d/e", "from/opaque", "usr/bin", "to", "none"] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        let long = "x".repeat(150);
        fs::write(path("from/d").join(&long), "long").unwrap();
        fs::write(path("from/d/e/file"), vec![7; 700]).unwrap();
        fs::hard_link(path("from/d/e/file"), path("from/link")).unwrap();
        let holes = File::create(path("from/holes")).unwrap();
        holes.set_len(1 << 30).unwrap();
        rustix::io::pwrite(&holes, b"end", (1 << 29) + 7).unwrap();
        drop(holes);
        symlink("/etc/passwd", path("from/out")).unwrap();
        fs::write(path("usr/bin/tool"), "tool").unwrap();
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path("from/opaque"), "user.overlay.opaque", b"y", none).unwrap();
        rustix::fs::setxattr(path("from/d"), "user.mark", b"yes\n=", none).unwrap();
        let whiteout = FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, path("from/gone"), whiteout, Mode::empty(), 0).unwrap();
        let own = fs::metadata(path("from")).unwrap();
        let part = |place: &str, directory: &str| PackedPart {
            place: place.into(),
            directory: path(directory),
            superuser: (own.uid(), own.gid()),
        };
        let mut archive = Vec::new();
        pack_layer(
            &[part("", "from"), part("usr", "usr")],
            (".about", b"said"),
            &mut archive,
        )
        .unwrap();
        assert!(archive.len() < 1 << 20, "holes were written out");
        fs::write(path("archive"), archive).unwrap();
        let limits = UnpackLimits::default();
        unpack_archive(
            &path("archive"),
            &path("to"),
            &path("none"),
            LayerOwnership::Flat,
            limits,
        )
        .unwrap();
        let read = |name: &str| fs::read_to_string(path("to").join(name)).unwrap();
        assert_eq!(
            (read(".about"), read("usr/bin/tool")),
            ("said".to_owned(), "tool".to_owned())
        );
        assert_eq!(read(&format!("d/{long}")), "long");
        let holes = fs::metadata(path("to/holes")).unwrap();
        assert_eq!(holes.len(), 1 << 30);
        assert!(holes.blocks() < 2_048, "holes were filled");
        let mut end = [0; 3];
        rustix::io::pread(File::open(path("to/holes")).unwrap(), &mut end, (1 << 29) + 7).unwrap();
        assert_eq!(&end, b"end");
        let inode = |name: &str| fs::metadata(path("to").join(name)).unwrap().ino();
        assert_eq!(inode("link"), inode("d/e/file"));
        assert_eq!(fs::read_link(path("to/out")).unwrap(), Path::new("/etc/passwd"));
        let gone = rustix::fs::lstat(path("to/gone")).unwrap();
        assert_eq!(FileType::from_raw_mode(gone.st_mode), whiteout);
        assert!(is_opaque(&open(rustix::fs::CWD, path("to/opaque")).unwrap()));
        assert_eq!(
            attributes(&path("to/d")).unwrap(),
            [(b"user.mark".to_vec(), b"yes\n=".to_vec())]
        );
        let time = |root: &str| fs::metadata(path(root).join("d/e/file")).unwrap().modified().unwrap();
        assert_eq!(time("from"), time("to"));
    }
}
