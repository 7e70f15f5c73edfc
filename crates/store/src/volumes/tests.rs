use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::units::Bytes;

use super::*;
use crate::HostIdentity;
use crate::testing::is_root;

pub(super) fn store(directory: &Path) -> VolumeStore {
    let state = StateDirectory::open(Some(&directory.join("state")), &HostIdentity::of_this_process()).unwrap();
    state.volumes().unwrap()
}

fn new(name: &str, owner: &str) -> NewVolume {
    NewVolume {
        name: name.parse().unwrap(),
        owner: owner.to_owned(),
        quota: VolumeQuota::default(),
        shared: false,
        bucket: None,
    }
}

fn key(name: &str) -> VolumeKey {
    VolumeKey::Name(name.parse().unwrap())
}

pub(super) fn path(text: &str) -> VolumePath {
    VolumePath::parse(text.as_bytes()).unwrap()
}

pub(super) fn full() -> VolumeError {
    VolumeError::Full {
        name: "v".to_owned(),
        quota: "little".to_owned(),
    }
}

pub(super) const PLENTY: TransferBudget = TransferBudget {
    bytes: 1 << 30,
    entries: 1 << 20,
};

/// A volume `v`, held to be read.
pub(super) fn held(directory: &Path) -> HeldVolume {
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
fn files_that_are_written_at_once_share_the_room() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let begin = |name: &str| held.content().unwrap().write(path(name), false, 10, full()).unwrap();
    let (mut one, mut other) = (begin("one"), begin("other"));
    one.write(b"123456").unwrap();
    assert!(matches!(other.write(b"12345"), Err(VolumeError::Full { .. })));
    other.write(b"1234").unwrap();
    drop(one);
    other.write(b"567890").unwrap();
    other.finish(EntryOwner::default()).unwrap();
    begin("next").write(b"1234567890").unwrap();
}

#[test]
fn no_key_uses_up_what_others_may_make() {
    let record = |owner: &str| {
        let owners = VolumeOwners::Single { uid: 1, gid: 1 };
        VolumeRecord::new(new("v", owner), VolumeId::from_random(1), owners).unwrap()
    };
    let mut records = vec![record("key"); MAX_VOLUMES_OF_KEY - 1];
    check_count(&records, "key").unwrap();
    records.push(record("key"));
    let error = check_count(&records, "key").unwrap_err();
    assert!(matches!(error, VolumeError::TooManyOfKey { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    check_count(&records, "other").unwrap();
    records.extend(vec![record(LOCAL_OWNER); MAX_VOLUMES - MAX_VOLUMES_OF_KEY - 1]);
    check_count(&records, LOCAL_OWNER).unwrap();
    records.push(record(LOCAL_OWNER));
    let error = check_count(&records, "other").unwrap_err();
    assert!(matches!(error, VolumeError::TooMany { .. }), "{error:?}");
}

#[test]
fn a_volume_of_a_key_is_found_by_its_id_and_named_to_who_owns_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let id = store.create(new("v", "key")).unwrap().id;
    assert_eq!(store.find(None, id.as_str()).unwrap().owner, "key");
    let error = store.find(None, "v").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no volume of yours is called `v`, but of keys: {id}")
    );
    let error = store.find(Some("other"), "v").unwrap_err();
    assert!(matches!(error, VolumeError::Missing { .. }), "{error:?}");
    store.create(new("v", LOCAL_OWNER)).unwrap();
    assert_eq!(store.find(None, "v").unwrap().owner, LOCAL_OWNER);
}

#[test]
fn a_quota_is_changed_for_who_comes_next() {
    let directory = tempfile::tempdir().unwrap();
    let held = held(directory.path());
    let store = store(directory.path());
    let quota = VolumeQuota {
        bytes: Bytes(64 << 20),
        inodes: 1_000,
    };
    fs::write(held.data().with_file_name("volume.json.new"), "half").unwrap();
    assert_eq!(store.resize(None, "v", quota).unwrap().quota, quota);
    assert_ne!(held.record().quota, quota);
    let again = store.hold(&key("v"), MountAccess::Ro).unwrap();
    assert_eq!(again.record().quota, quota);
    assert!(again.record().token.is(held.record().token.reveal()));
    let little = VolumeQuota {
        bytes: Bytes(1),
        ..quota
    };
    let error = store.resize(None, "v", little).unwrap_err();
    assert!(matches!(error, VolumeError::Quota { .. }), "{error:?}");
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
