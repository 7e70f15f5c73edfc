//! Files of ours, read no further than they may be long.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// As much of a file as it may have, `most` bytes; `None` if it is not there.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
