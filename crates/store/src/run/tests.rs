use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use crate::reap::{LeftoverFate, LeftoverRun, reap};
use crate::runs::{KEPT_TOMBSTONES, runs};
use crate::testing::{TestScratch, chmod, fresh_id, paths, upper, whiteout, write};
use crate::{LiveRun, NewRun};

fn entries(scratch: &TestScratch, part: &str) -> usize {
    fs::read_dir(scratch.state.path().join(part)).unwrap().count()
}

fn mark(scratch: &TestScratch, id: &RunId) -> PathBuf {
    scratch.state.path().join("live").join(id.as_str())
}

#[test]
fn a_run_without_changes_leaves_nothing() {
    let scratch = TestScratch::new();
    write(scratch.host("same"), "x");
    let live = scratch.start();
    assert_eq!((entries(&scratch, "runs"), entries(&scratch, "live")), (1, 1));
    // As overlayfs leaves it, and a file that was copied up and is equal.
    fs::create_dir(live.layer_directory(0).join("work/work")).unwrap();
    chmod(live.layer_directory(0).join("work/work"), 0);
    fs::copy(scratch.host("same"), upper(&live).join("same")).unwrap();
    let finished = live.finish().unwrap();
    assert!(finished.run.is_none() && finished.changes.is_empty());
    assert_eq!((entries(&scratch, "runs"), entries(&scratch, "live")), (0, 0));
}

#[test]
fn a_layer_has_the_mode_of_its_host_directory() {
    let scratch = TestScratch::new();
    chmod(&scratch.workspace, 0o751);
    let live = scratch.start();
    assert_eq!(fs::metadata(upper(&live)).unwrap().permissions().mode() & 0o7777, 0o751);
    assert!(live.run().changes().unwrap().is_empty());
    chmod(upper(&live), 0o700);
    let mut finished = live.finish().unwrap();
    assert_eq!(
        (finished.changes.len(), finished.changes[0].path.as_path()),
        (1, Path::new("."))
    );
    finished.run.as_mut().unwrap().apply(&paths(&["."])).unwrap();
    assert_eq!(
        fs::metadata(&scratch.workspace).unwrap().permissions().mode() & 0o7777,
        0o700
    );
}

#[test]
fn runs_are_listed_with_their_states() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let kept = scratch.ran(|upper| write(upper.join("a"), "x"));
    let mut applied = scratch.ran(|upper| write(upper.join("b"), "x"));
    applied.apply(&paths(&["."])).unwrap();
    let discarded = scratch.ran(|upper| write(upper.join("c"), "x"));
    discarded.discard().unwrap();
    let damaged = scratch.ran(|upper| write(upper.join("d"), "x"));
    fs::write(damaged.path.join("run.json"), "{").unwrap();
    let states: Vec<_> = runs(&scratch.state)
        .unwrap()
        .into_iter()
        .map(|listing| listing.state)
        .collect();
    use RunState::{Applied, Damaged, Discarded, Kept, Running};
    assert_eq!(states, [Running, Kept, Applied, Discarded, Damaged]);
    assert_eq!(kept.state().unwrap(), Kept);
    let id = damaged.id().clone();
    assert!(matches!(
        StoredRun::open(&scratch.state, &id),
        Err(RunError::Damaged { .. })
    ));
    StoredRun::discard_damaged(&scratch.state, &id).unwrap();
    assert!(matches!(
        StoredRun::open(&scratch.state, &id),
        Err(RunError::NotFound { .. })
    ));
    drop(live);
}

#[test]
fn an_id_is_used_once() {
    let scratch = TestScratch::new();
    let kept = scratch.ran(|upper| write(upper.join("a"), "x"));
    let new = NewRun {
        id: kept.id().clone(),
        purpose: None,
        command: Vec::new(),
        layers: Vec::new(),
        protect: Vec::new(),
        home: None,
        host_paths: Vec::new(),
    };
    assert!(matches!(
        LiveRun::create(&scratch.state, new),
        Err(RunError::Exists { .. })
    ));
    assert_eq!(kept.changes().unwrap().len(), 1);
}

#[test]
fn a_run_that_cannot_be_created_leaves_nothing() {
    let scratch = TestScratch::new();
    std::os::unix::fs::symlink(&scratch.workspace, scratch.base.join("link")).unwrap();
    for (layer, protect) in [("missing", "x"), ("link", "x"), ("workspace", "[")] {
        let new = NewRun {
            id: fresh_id(),
            purpose: None,
            command: Vec::new(),
            layers: vec![scratch.base.join(layer)],
            protect: vec![Text::from(protect)],
            home: None,
            host_paths: Vec::new(),
        };
        assert!(LiveRun::create(&scratch.state, new).is_err(), "{layer} {protect}");
    }
    assert_eq!((entries(&scratch, "runs"), entries(&scratch, "live")), (0, 0));
}

#[test]
fn crashed_runs_are_finished_once_and_live_ones_left_alone() {
    let scratch = TestScratch::new();
    let alive = scratch.start();
    let mut with_changes = scratch.start();
    write(upper(&with_changes).join("f"), "x");
    let cgroups = [
        PathBuf::from("/sys/fs/cgroup/offleash/a"),
        PathBuf::from("/sys/fs/cgroup/memory/a"),
    ];
    with_changes.record_cgroups(&cgroups).unwrap();
    let (crashed, untouched) = (with_changes.run().id().clone(), scratch.start());
    let removed = untouched.run().id().clone();
    drop((with_changes, untouched));
    let expected = [
        LeftoverRun {
            id: crashed.clone(),
            cgroups: cgroups.to_vec(),
            fate: LeftoverFate::Kept,
        },
        LeftoverRun {
            id: removed,
            cgroups: Vec::new(),
            fate: LeftoverFate::Removed,
        },
    ];
    assert_eq!(reap(&scratch.state).unwrap(), expected);
    assert_eq!(reap(&scratch.state).unwrap(), []);
    let mut run = StoredRun::open(&scratch.state, &crashed).unwrap();
    assert_eq!(run.state().unwrap(), RunState::Crashed);
    assert_eq!(run.apply(&paths(&["f"])).unwrap().pending, 0);
    drop(alive);
}

#[test]
fn a_run_is_not_forgotten_before_its_groups_are_removed() {
    let scratch = TestScratch::new();
    let mut live = scratch.start();
    let groups = [PathBuf::from("/sys/fs/cgroup/pids/a")];
    live.record_cgroups(&groups).unwrap();
    drop(live);
    let mut asked = Vec::new();
    let postponed = crate::reap_with(&scratch.state, &mut |paths| {
        asked.push(paths.to_vec());
        false
    });
    assert!(matches!(postponed.unwrap()[0].fate, LeftoverFate::Postponed(_)));
    let leftovers = reap(&scratch.state).unwrap();
    assert_eq!(
        (leftovers[0].cgroups.as_slice(), &leftovers[0].fate),
        (groups.as_slice(), &LeftoverFate::Removed)
    );
    assert_eq!(asked, [groups.to_vec()]);
    assert_eq!(reap(&scratch.state).unwrap(), []);
}

#[test]
fn what_is_erased_is_in_no_list_wherever_it_was_in_its_life() {
    let scratch = TestScratch::new();
    let groups = [PathBuf::from("/sys/fs/cgroup/pids/a")];
    let started = || {
        let mut live = scratch.start();
        write(upper(&live).join("f"), "x");
        live.record_cgroups(&groups).unwrap();
        (live.run().id().clone(), live)
    };
    let erase = |id: &RunId| {
        let mut asked = Vec::new();
        let erased = crate::erase(&scratch.state, id, &mut |paths| {
            asked.extend(paths.to_vec());
            true
        });
        erased.map(|()| asked)
    };
    let (live_id, live) = started();
    assert!(matches!(erase(&live_id), Err(RunError::Busy { .. })));
    live.erase().unwrap();

    let (died, dead) = started();
    drop(dead);
    assert_eq!(erase(&died).unwrap(), groups);

    let (reaped, dead) = started();
    drop(dead);
    reap(&scratch.state).unwrap();
    assert_eq!(erase(&reaped).unwrap(), Vec::<PathBuf>::new());

    let (kept, ended) = started();
    ended.finish().unwrap();
    erase(&kept).unwrap();

    let (damaged, dead) = started();
    drop(dead);
    fs::write(mark(&scratch, &damaged), "").unwrap();
    erase(&damaged).unwrap();

    erase(&"nobodys".parse().unwrap()).unwrap();
    assert!(runs(&scratch.state).unwrap().is_empty());
    assert_eq!(reap(&scratch.state).unwrap(), []);
}

#[test]
fn one_whose_groups_stay_is_not_erased() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let id = live.run().id().clone();
    drop(live);
    crate::erase(&scratch.state, &id, &mut |_| false).unwrap_err();
    assert_eq!(reap(&scratch.state).unwrap()[0].fate, LeftoverFate::Removed);
}

#[test]
fn changes_survive_a_record_that_was_lost_in_a_power_failure() {
    let scratch = TestScratch::new();
    for (edited, fate) in [(true, LeftoverFate::Kept), (false, LeftoverFate::Removed)] {
        let live = scratch.start();
        if edited {
            write(upper(&live).join("f"), "x");
        }
        fs::write(mark(&scratch, live.run().id()), "").unwrap();
        drop(live);
        assert_eq!(reap(&scratch.state).unwrap()[0].fate, fate);
    }
    assert_eq!(runs(&scratch.state).unwrap()[0].state, RunState::Damaged);
}

#[test]
fn the_record_of_a_run_that_goes_on_is_in_its_mark() {
    let scratch = TestScratch::new();
    let mut live = scratch.start();
    let id = live.run().id().clone();
    let groups = [PathBuf::from("/sys/fs/cgroup/pids/a")];
    live.record_cgroups(&groups).unwrap();
    assert!(!live.directory().join("run.json").exists());
    let whole = fs::read(mark(&scratch, &id)).unwrap();
    // However much of the second record was written when the process was killed, there is the first.
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in first..=whole.len() {
        fs::write(mark(&scratch, &id), &whole[..length]).unwrap();
        let run = StoredRun::open(&scratch.state, &id).unwrap();
        assert_eq!(run.command(), [Text::from("true")]);
        assert_eq!(run.file.cgroups.len(), usize::from(length == whole.len()), "{length}");
    }
    write(upper(&live).join("f"), "x");
    assert_eq!(runs(&scratch.state).unwrap()[0].state, RunState::Running);
    let kept = live.finish().unwrap().run.unwrap();
    assert!(kept.path.join("run.json").exists() && !mark(&scratch, &id).exists());
}

#[test]
fn a_crashed_run_that_is_applied_before_it_is_reaped_keeps_its_record() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let id = live.run().id().clone();
    write(upper(&live).join("a"), "x");
    write(upper(&live).join("b"), "x");
    drop(live);
    let report = StoredRun::open(&scratch.state, &id)
        .unwrap()
        .apply(&paths(&["a"]))
        .unwrap();
    assert_eq!(report.pending, 1);
    assert_eq!(entries(&scratch, "live"), 0);
    assert_eq!(runs(&scratch.state).unwrap()[0].state, RunState::Crashed);
    assert_eq!(
        StoredRun::open(&scratch.state, &id).unwrap().changes().unwrap().len(),
        1
    );
}

#[test]
fn a_run_of_an_earlier_version_is_finished() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let id = live.run().id().clone();
    write(upper(&live).join("a"), "x");
    // Its record was in its directory from the start, and its mark empty.
    live.run().save().unwrap();
    fs::write(mark(&scratch, &id), "").unwrap();
    drop(live);
    assert_eq!(reap(&scratch.state).unwrap()[0].fate, LeftoverFate::Kept);
    assert_eq!(
        StoredRun::open(&scratch.state, &id).unwrap().changes().unwrap().len(),
        1
    );
}

#[test]
fn a_process_that_dies_frees_its_run_and_one_that_lives_does_not() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let id = live.run().id().clone();
    assert!(matches!(
        StoredRun::open(&scratch.state, &id).unwrap().discard(),
        Err(RunError::Busy { .. })
    ));
    drop(live);
    StoredRun::open(&scratch.state, &id).unwrap().discard().unwrap();
    assert_eq!(entries(&scratch, "live"), 0);
}

#[test]
fn old_runs_are_forgotten_and_kept_changes_never() {
    let scratch = TestScratch::new();
    let kept = scratch.ran(|upper| write(upper.join("a"), "x"));
    write(scratch.host("b"), "x");
    for _ in 0..KEPT_TOMBSTONES + 3 {
        scratch.ran(|upper| whiteout(upper.join("b"))).discard().unwrap();
    }
    let listed = runs(&scratch.state).unwrap();
    assert_eq!(listed.len(), KEPT_TOMBSTONES + 1);
    assert_eq!(&listed[0].id, kept.id());
}

/// Not a test of speed: it prints what one run costs, and that the numbers make sense.
#[test]
fn creating_and_ending_a_run_is_cheap() {
    let scratch = TestScratch::new();
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            let start = Instant::now();
            let live = scratch.start();
            let created = start.elapsed();
            live.finish().unwrap();
            (created, start.elapsed())
        })
        .collect();
    times.sort_unstable();
    let start = Instant::now();
    reap(&scratch.state).unwrap();
    println!(
        "create {:?}, with end {:?}, empty reap {:?}",
        times[25].0,
        times[25].1,
        start.elapsed()
    );
    assert_eq!(entries(&scratch, "runs"), 0);
}
