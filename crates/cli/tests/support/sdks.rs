//! Where the SDKs and libraries are that `cargo xtask sdks` installs.

use std::path::{Path, PathBuf};

use super::skip;

/// Names the directory of one SDK each.
const SDKS: &str = "OFFLEASH_SDKS";

/// The one of this name, which has `inside`; says why not, if it is not there.
pub fn find(name: &str, inside: &str) -> Option<PathBuf> {
    let found = places().map(|place| place.join(name));
    let directory = found.into_iter().find(|directory| directory.join(inside).is_dir());
    if directory.is_none() {
        skip(&format!("`{name}` is not installed, which `cargo xtask sdks` does"));
    }
    directory
}

/// Where they may be: where the test runner says, or with what is built.
fn places() -> impl Iterator<Item = PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).ancestors();
    let named = std::env::var_os(SDKS).map(PathBuf::from);
    named.into_iter().chain(built.map(|directory| directory.join("sdks")))
}
