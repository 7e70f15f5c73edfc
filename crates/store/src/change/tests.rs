use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::{FileType, Mode};
use rustix::mount::{MountFlags, UnmountFlags};

use super::*;
use crate::testing::{
    TestScratch, chmod, is_root, name, opaque, set_attribute, shown, upper, whiteout, whiteout_attribute, write,
};
use crate::{LiveRun, RunError};

fn changes_of(live: &LiveRun) -> Vec<String> {
    shown(&live.run().changes().unwrap())
}

#[test]
fn every_kind_of_change_is_recognised() {
    let scratch = TestScratch::new();
    for file in [
        "same",
        "edited",
        "gone",
        "mode",
        "becomes-link",
        "becomes-dir",
        "dir/a",
        "dir/b/c",
        "replaced-dir/x",
    ] {
        write(scratch.host(file), "old");
    }
    symlink("same", scratch.host("link")).unwrap();
    let live = scratch.start();
    let upper = upper(&live);
    write(upper.join("same"), "old");
    write(upper.join("edited"), "new");
    write(upper.join("added"), "new");
    write(upper.join("mode"), "old");
    chmod(upper.join("mode"), 0o755);
    whiteout(upper.join("gone"));
    whiteout(upper.join("never-existed"));
    whiteout(upper.join("dir"));
    symlink("edited", upper.join("link")).unwrap();
    symlink("edited", upper.join("becomes-link")).unwrap();
    write(upper.join("becomes-dir/inner"), "new");
    write(upper.join("replaced-dir"), "now a file");
    assert_eq!(
        changes_of(&live),
        [
            "Added added",
            "TypeChanged becomes-dir",
            "Added becomes-dir/inner",
            "TypeChanged becomes-link",
            "Deleted dir",
            "Deleted dir/a",
            "Deleted dir/b",
            "Deleted dir/b/c",
            "Modified edited",
            "Deleted gone",
            "SymlinkChanged link",
            "ModeChanged mode",
            "TypeChanged replaced-dir",
            "Deleted replaced-dir/x",
        ]
    );
    let summary = summarize(&live.run().changes().unwrap());
    assert_eq!(
        (summary.added, summary.modified, summary.deleted, summary.mode),
        (2, 5, 6, 1)
    );
}

#[test]
fn a_directory_made_again_shows_what_is_gone_at_every_level() {
    let scratch = TestScratch::new();
    for file in ["d/kept", "d/gone", "d/sub/kept", "d/sub/gone", "d/old/x"] {
        write(scratch.host(file), "old");
    }
    let live = scratch.start();
    let upper = upper(&live);
    write(upper.join("d/kept"), "old");
    write(upper.join("d/sub/kept"), "old");
    write(upper.join("d/new"), "new");
    opaque(upper.join("d"));
    assert_eq!(
        changes_of(&live),
        [
            "Deleted d/gone",
            "Added d/new",
            "Deleted d/old",
            "Deleted d/old/x",
            "Deleted d/sub/gone"
        ]
    );
}

#[test]
fn whiteouts_in_the_form_of_attributes_are_deletions_only_on_empty_files() {
    let scratch = TestScratch::new();
    write(scratch.host("a"), "old");
    write(scratch.host("b"), "old");
    let live = scratch.start();
    whiteout_attribute(upper(&live).join("a"));
    write(upper(&live).join("b"), "new");
    set_attribute(upper(&live).join("b"), "user.overlay.whiteout", b"y");
    assert_eq!(changes_of(&live), ["Deleted a", "Modified b"]);
}

#[test]
fn layers_with_references_only_are_refused() {
    for attribute in ["user.overlay.metacopy", "user.overlay.redirect"] {
        let scratch = TestScratch::new();
        let live = scratch.start();
        write(upper(&live).join("f"), "x");
        set_attribute(upper(&live).join("f"), attribute, b"elsewhere");
        let error = live.run().changes().unwrap_err();
        let RunError::Changes { source, .. } = error else {
            panic!("{error:?}")
        };
        assert!(matches!(*source, ChangeError::Incomplete { .. }), "{source:?}");
        assert!(live.finish().is_err());
    }
}

#[test]
fn f8_evil_names_come_back_as_they_are() {
    let scratch = TestScratch::new();
    let long = [b'x'; 255];
    let names: [&[u8]; 7] = [
        b"new\nline",
        b"\x1b]52;c;aGk=\x07",
        b"\xff\xfe",
        &long,
        b" ",
        b"-rf",
        "\u{202e}txt".as_bytes(),
    ];
    let live = scratch.start();
    for evil in names {
        fs::write(upper(&live).join(name(evil)), "x").unwrap();
    }
    let changes = live.run().changes().unwrap();
    let mut found: Vec<_> = changes.iter().map(|change| change.path.as_os_str()).collect();
    let mut expected: Vec<_> = names.iter().map(|evil| name(evil)).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for change in &changes {
        let patch = live.run().unified(change).unwrap().bytes;
        let header: Vec<_> = patch.split(|byte| *byte == b'\n').take(4).collect();
        assert_eq!(header.len(), 4, "the header takes four lines whatever the name is");
        assert!(
            header[3].starts_with(b"+++ ") && patch.is_ascii() && !patch.contains(&0x1b),
            "{patch:?}"
        );
    }
}

#[test]
fn f8_a_tree_deeper_than_any_path_is_walked_with_few_descriptors() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let levels = 1000;
    make_deep(&upper(&live), levels);
    let before = descriptors();
    let changes = live.run().changes().unwrap();
    assert_eq!(changes.len(), levels + 1);
    assert!(changes.last().unwrap().path.as_os_str().len() > 4096 * 2);
    assert!(descriptors() <= before + 64, "no descriptor a level");
    let run = live.finish().unwrap().run.unwrap();
    run.discard().unwrap();
}

/// Other tests open and close descriptors at the same time, hence the margin where this is used.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// `levels` directories in one another, and a file in the innermost.
pub(crate) fn make_deep(root: &std::path::Path, levels: usize) {
    let mut current = rustix::fs::open(
        root,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY,
        Mode::empty(),
    )
    .unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&current, "some-name", Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        current = rustix::fs::openat(&current, "some-name", flags, Mode::empty()).unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&current, "file", flags, Mode::RUSR | Mode::WUSR).unwrap();
}

#[test]
fn f8_special_files_are_named_and_never_opened() {
    let scratch = TestScratch::new();
    write(scratch.host("was-file"), "x");
    let live = scratch.start();
    let upper = upper(&live);
    for path in ["fifo", "was-file"] {
        rustix::fs::mknodat(rustix::fs::CWD, upper.join(path), FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    let _socket = std::os::unix::net::UnixListener::bind(upper.join("socket")).unwrap();
    let changes = live.run().changes().unwrap();
    assert_eq!(shown(&changes), ["Added fifo", "Added socket", "TypeChanged was-file"]);
    for change in &changes {
        let diff = live.run().unified(change).unwrap();
        assert!(String::from_utf8(diff.bytes).unwrap().contains("# added "));
    }
}

#[test]
fn links_on_either_side_are_never_followed() {
    let scratch = TestScratch::new();
    write(scratch.base.join("outside/secret"), "secret");
    symlink(scratch.base.join("outside"), scratch.host("linked")).unwrap();
    let live = scratch.start();
    write(upper(&live).join("linked/secret"), "secret");
    symlink(scratch.base.join("outside/secret"), upper(&live).join("reads-outside")).unwrap();
    let changes = live.run().changes().unwrap();
    assert_eq!(
        shown(&changes),
        ["TypeChanged linked", "Added linked/secret", "Added reads-outside"]
    );
    let diff = live.run().unified(&changes[2]).unwrap();
    assert!(!String::from_utf8(diff.bytes).unwrap().contains("\n+secret"));
}

#[test]
fn files_and_directories_that_forbid_their_owner_are_read_and_keep_their_modes() {
    let scratch = TestScratch::new();
    let live = scratch.start();
    let upper = upper(&live);
    write(upper.join("d/f"), "text");
    chmod(upper.join("d/f"), 0);
    chmod(upper.join("d"), 0);
    let changes = live.run().changes().unwrap();
    assert_eq!(shown(&changes), ["Added d", "Added d/f"]);
    assert_eq!(
        changes
            .iter()
            .map(|change| change.after.as_ref().unwrap().mode)
            .collect::<Vec<_>>(),
        [0, 0]
    );
    assert_eq!(live.run().unified(&changes[1]).unwrap().added_lines, 1);
    let again = live.run().changes().unwrap();
    assert_eq!(
        again
            .iter()
            .map(|change| change.after.as_ref().unwrap().mode)
            .collect::<Vec<_>>(),
        [0, 0]
    );
}

#[test]
fn a_root_or_directories_in_one_another_that_forbid_their_owner_are_read() {
    for (closed, mode) in [
        (&["."][..], 0),
        (&["."], 0o200),
        (&["n/m", "n"], 0),
        (&["n/m", "n", "."], 0),
        (&["n", "."], 0o200),
    ] {
        let scratch = TestScratch::new();
        write(scratch.host("n/old"), "old");
        let live = scratch.start();
        let upper = upper(&live);
        write(upper.join("n/m/f"), "text");
        // Its list of attributes may be read by anybody, its value by those who may read the directory.
        opaque(upper.join("n"));
        chmod(upper.join("n"), 0o755);
        for path in closed {
            chmod(upper.join(path), mode);
        }
        let finished = live.finish().unwrap();
        let run = finished.run.unwrap();
        let found = shown(&finished.changes);
        assert!(
            found.contains(&"Added n/m/f".to_owned()),
            "{closed:?} {mode:o}: {found:?}"
        );
        assert!(
            found.contains(&"Deleted n/old".to_owned()),
            "{closed:?} {mode:o}: {found:?}"
        );
        let last = finished
            .changes
            .iter()
            .find(|change| change.path.ends_with("f"))
            .unwrap();
        assert_eq!(run.unified(last).unwrap().added_lines, 1);
        assert_eq!(shown(&run.changes().unwrap()), found);
    }
}

#[test]
fn f7_protected_names_are_marked() {
    let scratch = TestScratch::new();
    let git = scratch.base.join("elsewhere/.git");
    fs::create_dir_all(&git).unwrap();
    let live = scratch.start_with(&[&scratch.workspace, &git], &["secrets/**"]);
    write(upper(&live).join(".git/hooks/pre-commit"), "x");
    write(upper(&live).join("secrets/key"), "x");
    write(upper(&live).join("plain"), "x");
    write(live.layer_directory(1).join("upper/hooks/post-checkout"), "x");
    write(live.layer_directory(1).join("upper/objects/ab"), "x");
    let changes = live.run().changes().unwrap();
    let protected: Vec<_> = changes
        .iter()
        .filter(|change| change.protected.is_some())
        .map(|change| (change.layer, change.path.to_str().unwrap()))
        .collect();
    assert_eq!(
        protected,
        [
            (0, ".git/hooks"),
            (0, ".git/hooks/pre-commit"),
            (0, "secrets/key"),
            (1, "hooks"),
            (1, "hooks/post-checkout")
        ]
    );
    assert!(
        changes
            .iter()
            .any(|change| change.protected.as_deref() == Some("filesystem.protect: secrets/**"))
    );
}

/// What the kernel writes, rather than what we believe it writes.
#[test]
fn a_real_overlay_gives_the_changes_that_were_made_in_it() {
    let scratch = TestScratch::new();
    for file in [
        "edited",
        "gone",
        "touched",
        "dir/a",
        "dir/b",
        "again/x",
        "again/y/z",
        "mv/old",
        "mode",
        "tree/deep/f",
    ] {
        write(scratch.host(file), "old");
    }
    let live = scratch.start();
    let layer = live.layer_directory(0);
    let mounted = scratch.base.join("mounted");
    fs::create_dir(&mounted).unwrap();
    let options = format!(
        "lowerdir={},upperdir={},workdir={},userxattr",
        scratch.workspace.display(),
        layer.join("upper").display(),
        layer.join("work").display()
    );
    let options = std::ffi::CString::new(options).unwrap();
    if let Err(error) = rustix::mount::mount("overlay", &mounted, "overlay", MountFlags::empty(), &*options) {
        assert!(
            !is_root() || error == rustix::io::Errno::PERM,
            "mounting an overlay: {error}"
        );
        eprintln!("skipped: an overlay cannot be mounted here: {error}");
        return;
    }
    let inside = |path: &str| mounted.join(path);
    write(inside("edited"), "new");
    fs::remove_file(inside("gone")).unwrap();
    drop(fs::OpenOptions::new().append(true).open(inside("touched")).unwrap());
    fs::remove_dir_all(inside("dir")).unwrap();
    fs::remove_dir_all(inside("again")).unwrap();
    write(inside("again/x"), "old");
    fs::rename(inside("mv/old"), inside("mv/new")).unwrap();
    chmod(inside("mode"), 0o700);
    fs::create_dir(inside("new")).unwrap();
    write(inside("tree/deep/f"), "newer");
    rustix::mount::unmount(&mounted, UnmountFlags::DETACH).unwrap();
    assert_eq!(
        changes_of(&live),
        [
            "Deleted again/y",
            "Deleted again/y/z",
            "Deleted dir",
            "Deleted dir/a",
            "Deleted dir/b",
            "Modified edited",
            "Deleted gone",
            "ModeChanged mode",
            "Added mv/new",
            "Deleted mv/old",
            "Added new",
            "Modified tree/deep/f",
        ]
    );
    // A renamed file is marked as a copy, too, and is not taken for one that the host removed; those are.
    crate::testing::tick();
    fs::remove_dir_all(scratch.host("tree")).unwrap();
    let mut run = live.finish().unwrap().run.unwrap();
    fs::remove_file(scratch.host("edited")).unwrap();
    let error = run.apply(&crate::testing::all()).unwrap_err();
    let crate::ApplyError::Conflicts { conflicts, .. } = &error else {
        panic!("{error}")
    };
    let gone: Vec<_> = conflicts
        .iter()
        .map(|conflict| (conflict.path.to_str().unwrap(), conflict.reason))
        .collect();
    let reason = crate::ConflictReason::Gone;
    assert_eq!(gone, [("edited", reason), ("tree", reason), ("tree/deep", reason)]);
    let report = run.apply(&crate::testing::paths(&["mv"])).unwrap();
    assert_eq!(shown(&report.applied), ["Added mv/new", "Deleted mv/old"]);
    run.discard().unwrap();
}

#[test]
fn of_a_renaming_that_was_ended_in_the_middle_what_is_left_of_the_old_name_is_told() {
    let scratch = TestScratch::new();
    for file in ["pkg/f", "pkg/sub/g", "elsewhere/x"] {
        write(scratch.host(file), "old");
    }
    let (copy, gone) = (
        ".offleash-rename-00000000000000aa",
        ".offleash-renamed-00000000000000aa",
    );
    let live = scratch.start();
    let upper = upper(&live);
    // Half copied, with a link already or without one: nothing happened.
    write(upper.join("elsewhere").join(copy).join("f"), "old");
    assert_eq!(changes_of(&live), [""; 0]);
    symlink("../pkg", upper.join("elsewhere").join(gone)).unwrap();
    assert_eq!(changes_of(&live), [""; 0]);
    // It has the new name, and some of the old one is left.
    fs::rename(upper.join("elsewhere").join(copy), upper.join("elsewhere/new")).unwrap();
    write(upper.join("pkg/f"), "newer");
    fs::create_dir(upper.join("pkg/sub")).unwrap();
    whiteout(upper.join("pkg/sub/g"));
    assert_eq!(
        changes_of(&live),
        [
            "Added elsewhere/new",
            "Added elsewhere/new/f",
            "Modified pkg/f",
            "Deleted pkg/sub",
            "Deleted pkg/sub/g"
        ]
    );
}

#[test]
fn what_a_link_alone_says_is_gone_is_not_removed_unless_it_is_named() {
    let scratch = TestScratch::new();
    for file in ["kept/f", "kept/sub/g"] {
        write(scratch.host(file), "old");
    }
    let live = scratch.start();
    symlink("kept", upper(&live).join(".offleash-renamed-00000000000000aa")).unwrap();
    let mut run = live.finish().unwrap().run.unwrap();
    let report = run.apply(&crate::testing::all()).unwrap();
    assert_eq!(shown(&report.applied), [""; 0]);
    assert_eq!(report.refused.len(), 4);
    assert!(scratch.host("kept/sub/g").exists());
    let report = run.apply(&crate::testing::named(&["kept"])).unwrap();
    assert_eq!(report.applied.len(), 4);
    assert!(!scratch.host("kept").exists());
}

#[test]
fn such_links_that_lead_out_or_are_none_are_changes_like_others() {
    let scratch = TestScratch::new();
    write(scratch.host("kept"), "old");
    let live = scratch.start();
    let upper = upper(&live);
    for (token, target) in [("01", "../kept"), ("02", "/etc"), ("03", "..")] {
        symlink(target, upper.join(format!(".offleash-renamed-00000000000000{token}"))).unwrap();
    }
    write(upper.join(".offleash-renamed-0000000000000004"), "kept");
    write(upper.join(".offleash-rename-0000000000000005"), "a file");
    assert_eq!(
        changes_of(&live),
        [
            "Added .offleash-rename-0000000000000005",
            "Added .offleash-renamed-0000000000000004"
        ]
    );
}
