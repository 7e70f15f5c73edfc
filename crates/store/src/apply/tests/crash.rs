//! The process dies between any two steps: the tree is as before, or as it is to be.

use super::*;
use crate::reap::{LeftoverFate, reap};

fn prepare() -> (TestScratch, StoredRun) {
    let scratch = TestScratch::new();
    for file in [
        "edited",
        "gone",
        "d/x",
        "d/sub/y",
        "mode",
        "becomes-dir",
        "becomes-file/z",
        "closed/old",
    ] {
        write(scratch.host(file), file);
    }
    symlink("edited", scratch.host("link")).unwrap();
    chmod(scratch.host("closed"), 0o555);
    let run = scratch.ran(|upper| {
        write(upper.join("edited"), "ours");
        write(upper.join("new/deep/file"), "ours");
        chmod(upper.join("new"), 0o555);
        write(upper.join("mode"), "mode");
        chmod(upper.join("mode"), 0o750);
        symlink("mode", upper.join("link")).unwrap();
        write(upper.join("becomes-dir/inner"), "ours");
        write(upper.join("becomes-file"), "ours");
        write(upper.join("closed/new"), "ours");
        chmod(upper.join("closed"), 0o555);
        whiteout(upper.join("gone"));
        whiteout(upper.join("d"));
    });
    (scratch, run)
}

fn open_again(scratch: &TestScratch) {
    for path in ["closed", "new"] {
        if scratch.host(path).exists() {
            chmod(scratch.host(path), 0o755);
        }
    }
}

/// Whether the tree was changed when the process died after so many steps.
fn crash_after(steps: usize, without_exchange: bool) -> Option<bool> {
    let (scratch, mut run) = prepare();
    let before = snapshot(&scratch.workspace);
    let result = run.apply_until(&all(), &mut ApplySteps::limited(steps, without_exchange));
    let finished = result.is_ok();
    assert!(finished || matches!(result, Err(ApplyError::Stopped)), "{result:?}");
    let id = run.id().clone();
    drop(run);
    let leftovers = reap(&scratch.state).unwrap();
    let after = snapshot(&scratch.workspace);
    let done = after != before;
    if done {
        let (whole, mut run) = prepare();
        run.apply(&all()).unwrap();
        let contents = |tree: &std::collections::BTreeMap<PathBuf, (u32, Vec<u8>, i64)>| {
            tree.iter()
                .map(|(path, (mode, bytes, _))| (path.clone(), *mode, bytes.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(contents(&after), contents(&snapshot(&whole.workspace)), "{steps} steps");
        open_again(&whole);
    }
    assert_eq!(leftovers.len(), usize::from(!finished), "{steps} steps");
    assert!(
        leftovers
            .iter()
            .all(|left| left.id == id && !matches!(left.fate, LeftoverFate::Postponed(_))),
        "{leftovers:?}"
    );
    assert!(reap(&scratch.state).unwrap().is_empty());
    let mut run = StoredRun::open(&scratch.state, &id).unwrap();
    match run.apply(&all()) {
        Ok(report) => assert!(!done && report.pending == 0),
        Err(ApplyError::Run(RunError::AlreadyApplied { .. })) => assert!(done),
        Err(error) => panic!("{steps} steps: {error:?}"),
    }
    open_again(&scratch);
    (!finished).then_some(done)
}

#[test]
fn a_crash_at_any_step_is_rolled_back_or_complete() {
    for without_exchange in [false, true] {
        let outcomes: Vec<bool> = (0..).map_while(|steps| crash_after(steps, without_exchange)).collect();
        assert!(outcomes.len() > 30, "{} steps", outcomes.len());
        assert!(!outcomes[0] && outcomes[outcomes.len() - 1]);
        assert!(outcomes.is_sorted(), "once done it stays done: {outcomes:?}");
    }
}

#[test]
fn a_change_of_the_host_in_the_middle_rolls_everything_back() {
    // Dies somewhere among the renames; then the host puts something where the original was.
    let (scratch, mut run) = prepare();
    let mut steps = 20;
    loop {
        let result = run.apply_until(&all(), &mut ApplySteps::limited(steps, false));
        assert!(matches!(result, Err(ApplyError::Stopped)));
        if !scratch.host("gone").exists() {
            break;
        }
        assert_eq!(reap(&scratch.state).unwrap().len(), 1);
        steps += 1;
    }
    write(scratch.host("gone"), "put there by somebody");
    let leftovers = reap(&scratch.state).unwrap();
    assert!(matches!(leftovers[0].fate, LeftoverFate::Postponed(_)), "{leftovers:?}");
    assert_eq!(fs::read(scratch.host("gone")).unwrap(), b"put there by somebody");
    assert_eq!(fs::read(scratch.host("edited")).unwrap(), b"edited");
    fs::remove_file(scratch.host("gone")).unwrap();
    let leftovers = reap(&scratch.state).unwrap();
    assert_eq!(leftovers[0].fate, LeftoverFate::ApplyFinished);
    assert_eq!(
        fs::read(scratch.host("gone")).unwrap(),
        b"gone",
        "the original was kept until there was room"
    );
    open_again(&scratch);
}

#[test]
fn staging_that_fails_is_rolled_back() {
    let (scratch, run) = prepare();
    let before = snapshot(&scratch.workspace);
    // The contents vanish between comparing and staging.
    let layer = scratch
        .state
        .path()
        .join("runs")
        .join(run.id().as_str())
        .join("layer-0/upper/new");
    let changes = run.changes().unwrap();
    chmod(&layer, 0o755);
    fs::remove_dir_all(&layer).unwrap();
    let failure = run.write_back(&changes, &mut ApplySteps::unlimited()).unwrap_err();
    assert!(matches!(failure, ApplyError::Failed { .. }), "{failure:?}");
    assert_eq!(snapshot(&scratch.workspace), before);
    open_again(&scratch);
}
