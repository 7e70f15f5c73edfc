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
pub(crate) mod tests {
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    /// Puts three files called `crun` below `directory`, of which the first cannot be executed; the path that searches for them.
    pub(crate) fn three_of_crun(directory: &Path) -> OsString {
        let directories = ["a", "b", "c"].map(|name| directory.join(name));
        for (place, mode) in directories.iter().zip([0o644, 0o755, 0o755]) {
            std::fs::create_dir_all(place).unwrap();
            let program = place.join("crun");
            std::fs::write(&program, "").unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::env::join_paths([PathBuf::from(".")].iter().chain(&directories)).unwrap()
    }

    #[test]
    fn only_executable_files_in_absolute_directories_are_found_and_the_first_wins() {
        let directory = tempfile::tempdir().unwrap();
        let search_path = three_of_crun(directory.path());
        std::fs::create_dir_all(directory.path().join("a/runc")).unwrap();
        assert_eq!(
            find_program("crun", &search_path),
            Some(directory.path().join("b/crun"))
        );
        assert_eq!(find_program("runc", &search_path), None, "a directory is not a program");
    }
}
