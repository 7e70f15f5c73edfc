//! Writes the archive from which a kernel unpacks its first files.
//!
//! The format is `newc`, as the kernel's documentation of the initramfs describes it
//! (<https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>); everything belongs to root.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive being written; parents come before what is in them.
#[derive(Debug)]
pub(super) struct Archive<W> {
    out: W,
    entries: u32,
    written: u64,
}

/// What the header of an entry says beside its name and size.
#[derive(Debug, Clone, Copy)]
struct Kind {
    mode: u32,
    device: (u32, u32),
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            entries: 0,
            written: 0,
        }
    }

    /// A directory for everyone to read.
    pub(super) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, kind(DIRECTORY | 0o755), &[])
    }

    /// A file that everyone may read and run.
    pub(super) fn file(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.entry(name, kind(REGULAR | 0o755), contents)
    }

    /// A symbolic link.
    pub(super) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, kind(SYMLINK | 0o777), target.as_bytes())
    }

    /// A character device of which root is the user.
    pub(super) fn device(&mut self, name: &str, device: (u32, u32)) -> io::Result<()> {
        let mode = CHARACTER_DEVICE | 0o600;
        self.entry(name, Kind { mode, device }, &[])
    }

    /// Writes the entry that ends the archive, and answers where it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", kind(0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, kind: Kind, contents: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, "larger than the archive's format allows");
        let size = u32::try_from(contents.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        self.entries += 1;
        let (major, minor) = kind.device;
        // Inode, mode, uid, gid, links, time, size, the file system's device, the entry's device, name's size, sum.
        let fields = [
            self.entries,
            kind.mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            major,
            minor,
            name_size,
            0,
        ];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.put(format!("070701{header}{name}\0").as_bytes())?;
        self.put(contents)
    }

    /// Writes `bytes` and fills up to a multiple of four.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        while !self.written.is_multiple_of(4) {
            self.out.write_all(&[0])?;
            self.written += 1;
        }
        Ok(())
    }
}

fn kind(mode: u32) -> Kind {
    Kind { mode, device: (0, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_headers_of_110_bytes_names_and_contents_filled_up_to_fours() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a", b"hello").unwrap();
        archive.device("c", (5, 1)).unwrap();
        let bytes = archive.finish().unwrap();
        let expected = concat!(
            "070701",
            "00000001000081ed0000000000000000000000010000000000000005",
            "00000000000000000000000000000000",
            "0000000200000000a\0hello\0\0\0",
        );
        assert_eq!(String::from_utf8_lossy(&bytes[..expected.len()]), expected);
        let device = String::from_utf8_lossy(&bytes[expected.len()..]).into_owned();
        assert!(device.starts_with("0707010000000200002180"), "{device}");
        assert!(device.contains("00000005000000010000000200000000c\0"), "{device}");
        assert!(device.contains("TRAILER!!!\0"), "{device}");
        assert_eq!(bytes.len() % 4, 0);
    }
}
