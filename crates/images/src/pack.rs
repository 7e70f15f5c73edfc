//! Packs the layer of a sandbox as an archive that `unpack` takes again: a layer of OCI, with whiteouts as names.
//!
//! What is in the layer is not trusted: it is opened by directory descriptor, and no link is followed.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// How deep directories may be in one another.
const MAX_DEPTH: usize = 200;
/// Longest attribute (`XATTR_SIZE_MAX`), and longest list of them.
const MAX_ATTRIBUTE: usize = 65_536;
const BLOCK: usize = 512;

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

/// Writes `parts` as one archive, after a file of that name and contents.
///
/// # Errors
/// When something cannot be read or written, and for names that an archive keeps for itself.
pub fn pack_layer(parts: &[PackedPart], description: (&str, &[u8]), out: &mut impl Write) -> io::Result<()> {
    let header = EntryHeader {
        path: description.0.as_bytes().to_vec(),
        size: u64::try_from(description.1.len()).unwrap_or(0),
        mode: 0o600,
        flag: b'0',
        ..EntryHeader::default()
    };
    header.write(out)?;
    out.write_all(description.1)?;
    pad(out, header.size)?;
    for part in parts {
        let mut packing = PartPacking {
            out,
            superuser: part.superuser,
            linked: HashMap::new(),
        };
        let root = open(rustix::fs::CWD, &part.directory)?;
        packing.directory(&root, &part.place, 0)?;
    }
    out.write_all(&[0; 2 * BLOCK])
}

struct PartPacking<'out, W> {
    out: &'out mut W,
    superuser: (u32, u32),
    linked: HashMap<(u64, u64), Vec<u8>>,
}

#[derive(Default)]
struct EntryHeader {
    path: Vec<u8>,
    link: Vec<u8>,
    size: u64,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, u64),
    flag: u8,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<W: Write> PartPacking<'_, W> {
    fn directory(&mut self, directory: &OwnedFd, path: &[u8], depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other("directories are too deep in one another"));
        }
        let stat = rustix::fs::fstat(directory)?;
        let mut header = self.header(&stat, path, b'5');
        header.path.extend(if path.is_empty() { &b"./"[..] } else { b"/" });
        header.attributes = attributes(&by_descriptor(directory, c"."))?;
        header.write(self.out)?;
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
                let link = first.clone();
                let header = self.header(&stat, &path, b'1');
                return EntryHeader {
                    link,
                    size: 0,
                    ..header
                }
                .write(self.out);
            }
            self.linked.insert((stat.st_dev, stat.st_ino), path.clone());
        }
        let attributes = attributes(&by_descriptor(parent, name))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(parent, name.as_c_str(), Vec::new())?.into_bytes();
                let header = self.header(&stat, &path, b'2');
                EntryHeader { link, ..header }.write(self.out)
            }
            FileType::Fifo => self.header(&stat, &path, b'6').write(self.out),
            _ => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::openat(parent, name.as_c_str(), flags, Mode::empty())?);
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let header = self.header(&stat, &path, b'0');
                EntryHeader {
                    size,
                    attributes,
                    ..header
                }
                .write(self.out)?;
                if io::copy(&mut file.take(size), self.out)? != size {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                pad(self.out, size)
            }
        }
    }

    fn empty(&mut self, path: Vec<u8>) -> io::Result<()> {
        EntryHeader {
            path,
            mode: 0o600,
            flag: b'0',
            ..EntryHeader::default()
        }
        .write(self.out)
    }

    fn header(&self, stat: &Stat, path: &[u8], flag: u8) -> EntryHeader {
        EntryHeader {
            path: path.to_vec(),
            mode: stat.st_mode & 0o7777,
            owner: (
                stat.st_uid.saturating_sub(self.superuser.0),
                stat.st_gid.saturating_sub(self.superuser.1),
            ),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            flag,
            ..EntryHeader::default()
        }
    }
}

impl EntryHeader {
    /// Writes what does not fit into a header before it, as records of its own.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut records = Vec::new();
        record(&mut records, b"path", &self.path);
        if !self.link.is_empty() {
            record(&mut records, b"linkpath", &self.link);
        }
        let (seconds, nanoseconds) = self.modified;
        record(
            &mut records,
            b"mtime",
            format!("{}.{nanoseconds:09}", seconds.max(0)).as_bytes(),
        );
        record(&mut records, b"size", self.size.to_string().as_bytes());
        for (name, value) in &self.attributes {
            record(&mut records, &[b"SCHILY.xattr.", name.as_slice()].concat(), value);
        }
        let length = u64::try_from(records.len()).unwrap_or(0);
        write_block(out, b"PaxHeader", b"", 0o600, (0, 0), length, b'x')?;
        out.write_all(&records)?;
        pad(out, length)?;
        write_block(out, &self.path, &self.link, self.mode, self.owner, self.size, self.flag)
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    records.extend(format!("{length} ").into_bytes());
    records.extend([key, b"=", value, b"\n"].concat());
}

fn write_block(
    out: &mut impl Write,
    path: &[u8],
    link: &[u8],
    mode: u32,
    owner: (u32, u32),
    size: u64,
    flag: u8,
) -> io::Result<()> {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, most: usize, bytes: &[u8]| {
        let bytes = &bytes[..bytes.len().min(most)];
        block[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, 100, path);
    put(100, 7, format!("{mode:07o}").as_bytes());
    put(108, 7, format!("{:07o}", owner.0 & 0o777_7777).as_bytes());
    put(116, 7, format!("{:07o}", owner.1 & 0o777_7777).as_bytes());
    // The record before says it where it is larger.
    put(124, 11, format!("{:011o}", size.min(0o777_7777_7777)).as_bytes());
    put(136, 11, b"00000000000");
    put(148, 8, b"        ");
    put(156, 1, &[flag]);
    put(157, 100, link);
    put(257, 8, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    out.write_all(&block)
}

fn pad(out: &mut impl Write, size: u64) -> io::Result<()> {
    let over = usize::try_from(size % 512).unwrap_or(0);
    match over {
        0 => Ok(()),
        over => out.write_all(&[0; BLOCK][over..]),
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
    use crate::unpack::{LayerOwnership, unpack_archive};

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
        fs::write(path("archive"), archive).unwrap();
        unpack_archive(&path("archive"), &path("to"), &path("none"), LayerOwnership::Flat).unwrap();
        let read = |name: &str| fs::read_to_string(path("to").join(name)).unwrap();
        assert_eq!(
            (read(".about"), read("usr/bin/tool")),
            ("said".to_owned(), "tool".to_owned())
        );
        assert_eq!(read(&format!("d/{long}")), "long");
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
