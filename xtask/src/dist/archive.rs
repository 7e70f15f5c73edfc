//! Archives whose bytes depend on their contents alone: tar with gzip, and zip as wheels need it.

use std::borrow::Cow;
use std::io::Write as _;

use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};

/// What the time of every file is, seconds since 1970: that of packages of npm, which zip can express as well.
pub(crate) const FILE_TIME: u64 = 499_162_500;
/// The same for zip: 1985-10-26, 08:15.
const ZIP_DATE: u16 = ((1985 - 1980) << 9) | (10 << 5) | 26;
const ZIP_TIME: u16 = (8 << 11) | (15 << 5);

/// A file of a package.
#[derive(Debug, Clone)]
pub(crate) struct PackagedFile<'a> {
    /// Its path in the package, relative.
    pub(crate) path: String,
    /// Whether it is a program.
    pub(crate) is_executable: bool,
    /// What is in it.
    pub(crate) contents: Cow<'a, [u8]>,
}

impl<'a> PackagedFile<'a> {
    /// A file that is read.
    pub(crate) fn data(path: impl Into<String>, contents: impl Into<Cow<'a, [u8]>>) -> Self {
        Self {
            path: path.into(),
            is_executable: false,
            contents: contents.into(),
        }
    }

    /// A file that is run.
    pub(crate) fn program(path: impl Into<String>, contents: impl Into<Cow<'a, [u8]>>) -> Self {
        Self {
            is_executable: true,
            ..Self::data(path, contents)
        }
    }

    /// Its permissions.
    pub(crate) fn mode(&self) -> u32 {
        if self.is_executable { 0o755 } else { 0o644 }
    }
}

/// How hard archives are pressed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As small as deflate makes it.
    Smallest,
    /// Not at all.
    Stored,
}

impl Effort {
    fn deflate(self) -> Compression {
        match self {
            Self::Smallest => Compression::best(),
            Self::Stored => Compression::none(),
        }
    }
}

/// A tar archive, compressed with gzip, of files that belong to root.
///
/// # Errors
/// When a path is too long or absolute.
pub(crate) fn tar_gz(files: &[PackagedFile<'_>], effort: Effort) -> std::io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), effort.deflate()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.contents.len() as u64);
        header.set_mode(file.mode());
        header.set_mtime(FILE_TIME);
        builder.append_data(&mut header, &file.path, &*file.contents)?;
    }
    builder.into_inner()?.finish()
}

/// A file, compressed with gzip, without a name or a time.
///
/// # Errors
/// None in memory.
pub(crate) fn gz(contents: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(contents)?;
    encoder.finish()
}

/// A zip archive without extensions, so that every reader of wheels reads it
/// (<https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>).
///
/// # Errors
/// When it would need zip64: a file or all together of 4 GiB, or 65,535 files.
pub(crate) fn zip(files: &[PackagedFile<'_>], effort: Effort) -> std::io::Result<Vec<u8>> {
    let too_large = |_| std::io::Error::other("a zip archive of 4 GiB or more");
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for file in files {
        let entry = ZipEntry::new(file, effort)?;
        let offset = u32::try_from(archive.len()).map_err(too_large)?;
        archive.extend_from_slice(&0x0403_4b50_u32.to_le_bytes());
        archive.extend_from_slice(&entry.shared);
        archive.extend_from_slice(file.path.as_bytes());
        archive.extend_from_slice(&entry.data);
        directory.extend_from_slice(&0x0201_4b50_u32.to_le_bytes());
        // Made on Unix, by version 2.0, so that the mode counts.
        directory.extend_from_slice(&((3_u16 << 8) | 20).to_le_bytes());
        directory.extend_from_slice(&entry.shared);
        // No comment, the first disk, no internal attributes.
        directory.extend_from_slice(&[0; 6]);
        // A regular file with its permissions.
        directory.extend_from_slice(&((0o100_000 | file.mode()) << 16).to_le_bytes());
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(file.path.as_bytes());
    }
    let offset = u32::try_from(archive.len()).map_err(too_large)?;
    let size = u32::try_from(directory.len()).map_err(too_large)?;
    let count = u16::try_from(files.len()).map_err(|_| std::io::Error::other("a zip archive of 65,536 files"))?;
    archive.extend_from_slice(&directory);
    archive.extend_from_slice(&0x0605_4b50_u32.to_le_bytes());
    archive.extend_from_slice(&[0; 4]);
    archive.extend_from_slice(&count.to_le_bytes());
    archive.extend_from_slice(&count.to_le_bytes());
    archive.extend_from_slice(&size.to_le_bytes());
    archive.extend_from_slice(&offset.to_le_bytes());
    archive.extend_from_slice(&[0; 2]);
    Ok(archive)
}

/// A file as it lies in a zip archive.
struct ZipEntry {
    /// What its header and the directory both say of it, up to the length of what follows the name.
    shared: Vec<u8>,
    data: Vec<u8>,
}

impl ZipEntry {
    fn new(file: &PackagedFile<'_>, effort: Effort) -> std::io::Result<Self> {
        let too_large = |_| std::io::Error::other(format!("`{}` is too large for a zip archive", file.path));
        let (method, data) = match effort {
            Effort::Stored => (0_u16, file.contents.to_vec()),
            Effort::Smallest => {
                let mut encoder = DeflateEncoder::new(Vec::new(), effort.deflate());
                encoder.write_all(&file.contents)?;
                (8, encoder.finish()?)
            }
        };
        let mut crc = Crc::new();
        crc.update(&file.contents);
        let name = u16::try_from(file.path.len()).map_err(too_large)?;
        let packed = u32::try_from(data.len()).map_err(too_large)?;
        let size = u32::try_from(file.contents.len()).map_err(too_large)?;
        let mut shared = Vec::new();
        // Version 2.0 reads it; names are UTF-8.
        for field in [20_u16, 1 << 11, method, ZIP_TIME, ZIP_DATE] {
            shared.extend_from_slice(&field.to_le_bytes());
        }
        for field in [crc.sum(), packed, size] {
            shared.extend_from_slice(&field.to_le_bytes());
        }
        for field in [name, 0] {
            shared.extend_from_slice(&field.to_le_bytes());
        }
        Ok(Self { shared, data })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn files() -> Vec<PackagedFile<'static>> {
        vec![
            PackagedFile::program("bin/tool", &b"#!/bin/sh\n"[..]),
            PackagedFile::data("text", b"a".repeat(100_000)),
        ]
    }

    /// Read by Python's own module, which `pip` uses.
    #[test]
    fn zip_archives_are_whole_and_keep_modes() {
        const SCRIPT: &str = "import sys, zipfile\n\
            with zipfile.ZipFile(sys.argv[1]) as archive:\n\
            \x20   assert archive.testzip() is None\n\
            \x20   for info in archive.infolist():\n\
            \x20       print(info.filename, oct(info.external_attr >> 16), info.file_size, info.date_time[:3])\n";
        let place = tempfile::tempdir().unwrap();
        for effort in [Effort::Smallest, Effort::Stored] {
            let path = place.path().join("archive.zip");
            std::fs::write(&path, zip(&files(), effort).unwrap()).unwrap();
            let Ok(output) = Command::new("python3").args(["-c", SCRIPT]).arg(&path).output() else {
                return println!("SKIP: python3 is not installed");
            };
            let expected = "bin/tool 0o100755 10 (1985, 10, 26)\ntext 0o100644 100000 (1985, 10, 26)\n";
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{said}");
        }
    }

    #[test]
    fn archives_are_the_same_each_time_and_smaller_when_pressed() {
        for make in [zip, tar_gz] {
            let smallest = make(&files(), Effort::Smallest).unwrap();
            assert_eq!(smallest, make(&files(), Effort::Smallest).unwrap());
            assert!(smallest.len() < 2000);
            assert!(make(&files(), Effort::Stored).unwrap().len() > 100_000);
        }
        assert!(tar_gz(&[PackagedFile::data("/etc/x", &b""[..])], Effort::Stored).is_err());
    }
}
