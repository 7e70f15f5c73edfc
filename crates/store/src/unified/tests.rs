use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::testing::{TestScratch, chmod, shown, upper, whiteout, write};

fn patch_of(before: &[u8], after: &[u8]) -> (DiffForm, String) {
    let scratch = TestScratch::new();
    write(scratch.host("f"), before);
    let live = scratch.start();
    write(upper(&live).join("f"), after);
    chmod(
        upper(&live).join("f"),
        fs::metadata(scratch.host("f"))
            .map(|found| found.permissions().mode())
            .unwrap(),
    );
    let changes = live.run().changes().unwrap();
    let diff = live.run().unified(&changes[0]).unwrap();
    (diff.form, String::from_utf8_lossy(&diff.bytes).into_owned())
}

#[test]
fn patches_are_in_gits_form() {
    let header = "diff --git a/f b/f\n--- a/f\n+++ b/f\n";
    for (before, after, hunk) in [
        (
            &b"a\nb\nc\n"[..],
            &b"a\nB\nc\n"[..],
            "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n",
        ),
        (b"a\n", b"a", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n"),
        (b"", b"a\n", "@@ -0,0 +1 @@\n+a\n"),
        (b"a\rb\n", b"a\rc\n", "@@ -1 +1 @@\n-a\rb\n+a\rc\n"),
        (b"\xff\n", b"x\n", "@@ -1 +1 @@\n-\u{fffd}\n+x\n"),
    ] {
        assert_eq!(patch_of(before, after), (DiffForm::Text, format!("{header}{hunk}")));
    }
}

/// The reference is git itself.
#[test]
fn git_applies_our_patches() {
    let scratch = TestScratch::new();
    for file in [
        "edited",
        "with space",
        "gone",
        "mode",
        "new\nline",
        "becomes-link",
        "no newline",
    ] {
        write(scratch.host(file), "one\ntwo\nthree\n");
    }
    symlink("edited", scratch.host("link")).unwrap();
    let live = scratch.start();
    let upper = upper(&live);
    for file in ["edited", "with space", "new\nline"] {
        write(upper.join(file), "one\n2\nthree\nfour\n");
    }
    write(upper.join("no newline"), "one\ntwo\r\nthree");
    write(upper.join("dir/\u{1b}[31m"), "text\n");
    write(upper.join("mode"), "one\ntwo\nthree\n");
    chmod(upper.join("mode"), 0o755);
    symlink("mode", upper.join("link")).unwrap();
    symlink("mode", upper.join("becomes-link")).unwrap();
    whiteout(upper.join("gone"));
    let changes = live.run().changes().unwrap();
    let patches: Vec<u8> = changes
        .iter()
        .flat_map(|change| live.run().unified(change).unwrap().bytes)
        .collect();
    write(scratch.base.join("patch"), patches);
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may start a program without the care a sandbox needs"
    )]
    let git = std::process::Command::new("git")
        .args(["apply", "../patch"])
        .current_dir(&scratch.workspace)
        .output();
    let Ok(git) = git else {
        eprintln!("skipped: git is not installed");
        return;
    };
    assert!(git.status.success(), "{}", String::from_utf8_lossy(&git.stderr));
    let left = shown(&live.run().changes().unwrap());
    assert_eq!(left, [] as [&str; 0], "the host is now as the run left it");
}

#[test]
fn binary_and_large_files_are_summed_up() {
    let large = vec![b'a'; usize::try_from(MAX_TEXT_BYTES).unwrap() + 1];
    assert_eq!(patch_of(b"a", b"\0").0, DiffForm::Binary);
    let (form, text) = patch_of(b"a", &large);
    assert_eq!(
        (form, text.as_str()),
        (
            DiffForm::TooLarge,
            "diff --git a/f b/f\nLarge files a/f and b/f differ\n"
        )
    );
}

#[test]
fn a_change_of_type_is_a_deletion_and_an_addition() {
    let scratch = TestScratch::new();
    write(scratch.host("f"), "text\n");
    chmod(scratch.host("f"), 0o644);
    let live = scratch.start();
    symlink("target", upper(&live).join("f")).unwrap();
    let changes = live.run().changes().unwrap();
    let diff = live.run().unified(&changes[0]).unwrap();
    assert_eq!(
        String::from_utf8(diff.bytes).unwrap(),
        "diff --git a/f b/f\ndeleted file mode 100644\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-text\n\
         diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+target\n\\ No newline at end of file\n"
    );
}
