//! Attributes of files, as version 3 writes them.

use offleash_api::client::{FileEntry, Kind};

use crate::error::SshError;
use crate::wire::{WireReader, WireWriter};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 1 << 31;

const LINK: u32 = 0o120_000;
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// What a client wants a file to have.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) size: Option<u64>,
    /// The twelve bits of permissions.
    pub(super) mode: Option<u32>,
    /// In seconds since the beginning of 1970.
    pub(super) modified: Option<u32>,
}

impl Attributes {
    pub(super) fn read(fields: &mut WireReader<'_>) -> Result<Self, SshError> {
        if fields.rest().is_empty() {
            return Ok(Self::default());
        }
        let flags = fields.number()?;
        let mut read = Self::default();
        if flags & SIZE != 0 {
            read.size = Some(fields.long()?);
        }
        if flags & OWNER != 0 {
            // Whose it is stays as it is.
            let _owner = (fields.number()?, fields.number()?);
        }
        if flags & PERMISSIONS != 0 {
            read.mode = Some(fields.number()? & 0o7777);
        }
        if flags & TIMES != 0 {
            let _accessed = fields.number()?;
            read.modified = Some(fields.number()?);
        }
        if flags & EXTENDED != 0 {
            return Err(SshError::Protocol("attributes that nobody knows"));
        }
        Ok(read)
    }

    /// These, and what `later` says instead.
    pub(super) fn and(self, later: Self) -> Self {
        Self {
            size: later.size.or(self.size),
            mode: later.mode.or(self.mode),
            modified: later.modified.or(self.modified),
        }
    }
}

/// Type and permissions; of a link its own where that is asked for.
fn mode(entry: &FileEntry, is_own: bool) -> u32 {
    match entry.kind {
        _ if is_own && entry.is_link => LINK | 0o777,
        Kind::Directory => DIRECTORY | entry.mode,
        Kind::File => FILE | entry.mode,
        Kind::Link => LINK | 0o777,
    }
}

pub(super) fn attributes_of(entry: &FileEntry, is_own: bool, to: WireWriter) -> WireWriter {
    let modified = u32::try_from(entry.modified_s.max(0)).unwrap_or(u32::MAX);
    to.number(SIZE | PERMISSIONS | TIMES)
        .long(entry.size)
        .number(mode(entry, is_own))
        .number(modified)
        .number(modified)
}

/// A line as `ls -l` has it.
pub(super) fn long_name(entry: &FileEntry) -> String {
    let mode = mode(entry, true);
    let kind = match mode & 0o170_000 {
        LINK => 'l',
        DIRECTORY => 'd',
        _ => '-',
    };
    let bits: String = (0..9)
        .map(|place| {
            let is_set = mode & (0o400 >> place) != 0;
            if is_set { ['r', 'w', 'x'][place % 3] } else { '-' }
        })
        .collect();
    format!(
        "{kind}{bits} 1 user user {:>12} {} {}",
        entry.size, entry.modified_s, entry.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_clients_write_them() {
        let written = WireWriter::default().number(SIZE | OWNER | PERMISSIONS | TIMES).long(5);
        let written = written.number(1).number(2).number(0o100_755).number(3).number(4).0;
        let read = Attributes::read(&mut WireReader::new(&written)).unwrap();
        let expected = Attributes {
            size: Some(5),
            mode: Some(0o755),
            modified: Some(4),
        };
        assert_eq!(read, expected);
        assert!(Attributes::read(&mut WireReader::new(&[255; 4])).is_err());
        assert!(Attributes::read(&mut WireReader::new(&[0, 0, 0, 1, 0])).is_err());
        assert_eq!(
            Attributes::read(&mut WireReader::new(&[])).unwrap(),
            Attributes::default()
        );
    }

    #[test]
    fn a_line_looks_like_that_of_ls() {
        let entry = FileEntry {
            name: "run".to_owned(),
            path: "/run".to_owned(),
            kind: Kind::File,
            is_link: false,
            target: None,
            size: 7,
            mode: 0o754,
            modified_s: 9,
        };
        assert!(long_name(&entry).starts_with("-rwxr-xr-- "), "{}", long_name(&entry));
        let link = FileEntry { is_link: true, ..entry };
        assert!(long_name(&link).starts_with("lrwxrwxrwx "));
        assert_eq!(mode(&link, false) & 0o170_000, FILE);
    }
}
