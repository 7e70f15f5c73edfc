//! Directories of the host that the run removed or replaced, and what the host did to them meanwhile.

use super::*;

#[test]
fn an_empty_directory_that_took_a_files_place_is_a_conflict() {
    let scratch = TestScratch::new();
    for file in ["edited", "removed"] {
        write(scratch.host(file), "old");
    }
    let mut run = scratch.ran(|upper| {
        write(upper.join("edited"), "ours");
        whiteout(upper.join("removed"));
    });
    tick();
    for file in ["edited", "removed"] {
        fs::remove_file(scratch.host(file)).unwrap();
        fs::create_dir(scratch.host(file)).unwrap();
    }
    let changed = |path: &str| (PathBuf::from(path), ConflictReason::Changed);
    assert_eq!(conflicts(run.apply(&all())), [changed("edited"), changed("removed")]);
    for file in ["edited", "removed"] {
        assert!(scratch.host(file).is_dir(), "{file}");
    }
}

#[test]
fn an_older_directory_that_was_moved_into_place_is_a_conflict() {
    let scratch = TestScratch::new();
    write(scratch.host("file"), "old");
    write(scratch.host("doomed/x"), "old");
    write(scratch.host("theirs/precious"), "theirs");
    write(scratch.host("others/precious"), "theirs");
    let mut run = scratch.ran(|upper| {
        write(upper.join("file"), "ours");
        whiteout(upper.join("doomed"));
    });
    tick();
    fs::remove_file(scratch.host("file")).unwrap();
    fs::rename(scratch.host("theirs"), scratch.host("file")).unwrap();
    fs::remove_dir_all(scratch.host("doomed")).unwrap();
    fs::rename(scratch.host("others"), scratch.host("doomed")).unwrap();
    let before = snapshot(&scratch.workspace);
    let found = conflicts(run.apply(&all()));
    let changed = |path: &str| (PathBuf::from(path), ConflictReason::Changed);
    assert_eq!(found, [changed("doomed"), changed("file")]);
    assert_eq!(snapshot(&scratch.workspace), before);
}

#[test]
fn a_directory_in_which_the_host_only_removed_something_is_removed_all_the_same() {
    let scratch = TestScratch::new();
    write(scratch.host("doomed/x"), "old");
    write(scratch.host("doomed/y"), "old");
    write(scratch.host("replaced/x"), "old");
    let mut run = scratch.ran(|upper| {
        whiteout(upper.join("doomed"));
        write(upper.join("replaced"), "ours");
    });
    tick();
    fs::remove_file(scratch.host("doomed/y")).unwrap();
    fs::remove_file(scratch.host("replaced/x")).unwrap();
    assert_eq!(
        applied(&run.apply(&all()).unwrap()),
        ["Deleted doomed", "Deleted doomed/x", "TypeChanged replaced"]
    );
}

/// What was applied before, or rolled back, looks like the host's doing otherwise.
#[test]
fn directories_that_an_apply_touched_are_no_conflict_for_the_next() {
    let scratch = TestScratch::new();
    write(scratch.host("empty/x"), "old");
    fs::remove_file(scratch.host("empty/x")).unwrap();
    write(scratch.host("doomed/x"), "old");
    write(scratch.host("doomed/y"), "old");
    let mut run = scratch.ran(|upper| {
        whiteout(upper.join("doomed"));
        whiteout(upper.join("empty"));
        write(upper.join("new"), "ours");
    });
    tick();
    // The journal, the staging directory, what is staged, the journal again, four entries taken away.
    let stopped = run.apply_until(&all(), &mut ApplySteps::limited(8, false));
    assert!(matches!(stopped, Err(ApplyError::Stopped)));
    assert!(!scratch.host("doomed").exists() && !scratch.host("empty").exists());
    crate::reap(&scratch.state).unwrap();
    assert!(scratch.host("doomed/y").exists() && scratch.host("empty").exists());
    tick();
    run.apply(&paths(&["doomed/x"])).unwrap();
    tick();
    assert_eq!(run.apply(&all()).unwrap().pending, 0);
    assert!(!scratch.host("doomed").exists() && !scratch.host("empty").exists());
}

#[test]
fn a_deep_tree_is_applied_as_a_whole_or_down_to_one_path() {
    let levels = 300;
    let scratch = TestScratch::new();
    let live = scratch.start();
    crate::change::make_deep(&upper(&live), levels);
    write(upper(&live).join("some-name/beside"), "ours");
    let mut run = live.finish().unwrap().run.unwrap();
    let deepest: PathBuf = std::iter::repeat_n("some-name", levels).chain(["file"]).collect();
    let report = run.apply(&paths(&[deepest.to_str().unwrap()])).unwrap();
    assert_eq!((report.applied.len(), report.pending), (levels + 1, 1));
    assert!(scratch.host(deepest.to_str().unwrap()).is_file());
    assert_eq!(applied(&run.apply(&all()).unwrap()), ["Added some-name/beside"]);
}

/// Until it is whole, or its death is cleaned up, nobody needs to open up the workspace by hand.
#[test]
fn a_workspace_that_is_closed_to_its_owner_is_applied_or_as_before() {
    for (mode, steps) in [0, 0o200, 0o500]
        .into_iter()
        .flat_map(|mode| (0..20).map(move |steps| (mode, steps)))
    {
        let scratch = TestScratch::new();
        chmod(&scratch.workspace, 0o755);
        write(scratch.host("old"), "old");
        let mut run = scratch.ran(|upper| {
            write(upper.join("new"), "ours");
            whiteout(upper.join("old"));
            chmod(upper, mode);
        });
        let result = run.apply_until(&all(), &mut ApplySteps::limited(steps, false));
        if result.is_err() {
            assert!(
                matches!(result, Err(ApplyError::Stopped)),
                "{mode:o} {steps}: {result:?}"
            );
            let leftovers = crate::reap(&scratch.state).unwrap();
            let postponed = |leftover: &crate::LeftoverRun| matches!(leftover.fate, crate::LeftoverFate::Postponed(_));
            assert!(!leftovers.iter().any(postponed), "{mode:o} {steps}: {leftovers:?}");
        }
        let found = fs::metadata(&scratch.workspace).unwrap().permissions().mode() & 0o7777;
        chmod(&scratch.workspace, 0o755);
        let names: Vec<_> = fs::read_dir(&scratch.workspace)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        let expected = if found == mode { "new" } else { "old" };
        assert_eq!(names, [expected], "{mode:o} {steps}: {found:o}");
    }
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// They were copied only because something was made in them.
#[test]
fn directories_that_the_host_closed_afterwards_stay_closed() {
    let scratch = TestScratch::new();
    chmod(&scratch.workspace, 0o755);
    write(scratch.host("directory/x"), "old");
    chmod(scratch.host("directory"), 0o755);
    let mut run = scratch.ran(|upper| {
        chmod(upper, 0o755);
        write(upper.join("directory/y"), "ours");
        chmod(upper.join("directory"), 0o755);
    });
    for closed in [&scratch.workspace, &scratch.host("directory")] {
        chmod(closed, 0o700);
    }
    let paths: Vec<PathBuf> = run.changes().unwrap().into_iter().map(|change| change.path).collect();
    assert_eq!(paths, [PathBuf::from("directory/y")]);
    assert_eq!(applied(&run.apply(&all()).unwrap()), ["Added directory/y"]);
    assert_eq!(
        (mode(&scratch.workspace), mode(scratch.host("directory"))),
        (0o700, 0o700)
    );
}

#[test]
fn a_mode_that_run_and_host_both_changed_is_a_conflict() {
    let changed = [(PathBuf::from("directory"), ConflictReason::Changed)];
    let scratch = TestScratch::new();
    write(scratch.host("directory/x"), "old");
    chmod(scratch.host("directory"), 0o755);
    tick();
    let open = |upper: &Path| {
        fs::create_dir(upper.join("directory")).unwrap();
        chmod(upper.join("directory"), 0o777);
    };
    let mut after = scratch.ran(open);
    // Nobody knows who did what there.
    let mut during = scratch.ran(|upper| {
        open(upper);
        chmod(scratch.host("directory"), 0o700);
    });
    for run in [&mut after, &mut during] {
        assert_eq!(conflicts(run.apply(&all())), changed);
    }
    chmod(scratch.host("directory"), 0o755);
    tick();
    assert_eq!(applied(&after.apply(&all()).unwrap()), ["ModeChanged directory"]);
    assert_eq!(mode(scratch.host("directory")), 0o777);
}
