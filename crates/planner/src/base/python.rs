//! The name `python`, which code and its authors take for granted and many a distribution leaves out.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The part of a template that it is in.
pub(super) const PART: &str = "/usr";
/// Where programs look for what the machine's owner adds, below [`PART`].
const DIRECTORY: &str = "local/bin";
const NAME: &str = "python";
const PYTHON: &str = "/usr/bin/python3";
/// Where else a program of this name is found.
const OTHERS: [&str; 3] = ["bin", "sbin", "local/sbin"];

/// A symbolic link in a new layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerLink {
    /// The directories that it is in, the outer one first, and their modes.
    pub(super) directories: Vec<(OsString, u32)>,
    pub(super) name: &'static str,
    pub(super) to: &'static str,
}

/// The link that a sandbox needs to have a `python`, if the host has none, and has a `python3`.
pub(super) fn missing() -> Option<LayerLink> {
    missing_in(Path::new(PART))
}

fn missing_in(part: &Path) -> Option<LayerLink> {
    let below = PYTHON.strip_prefix(PART)?.trim_start_matches('/');
    let is_there = |directory: &&str| fs::symlink_metadata(part.join(directory).join(NAME)).is_ok();
    if OTHERS.iter().chain([&DIRECTORY]).any(is_there) || !part.join(below).is_file() {
        return None;
    }
    let mut place = part.to_owned();
    let mut directories = Vec::new();
    for name in Path::new(DIRECTORY) {
        place.push(name);
        // A link of the host leads elsewhere, and a directory above it would hide that.
        let found = fs::symlink_metadata(&place).ok().filter(fs::Metadata::is_dir)?;
        directories.push((name.to_owned(), found.mode() & 0o777));
    }
    Some(LayerLink {
        directories,
        name: NAME,
        to: PYTHON,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_is_missing_only_where_there_is_no_such_program() {
        let scratch = tempfile::tempdir().unwrap();
        let part = scratch.path();
        for directory in ["bin", "local/bin", "local/sbin"] {
            fs::create_dir_all(part.join(directory)).unwrap();
        }
        assert_eq!(missing_in(part), None, "there is no Python");
        fs::write(part.join("bin/python3"), "").unwrap();
        let link = missing_in(part).unwrap();
        let names: Vec<_> = link.directories.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["local", "bin"]);
        for place in ["bin", "local/bin", "local/sbin"] {
            let other = part.join(place).join("python");
            symlink("anything", &other).unwrap();
            assert_eq!(missing_in(part), None, "{place}");
            fs::remove_file(other).unwrap();
        }
        fs::remove_dir(part.join("local/bin")).unwrap();
        symlink("sbin", part.join("local/bin")).unwrap();
        assert_eq!(missing_in(part), None, "what is above a link would hide it");
    }
}
