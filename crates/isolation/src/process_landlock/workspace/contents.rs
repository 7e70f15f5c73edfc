//! Copies the contents of a file: shared on disk where the file system can, else without its holes.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

use rustix::io::Errno;

/// Copies files, and remembers what the two file systems cannot do.
#[derive(Debug)]
pub(super) struct ContentCopier {
    clones: bool,
}

impl ContentCopier {
    pub(super) fn new() -> Self {
        Self { clones: true }
    }

    /// Makes `to`, which is empty, hold what `from` holds.
    pub(super) fn copy(&mut self, from: &mut File, to: &mut File) -> io::Result<()> {
        if self.clones {
            match rustix::fs::ioctl_ficlone(&*to, &*from) {
                Ok(()) => return Ok(()),
                // Another file system, or one that shares nothing; whatever it is, copying says whether it matters.
                Err(_) => self.clones = false,
            }
        }
        let length = from.metadata()?.len();
        let mut position = 0;
        while let Some((start, end)) = next_data(from, position, length)? {
            from.seek(SeekFrom::Start(start))?;
            to.seek(SeekFrom::Start(start))?;
            copy_range(from, to, end - start)?;
            position = end;
        }
        to.set_len(length)
    }
}

/// The next stretch of data at or after `position`, if there is one.
fn next_data(file: &File, position: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    if position >= length {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(position)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // It has no notion of holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((position, length))),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?;
    Ok(Some((start, end.min(length))).filter(|(start, end)| start < end))
}

/// Copies `count` bytes from where both files stand; fewer if the file became shorter meanwhile.
fn copy_range(from: &File, to: &mut File, count: u64) -> io::Result<()> {
    let mut left = count;
    let mut buffer = Vec::new();
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
        let copied = match rustix::fs::copy_file_range(from, None, &*to, None, wanted) {
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                buffer.resize(64 << 10, 0);
                let room = buffer.len().min(wanted);
                let length = (&*from).read(&mut buffer[..room])?;
                to.write_all(&buffer[..length])?;
                length
            }
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if copied == 0 {
            return Ok(());
        }
        left = left.saturating_sub(copied as u64);
    }
    Ok(())
}
