//! What a directory holds, in a form that can be compared, and output with what differs from run to run left out.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Everything below `root`: path, then kind, mode and contents.
pub fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(directory) = todo.pop() {
        for child in std::fs::read_dir(&directory).unwrap() {
            let path = child.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let mode = metadata.permissions().mode() & 0o7777;
            let text = if metadata.is_symlink() {
                format!("link to {}", std::fs::read_link(&path).unwrap().display())
            } else if metadata.is_dir() {
                todo.push(path.clone());
                format!("directory {mode:o}")
            } else if metadata.is_file() {
                format!(
                    "file {mode:o} {}",
                    String::from_utf8_lossy(&std::fs::read(&path).unwrap())
                )
            } else {
                format!("special {mode:o}")
            };
            found.insert(path.strip_prefix(root).unwrap().to_path_buf(), text);
        }
    }
    found
}

impl super::Site {
    /// Text with the names that differ from run to run left out: this site's directory and the ids of runs.
    pub fn plain(&self, text: &str) -> String {
        let text = text.replace(&*self.root().to_string_lossy(), "[site]");
        let is_id = |word: &str| word.len() == 17 && word.starts_with("r0");
        let words = text.split_inclusive(|character: char| !character.is_ascii_alphanumeric());
        words
            .map(|piece| {
                let word = piece.trim_end_matches(|character: char| !character.is_ascii_alphanumeric());
                if is_id(word) {
                    piece.replace(word, "[run]")
                } else {
                    piece.to_owned()
                }
            })
            .collect()
    }
}
