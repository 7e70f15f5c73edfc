//! The archive from which the guest's kernel unpacks its first files: our guest, and the modules that it loads.
//!
//! The format is `newc` (<https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>); everything belongs to root.

use std::io;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// An archive being written; parents come before what is in them.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(super) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY, (0, 0), &[])
    }

    pub(super) fn file(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM, (0, 0), contents)
    }

    /// The device on which the kernel opens the first streams.
    pub(super) fn console(&mut self) -> io::Result<()> {
        self.entry("dev/console", CONSOLE, (5, 1), &[])
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) -> io::Result<()> {
        let size = u32::try_from(contents.len()).map_err(io::Error::other)?;
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        self.entries += 1;
        // Inode, mode, uid, gid, links, time, size, the file system's device, the entry's device, name's size, sum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name_size,
            0,
        ];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.put(format!("070701{header}{name}\0").as_bytes());
        self.put(contents);
        Ok(())
    }

    /// Appends `bytes`, and fills up to a multiple of four.
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_headers_of_110_bytes_names_and_contents_filled_up_to_fours() {
        let mut archive = Archive::default();
        archive.file("a", b"hello").unwrap();
        archive.console().unwrap();
        let bytes = archive.finish().unwrap();
        let expected = concat!(
            "070701",
            "00000001000081ed0000000000000000000000010000000000000005",
            "00000000000000000000000000000000",
            "0000000200000000a\0hello\0\0\0",
        );
        assert_eq!(String::from_utf8_lossy(&bytes[..expected.len()]), expected);
        let rest = String::from_utf8_lossy(&bytes[expected.len()..]).into_owned();
        assert!(rest.starts_with("0707010000000200002180"), "{rest}");
        assert!(rest.contains("00000005000000010000000c00000000dev/console\0"), "{rest}");
        assert!(rest.contains("TRAILER!!!\0"), "{rest}");
        assert_eq!(bytes.len() % 4, 0);
    }
}
