//! What a carrier says of what goes wrong: into the file of its supervisor, which is its standard error.

use std::fs::File;
use std::io;

use offleash_sys::spawn;

/// What it was started with for what goes wrong: its supervisor's file.
pub(super) fn said() -> io::Result<File> {
    const STANDARD_ERROR: i32 = 2;
    Ok(File::from(spawn::copy_descriptor(STANDARD_ERROR)?))
}

/// Says something there.
pub(super) fn complain(what: &str) {
    use std::io::Write as _;
    // Nobody can be told otherwise.
    let _said = said().and_then(|mut said| writeln!(said, "{what}"));
}

pub(super) fn told(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
