//! Changes below a directory, as a file worker tells of them.

use std::path::Path;

use crate::harness::{Guest, Role, roles, start};
use crate::worker::{Worker, bytes};
use offleash_protocol::files::ChangeKind::{Chmod, Create, Remove, Rename, Write};
use offleash_protocol::files::{ChangeKind, FileReply, FileRequest, WatchedChange};
use rustix::io::Errno;

/// Asks a worker to watch; answers what it says first.
fn ask(worker: &mut Worker, path: &Path, recursive: bool, entries: bool) -> FileReply {
    worker.ask(&FileRequest::Watch {
        path: bytes(path),
        recursive,
        entries,
    })
}

fn watch(guest: &mut Guest, path: &Path, recursive: bool) -> Worker {
    let mut worker = guest.open_files(None);
    assert_eq!(ask(&mut worker, path, recursive, false), FileReply::Done);
    worker
}

fn changes(worker: &mut Worker) -> Vec<WatchedChange> {
    match worker.next() {
        Some(FileReply::Changed(changes)) => changes,
        other => panic!("{other:?}"),
    }
}

/// What is told up to the making of a file that ends the test.
fn told_until_end(worker: &mut Worker, root: &Path) -> Vec<(String, ChangeKind)> {
    std::fs::create_dir(root.join("end")).expect("mkdir");
    let mut told = Vec::new();
    loop {
        for change in changes(worker) {
            let name = String::from_utf8(change.name).expect("text");
            if name == "end" {
                return told;
            }
            told.push((name, change.kind));
        }
    }
}

fn told(list: &[(&str, ChangeKind)]) -> Vec<(String, ChangeKind)> {
    list.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
}

#[test]
fn writing_a_new_file_is_told_as_made_given_and_written() {
    for role in roles() {
        let mut guest = start(role);
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut writer = guest.open_files(None);
        let mut watcher = watch(&mut guest, root, false);
        writer.write(&root.join("new"), b"content", &[]).expect("written");
        let expected = told(&[("new", Create), ("new", Chmod), ("new", Write)]);
        assert_eq!(told_until_end(&mut watcher, root), expected);
    }
}

#[test]
fn each_change_is_told_once() {
    let mut guest = start(Role::Subreaper);
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir(root.join("below")).unwrap();
    std::fs::write(root.join("a"), "").unwrap();
    let mut watcher = watch(&mut guest, root, false);
    std::fs::write(root.join("below/not told"), "x").unwrap();
    std::fs::rename(root.join("a"), root.join("b")).unwrap();
    std::fs::remove_file(root.join("b")).unwrap();
    std::fs::rename(root.join("below"), root.join("moved")).unwrap();
    let expected = [
        ("a", Rename),
        ("b", Create),
        ("b", Remove),
        ("below", Rename),
        ("moved", Create),
    ];
    assert_eq!(told_until_end(&mut watcher, root), told(&expected));
    std::fs::remove_dir_all(root).unwrap();
    let mut last = Vec::new();
    while last.last() != Some(&(".".to_owned(), Remove)) {
        let more = changes(&mut watcher);
        last.extend(
            more.into_iter()
                .map(|change| (String::from_utf8(change.name).expect("text"), change.kind)),
        );
    }
    std::fs::create_dir(root).unwrap();
}

#[test]
fn directories_that_appear_are_watched_with_what_is_in_them() {
    let mut guest = start(Role::Subreaper);
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = directory.path();
    std::fs::create_dir_all(root.join("old/deep")).unwrap();
    let mut watcher = watch(&mut guest, root, true);
    std::fs::write(root.join("old/deep/file"), "").unwrap();
    assert_eq!(changes(&mut watcher)[0].name, b"old/deep/file");
    // One that comes from elsewhere, on the same file system, with something in it.
    std::fs::create_dir_all(other.path().join("new/sub")).unwrap();
    std::fs::write(other.path().join("new/sub/inside"), "").unwrap();
    std::fs::rename(other.path().join("new"), root.join("new")).unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&("new/sub/inside".to_owned(), Create)) {
        seen.extend(
            changes(&mut watcher)
                .into_iter()
                .map(|change| (String::from_utf8(change.name).expect("text"), change.kind)),
        );
    }
    assert_eq!(
        seen,
        told(&[("new", Create), ("new/sub", Create), ("new/sub/inside", Create)])
    );
    std::fs::write(root.join("new/sub/later"), "").unwrap();
    assert_eq!(changes(&mut watcher)[0].name, b"new/sub/later");
    // One that is called otherwise from now on, and one that is gone.
    std::fs::rename(root.join("new"), root.join("newer")).unwrap();
    assert_eq!(
        told_until_end(&mut watcher, root)[..2],
        told(&[("new", Rename), ("newer", Create)])
    );
    std::fs::write(root.join("newer/sub/latest"), "").unwrap();
    let names = |changes: Vec<WatchedChange>| changes.into_iter().map(|change| change.name).collect::<Vec<_>>();
    let mut seen = Vec::new();
    while !seen.contains(&b"newer/sub/latest".to_vec()) {
        seen.extend(names(changes(&mut watcher)));
    }
    assert!(!seen.iter().any(|name| name.starts_with(b"new/")), "{seen:?}");
    std::fs::rename(root.join("newer"), other.path().join("newer")).unwrap();
    assert_eq!(names(changes(&mut watcher)), [b"newer".to_vec()]);
    std::fs::write(other.path().join("newer/sub/unseen"), "").unwrap();
    std::fs::remove_dir(root.join("end")).unwrap();
    assert_eq!(names(changes(&mut watcher)), [b"end".to_vec()]);
}

#[test]
fn nothing_is_told_twice_however_fast_directories_fill() {
    let mut guest = start(Role::Subreaper);
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut watcher = watch(&mut guest, root, true);
    let mut expected = Vec::new();
    for outer in 0..20 {
        for inner in 0..5 {
            std::fs::create_dir_all(root.join(format!("{outer}/{inner}"))).unwrap();
            expected.push(format!("{outer}/{inner}"));
            for file in 0..5 {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    root.join(format!("{outer}/{inner}/{file}")),
                    rustix::fs::FileType::RegularFile,
                    rustix::fs::Mode::from_raw_mode(0o644),
                    0,
                )
                .unwrap();
                expected.push(format!("{outer}/{inner}/{file}"));
            }
        }
        expected.push(outer.to_string());
    }
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        for change in changes(&mut watcher) {
            assert_eq!(change.kind, Create);
            seen.push(String::from_utf8(change.name).expect("text"));
        }
    }
    assert_eq!(told_until_end(&mut watcher, root), []);
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn changes_come_with_what_is_there_if_asked_for() {
    let mut guest = start(Role::Subreaper);
    let directory = tempfile::tempdir().unwrap();
    let mut watcher = guest.open_files(None);
    assert_eq!(ask(&mut watcher, directory.path(), false, true), FileReply::Done);
    let path = directory.path().join("made");
    std::fs::create_dir(&path).unwrap();
    let change = changes(&mut watcher).remove(0);
    let entry = change.entry.expect("it is there");
    assert_eq!((entry.path, entry.mode & 0o170_000), (bytes(&path), 0o040_000));
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(changes(&mut watcher)[0].entry, None);
}

#[test]
fn what_is_no_directory_is_not_watched() {
    let mut guest = start(Role::Subreaper);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (path, errno) in [(&file, Errno::NOTDIR), (&directory.path().join("none"), Errno::NOENT)] {
        let mut worker = guest.open_files(None);
        let refused = FileReply::Failed {
            step: "open".to_owned(),
            errno: errno.raw_os_error(),
        };
        assert_eq!(ask(&mut worker, path, true, false), refused);
        assert!(worker.stat(directory.path()).is_ok(), "it serves on");
    }
}

#[test]
fn a_watcher_ends_with_its_socket_while_nothing_happens() {
    for role in roles() {
        let mut guest = start(role);
        let directory = tempfile::tempdir().unwrap();
        let idle = watch(&mut guest, directory.path(), true);
        let mut asked_more = watch(&mut guest, directory.path(), true);
        drop(idle);
        asked_more.send(&FileRequest::Finish);
        assert_eq!(asked_more.next(), None);
        guest.wait_until_alone();
    }
}

#[test]
fn what_the_kernel_could_not_keep_is_said() {
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("it is there");
    let most: usize = most.trim().parse().expect("a number");
    let mut guest = start(Role::Subreaper);
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let root = directory.path();
    let mut watcher = watch(&mut guest, root, true);
    // More than is kept and than fits into the socket, while nobody reads; alternating, so that nothing is merged.
    let (a, b) = (
        root.join(format!("a{}", "x".repeat(200))),
        root.join(format!("b{}", "x".repeat(200))),
    );
    std::fs::write(&a, "").unwrap();
    for _ in 0..most.min(100_000) {
        std::fs::rename(&a, &b).unwrap();
        std::fs::rename(&b, &a).unwrap();
    }
    std::fs::create_dir_all(root.join("missed/below")).unwrap();
    let mut overflown = most > 100_000;
    while !overflown {
        overflown = changes(&mut watcher)
            .iter()
            .any(|change| change.kind == ChangeKind::Overflow);
    }
    // What was made meanwhile is watched nevertheless.
    std::fs::write(root.join("missed/below/found"), "").unwrap();
    while !changes(&mut watcher)
        .iter()
        .any(|change| change.name == b"missed/below/found")
    {}
}
