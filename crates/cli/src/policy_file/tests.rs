use std::fs;
use std::os::unix::fs::symlink;

use super::*;

const POLICY: &str = "# mine\n[network]\nask = [\"a.example\"] # asks\n";

fn directory_with(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.toml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn the_new_text_takes_the_place_of_the_old_with_its_mode() {
    let (directory, path) = directory_with(POLICY);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    let mut file = PolicyFile::look(&path).unwrap();
    file.replace("[limits]\npids = 5\n".to_owned()).unwrap();
    file.replace("[limits]\npids = 6\n".to_owned()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "[limits]\npids = 6\n");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o604);
    assert_eq!(names_in(directory.path()), ["policy.toml"]);
}

#[test]
fn what_changed_meanwhile_is_left_alone() {
    let (directory, path) = directory_with(POLICY);
    let mut file = PolicyFile::look(&path).unwrap();
    let other = "allow_ptrace = true\n";
    fs::write(&path, other).unwrap();
    assert!(file.replace(String::new()).unwrap_err().contains("changed"));
    assert_eq!(fs::read_to_string(&path).unwrap(), other);
    // Nor is a file written over that was not there.
    let new = directory.path().join("new.toml");
    let mut file = PolicyFile::look(&new).unwrap();
    fs::write(&new, other).unwrap();
    assert!(file.replace(String::new()).unwrap_err().contains("changed"));
    assert_eq!(fs::read_to_string(&new).unwrap(), other);
    let mut names = names_in(directory.path());
    names.sort();
    assert_eq!(names, ["new.toml", "policy.toml"]);
}

#[test]
fn no_link_is_followed_before_or_during_a_run() {
    let (directory, precious) = directory_with(POLICY);
    let link = directory.path().join("link.toml");
    symlink(&precious, &link).unwrap();
    assert!(PolicyFile::look(&link).unwrap_err().contains("symbolic link"));
    fs::remove_file(&link).unwrap();
    fs::write(&link, POLICY).unwrap();
    let mut file = PolicyFile::look(&link).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(&precious, &link).unwrap();
    assert!(file.replace(String::new()).unwrap_err().contains("symbolic link"));
    assert_eq!(fs::read_to_string(&precious).unwrap(), POLICY);
}

#[test]
fn what_is_no_policy_is_neither_read_nor_written() {
    let (directory, path) = directory_with("nonsense = 1\n");
    assert!(PolicyFile::look(&path).is_err());
    assert!(PolicyFile::look(directory.path()).is_err());
    assert!(PolicyFile::look(&directory.path().join("none/policy.toml")).is_err());
    let (_directory, path) = directory_with(POLICY);
    let mut file = PolicyFile::look(&path).unwrap();
    assert!(file.replace("nonsense = 1\n".to_owned()).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), POLICY);
}
