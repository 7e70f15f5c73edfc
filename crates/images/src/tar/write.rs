//! Writes tar archives: ustar, with extended headers of pax where a field has no room, and files with holes as GNU tar does.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write};

use super::header::BLOCK;
use super::{EntryKind, SparseMap};
use crate::unpack::LayerRefusal;

/// What a name, or the target of a link, has room for in a header.
const SHORT: usize = 100;
/// The largest number of eleven octal digits.
const MAX_OCTAL: u64 = 0o77_777_777_777;
const BUFFER: usize = 128 << 10;

/// What an entry that is written says.
#[derive(Debug, Clone)]
pub(crate) struct NewEntry<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) kind: EntryKind,
    /// The target of a link.
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds since 1970, and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Bytes of its contents.
    pub(crate) size: u64,
    /// Extended attributes.
    pub(crate) attributes: &'a [(Vec<u8>, Vec<u8>)],
}

impl<'a> NewEntry<'a> {
    /// One without contents, of the superuser.
    pub(crate) fn empty(path: &'a [u8], kind: EntryKind) -> Self {
        Self {
            path,
            kind,
            link: b"",
            mode: if kind == EntryKind::Directory { 0o755 } else { 0o644 },
            uid: 0,
            gid: 0,
            modified: (0, 0),
            size: 0,
            attributes: &[],
        }
    }
}

/// An archive that is written from its beginning to its end, and is not longer than it may be.
#[derive(Debug)]
pub(crate) struct TarWriter<W> {
    out: W,
    written: u64,
    limit: u64,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(out: W, limit: u64) -> Self {
        Self { out, written: 0, limit }
    }

    /// Adds an entry, whose contents are read from `contents`: as many bytes as it says, zeros where there are less.
    pub(crate) fn add(&mut self, entry: &NewEntry<'_>, contents: &mut dyn Read) -> io::Result<()> {
        self.head(entry, records_of(entry))?;
        self.contents(contents, entry.size)?;
        self.pad(entry.size)
    }

    /// Adds a file, whose holes stay holes.
    ///
    /// # Errors
    /// `FileTooLarge` for one of more holes, or larger, than is read again.
    pub(crate) fn add_file(&mut self, entry: &NewEntry<'_>, file: &mut File) -> io::Result<()> {
        let Some(map) = SparseMap::of_file(file, entry.size)? else {
            file.rewind()?;
            return self.add(entry, file);
        };
        let numbers = map.written();
        let held: u64 = map.pieces.iter().map(|(_, length)| length).sum();
        let size = numbers.len() as u64 + held;
        let mut records = records_of(&NewEntry { size, ..entry.clone() });
        for (name, value) in [("major", "1"), ("minor", "0")] {
            add_record(&mut records, format!("GNU.sparse.{name}").as_bytes(), value.as_bytes());
        }
        add_record(&mut records, b"GNU.sparse.name", entry.path);
        add_record(&mut records, b"GNU.sparse.realsize", map.size.to_string().as_bytes());
        self.head(&NewEntry { size, ..entry.clone() }, records)?;
        self.put(&numbers)?;
        for (offset, length) in &map.pieces {
            file.seek(SeekFrom::Start(*offset))?;
            self.contents(file, *length)?;
        }
        self.pad(size)
    }

    /// Adds a file, whose holes stay holes where it has no more of them than is read again.
    pub(crate) fn add_copied(&mut self, entry: &NewEntry<'_>, file: &mut File) -> io::Result<()> {
        match SparseMap::of_file(file, entry.size) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                file.rewind()?;
                self.add(entry, file)
            }
            _ => self.add_file(entry, file),
        }
    }

    /// Writes what does not fit into a header before it, as records of its own.
    fn head(&mut self, entry: &NewEntry<'_>, records: Vec<u8>) -> io::Result<()> {
        if !records.is_empty() {
            let extended = NewEntry {
                size: records.len() as u64,
                ..NewEntry::empty(b"pax", EntryKind::Other)
            };
            self.put(&header(&extended, b'x'))?;
            self.contents(&mut records.as_slice(), extended.size)?;
            self.pad(extended.size)?;
        }
        let flag = match entry.kind {
            EntryKind::HardLink => b'1',
            EntryKind::Symlink => b'2',
            EntryKind::Directory => b'5',
            EntryKind::Fifo => b'6',
            EntryKind::File | EntryKind::Device | EntryKind::Other => b'0',
        };
        self.put(&header(entry, flag))
    }

    fn contents(&mut self, contents: &mut dyn Read, size: u64) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER);
            let read = match contents.read(&mut buffer[..most])? {
                // It became shorter meanwhile.
                0 => {
                    buffer[..most].fill(0);
                    most
                }
                read => read,
            };
            self.put(&buffer[..read])?;
            left -= read as u64;
        }
        Ok(())
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        let padding = usize::try_from(size.wrapping_neg() % BLOCK as u64).unwrap_or(0);
        self.put(&[0; BLOCK][..padding])
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        if self.written > self.limit {
            let refusal = LayerRefusal::TooLarge { limit: self.limit };
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, refusal));
        }
        self.out.write_all(bytes)
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn records_of(entry: &NewEntry<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    if entry.path.len() > SHORT {
        add_record(&mut records, b"path", entry.path);
    }
    if entry.link.len() > SHORT {
        add_record(&mut records, b"linkpath", entry.link);
    }
    if entry.size > MAX_OCTAL {
        add_record(&mut records, b"size", entry.size.to_string().as_bytes());
    }
    if let (seconds @ 0.., nanoseconds @ 1..) = entry.modified {
        add_record(&mut records, b"mtime", format!("{seconds}.{nanoseconds:09}").as_bytes());
    }
    // A record without a value takes one away that stands before (pax, "Extended Header").
    for (name, value) in entry.attributes.iter().filter(|(_, value)| !value.is_empty()) {
        add_record(&mut records, &[b"SCHILY.xattr.", name.as_slice()].concat(), value);
    }
    records
}

fn header(entry: &NewEntry<'_>, flag: u8) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &entry.path[..entry.path.len().min(SHORT)]);
    put(100, format!("{:07o}\0", entry.mode & 0o7777).as_bytes());
    put(108, format!("{:07o}\0", entry.uid & 0o7_777_777).as_bytes());
    put(116, format!("{:07o}\0", entry.gid & 0o7_777_777).as_bytes());
    // One that is larger is in an extended header.
    put(124, format!("{:011o}\0", entry.size.min(MAX_OCTAL)).as_bytes());
    let modified = u64::try_from(entry.modified.0).unwrap_or(0).min(MAX_OCTAL);
    put(136, format!("{modified:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, &[flag]);
    put(157, &entry.link[..entry.link.len().min(SHORT)]);
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// `LENGTH NAME=VALUE`, where the length counts itself (POSIX pax, "Extended Header").
fn add_record(records: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(name);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Archive;
    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            names in proptest::collection::vec("[a-z]{1,60}(/[a-z]{1,60}){0,4}", 1..6),
            contents in proptest::collection::vec(any::<u8>(), 0..2000),
            link in "[a-z/.]{1,150}",
            mode in 0_u32..0o7777,
            id in 0_u32..65_536,
            value in proptest::collection::vec(any::<u8>(), 1..30),
            nanoseconds in 0_u32..1_000_000_000,
        ) {
            let mut writer = TarWriter::new(Vec::new(), u64::MAX);
            let attributes = [(b"user.a".to_vec(), value)];
            for name in &names {
                let file = NewEntry {
                    size: contents.len() as u64, mode, uid: id, gid: id, modified: (7, nanoseconds), attributes: &attributes,
                    ..NewEntry::empty(name.as_bytes(), EntryKind::File)
                };
                writer.add(&file, &mut contents.as_slice()).unwrap();
                let symlink = NewEntry { link: link.as_bytes(), ..NewEntry::empty(name.as_bytes(), EntryKind::Symlink) };
                writer.add(&symlink, &mut io::empty()).unwrap();
            }
            let bytes = writer.finish().unwrap();
            let mut archive = Archive::new(bytes.as_slice());
            for name in &names {
                let file = archive.next().unwrap().unwrap();
                prop_assert_eq!((file.kind, file.path.as_slice()), (EntryKind::File, name.as_bytes()));
                prop_assert_eq!((file.mode, file.uid, file.gid, file.modified), (mode, id.into(), id.into(), (7, nanoseconds)));
                prop_assert_eq!(file.attributes.as_slice(), &attributes);
                let mut read = Vec::new();
                let mut buffer = [0; 100];
                loop {
                    match archive.read_contents(&mut buffer).unwrap() {
                        0 => break,
                        count => read.extend_from_slice(&buffer[..count]),
                    }
                }
                prop_assert_eq!(&read, &contents);
                let symlink = archive.next().unwrap().unwrap();
                prop_assert_eq!((symlink.kind, symlink.link.as_slice()), (EntryKind::Symlink, link.as_bytes()));
            }
            prop_assert!(archive.next().unwrap().is_none());
        }
    }

    #[test]
    fn holes_take_no_room_and_are_holes_again() {
        let mut file = tempfile::tempfile().unwrap();
        let written = [(0, 3), (5 << 20, 70_000), (900 << 20, 1)];
        for (offset, length) in written {
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(&vec![7; length]).unwrap();
        }
        file.set_len(1 << 30).unwrap();
        let long = "x".repeat(150);
        let entry = NewEntry {
            size: 1 << 30,
            ..NewEntry::empty(long.as_bytes(), EntryKind::File)
        };
        let mut writer = TarWriter::new(Vec::new(), 1 << 20);
        writer.add_file(&entry, &mut file).unwrap();
        writer
            .add(&NewEntry::empty(b"next", EntryKind::File), &mut io::empty())
            .unwrap();
        let bytes = writer.finish().unwrap();
        let mut archive = Archive::new(bytes.as_slice());
        let read = archive.next().unwrap().unwrap();
        assert_eq!(read.path, long.as_bytes());
        let map = read.sparse.unwrap();
        assert_eq!(map.size, 1 << 30);
        let holds = |at: u64| {
            map.pieces
                .iter()
                .any(|(offset, length)| (*offset..offset + length).contains(&at))
        };
        assert!(written.iter().all(|(offset, _)| holds(*offset)), "{map:?}");
        assert!(!holds(100 << 20), "{map:?}");
        assert_eq!(archive.next().unwrap().unwrap().path, b"next");
    }

    #[test]
    fn an_archive_that_becomes_too_long_is_an_error() {
        let mut writer = TarWriter::new(Vec::new(), 2000);
        let entry = NewEntry {
            size: 5000,
            ..NewEntry::empty(b"a", EntryKind::File)
        };
        let error = writer.add(&entry, &mut io::repeat(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
