//! Copies into volumes and out of them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::tests::{PLENTY, full, held, path};
use super::*;

#[test]
fn trees_are_copied_in_and_out_without_what_leads_out() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let source = directory.path().join("source");
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/b/f"), "text").unwrap();
    fs::set_permissions(source.join("a/b/f"), fs::Permissions::from_mode(0o4750)).unwrap();
    symlink("b/f", source.join("a/inner")).unwrap();
    symlink("/etc/passwd", source.join("absolute")).unwrap();
    symlink("a/../../up", source.join("above")).unwrap();
    let content = held.content().unwrap();
    let report = copy_in(&source, &content, &path("copy"), PLENTY, full).unwrap();
    assert_eq!(
        (report.files, report.directories, report.links, report.bytes),
        (1, 3, 3, 4)
    );
    let file = fs::metadata(held.data().join("copy/a/b/f")).unwrap();
    assert_eq!(file.mode() & 0o7777, 0o750, "no set-user-id");
    let owner = held.record().owners.outside((1000, 1000)).unwrap();
    assert_eq!((file.uid(), file.gid()), owner);
    let out = directory.path().join("out");
    let report = copy_out(&content, &path("copy"), &out, PLENTY, full).unwrap();
    assert_eq!((report.files, report.links, report.left_out_count), (1, 1, 2));
    assert_eq!(fs::read_to_string(out.join("a/inner")).unwrap(), "text");
    assert!(fs::symlink_metadata(out.join("absolute")).is_err());
    assert!(fs::symlink_metadata(out.join("above")).is_err());
    // Again, over what is there.
    copy_out(&content, &path("copy"), &out, PLENTY, full).unwrap();
    let little = TransferBudget { bytes: 3, ..PLENTY };
    assert!(matches!(
        copy_in(&source, &content, &path("more"), little, full),
        Err(VolumeError::Full { .. })
    ));
    let few = TransferBudget { entries: 2, ..PLENTY };
    assert!(matches!(
        copy_in(&source, &content, &path("few"), few, full),
        Err(VolumeError::Full { .. })
    ));
}

#[test]
fn a_copy_keeps_holes_and_leaves_nothing_where_there_is_no_room() {
    use std::os::unix::fs::FileExt as _;
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    let file = fs::File::create(source.join("holes")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"end", (1 << 29) + 7).unwrap();
    let content = held.content().unwrap();
    let budget = TransferBudget {
        bytes: 1 << 20,
        ..PLENTY
    };
    copy_in(&source, &content, &path("copy"), budget, full).unwrap();
    let out = directory.path().join("out");
    copy_out(&content, &path("copy"), &out, budget, full).unwrap();
    for copy in [held.data().join("copy/holes"), out.join("holes")] {
        let copy = fs::File::open(copy).unwrap();
        let found = copy.metadata().unwrap();
        assert_eq!(found.len(), 1 << 30);
        assert!(found.blocks() < 2_048, "holes were filled");
        let mut end = [0; 3];
        copy.read_exact_at(&mut end, (1 << 29) + 7).unwrap();
        assert_eq!(&end, b"end");
    }
    fs::create_dir(held.data().join("there")).unwrap();
    fs::write(source.join("more"), "text").unwrap();
    let little = TransferBudget { bytes: 3, ..PLENTY };
    for (target, stays) in [("new", false), ("there", true)] {
        copy_in(&source, &content, &path(target), little, full).unwrap_err();
        assert_eq!(held.data().join(target).exists(), stays, "{target}");
    }
    let place = directory.path().join("place");
    copy_out(
        &content,
        &path("copy"),
        &place,
        TransferBudget { bytes: 0, ..PLENTY },
        full,
    )
    .unwrap_err();
    assert!(!place.exists());
}

#[test]
fn a_file_whose_size_says_nothing_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    copy_in(
        Path::new("/proc/version"),
        &held.content().unwrap(),
        &path("v"),
        PLENTY,
        full,
    )
    .unwrap();
    assert!(fs::metadata(held.data().join("v")).unwrap().len() > 0);
}

#[test]
fn a_link_in_the_way_of_a_copy_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let source = directory.path().join("source");
    fs::create_dir_all(source.join("a")).unwrap();
    fs::write(source.join("a/f"), "text").unwrap();
    let outside = directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    // What a sandbox has put where the host makes a directory, and where it writes a file.
    fs::create_dir(held.data().join("one")).unwrap();
    symlink(&outside, held.data().join("one/a")).unwrap();
    let content = held.content().unwrap();
    let error = copy_in(&source, &content, &path("one"), PLENTY, full).unwrap_err();
    assert!(matches!(error, VolumeError::OtherKind { .. }), "{error:?}");
    fs::create_dir_all(held.data().join("two/a")).unwrap();
    symlink(outside.join("f"), held.data().join("two/a/f")).unwrap();
    copy_in(&source, &content, &path("two"), PLENTY, full).unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(copy_out(&content, &path("one/a/x"), &directory.path().join("x"), PLENTY, full).is_err());
}

/// A sandbox swaps a directory for a link, again and again, while the host copies: what comes out is never from outside.
#[test]
fn a_directory_that_becomes_a_link_meanwhile_leads_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let outside = directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "secret").unwrap();
    let data = held.data();
    fs::create_dir(data.join("d")).unwrap();
    fs::write(data.join("d/f"), "own").unwrap();
    symlink(&outside, data.join("link")).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(order) {
                let exchange = RenameFlags::EXCHANGE;
                let here = rustix::fs::CWD;
                rustix::fs::renameat_with(here, data.join("d"), here, data.join("link"), exchange).unwrap();
            }
        });
        let content = held.content().unwrap();
        for number in 0..200 {
            let out = directory.path().join(format!("out-{number}"));
            // It may fail as changed.
            let _copied = copy_out(&content, &path("/"), &out, PLENTY, full);
            for name in ["d/f", "link/f"] {
                if let Ok(text) = fs::read_to_string(out.join(name)) {
                    assert_eq!(text, "own");
                }
            }
            if let Ok((file, _)) = content.read(&path("d/f")) {
                assert_eq!(std::io::read_to_string(file).unwrap(), "own");
            }
        }
        is_over.store(true, order);
    });
}
