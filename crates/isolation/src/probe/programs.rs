//! Programs on this machine that stronger levels would use.

use std::ffi::OsStr;
use std::path::PathBuf;

use rustix::fs::{Access, access};

use super::{FeatureCheck, FeatureStatus, shown};

const CONTAINER_RUNTIMES: [&str; 3] = ["runsc", "crun", "runc"];
const HYPERVISORS: [&str; 5] = [
    "qemu-system-x86_64",
    "qemu-system-aarch64",
    "qemu-kvm",
    "firecracker",
    "cloud-hypervisor",
];

/// The first executable file `name` in `search_path`.
pub(super) fn find(name: &str, search_path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
}

pub(super) fn container_runtimes(search_path: &OsStr) -> FeatureCheck {
    any_of(
        "container-runtimes",
        &CONTAINER_RUNTIMES,
        search_path,
        "level `container`",
    )
}

pub(super) fn hypervisors(search_path: &OsStr) -> FeatureCheck {
    any_of("hypervisors", &HYPERVISORS, search_path, "level `microvm`")
}

fn any_of(name: &'static str, programs: &[&str], search_path: &OsStr, needed_for: &'static str) -> FeatureCheck {
    let found: Vec<_> = programs
        .iter()
        .filter_map(|program| find(program, search_path))
        .collect();
    if found.is_empty() {
        return FeatureCheck::new(
            name,
            FeatureStatus::Missing,
            format!("none of {} in PATH", programs.join(", ")),
            needed_for,
        );
    }
    let found: Vec<_> = found.iter().map(|path| shown(path).into_owned()).collect();
    FeatureCheck::new(name, FeatureStatus::Ok, found.join(", "), needed_for)
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
        assert_eq!(find("crun", &search_path), Some(directory.path().join("b/crun")));
        assert_eq!(find("runc", &search_path), None, "a directory is not a program");
        assert_eq!(container_runtimes(&search_path).status, FeatureStatus::Ok);
        assert_eq!(hypervisors(&search_path).status, FeatureStatus::Missing);
    }
}
