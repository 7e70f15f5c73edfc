//! What a kernel relies on, whoever runs the test: nodes, their names, owners, and how long things are remembered.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "a test has no callers, and uses a part of what is shared"
)]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use offleash_tree::{FileOwners, TreeOptions};
use rustix::io::Errno;
use support::*;
use tempfile::TempDir;

/// Options with so few descriptors that none is kept for long.
fn forgetful() -> TreeOptions {
    TreeOptions {
        max_descriptors: Some(64),
        ..plain()
    }
}

/// Looks up other files until no descriptor of before is kept.
fn distract(machine: &mut Machine, root: &std::path::Path) {
    for number in 0..100 {
        let name = format!("other{number}");
        fs::write(root.join(&name), b"").unwrap();
        let node = machine.lookup(ROOT, &name).unwrap();
        machine.getattr(node).unwrap();
    }
}

#[test]
fn what_was_removed_works_until_it_is_forgotten() {
    let base = TempDir::new().unwrap();
    let mut machine = Machine::new(base.path(), forgetful());
    let (node, handle) = machine.create(ROOT, "gone", 2, 0o600).unwrap();
    machine.write(node, handle, 0, (0, 2), b"content").unwrap();
    machine.ask(UNLINK, ROOT, Body::new().string(b"gone")).unwrap();
    distract(&mut machine, base.path());
    assert_eq!(machine.getattr(node).unwrap(), (7, 0o100_600, 0));
    assert_eq!(machine.read(node, handle, 0, 100).unwrap(), b"content");
    // A new one of that name, maybe with the same inode, is another.
    let (again, _) = machine.create(ROOT, "gone", 2, 0o600).unwrap();
    assert_ne!(again, node);
    assert_eq!(machine.getattr(again).unwrap().0, 0);
    machine.tell(FORGET, node, Body::new().u64(1));
    // Nobody answers it, and another thread may answer the question that follows first.
    let mut asked = (0..1000).map(|_| machine.getattr(node));
    assert!(asked.any(|answer| answer == Err(Errno::STALE)));
    machine.end().unwrap();
}

#[test]
fn what_is_renamed_is_found_again_with_all_below_it() {
    let base = TempDir::new().unwrap();
    fs::create_dir_all(base.path().join("a/b/c")).unwrap();
    fs::write(base.path().join("a/b/c/file"), b"below").unwrap();
    fs::create_dir(base.path().join("to")).unwrap();
    let mut machine = Machine::new(base.path(), forgetful());
    let a = machine.lookup(ROOT, "a").unwrap();
    let b = machine.lookup(a, "b").unwrap();
    let c = machine.lookup(b, "c").unwrap();
    let file = machine.lookup(c, "file").unwrap();
    let to = machine.lookup(ROOT, "to").unwrap();
    let body = Body::new().u64(to).string(b"b").string(b"moved");
    machine.ask(RENAME, a, body).unwrap();
    distract(&mut machine, base.path());
    let handle = machine.open(file, 0).unwrap();
    assert_eq!(machine.read(file, handle, 0, 9).unwrap(), b"below");
    // Exchanged with what replaces it.
    let body = Body::new().u64(ROOT).u32(2).u32(0).string(b"moved").string(b"a");
    machine.ask(RENAME2, to, body).unwrap();
    distract(&mut machine, base.path());
    assert!(machine.open(file, 0).is_ok());
    assert_eq!(machine.lookup(ROOT, "a"), Ok(b));
    assert_eq!(machine.lookup(to, "moved"), Ok(a));
}

#[test]
fn links_of_a_file_are_one_node() {
    let base = TempDir::new().unwrap();
    let mut machine = Machine::new(base.path(), forgetful());
    let (node, _) = machine.create(ROOT, "one", 1, 0o600).unwrap();
    let linked = machine.ask(LINK, ROOT, Body::new().u64(node).string(b"two")).unwrap();
    assert_eq!(number(&linked, 0), node);
    assert_eq!(machine.lookup(ROOT, "two"), Ok(node));
    machine.ask(UNLINK, ROOT, Body::new().string(b"two")).unwrap();
    assert_eq!(machine.lookup(ROOT, "one"), Ok(node));
    distract(&mut machine, base.path());
    assert_eq!(machine.getattr(node).unwrap().2, 1);
}

#[test]
fn a_directory_of_many_is_read_in_pieces_once_each() {
    let base = TempDir::new().unwrap();
    for number in 0..1500 {
        fs::write(base.path().join(format!("{number}-{}", "x".repeat(number % 60))), b"").unwrap();
    }
    let mut machine = Machine::plain(base.path());
    for size in [300, 4096, 1 << 20] {
        let mut names = machine.list(ROOT, size).unwrap();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 1502);
    }
}

#[test]
fn contents_are_appended_and_pages_stay_in_their_place() {
    let base = TempDir::new().unwrap();
    let mut machine = Machine::plain(base.path());
    const APPEND: u32 = 0o2000;
    let (node, handle) = machine.create(ROOT, "log", 1 | APPEND, 0o600).unwrap();
    machine.write(node, handle, 0, (0, 1 | APPEND), b"one").unwrap();
    fs::write(base.path().join("log"), b"by others, longer").unwrap();
    // The other side believes it to be shorter.
    machine.write(node, handle, 3, (0, 1 | APPEND), b"two").unwrap();
    // A page of the cache comes through a handle that appends.
    machine.write(node, handle, 0, (1, 1 | APPEND), b"BY").unwrap();
    assert_eq!(fs::read(base.path().join("log")).unwrap(), b"BY others, longertwo");
}

/// How long names and attributes are remembered, seconds: `fuse_entry_out`.
fn remembered(machine: &mut Machine, parent: u64, name: &str) -> (u64, u64, u64) {
    let answer = machine
        .ask(LOOKUP, parent, Body::new().string(name.as_bytes()))
        .unwrap();
    (number(&answer, 0), number(&answer, 16), number(&answer, 24))
}

#[test]
fn nothing_is_remembered_of_what_others_change() {
    let base = TempDir::new().unwrap();
    fs::create_dir_all(base.path().join("volume/below")).unwrap();
    fs::write(base.path().join("volume/below/file"), b"").unwrap();
    fs::write(base.path().join("file"), b"").unwrap();
    let options = TreeOptions {
        shared: vec!["volume".into()],
        ..plain()
    };
    let mut machine = Machine::new(base.path(), options);
    let (file, entry, attributes) = remembered(&mut machine, ROOT, "file");
    assert!(entry > 1000 && attributes > 1000);
    let (none, negative, _) = remembered(&mut machine, ROOT, "none");
    assert!(none == 0 && negative > 1000);
    let (volume, entry, attributes) = remembered(&mut machine, ROOT, "volume");
    assert_eq!((entry, attributes), (0, 0));
    let (below, entry, attributes) = remembered(&mut machine, volume, "below");
    assert_eq!((entry, attributes), (0, 0));
    let (shared, entry, attributes) = remembered(&mut machine, below, "file");
    assert_eq!((entry, attributes), (0, 0));
    let none = machine.ask(LOOKUP, below, Body::new().string(b"none"));
    assert_eq!(none, Err(Errno::NOENT));
    // Contents, too.
    let flags = |answer: Vec<u8>| short(&answer, 8) & 2;
    assert_eq!(flags(machine.ask(OPEN, file, Body::new().u32(0).u32(0)).unwrap()), 2);
    assert_eq!(flags(machine.ask(OPEN, shared, Body::new().u32(0).u32(0)).unwrap()), 0);
}

#[test]
fn files_belong_to_who_asks_where_that_may_be() {
    let base = TempDir::new().unwrap();
    let options = TreeOptions {
        owners: FileOwners::Requester,
        ..plain()
    };
    if !rustix::process::getuid().is_root() {
        println!("SKIP: only the superuser makes files for others");
        return;
    }
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let mut machine = Machine::new(base.path(), options);
    for (number, ids) in [(1000, 1001), (0, 0), (5, 7), (0, 9)].into_iter().enumerate() {
        machine.ids = ids;
        let name = format!("f{number}");
        machine.create(ROOT, &name, 1, 0o666).unwrap();
        let body = Body::new().u32(0o777).u32(0).string(format!("d{number}").as_bytes());
        machine.ask(MKDIR, ROOT, body).unwrap();
        for (name, mode) in [(name, 0o666), (format!("d{number}"), 0o777)] {
            let made = fs::metadata(base.path().join(name)).unwrap();
            assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (ids.0, ids.1, mode));
        }
    }
    machine.ids = (u32::MAX, 0);
    assert_eq!(machine.create(ROOT, "nobody", 1, 0o666), Err(Errno::INVAL));
    assert!(!base.path().join("nobody").exists());
}

#[test]
fn many_requests_at_once_are_each_answered_once() {
    let base = TempDir::new().unwrap();
    let mut machine = Machine::plain(base.path());
    // More than is read at once, sent before an answer is read.
    let mut sent = std::collections::HashSet::new();
    let mut bytes = Vec::new();
    for number in 0..400_u64 {
        let unique = 10_000 + 2 * number;
        let name = format!("f{}", number % 50);
        let body = Body::new().u32(0o102).u32(0o600).u32(0).u32(0).string(name.as_bytes());
        bytes.extend(message(CREATE, unique, ROOT, machine.ids, &body.0));
        sent.insert(unique);
    }
    machine.send(&bytes).unwrap();
    for _ in 0..400 {
        let (unique, answer) = machine.receive().unwrap();
        assert!(sent.remove(&unique));
        assert!(answer.is_ok(), "{answer:?}");
    }
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 50);
    machine.end().unwrap();
}
