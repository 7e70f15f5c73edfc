//! Which path an object has in a volume. Its key is whatever somebody wrote into the bucket.

use std::collections::BTreeSet;

use offleash_store::VolumePath;

/// Longest part of a path, and longest path, bytes.
const MAX_PART: usize = 255;
const MAX_PATH: usize = 4095;
/// How many directories in one another.
const MAX_DEPTH: usize = 64;

/// Why an object has no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyRefusal {
    #[error("its name begins with a slash")]
    Absolute,
    #[error("a part of its name is empty")]
    EmptyPart,
    #[error("a part of its name is `.` or `..`")]
    Dots,
    #[error("its name has a NUL byte")]
    Nul,
    #[error("its name, or a part of it, is longer than a path may be")]
    Long,
    #[error("its name has more than {MAX_DEPTH} parts")]
    Deep,
    #[error("other objects are below its name, as in a directory")]
    Directory,
}

/// What a key, without the prefix, stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyMeaning {
    /// A file at this path.
    File(VolumePath),
    /// A directory, which some clients note by an empty object. Directories are there without it.
    DirectoryNote,
}

/// What a key stands for by itself.
pub(crate) fn meaning(key: &str) -> Result<KeyMeaning, KeyRefusal> {
    let (name, is_note) = match key.strip_suffix('/') {
        Some(name) => (name, true),
        None => (key, false),
    };
    if key.starts_with('/') {
        return Err(KeyRefusal::Absolute);
    }
    // The prefix itself may be noted as a directory.
    if key.is_empty() {
        return Ok(KeyMeaning::DirectoryNote);
    }
    if name.contains('\0') {
        return Err(KeyRefusal::Nul);
    }
    if name.len() > MAX_PATH {
        return Err(KeyRefusal::Long);
    }
    for part in name.split('/') {
        match part {
            "" => return Err(KeyRefusal::EmptyPart),
            "." | ".." => return Err(KeyRefusal::Dots),
            part if part.len() > MAX_PART => return Err(KeyRefusal::Long),
            _ => {}
        }
    }
    if name.split('/').count() > MAX_DEPTH {
        return Err(KeyRefusal::Deep);
    }
    if is_note {
        return Ok(KeyMeaning::DirectoryNote);
    }
    VolumePath::parse(name.as_bytes())
        .map(KeyMeaning::File)
        .map_err(|_| KeyRefusal::Long)
}

/// The directories that `keys` are in.
pub(crate) fn directories<'a>(keys: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    for key in keys {
        let ends = key.match_indices('/').map(|(at, _)| at);
        found.extend(ends.filter_map(|at| key.get(..at)));
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_are_no_paths_are_refused_each_for_its_reason() {
        for (key, refusal) in [
            ("/etc/passwd", KeyRefusal::Absolute),
            ("/", KeyRefusal::Absolute),
            ("//", KeyRefusal::Absolute),
            ("a//b", KeyRefusal::EmptyPart),
            ("a//", KeyRefusal::EmptyPart),
            ("../a", KeyRefusal::Dots),
            ("a/../../b", KeyRefusal::Dots),
            ("a/..", KeyRefusal::Dots),
            ("../", KeyRefusal::Dots),
            ("./a", KeyRefusal::Dots),
            ("a\0b", KeyRefusal::Nul),
            (&"x".repeat(256), KeyRefusal::Long),
            (&"x/".repeat(64), KeyRefusal::Deep),
            (&"x".repeat(5000), KeyRefusal::Long),
        ] {
            let refusal = match key {
                // 64 parts are a directory's that may be.
                key if key == "x/".repeat(64) => {
                    assert_eq!(meaning(key), Ok(KeyMeaning::DirectoryNote));
                    assert_eq!(meaning(&format!("{key}y")), Err(KeyRefusal::Deep));
                    continue;
                }
                _ => refusal,
            };
            assert_eq!(meaning(key), Err(refusal), "{key:?}");
        }
        for key in ["a", "a/b", "A", "...", "a b/ö", "a\\..\\b", "-rf", "a\nb", ".offleash"] {
            let expected = VolumePath::parse(key.as_bytes()).unwrap();
            assert_eq!(meaning(key), Ok(KeyMeaning::File(expected)), "{key:?}");
        }
        for key in ["", "a/", "a/b/"] {
            assert_eq!(meaning(key), Ok(KeyMeaning::DirectoryNote), "{key:?}");
        }
    }

    #[test]
    fn what_others_are_below_is_a_directory() {
        let found = directories(["a/b/c", "a/d", "e", "f/"].into_iter());
        assert_eq!(found, BTreeSet::from(["a", "a/b", "f"]));
    }

    proptest! {
        #[test]
        fn a_path_is_the_key_and_stays_in_the_volume(key in "[a./\\\\\0x]{0,12}|\\PC{0,30}") {
            if let Ok(KeyMeaning::File(path)) = meaning(&key) {
                prop_assert_eq!(path.as_path().to_str(), Some(key.as_str()));
                prop_assert!(path.as_path().components().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
