//! Volumes and buckets that are brought to the same, with servers that do what they should and servers that do not.

mod faults;

use std::os::unix::fs::{FileExt as _, symlink};

use offleash_core::bucket::{SyncChoice, SyncDirection};
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_store::TransferBudget;

use crate::testing::{Answer, Request, STALL, Setting, exists, tag_of, way};
use crate::{BucketError, ObjectList};

const BOTH: SyncChoice = SyncChoice {
    direction: SyncDirection::Both,
    delete: false,
    overwrite: false,
};

fn names(list: &ObjectList) -> Vec<String> {
    list.named.iter().map(|note| note.name.to_string()).collect()
}

fn whys(list: &ObjectList) -> String {
    list.named
        .iter()
        .map(|note| note.why.clone())
        .collect::<Vec<_>>()
        .join("; ")
}

fn is_get(request: &Request) -> bool {
    request.method == "GET" && !request.key.is_empty()
}

#[test]
fn what_is_new_on_one_side_goes_to_the_other() {
    let setting = Setting::of("s3://bucket/models/", false);
    let server = &setting.server;
    server.put("models/a", "one");
    server.put("models/d/ü b+c%", "two");
    server.put("models/d/", "");
    server.put("elsewhere/x", "not asked for");
    server.put("modelsx", "neither");
    setting.write("mine/e", "three");
    setting.write("empty", "");
    let report = setting.sync(BOTH);
    assert_eq!((report.fetched, report.fetched_bytes), (2, 6));
    assert_eq!((report.sent, report.sent_bytes), (2, 5));
    assert!(report.is_complete() && report.left_out.count == 0, "{report:?}");
    assert_eq!(setting.read("d/ü b+c%").unwrap(), b"two");
    assert!(!exists(&setting.path("x")) && !exists(&setting.path("elsewhere")));
    assert_eq!(server.get("models/mine/e").unwrap(), b"three");
    assert_eq!(server.get("models/empty").unwrap(), b"");
    // Requests are signed by the key, and it is in none.
    for request in &server.lock().requests {
        assert!(request.query["X-Amz-Credential"].starts_with("key-id/"), "{request:?}");
        assert!(request.query.contains_key("X-Amz-Signature") && !format!("{request:?}").contains("the-secret-key"));
    }
    let report = setting.sync(BOTH);
    assert_eq!((report.same, report.fetched, report.sent), (4, 0, 0));

    server.put("models/a", "one, changed");
    setting.write("mine/e", "three, changed");
    let report = setting.sync(BOTH);
    assert_eq!((report.same, report.fetched, report.sent), (2, 1, 1));
    assert_eq!(setting.read("a").unwrap(), b"one, changed");
    assert_eq!(server.get("models/mine/e").unwrap(), b"three, changed");
    assert_eq!(setting.incoming(), 0);
}

#[test]
fn a_direction_takes_nothing_from_the_other_side() {
    let setting = Setting::new();
    setting.server.put("there", "1");
    setting.write("here", "2");
    let report = setting.sync(SyncChoice::PULL);
    assert_eq!((report.fetched, report.sent, report.waiting), (1, 0, 1));
    assert_eq!(setting.server.get("here"), None);
    setting.server.put("there", "changed");
    let report = setting.sync(SyncChoice::PUSH);
    assert_eq!((report.fetched, report.sent, report.waiting), (0, 1, 1));
    assert_eq!(setting.read("there").unwrap(), b"1");
}

#[test]
fn nothing_is_written_to_a_bucket_that_is_only_read() {
    let setting = Setting::of("s3://bucket", true);
    setting.server.put("there", "1");
    setting.write("here", "2");
    let report = setting.sync(BOTH);
    assert_eq!((report.fetched, report.sent, report.waiting), (1, 0, 1));
    let failure = setting.try_sync(SyncChoice::PUSH).failure.unwrap();
    assert!(matches!(failure, BucketError::ReadOnly { .. }) && failure.hint().is_some());
    assert_eq!(setting.server.count("PUT"), 0);
}

#[test]
fn what_was_changed_on_both_sides_stays_on_both_until_somebody_chooses() {
    let setting = Setting::new();
    let server = &setting.server;
    server.put("a", "first");
    server.put("b", "first");
    setting.sync(BOTH);
    for name in ["a", "b"] {
        server.put(name, format!("{name} of the bucket"));
        setting.write(name, format!("{name} of the volume"));
    }
    // The same on both sides without having been common is no conflict.
    server.put("c", "alike");
    setting.write("c", "alike");
    server.put("d", "there");
    setting.write("d", "here");
    for direction in [SyncDirection::Both, SyncDirection::Pull, SyncDirection::Push] {
        let report = setting.sync(way(direction));
        assert_eq!(names(&report.conflicts), ["a", "b", "d"], "{direction:?}");
        assert_eq!((report.fetched, report.sent, report.same), (0, 0, 1));
        assert_eq!(server.get("a").unwrap(), b"a of the bucket");
        assert_eq!(setting.read("a").unwrap(), b"a of the volume");
    }
    let failure = setting
        .try_sync(SyncChoice {
            overwrite: true,
            ..BOTH
        })
        .failure
        .unwrap();
    assert_eq!(failure.kind(), ErrorKind::Invalid);
    let overwriting = |direction| SyncChoice {
        direction,
        overwrite: true,
        delete: false,
    };
    setting.write("b", "b of the volume, again");
    std::fs::remove_file(setting.path("d")).unwrap();
    let report = setting.sync(overwriting(SyncDirection::Pull));
    assert_eq!((report.fetched, report.conflicts.count), (3, 0));
    assert_eq!(setting.read("a").unwrap(), b"a of the bucket");
    for name in ["a", "b"] {
        server.put(name, format!("{name} of the bucket, again"));
        setting.write(name, format!("{name} of the volume, again"));
    }
    let report = setting.sync(overwriting(SyncDirection::Push));
    assert_eq!((report.sent, report.conflicts.count), (2, 0));
    assert_eq!(server.get("a").unwrap(), b"a of the volume, again");
}

#[test]
fn what_is_gone_is_removed_if_that_is_asked_for_and_if_it_is_what_it_was() {
    let setting = Setting::new();
    let server = &setting.server;
    for name in ["here", "there", "here-changed", "there-changed", "both"] {
        server.put(name, name);
    }
    setting.sync(BOTH);
    for name in ["here", "here-changed", "both"] {
        std::fs::remove_file(setting.path(name)).unwrap();
    }
    for name in ["there", "there-changed", "both"] {
        server.lock().objects.remove(name);
    }
    server.put("here-changed", "changed");
    setting.write("there-changed", "changed");
    let report = setting.sync(BOTH);
    assert_eq!((report.kept, report.conflicts.count), (2, 2));
    assert!(exists(&setting.path("there")) && server.get("here").is_some());
    let report = setting.sync(SyncChoice { delete: true, ..BOTH });
    assert_eq!(
        (report.removed_here, report.removed_there, report.conflicts.count),
        (1, 1, 2)
    );
    assert!(!exists(&setting.path("there")) && server.get("here").is_none());
    assert_eq!(setting.read("there-changed").unwrap(), b"changed");
    assert_eq!(server.get("here-changed").unwrap(), b"changed");
    assert_eq!(setting.incoming(), 0);
}

#[test]
fn names_that_are_no_paths_are_left_out_and_lead_nowhere() {
    let setting = Setting::new();
    let long = "x".repeat(300);
    let bad = [
        "../out",
        "/etc/x",
        "a/../../out",
        "a//b",
        "a/./b",
        "..",
        "./a",
        "clash",
        &long,
    ];
    for key in bad {
        setting.server.put(key, "evil");
    }
    for key in ["clash/inside", "A", "a", "back\\..\\slash", "line\nend", "-rf", "~"] {
        setting.server.put(key, key);
    }
    let report = setting.sync(BOTH);
    assert_eq!((report.left_out.count, report.fetched), (9, 7), "{report:?}");
    assert_eq!(report.failed.count, 0);
    assert_eq!(setting.read("clash/inside").unwrap(), b"clash/inside");
    assert_eq!(
        (setting.read("A").unwrap(), setting.read("a").unwrap()),
        (b"A".to_vec(), b"a".to_vec())
    );
    let above = setting.volume().data().parent().unwrap().join("out");
    assert!(!exists(&above));
    // More of them than are named are counted.
    for number in 0..50 {
        setting.server.put(&format!("a//{number}"), "");
    }
    let report = setting.sync(BOTH);
    assert_eq!((report.left_out.count, report.left_out.named.len()), (59, 20));
    // And what is no file of the volume is no object.
    symlink("/etc/passwd", setting.path("link")).unwrap();
    let report = setting.sync(BOTH);
    assert_eq!(report.left_out.count, 60);
    assert_eq!(setting.server.get("link"), None);
}

#[test]
fn a_link_in_the_way_is_followed_nowhere() {
    let setting = Setting::new();
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), setting.path("d")).unwrap();
    symlink(outside.path().join("f"), setting.path("f")).unwrap();
    std::fs::create_dir(setting.path("e")).unwrap();
    for key in ["d/x", "f", "e"] {
        setting.server.put(key, "evil");
    }
    let report = setting.sync(BOTH);
    assert_eq!((report.failed.count, report.fetched), (3, 0), "{report:?}");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(setting.incoming(), 0);
}

#[test]
fn large_files_go_in_parts_and_are_there_as_a_whole_or_not_at_all() {
    let setting = Setting::new();
    let bytes: Vec<u8> = (0..20_000_001_u32)
        .map(|number| number.to_le_bytes()[usize::try_from(number % 3).unwrap()])
        .collect();
    setting.write("large", &bytes);
    let report = setting.sync(BOTH);
    assert_eq!((report.sent, report.sent_bytes), (1, 20_000_001));
    assert_eq!(setting.server.get("large").unwrap(), bytes);
    assert_eq!(setting.sync(BOTH).same, 1);
    // A version that is no digest is compared by its bytes.
    std::fs::remove_file(setting.volume().objects_file()).unwrap();
    assert_eq!(setting.sync(BOTH).same, 1);

    setting.write("large", &bytes[1..]);
    setting.server.fault(|request, _| {
        let is_part = request.query.get("partNumber").is_some_and(|part| part == "2");
        is_part.then(|| Answer::error(400, "InvalidPart"))
    });
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert!(
        matches!(failure, BucketError::Status { status: 400, .. }),
        "{failure:?}"
    );
    assert_eq!(setting.server.get("large").unwrap(), bytes);
    assert_eq!(setting.server.lock().aborted, 1);
    setting.server.no_fault();
    // Somebody else writes it between the list and the end.
    let contents = std::sync::Arc::clone(&setting.server.contents);
    setting.server.fault(move |request, _| {
        if request.method == "POST" && request.query.contains_key("uploadId") {
            let tag = tag_of(b"theirs");
            contents
                .lock()
                .unwrap()
                .objects
                .insert("large".to_owned(), (b"theirs".to_vec(), tag));
        }
        None
    });
    let report = setting.sync(BOTH);
    assert_eq!(names(&report.conflicts), ["large"]);
    assert_eq!(setting.server.get("large").unwrap(), b"theirs");
    assert_eq!(setting.read("large").unwrap(), &bytes[1..]);
}

#[test]
fn what_somebody_else_writes_meanwhile_is_not_replaced() {
    let setting = Setting::new();
    setting.server.put("a", "first");
    setting.sync(BOTH);
    setting.write("a", "ours");
    setting.write("new", "ours");
    let contents = std::sync::Arc::clone(&setting.server.contents);
    setting.server.fault(move |request, _| {
        if request.method == "PUT" {
            let theirs = (b"theirs".to_vec(), tag_of(b"theirs"));
            contents.lock().unwrap().objects.insert(request.key.clone(), theirs);
        }
        None
    });
    let report = setting.sync(BOTH);
    assert_eq!(names(&report.conflicts), ["a", "new"]);
    for name in ["a", "new"] {
        assert_eq!(setting.server.get(name).unwrap(), b"theirs");
        assert_eq!(setting.read(name).unwrap(), b"ours");
    }
}

#[test]
fn what_a_sandbox_writes_meanwhile_is_not_replaced() {
    let setting = Setting::new();
    for name in ["changed", "made", "same"] {
        setting.server.put(name, "first");
    }
    std::fs::remove_file(setting.path("made")).unwrap_or(());
    setting.sync(BOTH);
    std::fs::remove_file(setting.path("made")).unwrap();
    setting.server.lock().objects.remove("made");
    setting.sync(BOTH);
    for name in ["changed", "made", "same"] {
        setting.server.put(name, "second");
    }
    let data = setting.volume().data();
    setting.server.fault(move |request, _| {
        if is_get(request) && request.key == "made" {
            std::fs::write(data.join("made"), "by a sandbox").unwrap();
        }
        if is_get(request) && request.key == "changed" {
            // Of the same length.
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(data.join("changed"))
                .unwrap();
            file.write_at(b"FIRST", 0).unwrap();
        }
        None
    });
    let report = setting.sync(BOTH);
    assert_eq!(names(&report.failed), ["changed", "made"]);
    assert!(whys(&report.failed).contains("changed meanwhile"), "{report:?}");
    assert_eq!(setting.read("made").unwrap(), b"by a sandbox");
    assert_eq!(setting.read("changed").unwrap(), b"FIRST");
    assert_eq!(setting.read("same").unwrap(), b"second");
    assert_eq!(setting.incoming(), 0);
}

#[test]
fn a_volume_takes_no_more_than_there_is_room_for() {
    let setting = Setting::new();
    setting.server.put("a", "0123456789");
    setting.server.put("b", "0123456789");
    let bytes = |bytes| TransferBudget { bytes, entries: 100 };
    let crate::SyncOutcome { report, failure } = setting.sync_within(BOTH, bytes(15));
    let failure = failure.unwrap();
    assert_eq!(
        (failure.kind(), report.fetched),
        (ErrorKind::Exhausted, 1),
        "{failure:?}"
    );
    assert!(exists(&setting.path("a")) && !exists(&setting.path("b")));
    assert!(setting.sync_within(BOTH, bytes(15)).failure.is_none());
}

#[test]
fn who_was_killed_between_leaves_both_sides_alike_and_the_next_finds_out() {
    let setting = Setting::new();
    for name in ["a", "b"] {
        setting.server.put(name, "first");
    }
    setting.write("c", "second");
    setting.sync(BOTH);
    // As if nothing of it had been written down: files and objects are what they are.
    std::fs::remove_file(setting.volume().objects_file()).unwrap();
    let report = setting.sync(BOTH);
    assert_eq!(
        (report.same, report.fetched, report.sent, report.conflicts.count),
        (3, 0, 0, 0)
    );
    // As if half of it had: a newer object was fetched, and a newer file sent.
    let before = std::fs::read(setting.volume().objects_file()).unwrap();
    setting.server.put("a", "changed there");
    setting.write("c", "changed here");
    setting.sync(BOTH);
    std::fs::write(setting.volume().objects_file(), before).unwrap();
    let report = setting.sync(BOTH);
    assert_eq!(
        (report.same, report.fetched, report.sent, report.conflicts.count),
        (3, 0, 0, 0)
    );
    // What cannot be read any more is found out again, too.
    std::fs::write(setting.volume().objects_file(), "{").unwrap();
    assert_eq!(setting.sync(BOTH).same, 3);
}

#[test]
fn times_alone_change_nothing() {
    let setting = Setting::new();
    setting.server.put("a", "first");
    setting.sync(BOTH);
    let file = std::fs::File::options().write(true).open(setting.path("a")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let report = setting.sync(BOTH);
    assert_eq!((report.same, report.sent), (1, 0));
    // And what was written with its old time is found all the same.
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_at(b"FIRST", 0).unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!(setting.sync(BOTH).sent, 1);
    assert_eq!(setting.server.get("a").unwrap(), b"FIRST");
}

#[test]
fn one_synchronises_at_a_time_and_without_a_bucket_nobody() {
    let setting = Setting::new();
    let volume = setting.volume();
    let _lock = volume.lock_sync(STALL).unwrap();
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert_eq!(failure.kind(), ErrorKind::Conflict, "{failure:?}");
    assert!(failure.hint().is_some());
}
