//! Further files of a submission: an archive of ZIP (APPNOTE.TXT 6.3), read within bounds and from memory alone.

use std::io::Read as _;

use flate2::read::DeflateDecoder;

use crate::languages::ProgramFile;

/// What all files of an archive may have, in bytes, and how many there may be.
pub(super) const MAX_EXTRACTED: usize = 10 * 1024 * 1024;
const MAX_ENTRIES: usize = 256;

/// Signatures and sizes of what an archive is made of, but for names and contents.
const END: (&[u8], usize) = (b"PK\x05\x06", 22);
const ENTRY: (&[u8], usize) = (b"PK\x01\x02", 46);
const LOCAL: (&[u8], usize) = (b"PK\x03\x04", 30);
/// The most that is looked through for the end: a comment is behind it.
const MAX_TAIL: usize = 22 + 65_535;

/// How contents are packed.
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// A bit of an entry that says that it is encrypted.
const ENCRYPTED: u16 = 1;

/// Why an archive is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error("it is no ZIP archive, or is cut or damaged")]
    Malformed,
    #[error("an entry of it is encrypted, or packed otherwise than by Deflate")]
    Unsupported,
    #[error("it may have {MAX_ENTRIES} files of {MAX_EXTRACTED} bytes in all")]
    TooLarge,
    #[error("a name in it leads elsewhere than below the program's directory")]
    Name,
}

/// The bytes at a place, or that there are none.
fn at(bytes: &[u8], from: usize, length: usize) -> Result<&[u8], ArchiveError> {
    let end = from.checked_add(length).ok_or(ArchiveError::Malformed)?;
    bytes.get(from..end).ok_or(ArchiveError::Malformed)
}

fn u16_at(bytes: &[u8], from: usize) -> Result<u16, ArchiveError> {
    let field = at(bytes, from, 2)?.try_into();
    Ok(u16::from_le_bytes(field.map_err(|_| ArchiveError::Malformed)?))
}

fn usize_at(bytes: &[u8], from: usize) -> Result<usize, ArchiveError> {
    let field = at(bytes, from, 4)?.try_into();
    let number = u32::from_le_bytes(field.map_err(|_| ArchiveError::Malformed)?);
    usize::try_from(number).map_err(|_| ArchiveError::Malformed)
}

/// What begins at a place with a signature.
fn record<'a>(bytes: &'a [u8], from: usize, (signature, length): (&[u8], usize)) -> Result<&'a [u8], ArchiveError> {
    let record = at(bytes, from, length)?;
    match record.starts_with(signature) {
        true => Ok(record),
        false => Err(ArchiveError::Malformed),
    }
}

/// The files of an archive; directories are made by their files.
///
/// # Errors
/// For what is no such archive, and for more than there may be.
pub(super) fn files(archive: &[u8]) -> Result<Vec<ProgramFile>, ArchiveError> {
    let tail = archive.len().saturating_sub(MAX_TAIL);
    let end = memchr::memmem::rfind(&archive[tail..], END.0).ok_or(ArchiveError::Malformed)?;
    let end = record(archive, tail + end, END)?;
    let count = usize::from(u16_at(end, 10)?);
    let mut place = usize_at(end, 16)?;
    if count > MAX_ENTRIES {
        return Err(ArchiveError::TooLarge);
    }
    let (mut files, mut left) = (Vec::new(), MAX_EXTRACTED);
    for _ in 0..count {
        let entry = record(archive, place, ENTRY)?;
        let name_length = usize::from(u16_at(entry, 28)?);
        let name = at(archive, place + ENTRY.1, name_length)?;
        place += ENTRY.1 + name_length + usize::from(u16_at(entry, 30)?) + usize::from(u16_at(entry, 32)?);
        if name.ends_with(b"/") {
            continue;
        }
        let name = String::from_utf8(name.to_vec()).map_err(|_| ArchiveError::Name)?;
        let contents = contents(archive, entry, left)?;
        left -= contents.len();
        files.push(ProgramFile::data(name, contents).map_err(|_| ArchiveError::Name)?);
    }
    Ok(files)
}

/// What an entry has, of at most `most` bytes.
fn contents(archive: &[u8], entry: &[u8], most: usize) -> Result<Vec<u8>, ArchiveError> {
    let (flags, method) = (u16_at(entry, 8)?, u16_at(entry, 10)?);
    let (packed, size) = (usize_at(entry, 20)?, usize_at(entry, 24)?);
    if flags & ENCRYPTED != 0 {
        return Err(ArchiveError::Unsupported);
    }
    if size > most {
        return Err(ArchiveError::TooLarge);
    }
    let place = usize_at(entry, 42)?;
    let local = record(archive, place, LOCAL)?;
    // Both lengths may differ from those of the entry.
    let before = LOCAL.1 + usize::from(u16_at(local, 26)?) + usize::from(u16_at(local, 28)?);
    let packed = at(archive, place + before, packed)?;
    let mut contents = Vec::new();
    match method {
        STORED => contents.extend_from_slice(packed),
        DEFLATED => {
            let bound = u64::try_from(size).map_err(|_| ArchiveError::TooLarge)?;
            // One byte more than it says shows that it lies.
            let read = DeflateDecoder::new(packed).take(bound + 1).read_to_end(&mut contents);
            read.map_err(|_| ArchiveError::Malformed)?;
        }
        _ => return Err(ArchiveError::Unsupported),
    }
    match contents.len() == size {
        true => Ok(contents),
        false => Err(ArchiveError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use proptest::prelude::*;

    use super::*;

    /// An archive of files with their method; `says` is what the first one says that it has.
    fn archive(files: &[(&str, &[u8], u16)], says: Option<u32>) -> Vec<u8> {
        let (mut all, mut entries) = (Vec::new(), Vec::new());
        for (name, contents, method) in files {
            let packed = match *method {
                DEFLATED => {
                    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                    encoder.write_all(contents).unwrap();
                    encoder.finish().unwrap()
                }
                _ => contents.to_vec(),
            };
            let length = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
            let name_length = u16::try_from(name.len()).unwrap().to_le_bytes();
            let size = says.map_or_else(|| length(contents.len()), u32::to_le_bytes);
            let common = [
                &[20, 0, 0, 0][..],
                &method.to_le_bytes(),
                &[0; 8],
                &length(packed.len()),
                &size,
                &name_length,
                &[0; 2],
            ];
            let common = common.concat();
            entries.extend(
                [
                    ENTRY.0,
                    &[20, 0],
                    &common,
                    &[0; 10],
                    &length(all.len()),
                    name.as_bytes(),
                ]
                .concat(),
            );
            all.extend([LOCAL.0, &common, name.as_bytes(), &packed].concat());
        }
        let place = u32::try_from(all.len()).unwrap().to_le_bytes();
        let count = u16::try_from(files.len()).unwrap().to_le_bytes();
        all.extend(&entries);
        let size = u32::try_from(entries.len()).unwrap().to_le_bytes();
        all.extend([END.0, &[0; 4], &count, &count, &size, &place, &[0; 2]].concat());
        all
    }

    #[test]
    fn files_are_those_of_the_archive() {
        let all = archive(
            &[
                ("a.txt", b"one", STORED),
                ("sub/", b"", STORED),
                ("sub/b", &[b'b'; 5000], DEFLATED),
            ],
            None,
        );
        let data = |name: &str, contents: &[u8]| ProgramFile::data(name.to_owned(), contents.to_vec()).unwrap();
        assert_eq!(
            files(&all).unwrap(),
            [data("a.txt", b"one"), data("sub/b", &[b'b'; 5000])]
        );
        assert_eq!(files(&archive(&[], None)).unwrap(), []);
    }

    #[test]
    fn a13_what_leads_elsewhere_or_is_too_large_is_refused() {
        for name in ["../a", "/a", "a/../b", "a\0"] {
            assert_eq!(
                files(&archive(&[(name, b"", STORED)], None)),
                Err(ArchiveError::Name),
                "{name:?}"
            );
        }
        let zeros = vec![0; MAX_EXTRACTED];
        assert!(files(&archive(&[("a", &zeros, DEFLATED)], None)).is_ok());
        let two = [("a", &zeros[..], DEFLATED), ("b", b"x", STORED)];
        assert_eq!(files(&archive(&two, None)), Err(ArchiveError::TooLarge));
        // More than it says that it has.
        let lying = archive(&[("a", &zeros, DEFLATED)], Some(10));
        assert_eq!(files(&lying), Err(ArchiveError::Malformed));
        let many = vec![("a", &b""[..], STORED); MAX_ENTRIES + 1];
        assert_eq!(files(&archive(&many, None)), Err(ArchiveError::TooLarge));
        assert_eq!(files(&archive(&[("a", b"", 99)], None)), Err(ArchiveError::Unsupported));
        assert_eq!(files(b"no archive"), Err(ArchiveError::Malformed));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(
            mut bytes in Just(archive(&[("a", b"one", STORED), ("b", &[1; 300], DEFLATED)], None)),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<proptest::sample::Index>(),
        ) {
            for (index, byte) in changes {
                let place = index.index(bytes.len());
                bytes[place] = byte;
            }
            let _read = files(&bytes);
            bytes.truncate(cut.index(bytes.len()));
            let _read = files(&bytes);
        }
    }
}
