//! Runs in the wrong state, and workspaces that cannot be written to.

use super::*;

#[test]
fn runs_in_the_wrong_state_are_refused() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    write(upper(&live).join("f"), "x");
    let mut same = StoredRun::open(&scratch.state, live.run().id()).unwrap();
    let busy = same.apply(&all()).unwrap_err();
    assert!(matches!(busy, ApplyError::Run(RunError::Busy { .. })) && busy.kind() == ErrorKind::Conflict);
    let run = live.finish().unwrap().run.unwrap();
    let id = run.id().clone();
    run.discard().unwrap();
    let gone = same.apply(&all()).unwrap_err();
    assert!(matches!(gone, ApplyError::Run(RunError::Discarded { .. })) && gone.kind() == ErrorKind::NotFound);
    assert!(
        !scratch
            .state
            .path()
            .join("runs")
            .join(id.as_str())
            .join("layer-0")
            .exists()
    );
    let unknown = StoredRun::open(&scratch.state, &"r1".parse().unwrap()).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[test]
fn a_workspace_that_was_replaced_is_not_written_to() {
    let scratch = TestScratch::new();
    let mut run = scratch.ran(|upper| write(upper.join("f"), "x"));
    fs::rename(&scratch.workspace, scratch.base.join("moved")).unwrap();
    fs::create_dir(&scratch.workspace).unwrap();
    let error = run.apply(&all()).unwrap_err();
    assert!(
        matches!(error, ApplyError::Run(RunError::WorkspaceReplaced { .. })),
        "{error}"
    );
}

/// A workspace on a file system of its own; unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(path: &Path, options: &std::ffi::CStr) -> Option<Self> {
        match rustix::mount::mount("tmpfs", path, "tmpfs", rustix::mount::MountFlags::empty(), options) {
            Ok(()) => Some(Self(path.to_owned())),
            Err(error) => {
                assert!(
                    !is_root() || error == rustix::io::Errno::PERM,
                    "mounting a tmpfs: {error}"
                );
                eprintln!("skipped: a tmpfs cannot be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_changed() {
    let scratch = TestScratch::new();
    let Some(_mounted) = Mounted::tmpfs(&scratch.workspace, c"size=256k") else {
        return;
    };
    write(scratch.host("edited"), "old");
    let mut run = scratch.ran(|upper| {
        write(upper.join("edited"), "new");
        write(upper.join("large"), vec![1; 1 << 20]);
    });
    let before = snapshot(&scratch.workspace);
    let error = run.apply(&all()).unwrap_err();
    assert!(
        matches!(error, ApplyError::Failed { .. }) && error.kind() == ErrorKind::Exhausted,
        "{error:?}"
    );
    assert!(error.hint().unwrap().contains("full"));
    assert_eq!(snapshot(&scratch.workspace), before);
    assert_eq!(run.apply(&paths(&["edited"])).unwrap().pending, 1);
}

#[test]
fn a_read_only_workspace_is_an_error_and_the_changes_stay() {
    let scratch = TestScratch::new();
    let Some(_mounted) = Mounted::tmpfs(&scratch.workspace, c"") else {
        return;
    };
    let mut run = scratch.ran(|upper| write(upper.join("added"), "new"));
    let read_only = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount_remount(&scratch.workspace, read_only, c"").unwrap();
    let error = run.apply(&all()).unwrap_err();
    assert!(
        matches!(error, ApplyError::Failed { .. }) && error.kind() == ErrorKind::Denied,
        "{error:?}"
    );
    assert_eq!(
        (run.changes().unwrap().len(), run.state().unwrap()),
        (1, crate::RunState::Kept)
    );
}

#[test]
fn what_lies_behind_a_mount_in_the_workspace_is_not_touched() {
    let scratch = TestScratch::new();
    fs::create_dir(scratch.host("other")).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&scratch.host("other"), c"") else {
        return;
    };
    write(scratch.host("other/f"), "theirs");
    let mut run = scratch.ran(|upper| write(upper.join("other/f"), "ours"));
    let found = conflicts(run.apply(&all()));
    assert!(
        found.contains(&(PathBuf::from("other/f"), ConflictReason::Unreachable)),
        "{found:?}"
    );
    assert_eq!(fs::read(scratch.host("other/f")).unwrap(), b"theirs");
}

#[test]
fn something_in_the_place_of_the_staging_directory_stops_the_apply() {
    let scratch = TestScratch::new();
    let mut run = scratch.ran(|upper| write(upper.join("f"), "x"));
    std::os::unix::fs::symlink(&scratch.base, scratch.host(&super::stage::staging_name(run.id()))).unwrap();
    assert!(run.apply(&all()).is_err());
    assert!(!scratch.host("f").exists() && !scratch.base.join("new").exists());
}
