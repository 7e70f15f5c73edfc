use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use offleash_core::limits::{LimitName, Limits};
use offleash_core::units::Bytes;
use rustix::io::Errno;
use tempfile::TempDir;

use super::{InnerPath, ServedTree};
use crate::wire::{FileAnswer, FileKind, FileOperation};

/// A host's directory below an empty layer.
struct Fixture {
    directory: TempDir,
    tree: ServedTree,
}

impl Fixture {
    fn with(limits: &Limits, hidden: &[(&str, bool)], fill: impl FnOnce(&Path)) -> Self {
        let directory = TempDir::new().unwrap();
        let (lower, upper) = (directory.path().join("lower"), directory.path().join("upper"));
        fs::create_dir(&lower).unwrap();
        fs::create_dir(&upper).unwrap();
        fill(&lower);
        let hidden = hidden
            .iter()
            .map(|(path, is_directory)| (InnerPath::parse(path.as_bytes()).unwrap(), *is_directory));
        let tree = ServedTree::open(&lower, Some(&upper), hidden.collect(), limits).unwrap();
        Self { directory, tree }
    }

    fn new(fill: impl FnOnce(&Path)) -> Self {
        Self::with(&Limits::default(), &[], fill)
    }

    fn lower(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("lower").join(name)
    }

    fn upper(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("upper").join(name)
    }

    fn ask(&mut self, path: &str, operation: FileOperation) -> FileAnswer {
        self.tree.answer(path.as_bytes(), operation)
    }

    fn done(&mut self, path: &str, operation: FileOperation) {
        assert_eq!(
            self.ask(path, operation.clone()),
            FileAnswer::Done,
            "{path}: {operation:?}"
        );
    }

    fn refused(&mut self, path: &str, operation: FileOperation, errno: Errno) {
        let expected = FileAnswer::Failed {
            errno: errno.raw_os_error(),
        };
        assert_eq!(self.ask(path, operation.clone()), expected, "{path}: {operation:?}");
    }

    fn write(&mut self, path: &str, text: &str) {
        let total = text.len() as u64;
        let bytes = text.as_bytes().to_vec();
        self.done(path, FileOperation::Replace { total, bytes });
    }

    fn read(&mut self, path: &str) -> String {
        match self.ask(path, FileOperation::Read { offset: 0 }) {
            FileAnswer::Piece { bytes, .. } => String::from_utf8(bytes).unwrap(),
            answer => panic!("{path}: {answer:?}"),
        }
    }

    fn names(&mut self, path: &str) -> Vec<String> {
        match self.ask(path, FileOperation::List) {
            FileAnswer::Entries(entries) => entries
                .into_iter()
                .map(|entry| String::from_utf8(entry.name).unwrap())
                .collect(),
            answer => panic!("{path}: {answer:?}"),
        }
    }
}

fn rename(to: &str) -> FileOperation {
    FileOperation::Rename { to: to.into() }
}

#[test]
fn what_is_written_is_seen_and_the_host_stays_as_it_was() {
    let mut tree = Fixture::new(|lower| {
        fs::write(lower.join("a"), "old").unwrap();
        fs::create_dir(lower.join("d")).unwrap();
        fs::write(lower.join("d/f"), "one\n").unwrap();
    });
    tree.write("a", "new");
    tree.done("d/f", FileOperation::Append(b"two\n".to_vec()));
    tree.write("d/g", "g");
    assert_eq!(
        (tree.read("a"), tree.read("d/f")),
        ("new".to_owned(), "one\ntwo\n".to_owned())
    );
    assert_eq!(tree.names("d"), ["f", "g"]);
    assert_eq!(fs::read_to_string(tree.lower("a")).unwrap(), "old");
    assert_eq!(fs::read_to_string(tree.upper("d/f")).unwrap(), "one\ntwo\n");
}

#[test]
fn removing_leaves_marks_that_hide_what_the_host_has() {
    let mut tree = Fixture::new(|lower| {
        fs::create_dir(lower.join("d")).unwrap();
        fs::write(lower.join("d/f"), "").unwrap();
    });
    tree.refused("d", FileOperation::Remove, Errno::NOTEMPTY);
    tree.done("d/f", FileOperation::Remove);
    tree.refused("d/f", FileOperation::Stat, Errno::NOENT);
    tree.done("d", FileOperation::Remove);
    assert!(tree.names("").is_empty());
    tree.done("d", FileOperation::MakeDirectory);
    assert!(tree.names("d").is_empty(), "what was below is gone");
    tree.write("d/f", "again");
    assert_eq!(tree.read("d/f"), "again");
    tree.refused("none", FileOperation::Remove, Errno::NOENT);
}

#[test]
fn files_and_new_directories_are_renamed_and_those_of_the_host_are_not() {
    let mut tree = Fixture::new(|lower| {
        fs::create_dir(lower.join("d")).unwrap();
        fs::write(lower.join("d/f"), "f").unwrap();
        fs::write(lower.join("g"), "g").unwrap();
    });
    tree.refused("d", rename("e"), Errno::XDEV);
    tree.done("d/f", rename("g"));
    assert_eq!(tree.read("g"), "f");
    assert!(tree.names("d").is_empty());
    tree.done("new", FileOperation::MakeDirectory);
    tree.write("new/x", "x");
    tree.done("new", rename("d"));
    assert_eq!(tree.names("d"), ["x"]);
    assert_eq!(tree.names(""), ["d", "g"]);
    tree.refused("d", rename("d/inside"), Errno::INVAL);
    tree.refused("g", rename("d"), Errno::ISDIR);
}

#[test]
fn no_path_leads_out_and_no_link_is_followed() {
    let mut tree = Fixture::new(|lower| {
        fs::write(lower.parent().unwrap().join("outside"), "secret").unwrap();
        symlink("../outside", lower.join("link")).unwrap();
        symlink("..", lower.join("up")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            lower.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
    });
    for path in ["..", "../outside", "a/../../outside", "/outside", "a//b", "./a", "a\0b"] {
        tree.refused(path, FileOperation::Stat, Errno::INVAL);
        tree.refused(path, FileOperation::Append(Vec::new()), Errno::INVAL);
    }
    tree.refused(&"n".repeat(256), FileOperation::Stat, Errno::NAMETOOLONG);
    tree.refused(&"n/".repeat(3000), FileOperation::Stat, Errno::NAMETOOLONG);
    tree.refused("link", FileOperation::Read { offset: 0 }, Errno::NXIO);
    tree.refused("up/outside", FileOperation::Read { offset: 0 }, Errno::NOTDIR);
    tree.refused("pipe", FileOperation::Read { offset: 0 }, Errno::NXIO);
    tree.refused("link", FileOperation::Append(b"x".to_vec()), Errno::NXIO);
    let target = FileAnswer::Target(b"../outside".to_vec());
    assert_eq!(tree.ask("link", FileOperation::ReadLink), target);
    let outside = tree.directory.path().join("outside");
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
}

#[test]
fn hidden_names_are_shown_and_nothing_else() {
    let mut tree = Fixture::with(&Limits::default(), &[("keys", true), ("d/secret", false)], |lower| {
        fs::create_dir_all(lower.join("keys")).unwrap();
        fs::write(lower.join("keys/one"), "1").unwrap();
        fs::create_dir(lower.join("d")).unwrap();
        fs::write(lower.join("d/secret"), "s").unwrap();
    });
    assert_eq!(tree.names(""), ["d", "keys"]);
    let FileAnswer::Facts(facts) = tree.ask("keys", FileOperation::Stat) else {
        panic!("it is there")
    };
    assert_eq!((facts.kind, facts.mode), (FileKind::Directory, 0));
    for operation in [
        FileOperation::Read { offset: 0 },
        FileOperation::Append(b"x".to_vec()),
        FileOperation::Remove,
        FileOperation::Chmod { mode: 0o777 },
        rename("other"),
    ] {
        tree.refused("d/secret", operation.clone(), Errno::ACCESS);
        tree.refused("keys/one", operation, Errno::ACCESS);
    }
    tree.refused("keys", FileOperation::List, Errno::ACCESS);
    tree.write("new", "n");
    tree.refused("new", rename("d/secret"), Errno::ACCESS);
    tree.refused("d", FileOperation::Remove, Errno::NOTEMPTY);
}

#[test]
fn limits_refuse_what_goes_beyond_them_and_are_told() {
    let limits = Limits {
        workspace: Some(Bytes(16 * 1024)),
        inodes: Some(4),
        depth: Some(2),
        file_size: Some(Bytes(12 * 1024)),
        ..Limits::default()
    };
    let mut tree = Fixture::with(&limits, &[], |_| {});
    let replace = |total: usize| FileOperation::Replace {
        total: total as u64,
        bytes: vec![b'x'; total],
    };
    tree.refused("f", replace(13 * 1024), Errno::FBIG);
    tree.done("f", replace(12 * 1024));
    tree.refused("g", replace(8 * 1024), Errno::DQUOT);
    tree.done("f", replace(0));
    tree.done("d", FileOperation::MakeDirectory);
    tree.done("d/e", FileOperation::MakeDirectory);
    tree.refused("d/e/f", FileOperation::MakeDirectory, Errno::DQUOT);
    tree.write("h", "");
    tree.refused("i", FileOperation::MakeDirectory, Errno::DQUOT);
    let mut hit: Vec<LimitName> = tree.tree.take_hits().into_iter().map(|hit| hit.limit).collect();
    hit.sort();
    assert_eq!(
        hit,
        [
            LimitName::Workspace,
            LimitName::Inodes,
            LimitName::Depth,
            LimitName::FileSize
        ]
    );
}

#[test]
fn permissions_are_those_of_a_user_who_owns_the_files() {
    let mut tree = Fixture::new(|lower| {
        fs::write(lower.join("f"), "f").unwrap();
        fs::set_permissions(lower.join("f"), fs::Permissions::from_mode(0o400)).unwrap();
        fs::write(lower.join("closed"), "c").unwrap();
        fs::set_permissions(lower.join("closed"), fs::Permissions::from_mode(0o200)).unwrap();
    });
    tree.refused("f", FileOperation::Append(b"x".to_vec()), Errno::ACCESS);
    tree.refused("closed", FileOperation::Read { offset: 0 }, Errno::ACCESS);
    tree.done("f", FileOperation::Chmod { mode: 0o6755 });
    assert_eq!(
        fs::metadata(tree.upper("f")).unwrap().permissions().mode() & 0o7777,
        0o755
    );
    tree.done(
        "f",
        FileOperation::Touch {
            seconds: 86_400,
            nanoseconds: 5,
        },
    );
    let FileAnswer::Facts(facts) = tree.ask("f", FileOperation::Stat) else {
        panic!("it is there")
    };
    assert_eq!((facts.mode, facts.seconds, facts.nanoseconds), (0o755, 86_400, 5));
}

#[test]
fn a_tree_without_a_layer_is_only_read() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("f"), "f").unwrap();
    let mut tree = ServedTree::open(directory.path(), None, Vec::new(), &Limits::default()).unwrap();
    let refused = FileAnswer::Failed {
        errno: Errno::ROFS.raw_os_error(),
    };
    assert_eq!(tree.answer(b"f", FileOperation::Remove), refused);
    assert_eq!(tree.answer(b"g", FileOperation::Append(Vec::new())), refused);
}

#[test]
fn links_take_no_bytes_and_give_none_back() {
    let limits = Limits {
        workspace: Some(Bytes(8 * 1024)),
        ..Limits::default()
    };
    let mut tree = Fixture::with(&limits, &[], |_| {});
    tree.write("f", "f");
    // Links that say much: removing them must not make room for bytes.
    let target = b"t".repeat(4000);
    for name in ["a", "b", "c"] {
        tree.done(name, FileOperation::Symlink { target: target.clone() });
        tree.done(name, FileOperation::Remove);
    }
    assert_eq!(tree.tree.quota().lock().bytes(), 4096);
    let three = FileOperation::Replace {
        total: 8 * 1024,
        bytes: Vec::new(),
    };
    tree.refused("g", three, Errno::DQUOT);
}

#[test]
fn a_length_that_is_announced_and_does_not_fit_is_refused_before_anything_is_written() {
    let limits = Limits {
        workspace: Some(Bytes(8 * 1024)),
        ..Limits::default()
    };
    let mut tree = Fixture::with(&limits, &[], |_| {});
    tree.write("f", "kept");
    let bytes = b"lost".to_vec();
    let total = 64 * 1024;
    tree.refused("f", FileOperation::Replace { total, bytes }, Errno::DQUOT);
    assert_eq!(tree.read("f"), "kept");
    // What is announced takes nothing, what comes counts.
    let bytes = b"head".to_vec();
    let total = 8 * 1024;
    tree.done("f", FileOperation::Replace { total, bytes });
    assert_eq!(tree.tree.quota().lock().bytes(), 4096);
    let longer = FileOperation::Replace {
        total: 1,
        bytes: b"two".to_vec(),
    };
    tree.refused("f", longer, Errno::INVAL);
}

#[test]
fn a_rename_leads_no_deeper_than_the_limit() {
    let limits = Limits {
        depth: Some(2),
        ..Limits::default()
    };
    let mut tree = Fixture::with(&limits, &[], |_| {});
    tree.write("f", "f");
    tree.done("d", FileOperation::MakeDirectory);
    tree.done("d/e", FileOperation::MakeDirectory);
    tree.refused("f", rename("d/e/f"), Errno::DQUOT);
    tree.done("f", rename("d/f"));
    // What is in a directory lies deeper with it: that is copied, name by name.
    tree.done("x", FileOperation::MakeDirectory);
    tree.done("x/y", FileOperation::MakeDirectory);
    tree.refused("x", rename("d/x"), Errno::XDEV);
    tree.done("x", rename("z"));
    assert_eq!(tree.names("z"), ["y"]);
}

#[test]
fn files_of_other_users_are_served_as_far_as_they_are_open_to_everybody() {
    const ANOTHER: u32 = 54_321;
    if !rustix::process::geteuid().is_root() {
        // Then the kernel says the same.
        return eprintln!("SKIP: only root can give files to others");
    }
    let mut tree = Fixture::new(|lower| {
        for (name, mode) in [("closed", 0o600), ("open", 0o644), ("group", 0o640)] {
            fs::write(lower.join(name), "x").unwrap();
            fs::set_permissions(lower.join(name), fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(lower.join(name), Some(ANOTHER), Some(ANOTHER)).unwrap();
        }
        fs::create_dir(lower.join("d")).unwrap();
        fs::write(lower.join("d/f"), "x").unwrap();
        fs::set_permissions(lower.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(lower.join("d"), Some(ANOTHER), None).unwrap();
    });
    let read = FileOperation::Read { offset: 0 };
    for name in ["closed", "group", "d/f"] {
        tree.refused(name, read.clone(), Errno::ACCESS);
        tree.refused(name, FileOperation::Append(b"y".to_vec()), Errno::ACCESS);
        tree.refused(name, FileOperation::Chmod { mode: 0o666 }, Errno::ACCESS);
    }
    tree.refused("d", FileOperation::List, Errno::ACCESS);
    assert_eq!(tree.read("open"), "x");
    tree.refused("open", FileOperation::Append(b"y".to_vec()), Errno::ACCESS);
}

#[test]
fn a_file_is_written_within_cut_and_filled_in_the_layer_and_counted() {
    let limits = Limits {
        workspace: Some(Bytes(8192)),
        ..Limits::default()
    };
    let mut fixture = Fixture::with(&limits, &[], |lower| fs::write(lower.join("a"), "0123456789").unwrap());
    let write = |offset, bytes: &[u8]| FileOperation::Write {
        offset,
        bytes: bytes.to_vec(),
    };
    fixture.refused("absent", write(0, b"x"), Errno::NOENT);
    fixture.done("a", write(4, b"XY"));
    assert_eq!(fs::read(fixture.upper("a")).unwrap(), b"0123XY6789");
    assert_eq!(fs::read(fixture.lower("a")).unwrap(), b"0123456789");
    fixture.done("a", FileOperation::Resize { size: 5 });
    fixture.done("a", write(6, b"!"));
    assert_eq!(fs::read(fixture.upper("a")).unwrap(), b"0123X\0!");
    fixture.refused("a", FileOperation::Resize { size: 8193 }, Errno::DQUOT);
    fixture.refused("a", write(8192, b"!"), Errno::DQUOT);
    fixture.refused("a", write(u64::MAX, b"!"), Errno::FBIG);
}
