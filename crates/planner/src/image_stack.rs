//! What the layers of an image show at a path, each hiding those below it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// What one layer says of a path.
enum LayerPath {
    Found(PathBuf),
    /// Lower layers may have it.
    Unknown,
    /// It hides what lower layers have.
    Hidden,
}

/// The host's path of what the layers of an image show at `rest`. No link is followed, whatever the layers hold.
pub(super) fn path_in(lower: &Path, stack: &[PathBuf], rest: &Path) -> Option<PathBuf> {
    for layer in stack {
        match look(&lower.join(layer), rest) {
            LayerPath::Found(path) => return Some(path),
            LayerPath::Hidden => return None,
            LayerPath::Unknown => {}
        }
    }
    None
}

fn look(layer: &Path, rest: &Path) -> LayerPath {
    let mut path = layer.to_owned();
    let mut names = rest.iter().peekable();
    while let Some(name) = names.next() {
        path.push(name);
        match fs::symlink_metadata(&path) {
            Err(_) => return LayerPath::Unknown,
            Ok(found) if is_whiteout(&found) => return LayerPath::Hidden,
            Ok(found) if names.peek().is_some() && !found.is_dir() => return LayerPath::Hidden,
            Ok(_) => {}
        }
    }
    LayerPath::Found(path)
}

/// The names that the layers of an image show in the directory `rest`.
pub(super) fn names_in(lower: &Path, stack: &[PathBuf], rest: &Path) -> BTreeSet<OsString> {
    let (mut names, mut hidden) = (BTreeSet::new(), BTreeSet::new());
    for layer in stack {
        match look(&lower.join(layer), rest) {
            // What is no directory hides those below, and a link is not followed.
            LayerPath::Found(path) if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) => break,
            LayerPath::Found(directory) => {
                for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                    let name = entry.file_name();
                    match entry.metadata() {
                        Ok(found) if is_whiteout(&found) => drop(hidden.insert(name)),
                        Ok(_) if !hidden.contains(&name) => drop(names.insert(name)),
                        _ => {}
                    }
                }
            }
            LayerPath::Hidden => break,
            LayerPath::Unknown => {}
        }
    }
    names
}

fn is_whiteout(found: &Metadata) -> bool {
    found.file_type().is_char_device() && found.rdev() == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn layers_hide_what_is_below_them_and_no_link_is_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let lower = scratch.path();
        for directory in ["top/usr", "bottom/usr/bin", "bottom/gone", "outside"] {
            fs::create_dir_all(lower.join(directory)).unwrap();
        }
        for file in [
            "top/usr/new",
            "bottom/usr/bin/tool",
            "bottom/gone/file",
            "outside/secret",
        ] {
            fs::write(lower.join(file), "").unwrap();
        }
        symlink(lower.join("outside"), lower.join("bottom/link")).unwrap();
        let whiteout = rustix::fs::FileType::CharacterDevice;
        let empty = rustix::fs::Mode::empty();
        rustix::fs::mknodat(rustix::fs::CWD, lower.join("top/gone"), whiteout, empty, 0).unwrap();
        let stack = ["top".into(), "bottom".into()];
        let found = |path: &str| path_in(lower, &stack, Path::new(path));
        assert_eq!(found("usr/bin/tool"), Some(lower.join("bottom/usr/bin/tool")));
        assert_eq!(found("usr/new"), Some(lower.join("top/usr/new")));
        assert_eq!(found("link"), Some(lower.join("bottom/link")));
        for hidden in ["gone", "gone/file", "link/secret", "none"] {
            assert_eq!(found(hidden), None, "{hidden}");
        }
        let names = |path: &str| names_in(lower, &stack, Path::new(path));
        assert_eq!(names(""), ["link", "usr"].map(OsString::from).into());
        assert_eq!(names("usr"), ["bin", "new"].map(OsString::from).into());
        assert!(names("gone").is_empty() && names("link").is_empty());
    }
}
