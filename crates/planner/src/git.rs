//! Git directories that a workspace belongs to and that lie outside it: of worktrees and submodules.
//!
//! A `.git` file is part of the workspace, so whoever wrote the workspace wrote it. It is believed only where the
//! directory that it names points back: otherwise an unpacked archive could name any repository of the user, and have
//! it shown to the code that came with it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::regular_file::read_regular_file;

/// The git directories outside `workspace` that git needs there; `euid` is whose they must be.
pub(super) fn directories_outside(workspace: &Path, euid: u32) -> Vec<PathBuf> {
    let Some(git_directory) = named_by(&workspace.join(".git"), workspace) else {
        return Vec::new();
    };
    if git_directory.starts_with(workspace) || !points_back(&git_directory, workspace) {
        return Vec::new();
    }
    let Some(common) = common_directory(&git_directory) else {
        return Vec::new();
    };
    let is_ours = |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == euid);
    let is_whole = is_repository(&common) && is_ours(&common) && is_ours(&git_directory);
    if !is_whole || workspace.starts_with(&common) {
        return Vec::new();
    }
    if git_directory.starts_with(&common) {
        vec![common]
    } else {
        vec![common, git_directory]
    }
}

/// What a `.git` file names.
fn named_by(file: &Path, workspace: &Path) -> Option<PathBuf> {
    let text = read_file(file)?;
    let named = text.strip_prefix(b"gitdir: ")?;
    fs::canonicalize(workspace.join(path_of(named))).ok()
}

/// Whether a worktree's `gitdir`, or a submodule's `core.worktree`, names the workspace.
fn points_back(git_directory: &Path, workspace: &Path) -> bool {
    let leads_to =
        |named: &[u8], to: &Path| fs::canonicalize(git_directory.join(path_of(named))).is_ok_and(|back| back == to);
    let by_worktree =
        read_file(&git_directory.join("gitdir")).is_some_and(|named| leads_to(&named, &workspace.join(".git")));
    by_worktree
        || read_file(&git_directory.join("config"))
            .and_then(|config| core_worktree(&config))
            .is_some_and(|named| leads_to(&named, workspace))
}

/// The repository that a git directory belongs to: itself, or the one in whose `worktrees` it lies.
///
/// The file `commondir` may come with the workspace as well; only the place of the git directory cannot be made up.
fn common_directory(git_directory: &Path) -> Option<PathBuf> {
    let Some(named) = read_file(&git_directory.join("commondir")) else {
        return Some(git_directory.to_path_buf());
    };
    let common = fs::canonicalize(git_directory.join(path_of(&named))).ok()?;
    let has_it = common == git_directory || git_directory.parent() == Some(&common.join("worktrees"));
    has_it.then_some(common)
}

fn is_repository(directory: &Path) -> bool {
    directory.join("HEAD").is_file() && directory.join("objects").is_dir() && directory.join("refs").is_dir()
}

/// The value of `worktree` in `[core]`, as git writes it.
fn core_worktree(config: &[u8]) -> Option<Vec<u8>> {
    let mut in_core = false;
    for line in config.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if line.first() == Some(&b'[') {
            in_core = line.eq_ignore_ascii_case(b"[core]");
        } else if let Some(equals) = line.iter().position(|byte| *byte == b'=').filter(|_| in_core) {
            let (key, value) = (line[..equals].trim_ascii(), line[equals + 1..].trim_ascii());
            if key.eq_ignore_ascii_case(b"worktree") {
                return Some(value.to_vec());
            }
        }
    }
    None
}

fn read_file(path: &Path) -> Option<Vec<u8>> {
    read_regular_file(path).ok()
}

fn path_of(line: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(line.trim_ascii_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with a worktree and a submodule, as git lays them out.
    fn repository(root: &Path) -> (PathBuf, PathBuf, PathBuf) {
        let root = fs::canonicalize(root).unwrap();
        let git = root.join("main/.git");
        let (worktree, submodule) = (root.join("tree"), root.join("main/sub"));
        for directory in [
            "objects",
            "refs",
            "worktrees/tree",
            "modules/sub/objects",
            "modules/sub/refs",
        ] {
            fs::create_dir_all(git.join(directory)).unwrap();
        }
        fs::create_dir_all(&worktree).unwrap();
        fs::create_dir_all(&submodule).unwrap();
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(git.join("worktrees/tree/HEAD"), "ref: refs/heads/tree\n").unwrap();
        fs::write(git.join("worktrees/tree/commondir"), "../..\n").unwrap();
        fs::write(
            git.join("worktrees/tree/gitdir"),
            format!("{}/.git\n", worktree.display()),
        )
        .unwrap();
        fs::write(
            worktree.join(".git"),
            format!("gitdir: {}/worktrees/tree\n", git.display()),
        )
        .unwrap();
        fs::write(git.join("modules/sub/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(
            git.join("modules/sub/config"),
            "[core]\n\tbare = false\n\tworktree = ../../../sub\n",
        )
        .unwrap();
        fs::write(submodule.join(".git"), "gitdir: ../.git/modules/sub\n").unwrap();
        (git, worktree, submodule)
    }

    fn owner(path: &Path) -> u32 {
        fs::metadata(path).unwrap().uid()
    }

    #[test]
    fn worktrees_and_submodules_get_their_repository() {
        let directory = tempfile::tempdir().unwrap();
        let (git, worktree, submodule) = repository(directory.path());
        assert_eq!(directories_outside(&worktree, owner(&git)), std::slice::from_ref(&git));
        assert_eq!(directories_outside(&submodule, owner(&git)), [git.join("modules/sub")]);
        assert!(directories_outside(&directory.path().join("main"), owner(&git)).is_empty());
    }

    #[test]
    fn a_git_file_cannot_name_the_repository_of_another_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (git, _, _) = repository(directory.path());
        let stranger = git.parent().unwrap().parent().unwrap().join("stranger");
        fs::create_dir(&stranger).unwrap();
        for named in [git.clone(), git.join("worktrees/tree"), git.join("modules/sub")] {
            fs::write(stranger.join(".git"), format!("gitdir: {}\n", named.display())).unwrap();
            assert!(directories_outside(&stranger, owner(&git)).is_empty(), "{named:?}");
        }
    }

    #[test]
    fn a_git_directory_that_came_along_cannot_name_another_repository() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, _, _) = repository(directory.path());
        let tree = victim.parent().unwrap().parent().unwrap().join("unpacked");
        let (workspace, evil) = (tree.join("sub"), tree.join("evil"));
        let theirs = evil.join("worktrees/x");
        fs::create_dir_all(&workspace).unwrap();
        fs::create_dir_all(&theirs).unwrap();
        for (git_directory, commondir) in [
            (&evil, victim.clone()),
            (&theirs, victim.clone()),
            (&theirs, victim.join("modules/sub")),
            (&theirs, victim.join("worktrees/tree")),
        ] {
            fs::write(workspace.join(".git"), format!("gitdir: {}\n", git_directory.display())).unwrap();
            fs::write(git_directory.join("HEAD"), "ref: refs/heads/main\n").unwrap();
            fs::write(git_directory.join("gitdir"), format!("{}/.git\n", workspace.display())).unwrap();
            fs::write(git_directory.join("commondir"), format!("{}\n", commondir.display())).unwrap();
            let shown = directories_outside(&workspace, owner(&victim));
            assert!(shown.is_empty(), "{git_directory:?} {commondir:?}: {shown:?}");
        }
    }

    #[test]
    fn the_repository_of_another_user_is_not_given() {
        let directory = tempfile::tempdir().unwrap();
        let (git, worktree, _) = repository(directory.path());
        assert!(directories_outside(&worktree, owner(&git) + 1).is_empty());
    }

    #[test]
    fn what_is_no_git_file_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let uid = owner(directory.path());
        for contents in ["", "gitdir:", "gitdir: /nonexistent\n", "gitdir: \0\n", "/etc"] {
            fs::write(directory.path().join(".git"), contents).unwrap();
            assert!(directories_outside(directory.path(), uid).is_empty(), "{contents:?}");
        }
    }
}
