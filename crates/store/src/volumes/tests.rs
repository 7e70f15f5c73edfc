use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::units::Bytes;

use super::*;
use crate::HostIdentity;
use crate::testing::is_root;

fn store(directory: &Path) -> VolumeStore {
    let state = StateDirectory::open(Some(&directory.join("state")), &HostIdentity::of_this_process()).unwrap();
    state.volumes().unwrap()
}

fn new(name: &str, owner: &str) -> NewVolume {
    NewVolume {
        name: name.parse().unwrap(),
        owner: owner.to_owned(),
        quota: VolumeQuota::default(),
        shared: false,
    }
}

fn key(name: &str) -> VolumeKey {
    VolumeKey::Name(name.parse().unwrap())
}

fn path(text: &str) -> VolumePath {
    VolumePath::parse(text.as_bytes()).unwrap()
}

fn full() -> VolumeError {
    VolumeError::Full {
        name: "v".to_owned(),
        quota: "little".to_owned(),
    }
}

const PLENTY: TransferBudget = TransferBudget {
    bytes: 1 << 30,
    entries: 1 << 20,
};

/// A volume `v`, held to be read.
fn held(directory: &Path) -> HeldVolume {
    let store = store(directory);
    store.create(new("v", LOCAL_OWNER)).unwrap();
    store.hold(&key("v"), MountAccess::Ro).unwrap()
}

fn write(content: VolumeContent, to: &str, text: &str) -> Result<VolumeEntry, VolumeError> {
    let mut writer = content.write(path(to), false, 1 << 20, full())?;
    writer.write(text.as_bytes())?;
    writer.finish(EntryOwner::default())
}

#[test]
fn one_is_made_found_listed_held_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let made = store.create(new("v", LOCAL_OWNER)).unwrap();
    assert!(matches!(
        store.create(new("v", LOCAL_OWNER)),
        Err(VolumeError::Exists { .. })
    ));
    let others = store.create(new("v", "k1")).unwrap();
    assert_ne!(made.id, others.id);
    assert_eq!(store.find(Some(LOCAL_OWNER), "v").unwrap(), made);
    assert_eq!(store.find(Some("k1"), "v").unwrap(), others);
    assert_eq!(store.find(None, others.id.as_str()).unwrap(), others);
    for (owner, which) in [("k1", made.id.as_str()), ("k2", "v"), ("k2", others.id.as_str())] {
        assert!(matches!(
            store.find(Some(owner), which),
            Err(VolumeError::Missing { .. })
        ));
    }
    assert_eq!(store.list(Some("k1")).unwrap().len(), 1);
    assert_eq!(store.list(None).unwrap().len(), 2);
    let held = store.hold(&key("v"), MountAccess::Ro).unwrap();
    assert_eq!(fs::metadata(held.data()).unwrap().mode() & 0o777, 0o777);
    assert!(store.list(Some(LOCAL_OWNER)).unwrap()[0].in_use);
    assert!(matches!(
        store.take(Some(LOCAL_OWNER), "v"),
        Err(VolumeError::InUse { .. })
    ));
    drop(held);
    assert!(!store.list(Some(LOCAL_OWNER)).unwrap()[0].in_use);
    let removed = store.take(Some(LOCAL_OWNER), "v").unwrap();
    assert!(matches!(
        store.hold(&key("v"), MountAccess::Ro),
        Err(VolumeError::Missing { .. })
    ));
    remove_directory(removed.path()).unwrap();
    assert_eq!(store.list(None).unwrap().len(), 1);
}

#[test]
fn one_writes_and_several_read_unless_it_is_for_many() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    store.create(new("one", LOCAL_OWNER)).unwrap();
    let many = NewVolume {
        shared: true,
        ..new("many", LOCAL_OWNER)
    };
    store.create(many).unwrap();
    let writer = store.hold(&key("one"), MountAccess::Rw).unwrap();
    let error = store.hold(&key("one"), MountAccess::Rw).unwrap_err();
    assert!(matches!(error, VolumeError::HasWriter { .. }) && error.kind() == ErrorKind::Conflict);
    let _readers = [(); 2].map(|()| store.hold(&key("one"), MountAccess::Ro).unwrap());
    drop(writer);
    let _writer = store.hold(&key("one"), MountAccess::Rw).unwrap();
    let _writers = [(); 2].map(|()| store.hold(&key("many"), MountAccess::Rw).unwrap());
}

#[test]
fn what_a_dead_maker_or_remover_left_is_no_volume_and_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let made = store.create(new("v", LOCAL_OWNER)).unwrap();
    let half = VolumeId::from_random(7);
    private(&store.path.join(format!("{NEW}{half}"))).unwrap();
    // A remover that died: it has no lock any more.
    drop(store.take(None, made.id.as_str()).unwrap());
    assert!(store.list(None).unwrap().is_empty());
    assert!(matches!(
        store.find(None, half.as_str()),
        Err(VolumeError::Missing { .. })
    ));
    let found = store.abandoned().unwrap();
    assert_eq!(found.len(), 2);
    assert!(store.abandoned().unwrap().is_empty(), "somebody removes them");
    for removed in &found {
        remove_directory(removed.path()).unwrap();
    }
    drop(found);
    let left: Vec<_> = fs::read_dir(&store.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, [LOCK]);
}

#[test]
fn one_that_cannot_be_made_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    for quota in [
        VolumeQuota {
            bytes: Bytes(1),
            ..VolumeQuota::default()
        },
        VolumeQuota {
            bytes: Bytes(u64::MAX),
            ..VolumeQuota::default()
        },
        VolumeQuota {
            inodes: 1,
            ..VolumeQuota::default()
        },
        VolumeQuota {
            inodes: u64::MAX,
            ..VolumeQuota::default()
        },
    ] {
        let new = NewVolume {
            quota,
            ..new("v", LOCAL_OWNER)
        };
        assert!(matches!(store.create(new), Err(VolumeError::Quota { .. })), "{quota:?}");
    }
    assert!(store.list(None).unwrap().is_empty());
    // The half of one is removed with who made it.
    drop(UnfinishedVolume::new(store.path.join(".new-half")).unwrap());
    assert!(store.abandoned().unwrap().is_empty());
}

#[test]
fn files_are_written_read_changed_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let content = || held.content().unwrap();
    let made = content()
        .make_directory(&path("/a/b"), EntryOwner::default(), true)
        .unwrap();
    assert_eq!((made.uid, made.gid, made.mode), (1000, 1000, 0o755));
    let entry = write(content(), "/a/b/f", "first").unwrap();
    assert_eq!((entry.size, entry.uid, entry.mode), (5, 1000, 0o644));
    write(content(), "a/b/f", "second").unwrap();
    let (file, entry) = content().read(&path("/a/./b//f")).unwrap();
    assert_eq!(std::io::read_to_string(file).unwrap(), "second");
    assert_eq!(entry.size, 6);
    let mode = EntryOwner {
        mode: Some(0o4711),
        ..EntryOwner::default()
    };
    assert_eq!(
        content().change(&path("/a/b/f"), mode).unwrap().mode,
        0o711,
        "no set-user-id"
    );
    let listed: Vec<_> = content()
        .list(&path("/"), 3)
        .unwrap()
        .into_iter()
        .map(|entry| entry.path)
        .collect();
    assert_eq!(listed, ["a", "a/b", "a/b/f"].map(PathBuf::from));
    assert_eq!(content().list(&path("/"), 1).unwrap().len(), 1);
    content().remove(&path("/a")).unwrap();
    assert!(matches!(content().entry(&path("/a")), Err(VolumeError::NoEntry { .. })));
    for error in [
        content().remove(&path("/")).unwrap_err(),
        content().remove(&path("/none")).unwrap_err(),
        content()
            .make_directory(&path("/x/y"), EntryOwner::default(), false)
            .unwrap_err(),
        write(content(), "/x/y", "").unwrap_err(),
        write(content(), "/", "").unwrap_err(),
    ] {
        assert!(
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid),
            "{error:?}"
        );
    }
}

#[test]
fn who_things_belong_to_is_told_as_sandboxes_see_it() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let content = held.content().unwrap();
    content
        .make_directory(&path("/d"), EntryOwner::default(), false)
        .unwrap();
    let owner = |uid, gid| EntryOwner {
        uid: Some(uid),
        gid: Some(gid),
        mode: None,
    };
    let changed = content.change(&path("/d"), owner(0, 33));
    match is_root() {
        true => {
            let changed = changed.unwrap();
            assert_eq!((changed.uid, changed.gid), (0, 33));
            let outside = fs::metadata(held.data().join("d")).unwrap();
            assert_eq!(outside.uid(), VolumeOwners::FIRST, "not root of the host");
        }
        false => assert!(matches!(changed, Err(VolumeError::OneOwner))),
    }
    assert!(content.change(&path("/d"), owner(1000, 1000)).is_ok());
    assert!(matches!(
        content.change(&path("/d"), owner(65_536, 0)),
        Err(VolumeError::NoId { id: 65_536 })
    ));
}

#[test]
fn all_of_it_is_given_to_whoever_works_in_a_sandbox() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let outside = directory.path().join("outside");
    fs::write(&outside, "").unwrap();
    let content = held.content().unwrap();
    let owner = EntryOwner {
        uid: Some(0),
        gid: Some(33),
        mode: Some(0o700),
    };
    content
        .make_directory(&path("/a/b"), EntryOwner::default(), true)
        .unwrap();
    content.change(&path("/a"), owner).unwrap();
    content.change(&path("/a/b"), owner).unwrap();
    symlink(&outside, held.data().join("a/b/link")).unwrap();
    content.give_all_to_worker().unwrap();
    for entry in content.list(&path("/"), 3).unwrap() {
        assert_eq!((entry.uid, entry.gid), (1000, 1000), "{entry:?}");
    }
    assert_eq!(fs::metadata(&outside).unwrap().uid(), 0, "no link is followed");
}

#[test]
fn no_path_leads_out_of_a_volume() {
    for text in [&b"/../x"[..], b"a/../b", b"..", b"a\0b", &[b'x'; 5000], &[b'x'; 256]] {
        assert!(
            matches!(VolumePath::parse(text), Err(VolumeError::Path { .. })),
            "{text:?}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let secret = directory.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::create_dir(directory.path().join("outside")).unwrap();
    let data = held.data();
    symlink(&secret, data.join("file")).unwrap();
    symlink(directory.path().join("outside"), data.join("directory")).unwrap();
    symlink("../volume.json", data.join("up")).unwrap();
    symlink("/proc/self/root", data.join("magic")).unwrap();
    let content = || held.content().unwrap();
    for name in ["file", "up", "magic", "directory"] {
        let entry = content().entry(&path(name)).unwrap();
        assert_eq!(entry.kind, crate::NodeKind::Symlink, "{name}");
        assert!(content().read(&path(name)).is_err(), "{name}");
        assert!(content().list(&path(name), 1).is_err(), "{name}");
        assert!(
            content()
                .make_directory(&path(&format!("{name}/x")), EntryOwner::default(), true)
                .is_err()
        );
        assert!(content().entry(&path(&format!("{name}/x"))).is_err());
        assert!(write(content(), &format!("{name}/x"), "x").is_err());
        let mode = EntryOwner {
            mode: Some(0o777),
            ..EntryOwner::default()
        };
        content().change(&path(name), mode).unwrap();
    }
    assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o644);
    // What is written in the place of a link takes its place.
    write(content(), "file", "own").unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "own");
    content().remove(&path("directory")).unwrap();
    assert!(directory.path().join("outside").exists());
    assert_eq!(fs::read_dir(directory.path().join("outside")).unwrap().count(), 0);
}

#[test]
fn nothing_is_opened_but_files_and_directories() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let data = held.data();
    let made = |name: &str, kind, device| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            data.join(name),
            kind,
            Mode::from_raw_mode(0o666),
            device,
        )
    };
    made("pipe", rustix::fs::FileType::Fifo, 0).unwrap();
    made("socket", rustix::fs::FileType::Socket, 0).unwrap();
    let mut names = vec!["pipe", "socket"];
    // Only root can plant one, from outside.
    if is_root()
        && made(
            "device",
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::makedev(1, 5),
        )
        .is_ok()
    {
        names.push("device");
    }
    for name in &names {
        let error = held.content().unwrap().read(&path(name)).unwrap_err();
        assert!(matches!(error, VolumeError::OtherKind { .. }), "{name}: {error:?}");
    }
    let out = directory.path().join("out");
    let report = copy_out(&held.content().unwrap(), &path("/"), &out, PLENTY, full).unwrap();
    assert_eq!(report.left_out_count, u64::try_from(names.len()).unwrap());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_too_large_or_never_finished_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let mut writer = held.content().unwrap().write(path("f"), false, 3, full()).unwrap();
    writer.write(b"abc").unwrap();
    assert!(matches!(writer.write(b"d"), Err(VolumeError::Full { .. })));
    drop(writer);
    let mut writer = held.content().unwrap().write(path("f"), false, 3, full()).unwrap();
    writer.write(b"ab").unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(held.data()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(held.data().with_file_name(INCOMING)).unwrap().count(), 0);
}

#[test]
fn what_a_writer_that_died_left_is_removed_once_nobody_has_the_volume() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let left = held.data().with_file_name(INCOMING).join("left");
    fs::write(&left, "half").unwrap();
    store(directory.path()).clear_incoming().unwrap();
    assert!(left.exists());
    drop(held);
    store(directory.path()).clear_incoming().unwrap();
    assert!(!left.exists());
}

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
