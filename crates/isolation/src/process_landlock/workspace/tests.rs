use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

/// A host directory, a layer's upper directory, and the copy in it.
struct Site {
    directory: tempfile::TempDir,
    manifest: CopyManifest,
}

impl Site {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        // On a disk, because tmpfs has its own ideas of attributes and holes.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let lower = directory.path().join("lower");
        fs::create_dir(&lower).unwrap();
        fs::create_dir(directory.path().join("upper")).unwrap();
        prepare(&lower);
        let mut site = Self {
            directory,
            manifest: CopyManifest::default(),
        };
        site.copy(&[], CopyRoom::default()).unwrap();
        site
    }

    fn copy(&mut self, hidden: &[PathBuf], room: CopyRoom) -> Result<(), CopyError> {
        let (manifest, copied) = copy(&self.lower(""), &self.upper(""), hidden, room);
        self.manifest = manifest;
        copied
    }

    fn lower(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join("lower").join(path)
    }

    fn upper(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join("upper").join(path)
    }

    fn reduce(&self) {
        reduce(&self.upper(""), &self.manifest).unwrap();
    }

    /// What the layer holds: every path with a letter for its kind, sorted.
    fn layer(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut todo = vec![self.upper("")];
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                let letter = if kind.is_dir() {
                    todo.push(entry.path());
                    'd'
                } else if kind.is_symlink() {
                    'l'
                } else if kind.is_char_device() {
                    'w'
                } else {
                    'f'
                };
                let path = entry.path();
                let path = path
                    .strip_prefix(self.upper(""))
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                found.push(format!("{letter} {path}"));
            }
        }
        found.sort();
        found
    }
}

fn write(path: impl AsRef<Path>, contents: &str) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

#[test]
fn a_copy_is_like_its_original() {
    let evil = OsStr::from_bytes(b"new\nline \xff -rf");
    let site = Site::new(|lower| {
        write(lower.join("a/b/file"), "text");
        write(lower.join("a").join(evil), "evil");
        write(lower.join("run.sh"), "#!");
        fs::set_permissions(lower.join("run.sh"), fs::Permissions::from_mode(0o4751)).unwrap();
        symlink("/nowhere/at all", lower.join("link")).unwrap();
        symlink("a", lower.join("to-directory")).unwrap();
        fs::hard_link(lower.join("run.sh"), lower.join("second-name")).unwrap();
        let sparse = fs::File::create(lower.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            lower.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        fs::set_permissions(lower.join("a/b"), fs::Permissions::from_mode(0o555)).unwrap();
    });
    assert_eq!(fs::read(site.upper("a/b/file")).unwrap(), b"text");
    assert_eq!(fs::read(site.upper("a").join(evil)).unwrap(), b"evil");
    assert_eq!(fs::read_link(site.upper("link")).unwrap(), Path::new("/nowhere/at all"));
    assert!(fs::symlink_metadata(site.upper("to-directory")).unwrap().is_symlink());
    let of = |path: PathBuf| fs::symlink_metadata(path).unwrap();
    assert_eq!(of(site.upper("run.sh")).mode() & 0o7777, 0o751, "without set-user-id");
    assert_eq!(of(site.upper("a/b")).mode() & 0o7777, 0o555);
    assert_eq!(of(site.upper("run.sh")).nlink(), 1);
    assert_eq!(of(site.upper("sparse")).len(), 64 << 20);
    assert!(of(site.upper("sparse")).blocks() < 2048, "holes stay holes");
    assert!(fs::symlink_metadata(site.upper("pipe")).is_err());
    for path in ["a/b/file", "a/b", "link", "run.sh"] {
        let (copy, original) = (of(site.upper(path)), of(site.lower(path)));
        assert_eq!(
            (copy.mtime(), copy.mtime_nsec()),
            (original.mtime(), original.mtime_nsec()),
            "{path}"
        );
    }
    fs::set_permissions(site.lower("a/b"), fs::Permissions::from_mode(0o755)).unwrap();
    site.reduce();
    assert_eq!(site.layer(), Vec::<String>::new());
}

#[test]
fn what_was_done_remains_and_nothing_else() {
    let site = Site::new(|lower| {
        for path in [
            "kept",
            "changed",
            "removed",
            "d/kept",
            "d/removed",
            "gone/x",
            "gone/y/z",
            "mode",
            "type",
            "touched",
        ] {
            write(lower.join(path), path);
        }
        fs::create_dir(lower.join("empty")).unwrap();
        symlink("kept", lower.join("link")).unwrap();
        symlink("kept", lower.join("link-kept")).unwrap();
    });
    write(site.upper("changed"), "otherwise");
    write(site.upper("new/deep/file"), "new");
    fs::remove_file(site.upper("removed")).unwrap();
    fs::remove_file(site.upper("d/removed")).unwrap();
    fs::remove_dir_all(site.upper("gone")).unwrap();
    fs::remove_dir(site.upper("empty")).unwrap();
    fs::set_permissions(site.upper("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(site.upper("type")).unwrap();
    fs::create_dir(site.upper("type")).unwrap();
    fs::remove_file(site.upper("link")).unwrap();
    symlink("changed", site.upper("link")).unwrap();
    // Same size, same times: only the change time tells.
    let before = fs::metadata(site.upper("touched")).unwrap();
    write(site.upper("touched"), "TOUCHED");
    let times = fs::FileTimes::new()
        .set_modified(before.modified().unwrap())
        .set_accessed(before.accessed().unwrap());
    fs::File::options()
        .write(true)
        .open(site.upper("touched"))
        .unwrap()
        .set_times(times)
        .unwrap();
    site.reduce();
    let expected = [
        "d d",
        "d new",
        "d new/deep",
        "d type",
        "f changed",
        "f mode",
        "f new/deep/file",
        "f touched",
        "l link",
        "w d/removed",
        "w empty",
        "w gone",
        "w removed",
    ];
    assert_eq!(site.layer(), expected);
}

#[test]
fn a_directory_that_was_made_again_hides_what_was_in_it() {
    let site = Site::new(|lower| {
        for path in ["again/old", "again/sub/old", "replaced/x"] {
            write(lower.join(path), "x");
        }
    });
    fs::remove_dir_all(site.upper("again")).unwrap();
    write(site.upper("again/new"), "x");
    fs::remove_dir_all(site.upper("replaced")).unwrap();
    write(site.upper("replaced"), "a file now");
    fs::rename(site.upper("replaced"), site.upper("moved")).unwrap();
    site.reduce();
    assert_eq!(
        site.layer(),
        [
            "d again",
            "f again/new",
            "f moved",
            "w again/old",
            "w again/sub",
            "w replaced"
        ]
    );
}

#[test]
fn what_the_host_does_meanwhile_is_not_the_sandbox_s_doing() {
    let site = Site::new(|lower| {
        write(lower.join("edited"), "before");
        write(lower.join("removed"), "x");
    });
    write(site.lower("edited"), "after");
    write(site.lower("added"), "x");
    fs::remove_file(site.lower("removed")).unwrap();
    site.reduce();
    assert_eq!(site.layer(), Vec::<String>::new());
}

#[test]
fn permissions_that_the_code_took_away_do_not_hide_changes() {
    let site = Site::new(|lower| {
        write(lower.join("d/e/untouched"), "x");
        write(lower.join("d/e/removed"), "x");
    });
    fs::remove_file(site.upper("d/e/removed")).unwrap();
    write(site.upper("d/e/new"), "x");
    for closed in ["d/e", "d", ""] {
        fs::set_permissions(site.upper(closed), fs::Permissions::from_mode(0o000)).unwrap();
    }
    site.reduce();
    for (closed, mode) in [("", 0), ("d", 0), ("d/e", 0)] {
        assert_eq!(
            fs::metadata(site.upper(closed)).unwrap().mode() & 0o7777,
            mode,
            "{closed}"
        );
        fs::set_permissions(site.upper(closed), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!(site.layer(), ["d d", "d d/e", "f d/e/new", "w d/e/removed"]);
}

#[test]
fn links_in_place_of_directories_are_not_followed() {
    let site = Site::new(|lower| write(lower.join("d/file"), "x"));
    write(site.directory.path().join("outside/file"), "x");
    fs::remove_dir_all(site.upper("d")).unwrap();
    symlink(site.directory.path().join("outside"), site.upper("d")).unwrap();
    site.reduce();
    assert_eq!(site.layer(), ["l d"]);
    assert!(site.directory.path().join("outside/file").exists());
}

#[test]
fn what_a_rule_hides_is_neither_copied_nor_taken_for_removed() {
    let mut site = Site::new(|_| ());
    write(site.lower(".env"), "secret");
    write(site.lower("d/secret/key"), "secret");
    write(site.lower("d/open"), "x");
    site.copy(&[".env".into(), "d/secret".into()], CopyRoom::default())
        .unwrap();
    assert_eq!(site.layer(), ["d d", "f d/open"]);
    site.reduce();
    assert_eq!(site.layer(), Vec::<String>::new());
}

#[test]
fn what_does_not_fit_is_refused_and_can_be_removed() {
    let mut site = Site::new(|_| ());
    write(site.lower("d/large"), &"x".repeat(1 << 20));
    for number in 0..20 {
        write(site.lower(format!("many/{number}")), "x");
    }
    for (room, is_expected) in [
        (
            CopyRoom {
                bytes: Some(1 << 19),
                inodes: None,
            },
            (|error| matches!(error, CopyError::Bytes)) as fn(&CopyError) -> bool,
        ),
        (
            CopyRoom {
                bytes: None,
                inodes: Some(5),
            },
            |error| matches!(error, CopyError::Inodes),
        ),
    ] {
        let error = site.copy(&[], room).unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        site.reduce();
        assert_eq!(site.layer(), Vec::<String>::new());
    }
}

#[test]
fn a_workspace_that_is_too_deep_is_refused_and_a_deep_result_is_not_entered() {
    let mut site = Site::new(|_| ());
    let mut deep = site.lower("");
    for _ in 0..MAX_LEVELS + 1 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    assert!(matches!(
        site.copy(&[], CopyRoom::default()),
        Err(CopyError::TooDeep(_))
    ));
    fs::remove_dir_all(site.upper("d")).unwrap();
    let site = Site::new(|lower| write(lower.join("top/file"), "x"));
    let mut deep = site.upper("top");
    for _ in 0..900 {
        deep.push("d");
        fs::create_dir(&deep).unwrap();
    }
    site.reduce();
    assert!(deep.exists());
    assert!(!site.upper("top/file").exists());
}

#[test]
fn what_this_user_cannot_read_is_left_out_and_not_taken_for_removed() {
    if rustix::process::geteuid().is_root() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIP: root can read everything\n");
        return;
    }
    let site = Site::new(|lower| {
        write(lower.join("closed/file"), "x");
        write(lower.join("unreadable"), "x");
        fs::set_permissions(lower.join("unreadable"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(lower.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    });
    let copied = site.layer();
    fs::set_permissions(site.lower("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(copied, Vec::<String>::new());
    site.reduce();
    assert_eq!(site.layer(), Vec::<String>::new());
}
