//! Compares and copies the contents of regular files.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

use rustix::io::Errno;

const CHUNK: usize = 64 * 1024;

/// Whether both files have the same bytes from where they stand. Times are no evidence: a sandbox can set them.
pub(crate) fn same_contents(mut left: File, mut right: File) -> io::Result<bool> {
    let (mut left_bytes, mut right_bytes) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let (in_left, in_right) = (fill(&mut left, &mut left_bytes)?, fill(&mut right, &mut right_bytes)?);
        if left_bytes[..in_left] != right_bytes[..in_right] {
            return Ok(false);
        }
        if in_left == 0 {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Copies `from` into the empty file `to`, holes as holes: a sparse file costs what it occupies, not what it claims.
pub(crate) fn copy_contents(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    let mut position = 0;
    while position < length {
        let Some((start, end)) = next_data(from, position, length)? else {
            break;
        };
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(start))?;
        copy_exactly(from, to, end - start)?;
        position = end;
    }
    to.set_len(length)
}

/// The next stretch of data at or after `position`; `None` if only a hole follows.
fn next_data(file: &File, position: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(position)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((position, length))),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?;
    Ok(Some((start, end.min(length))))
}

fn copy_exactly(from: &mut File, to: &mut File, count: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut from = from.take(count);
    loop {
        let filled = fill_from(&mut from, &mut buffer)?;
        if filled == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..filled])?;
    }
}

fn fill_from(from: &mut io::Take<&mut File>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
