use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use offleash_core::error::{ErrorKind, Explained};
use rustix::fs::{FileType, Mode};

use super::*;
use crate::testing::{
    TestScratch, all, applied, chmod, is_root, named, paths, shown, snapshot, tick, upper, whiteout, write,
};

mod crash;
mod directories;
mod model;
mod surroundings;

fn conflicts(result: Result<ApplyReport, ApplyError>) -> Vec<(PathBuf, ConflictReason)> {
    match result {
        Err(ApplyError::Conflicts { conflicts, .. }) => conflicts
            .into_iter()
            .map(|conflict| (conflict.path, conflict.reason))
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn refusals(report: &ApplyReport) -> Vec<&str> {
    report
        .refused
        .iter()
        .map(|refusal| refusal.path.to_str().unwrap())
        .collect()
}

#[test]
fn everything_is_written_back_and_the_run_is_over() {
    let scratch = TestScratch::new();
    for file in ["edited", "gone", "d/x", "d/y", "mode"] {
        write(scratch.host(file), "old");
    }
    let mut run = scratch.ran(|upper| {
        write(upper.join("edited"), "new");
        write(upper.join("new/deep/file"), "new");
        write(upper.join("mode"), "old");
        chmod(upper.join("mode"), 0o750);
        chmod(upper.join("new"), 0o555);
        symlink("edited", upper.join("link")).unwrap();
        whiteout(upper.join("gone"));
        whiteout(upper.join("d"));
    });
    let report = run.apply(&all()).unwrap();
    assert_eq!((report.applied.len(), report.refused.len(), report.pending), (10, 0, 0));
    let tree = snapshot(&scratch.workspace);
    let names: Vec<_> = tree.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(names, ["edited", "link", "mode", "new", "new/deep", "new/deep/file"]);
    assert_eq!(tree[Path::new("edited")].1, b"new");
    assert_eq!(tree[Path::new("mode")].0 & 0o7777, 0o750);
    assert_eq!(tree[Path::new("new")].0 & 0o7777, 0o555);
    assert!(matches!(
        run.apply(&all()),
        Err(ApplyError::Run(RunError::AlreadyApplied { .. }))
    ));
    assert!(run.changes().unwrap().is_empty());
    chmod(scratch.host("new"), 0o755);
}

#[test]
fn times_of_modification_are_carried_and_special_bits_are_not() {
    let scratch = TestScratch::new();
    let mut run = scratch.ran(|upper| {
        write(upper.join("f"), "x");
        chmod(upper.join("f"), 0o6755);
        let times = super::stage::timestamps(crate::node::NodeTime {
            seconds: 1_000_000,
            nanoseconds: 5,
        });
        rustix::fs::utimensat(rustix::fs::CWD, upper.join("f"), &times, rustix::fs::AtFlags::empty()).unwrap();
        crate::testing::set_attribute(upper.join("f"), "user.note", b"x");
    });
    run.apply(&all()).unwrap();
    let found = fs::metadata(scratch.host("f")).unwrap();
    assert_eq!(
        (found.mtime(), found.mtime_nsec(), found.mode() & 0o7777),
        (1_000_000, 5, 0o755)
    );
    let mut list = [0_u8; 256];
    assert_eq!(rustix::fs::listxattr(scratch.host("f"), &mut list), Ok(0));
}

#[test]
fn files_belong_to_the_owner_of_their_directory_or_of_what_they_replace() {
    if !is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let scratch = TestScratch::new();
    write(scratch.host("theirs"), "old");
    std::os::unix::fs::chown(scratch.host("theirs"), Some(4243), Some(4243)).unwrap();
    std::os::unix::fs::chown(&scratch.workspace, Some(4242), Some(4242)).unwrap();
    let mut run = scratch.ran(|upper| {
        write(upper.join("d/f"), "new");
        write(upper.join("theirs"), "new");
        symlink("x", upper.join("l")).unwrap();
        for path in ["d/f", "d", "theirs"] {
            std::os::unix::fs::chown(upper.join(path), Some(70_000), Some(70_000)).unwrap();
        }
    });
    run.apply(&all()).unwrap();
    for (path, owner) in [("d", 4242), ("d/f", 4242), ("l", 4242), ("theirs", 4243)] {
        let found = fs::symlink_metadata(scratch.host(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), (owner, owner), "{path}");
    }
}

#[test]
fn sparse_files_stay_sparse() {
    let scratch = TestScratch::new();
    let mut run = scratch.ran(|upper| {
        let file = fs::File::create(upper.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 1 << 30).unwrap();
        file.set_len(1 << 31).unwrap();
    });
    run.apply(&all()).unwrap();
    let found = fs::metadata(scratch.host("sparse")).unwrap();
    assert_eq!(found.len(), 1 << 31);
    assert!(found.blocks() < 2048, "{} blocks", found.blocks());
}

#[test]
fn exactly_what_was_chosen_is_applied_and_the_directories_that_it_needs() {
    let scratch = TestScratch::new();
    let mut run = scratch.ran(|upper| {
        write(upper.join("x/a"), "a");
        write(upper.join("x/.envrc"), "e");
        write(upper.join("x/y/b"), "b");
        write(upper.join("z"), "z");
    });
    let exactly = |chosen: &[&str]| ApplyRequest {
        selection: ChangeSelection::Exactly(chosen.iter().map(PathBuf::from).collect()),
        named: chosen.iter().map(PathBuf::from).collect(),
    };
    let report = run.apply(&exactly(&["x", "z"])).unwrap();
    assert_eq!(applied(&report), ["Added x", "Added z"]);
    let report = run.apply(&exactly(&["x/y/b"])).unwrap();
    assert_eq!(applied(&report), ["Added x/y", "Added x/y/b"]);
    assert!(!scratch.host("x/.envrc").exists() && !scratch.host("x/a").exists());
    assert!(run.apply(&exactly(&["x/y"])).is_err());
}

#[test]
fn f7_protected_names_are_applied_only_if_named() {
    let scratch = TestScratch::new();
    write(scratch.host(".envrc"), "old");
    let edit = |upper: &Path| {
        write(upper.join(".git/hooks/pre-commit"), "evil");
        write(upper.join(".git/description"), "fine");
        write(upper.join("plain"), "fine");
        whiteout(upper.join(".envrc"));
    };
    for (request, refused) in [
        (all(), &[".envrc", ".git/hooks", ".git/hooks/pre-commit"][..]),
        (named(&["."]), &[".envrc", ".git/hooks", ".git/hooks/pre-commit"]),
        (named(&[".git"]), &[".envrc", ".git/hooks", ".git/hooks/pre-commit"]),
        (named(&[".git/hooks"]), &[".envrc"]),
        (named(&[".git/hooks/pre-commit", ".envrc"]), &[]),
    ] {
        let scratch = TestScratch::new();
        write(scratch.host(".envrc"), "old");
        let mut run = scratch.ran(edit);
        let report = run.apply(&request).unwrap();
        assert_eq!(refusals(&report), refused, "{request:?}");
        assert_eq!(report.pending, refused.len());
        assert!(scratch.host("plain").exists());
        for path in refused {
            assert_eq!(scratch.host(path).exists(), *path == ".envrc", "{path}");
        }
    }
}

#[test]
fn a_directory_stays_if_a_protected_name_in_it_stays() {
    let scratch = TestScratch::new();
    write(scratch.host("d/.envrc"), "old");
    write(scratch.host("d/plain"), "old");
    write(scratch.host("e/.envrc"), "old");
    write(scratch.host("e/plain"), "old");
    let mut run = scratch.ran(|upper| {
        whiteout(upper.join("d"));
        symlink("d", upper.join("e")).unwrap();
    });
    let report = run.apply(&all()).unwrap();
    assert_eq!(refusals(&report), ["d", "d/.envrc", "e", "e/.envrc", "e/plain"]);
    assert_eq!(applied(&report), ["Deleted d/plain"]);
    assert!(scratch.host("e/plain").is_file());
}

#[test]
fn links_out_of_the_workspace_and_special_files_are_refused() {
    let scratch = TestScratch::new();
    write(scratch.host("src/main"), "old");
    let mut run = scratch.ran(|upper| {
        symlink("/etc", upper.join("out")).unwrap();
        symlink("../x", upper.join("up")).unwrap();
        symlink("src/main", upper.join("in")).unwrap();
        symlink("/etc", upper.join("src")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, upper.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(upper.join("socket")).unwrap();
    });
    let report = run.apply(&all()).unwrap();
    assert_eq!(refusals(&report), ["fifo", "out", "socket", "src", "src/main", "up"]);
    assert_eq!(applied(&report), ["Added in"]);
    let report = run.apply(&named(&["out"])).unwrap();
    assert_eq!(applied(&report), ["Added out"]);
    assert_eq!(fs::read_link(scratch.host("out")).unwrap(), Path::new("/etc"));
}

#[test]
fn changes_of_the_host_are_conflicts_and_nothing_is_applied() {
    type Edit = fn(&Path);
    let cases: [(&str, Edit, ConflictReason); 6] = [
        (
            "edited",
            |host| write(host.join("edited"), "theirs"),
            ConflictReason::Changed,
        ),
        (
            "edited",
            |host| chmod(host.join("edited"), 0o600),
            ConflictReason::Changed,
        ),
        (
            "edited",
            |host| fs::remove_file(host.join("edited")).unwrap(),
            ConflictReason::Gone,
        ),
        (
            "added",
            |host| write(host.join("added"), "theirs"),
            ConflictReason::Changed,
        ),
        (
            "gone",
            |host| write(host.join("gone"), "theirs"),
            ConflictReason::Changed,
        ),
        (
            "d/new",
            |host| write(host.join("d/new"), "theirs"),
            ConflictReason::Changed,
        ),
    ];
    for (path, edit, reason) in cases {
        let scratch = TestScratch::new();
        for file in ["edited", "gone", "d/x"] {
            write(scratch.host(file), "old");
        }
        let mut run = scratch.ran(|upper| {
            write(upper.join("a-first"), "ours");
            write(upper.join("edited"), "ours");
            write(upper.join("added"), "ours");
            whiteout(upper.join("gone"));
            whiteout(upper.join("d"));
        });
        tick();
        edit(&scratch.workspace);
        let before = snapshot(&scratch.workspace);
        let found = conflicts(run.apply(&all()));
        assert_eq!(found, [(PathBuf::from(path), reason)]);
        assert_eq!(snapshot(&scratch.workspace), before);
        let report = run.apply(&paths(&["a-first"])).unwrap();
        assert_eq!(applied(&report), ["Added a-first"]);
    }
}

#[test]
fn what_the_host_did_alike_or_elsewhere_is_no_conflict() {
    let scratch = TestScratch::new();
    for file in ["edited", "gone", "d/other"] {
        write(scratch.host(file), "old");
    }
    let mut run = scratch.ran(|upper| {
        write(upper.join("edited"), "ours");
        write(upper.join("d/added"), "ours");
        whiteout(upper.join("gone"));
    });
    tick();
    write(scratch.host("edited"), "ours");
    write(scratch.host("d/other"), "theirs");
    write(scratch.host("d/third"), "theirs");
    fs::remove_file(scratch.host("gone")).unwrap();
    let report = run.apply(&all()).unwrap();
    assert_eq!(
        (applied(&report), report.pending),
        (vec!["Added d/added".to_owned()], 0)
    );
    assert_eq!(fs::read(scratch.host("d/other")).unwrap(), b"theirs");
}

#[test]
fn f8_a_directory_replaced_by_a_link_leads_nowhere() {
    let scratch = TestScratch::new();
    write(scratch.host("d/f"), "old");
    let outside = scratch.base.join("outside");
    write(outside.join("f"), "old");
    let mut run = scratch.ran(|upper| {
        write(upper.join("d/f"), "ours");
        write(upper.join("d/new"), "ours");
    });
    assert_eq!(shown(&run.changes().unwrap()), ["Modified d/f", "Added d/new"]);
    tick();
    fs::remove_dir_all(scratch.host("d")).unwrap();
    symlink(&outside, scratch.host("d")).unwrap();
    let found = conflicts(run.apply(&all()));
    assert_eq!(found[0], (PathBuf::from("d"), ConflictReason::Changed));
    assert!(matches!(
        run.apply(&paths(&["d/new"])),
        Err(ApplyError::Conflicts { .. })
    ));
    assert_eq!(snapshot(&outside).len(), 1);
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"old");
}

#[test]
fn parts_can_be_applied_one_after_the_other() {
    let scratch = TestScratch::new();
    write(scratch.host("a"), "old");
    write(scratch.host("b"), "old");
    let mut run = scratch.ran(|upper| {
        write(upper.join("a"), "ours");
        write(upper.join("b"), "ours");
        write(upper.join("new/x"), "ours");
        write(upper.join("new/y"), "ours");
    });
    let absolute = scratch.host("a");
    assert_eq!(
        applied(&run.apply(&paths(&[absolute.to_str().unwrap()])).unwrap()),
        ["Modified a"]
    );
    tick();
    write(scratch.host("a"), "edited after the first apply");
    assert_eq!(
        applied(&run.apply(&paths(&["new/x"])).unwrap()),
        ["Added new", "Added new/x"]
    );
    assert_eq!(shown(&run.changes().unwrap()), ["Modified b", "Added new/y"]);
    assert!(matches!(
        run.apply(&paths(&["a"])),
        Err(ApplyError::NoSuchChange { .. })
    ));
    assert!(matches!(
        run.apply(&paths(&["../b"])),
        Err(ApplyError::NoSuchChange { .. })
    ));
    let report = run.apply(&all()).unwrap();
    assert_eq!((report.applied.len(), report.pending), (2, 0));
    assert_eq!(fs::read(scratch.host("a")).unwrap(), b"edited after the first apply");
}

#[test]
fn closed_directories_are_opened_for_the_moment_and_closed_again() {
    let scratch = TestScratch::new();
    write(scratch.host("closed/old"), "old");
    write(scratch.host("doomed/sub/x"), "old");
    chmod(scratch.host("closed"), 0o555);
    chmod(scratch.host("doomed/sub"), 0o555);
    chmod(&scratch.workspace, 0o555);
    let mut run = scratch.ran(|upper| {
        chmod(upper, 0o755);
        write(upper.join("closed/new"), "ours");
        chmod(upper.join("closed"), 0o555);
        whiteout(upper.join("doomed"));
        chmod(upper, 0o555);
    });
    let report = run.apply(&all()).unwrap();
    assert_eq!(
        applied(&report),
        [
            "Added closed/new",
            "Deleted doomed",
            "Deleted doomed/sub",
            "Deleted doomed/sub/x"
        ]
    );
    for path in [&scratch.workspace, &scratch.host("closed")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o555);
    }
    assert_eq!(
        fs::read_dir(&scratch.workspace).unwrap().count(),
        1,
        "no staging directory is left"
    );
    chmod(&scratch.workspace, 0o755);
    chmod(scratch.host("closed"), 0o755);
}

#[test]
fn hard_links_of_the_host_are_no_conflict_with_themselves() {
    let scratch = TestScratch::new();
    write(scratch.host("a"), "old");
    fs::hard_link(scratch.host("a"), scratch.host("b")).unwrap();
    fs::hard_link(scratch.host("a"), scratch.host("c")).unwrap();
    let mut run = scratch.ran(|upper| {
        write(upper.join("a"), "ours");
        write(upper.join("b"), "ours");
        whiteout(upper.join("c"));
    });
    assert_eq!(run.apply(&all()).unwrap().pending, 0);
}
