//! Which of several installed versions a toolchain would choose here.

use std::cmp::Ordering;
use std::fs;
use std::path::Path;

use super::super::regular_file::read_regular_file;

/// The versions that pyenv would choose: by its variable, by `.python-version` in the workspace or above, or by its
/// own `version` file.
pub(super) fn of_pyenv(root: &Path, variable: Option<&Path>, workspace: Option<&Path>) -> Vec<String> {
    let by_variable = variable.and_then(Path::to_str).map(|text| text.replace(':', "\n"));
    let by_workspace = || in_or_above(workspace?, ".python-version");
    let text = by_variable
        .or_else(by_workspace)
        .or_else(|| fs::read_to_string(root.join("version")).ok());
    let versions = root.join("versions");
    let words = text.iter().flat_map(|text| text.split_whitespace());
    words
        .filter(|word| *word != "system")
        .filter_map(|word| matching(&versions, word))
        .collect()
}

/// The version that nvm would choose, which may be a part of one: by `.nvmrc`, or by its default alias.
pub(super) fn of_nvm(root: &Path, workspace: Option<&Path>) -> String {
    let by_workspace = workspace.and_then(|workspace| in_or_above(workspace, ".nvmrc"));
    let text = by_workspace.or_else(|| fs::read_to_string(root.join("alias/default")).ok());
    let word = text
        .as_deref()
        .and_then(|text| text.split_whitespace().next())
        .unwrap_or_default();
    if word.starts_with('v') {
        word.to_owned()
    } else {
        format!("v{word}")
    }
}

fn in_or_above(directory: &Path, name: &str) -> Option<String> {
    directory
        .ancestors()
        .filter_map(|above| read_regular_file(&above.join(name)).ok())
        .find_map(|contents| String::from_utf8(contents).ok())
}

/// The directory that is called `wanted`, or the newest that begins with it: `3.11` finds `3.11.7`.
pub(super) fn matching(directory: &Path, wanted: &str) -> Option<String> {
    if wanted.is_empty() || wanted.contains('/') || wanted.starts_with('.') {
        return None;
    }
    if directory.join(wanted).is_dir() {
        Some(wanted.to_owned())
    } else {
        newest(directory, &format!("{wanted}."))
    }
}

/// The directory in `directory` with the highest version, among those that begin with `prefix`.
pub(super) fn newest(directory: &Path, prefix: &str) -> Option<String> {
    let found = fs::read_dir(directory).ok()?.flatten();
    let names = found
        .filter(|found| found.path().is_dir())
        .filter_map(|found| found.file_name().into_string().ok());
    names
        .filter(|name| name.starts_with(prefix))
        .max_by(|left, right| compare(left, right))
}

/// Compares numbers as numbers and everything else as text: `v9.1.0` is less than `v18.2.0`.
fn compare(left: &str, right: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().unwrap_or(u64::MAX))
            .collect()
    };
    numbers(left).cmp(&numbers(right)).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_the_highest_number() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["v9.11.2", "v18.2.0", "v18.10.0", "alias"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert_eq!(newest(directory.path(), "v").as_deref(), Some("v18.10.0"));
        assert_eq!(matching(directory.path(), "v9").as_deref(), Some("v9.11.2"));
        assert_eq!(matching(directory.path(), "v1"), None);
        assert_eq!(matching(directory.path(), "../x"), None);
    }

    #[test]
    fn version_files_that_are_no_files_are_passed_over_without_waiting() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().join("workspace");
        for below in ["workspace", "root/versions/3.12.1"] {
            fs::create_dir_all(directory.path().join(below)).unwrap();
        }
        mknodat(CWD, workspace.join(".python-version"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", workspace.join(".nvmrc")).unwrap();
        fs::write(directory.path().join(".python-version"), "3.12\n").unwrap();
        fs::write(directory.path().join(".nvmrc"), "18\n").unwrap();
        assert_eq!(
            of_pyenv(&directory.path().join("root"), None, Some(&workspace)),
            ["3.12.1"]
        );
        assert_eq!(of_nvm(&directory.path().join("root"), Some(&workspace)), "v18");
    }
}
