//! Programs of the host, by the directories that are searched for them.

use std::ffi::OsStr;
use std::path::PathBuf;

use rustix::fs::{Access, access};

/// The first executable file of that name in `search_path`; directories that are not absolute are passed over.
pub(crate) fn find_program(name: &str, search_path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_executable_files_in_absolute_directories_are_found_and_the_first_wins() {
        let directory = tempfile::tempdir().unwrap();
        let place = |path: &str, mode| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        place("a/crun", 0o644);
        place("b/crun", 0o755);
        place("c/crun", 0o755);
        std::fs::create_dir_all(directory.path().join("a/runc")).unwrap();
        let directories = ["a", "b", "c"].map(|name| directory.path().join(name));
        let search_path = std::env::join_paths([PathBuf::from(".")].iter().chain(&directories)).unwrap();
        assert_eq!(
            find_program("crun", &search_path),
            Some(directory.path().join("b/crun"))
        );
        assert_eq!(find_program("runc", &search_path), None, "a directory is not a program");
    }
}
