use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::*;
use crate::testing::{TestScratch, chmod, is_root, set_attribute, upper, write};
use crate::{LeftoverFate, LiveRun, NewRun, RunError, RunState, StoredRun, reap, runs};

/// What a run does.
type Edit = fn(&LiveRun);

/// What overlayfs leaves of a volatile mount.
fn mount(live: &LiveRun) {
    let made = live.layer_directory(0).join("work/work");
    fs::create_dir_all(made.join("incompat/volatile")).unwrap();
    fs::write(made.join("incompat/volatile/dirty"), "").unwrap();
    for directory in ["incompat/volatile", "incompat", ""] {
        chmod(made.join(directory), 0);
    }
}

fn run_untouched(scratch: &TestScratch) {
    let live = scratch.start();
    mount(&live);
    live.finish().unwrap();
}

fn tend(scratch: &TestScratch) {
    let mut tending = SpareMaintenance::new(&scratch.state);
    while tending.step() {}
}

/// The names of the spares, sorted.
fn spares(scratch: &TestScratch) -> Vec<String> {
    let found = fs::read_dir(scratch.state.path().join(SPARE)).into_iter().flatten();
    let mut names: Vec<_> = found
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn spare(scratch: &TestScratch, name: &str) -> PathBuf {
    scratch.state.path().join(SPARE).join(name)
}

fn is_at_rest(scratch: &TestScratch) {
    for part in ["runs", "live"] {
        assert_eq!(
            fs::read_dir(scratch.state.path().join(part)).unwrap().count(),
            0,
            "{part}"
        );
    }
}

#[test]
fn a_directory_is_left_tended_and_taken() {
    let scratch = TestScratch::new();
    run_untouched(&scratch);
    assert_eq!(spares(&scratch), ["used-0"]);
    // One that is not ready is of no use yet.
    let live = scratch.start();
    assert_eq!(spares(&scratch), ["used-0"]);
    tend(&scratch);
    assert_eq!(spares(&scratch), ["ready-0"]);
    assert_eq!(
        fs::read_dir(spare(&scratch, "ready-0/layer-0/work")).unwrap().count(),
        0
    );
    mount(&live);
    live.finish().unwrap();
    let inode = fs::metadata(spare(&scratch, "ready-0")).unwrap().ino();
    let live = scratch.start();
    assert_eq!(spares(&scratch), ["used-0"]);
    assert_eq!(fs::metadata(live.directory()).unwrap().ino(), inode);
    write(upper(&live).join("f"), "x");
    let run = live.finish().unwrap().run.unwrap();
    assert_eq!(run.changes().unwrap().len(), 1);
    assert_eq!(
        StoredRun::open(&scratch.state, run.id())
            .unwrap()
            .changes()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(spares(&scratch), ["used-0"]);
}

#[test]
fn nothing_passes_from_one_run_to_the_next() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    mount(&live);
    let before = fs::metadata(upper(&live)).unwrap();
    let attribute = rustix::fs::setxattr(upper(&live), "user.mark", b"x", rustix::fs::XattrFlags::empty());
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1234);
    let times = fs::FileTimes::new().set_modified(long_ago).set_accessed(long_ago);
    fs::File::open(upper(&live)).unwrap().set_times(times).unwrap();
    if is_root() {
        for directory in ["", "upper", "work"] {
            std::os::unix::fs::chown(live.layer_directory(0).join(directory), Some(70_000), Some(70_000)).unwrap();
        }
        // The default list of access of a directory is inherited by what is made in it.
        let list = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x07\0\xff\xff\xff\xff\x20\0\x07\0\xff\xff\xff\xff";
        let name = "system.posix_acl_default";
        let _unsupported = rustix::fs::setxattr(upper(&live), name, list, rustix::fs::XattrFlags::empty());
    }
    live.finish().unwrap();
    tend(&scratch);
    assert_eq!(spares(&scratch), ["ready-0"]);
    chmod(&scratch.workspace, 0o751);
    let live = scratch.start();
    let (found, run) = (
        fs::metadata(upper(&live)).unwrap(),
        fs::metadata(live.directory()).unwrap(),
    );
    assert_eq!(spares(&scratch), Vec::<String>::new());
    assert_eq!(found.permissions().mode() & 0o7777, 0o751);
    assert!(found.mtime() >= before.mtime() && found.atime() >= before.atime());
    let mut names = [0_u8; 1024];
    let length = rustix::fs::listxattr(upper(&live), &mut names).unwrap_or(0);
    assert_eq!(
        length,
        0,
        "{:?} ({attribute:?})",
        String::from_utf8_lossy(&names[..length])
    );
    for directory in ["", "upper", "work"] {
        let found = fs::metadata(live.layer_directory(0).join(directory)).unwrap();
        assert_eq!((found.uid(), found.gid()), (run.uid(), run.gid()), "{directory}");
    }
}

#[test]
fn a_mount_that_outlives_its_run_shares_no_directory_with_the_next() {
    let scratch = TestScratch::new();
    run_untouched(&scratch);
    let parts = ["upper", "work"].map(|part| format!("used-0/layer-0/{part}"));
    // Held open, as a mount holds them, so that their numbers are not given to new ones.
    let held = parts.map(|part| fs::File::open(spare(&scratch, &part)).unwrap());
    tend(&scratch);
    let live = scratch.start();
    for (part, old) in ["upper", "work"].into_iter().zip(&held) {
        let new = fs::metadata(live.layer_directory(0).join(part)).unwrap();
        assert_ne!(new.ino(), old.metadata().unwrap().ino(), "{part}");
    }
}

#[test]
fn the_modification_time_is_that_of_the_taking() {
    let scratch = TestScratch::new();
    run_untouched(&scratch);
    tend(&scratch);
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1234);
    let ready = fs::File::open(spare(&scratch, "ready-0/layer-0/upper")).unwrap();
    ready.set_times(fs::FileTimes::new().set_modified(long_ago)).unwrap();
    let live = scratch.start();
    assert!(fs::metadata(upper(&live)).unwrap().mtime() > 1234);
}

#[test]
fn what_was_changed_is_no_spare() {
    let scratch = TestScratch::new();
    let edits: [(&str, Edit); 4] = [
        ("a file", |live| write(upper(live).join("f"), "x")),
        ("the mode", |live| chmod(upper(live), 0o700)),
        ("something beside the layer", |live| {
            write(live.directory().join("x"), "")
        }),
        ("something in the layer", |live| {
            fs::create_dir(live.layer_directory(0).join("private")).unwrap();
        }),
    ];
    for (what, edit) in edits {
        let live = scratch.start();
        edit(&live);
        live.finish().unwrap();
        assert_eq!(spares(&scratch), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_spare_that_is_not_empty_is_removed() {
    let scratch = TestScratch::new();
    let spoil: [(&str, &str); 3] = [
        ("used-0", "layer-0/upper/f"),
        ("used-0", "layer-0/work/work/f"),
        ("used-0", "f"),
    ];
    for (name, file) in spoil {
        run_untouched(&scratch);
        if is_root() || !file.contains("work/work") {
            write(spare(&scratch, name).join(file), "x");
            tend(&scratch);
            assert_eq!(spares(&scratch), Vec::<String>::new(), "{file}");
        } else {
            tend(&scratch);
            fs::remove_dir_all(spare(&scratch, "ready-0")).unwrap();
        }
    }
    run_untouched(&scratch);
    tend(&scratch);
    write(spare(&scratch, "ready-0/layer-0/upper/f"), "x");
    let live = scratch.start();
    assert!(live.run().changes().unwrap().is_empty());
    assert_eq!(spares(&scratch), Vec::<String>::new());
    live.finish().unwrap();
    // Nor is one whose upper directory is a link.
    tend(&scratch);
    let at = spare(&scratch, "ready-0/layer-0/upper");
    fs::remove_dir(&at).unwrap();
    std::os::unix::fs::symlink(&scratch.workspace, &at).unwrap();
    let live = scratch.start();
    assert!(fs::symlink_metadata(upper(&live)).unwrap().is_dir());
}

#[test]
fn there_is_a_most_of_spares() {
    let scratch = TestScratch::new();
    let many: Vec<_> = (0..SLOTS + 2).map(|_| scratch.start()).collect();
    for live in many {
        mount(&live);
        live.finish().unwrap();
    }
    is_at_rest(&scratch);
    assert_eq!(spares(&scratch).len(), SLOTS);
    for _ in 0..SLOTS {
        tend(&scratch);
    }
    let many: Vec<_> = (0..3 * SLOTS).map(|_| scratch.start()).collect();
    for live in many {
        live.finish().unwrap();
        tend(&scratch);
    }
    is_at_rest(&scratch);
    assert!(spares(&scratch).len() <= 2 * SLOTS, "{:?}", spares(&scratch));
}

#[test]
fn many_at_once_never_share_a_directory() {
    let scratch = TestScratch::new();
    let (path, workspace) = (scratch.state.path().to_owned(), scratch.workspace.clone());
    let work = |thread: usize| {
        let state = StateDirectory::open(Some(&path), &crate::HostIdentity::of_this_process()).unwrap();
        for number in 0..40 {
            let new = NewRun {
                id: crate::testing::fresh_id(),
                purpose: None,
                command: Vec::new(),
                layers: vec![workspace.clone()],
                protect: Vec::new(),
                home: None,
                host_paths: Vec::new(),
            };
            let live = LiveRun::create(&state, new).unwrap();
            assert_eq!(fs::read_dir(upper(&live)).unwrap().count(), 0);
            let mine = upper(&live).join(format!("{thread}-{number}"));
            fs::write(&mine, "").unwrap();
            mount(&live);
            let mut tending = live.tending();
            while tending.step() {}
            assert_eq!(reap(&state).unwrap(), []);
            assert_eq!(fs::read_dir(upper(&live)).unwrap().count(), 1);
            if number % 4 > 0 {
                fs::remove_file(&mine).unwrap();
            }
            let changes = live.finish().unwrap().changes;
            assert_eq!(changes.len(), usize::from(number % 4 == 0), "{changes:?}");
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || work(thread));
        }
    });
    let listed = runs(&scratch.state).unwrap();
    assert_eq!(listed.len(), 6 * 10);
    assert!(listed.iter().all(|run| run.state == RunState::Kept));
    assert!(spares(&scratch).len() <= 2 * SLOTS);
    let mut seen = BTreeSet::new();
    for listing in listed {
        for change in StoredRun::open(&scratch.state, &listing.id).unwrap().changes().unwrap() {
            assert!(
                seen.insert(change.path.clone()),
                "{} is in two runs",
                change.path.display()
            );
        }
    }
}

#[test]
fn one_that_is_tended_is_left_to_who_does() {
    let scratch = TestScratch::new();
    run_untouched(&scratch);
    let mut first = SpareMaintenance::new(&scratch.state);
    assert!(first.step());
    tend(&scratch);
    assert_eq!(spares(&scratch), ["used-0"]);
    while first.step() {}
    assert_eq!(spares(&scratch), ["ready-0"]);
}

#[test]
fn tending_that_was_killed_is_gone_on_with() {
    let scratch = TestScratch::new();
    for steps in 0..UNMAKE_STEPS + 5 {
        run_untouched(&scratch);
        let mut killed = SpareMaintenance::new(&scratch.state);
        for _ in 0..steps {
            killed.step();
        }
        drop(killed);
        tend(&scratch);
        assert_eq!(spares(&scratch), ["ready-0"], "killed after {steps} steps");
        // Taken, so that the next round begins with nothing.
        let live = scratch.start();
        write(upper(&live).join("f"), "x");
        live.finish().unwrap().run.unwrap().discard().unwrap();
    }
    // Killed between the removal of an old directory and the making of the new.
    for part in ["upper", "work"] {
        run_untouched(&scratch);
        for step in 0..UNMAKE_STEPS {
            let run = open_below(&scratch.state.root, &used(0)).unwrap();
            unmake(&run, 0, step).unwrap();
        }
        fs::remove_dir(spare(&scratch, "used-0/layer-0").join(part)).unwrap();
        tend(&scratch);
        assert_eq!(spares(&scratch), ["ready-0"], "{part}");
        drop(scratch.start());
        assert_eq!(reap(&scratch.state).unwrap().len(), 1);
    }
}

#[test]
fn a_run_that_died_around_a_spare_leaves_nothing() {
    let scratch = TestScratch::new();
    chmod(&scratch.workspace, 0o751);
    let only_removed = |scratch: &TestScratch| {
        let leftovers = reap(&scratch.state).unwrap();
        assert!(
            matches!(leftovers.as_slice(), [one] if one.fate == LeftoverFate::Removed),
            "{leftovers:?}"
        );
        is_at_rest(scratch);
    };
    let id = crate::testing::fresh_id();
    let layer = Path::new("layer-0/upper");
    // It had its mark.
    drop(crate::claim::RunClaim::take_new(&scratch.state, &id).unwrap().unwrap());
    only_removed(&scratch);
    // It had taken a spare, whose mode is not its workspace's yet.
    for mode in [0o755, 0o751] {
        run_untouched(&scratch);
        tend(&scratch);
        chmod(spare(&scratch, "ready-0").join(layer), mode);
        drop(crate::claim::RunClaim::take_new(&scratch.state, &id).unwrap().unwrap());
        rename(&scratch.state.root, &ready(0), &scratch.state.runs, id.as_str()).unwrap();
        only_removed(&scratch);
    }
    // It had its record, and died before it did anything.
    drop(scratch.start());
    only_removed(&scratch);
    // It had given its directory away, and its mark was still there.
    let live = scratch.start();
    assert!(keep(&scratch.state, live.run().id(), &live.run().directory, 1));
    drop(live);
    only_removed(&scratch);
    assert_eq!(spares(&scratch), ["used-0"]);
    // It was half removed.
    let live = scratch.start();
    fs::remove_dir(upper(&live)).unwrap();
    drop(live);
    only_removed(&scratch);
}

#[test]
fn who_looks_at_a_run_that_ends_is_not_shown_another() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    mount(&live);
    let seen = StoredRun::open(&scratch.state, live.run().id()).unwrap();
    live.finish().unwrap();
    tend(&scratch);
    let other = scratch.start();
    write(upper(&other).join("secret"), "x");
    assert!(matches!(seen.changes(), Err(RunError::NotFound { .. })));
    let other = other.finish().unwrap().run.unwrap();
    assert!(matches!(
        seen.unified(&other.changes().unwrap()[0]),
        Err(RunError::NotFound { .. })
    ));
}

#[test]
fn an_attribute_alone_is_no_change_and_not_kept() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    if rustix::fs::setxattr(upper(&live), "user.a", b"x", rustix::fs::XattrFlags::empty()).is_err() {
        eprintln!("SKIP: no extended attributes here");
        return;
    }
    set_attribute(upper(&live), "user.overlay.opaque", b"y");
    let finished = live.finish().unwrap();
    assert!(finished.run.is_none());
}
