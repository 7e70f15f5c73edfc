//! What a run changed: how it is shown, and what becomes of it.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use serde_json::{Value, json};
use support::listing::listing;
use support::processes::{finish, read_until, start};
use support::workspace::{CHANGE_ALL, changes_of, furnished, run};
use support::{Site, id_of, is_root, record_of, skip, stderr, stdout};

#[test]
fn many_changes_are_counted_in_a_line() {
    let site = furnished();
    let id = run(&site, CHANGE_ALL);
    let listed = site.succeed(["diff", "--summary", &id]).lines().count();
    let counted = site.succeed(["diff", "--stat", &id]);
    assert!(counted.starts_with(&format!("{listed} changes: ")), "{counted}");
    assert_eq!(counted.lines().count(), 1, "{counted}");
    assert_eq!(site.succeed(["apply", "--stat", &id]), counted);
    let quiet = run(
        &site,
        "echo more > more; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit",
    );
    let output = site.offleash(["apply", "-q", &quiet]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    assert!(stderr(&output).contains("not applied: "), "{}", stderr(&output));
    assert!(site.workspace().join("more").exists());
}

#[test]
fn differences_are_shown_as_text() {
    let site = furnished();
    let run = run(&site, CHANGE_ALL);
    insta::assert_snapshot!(site.succeed(["diff", &run]), @r"
    diff --git a/changed b/changed
    --- a/changed
    +++ b/changed
    @@ -1,3 +1,3 @@
     one
    -two
    +TWO
     three
    diff --git a/deleted b/deleted
    deleted file mode 100644
    --- a/deleted
    +++ /dev/null
    @@ -1 +0,0 @@
    -away
    # deleted directory: full
    diff --git a/full b/full
    new file mode 100644
    --- /dev/null
    +++ b/full
    @@ -0,0 +1 @@
    +now a file
    diff --git a/full/inner b/full/inner
    deleted file mode 100644
    --- a/full/inner
    +++ /dev/null
    @@ -1 +0,0 @@
    -inner
    diff --git a/link b/link
    --- a/link
    +++ b/link
    @@ -1 +1 @@
    -kept
    \ No newline at end of file
    +changed
    \ No newline at end of file
    # added directory (mode 0755): new
    # added directory (mode 0755): new/deep
    diff --git a/new/deep/file b/new/deep/file
    new file mode 100644
    --- /dev/null
    +++ b/new/deep/file
    @@ -0,0 +1 @@
    +fresh
    diff --git a/script b/script
    old mode 100644
    new mode 100755
    ");
}

#[test]
fn the_record_counts_the_changes() {
    let site = furnished();
    let record = site.record(&[], CHANGE_ALL);
    let changes = &record["changes"];
    assert_eq!(changes["applied"], false);
    for (kind, least) in [("added", 3), ("modified", 1), ("deleted", 2), ("mode", 1)] {
        assert!(changes[kind].as_u64().unwrap() >= least, "{kind}: {changes}");
    }
}

#[test]
fn applied_changes_are_what_the_run_saw() {
    let site = furnished();
    let run = run(&site, CHANGE_ALL);
    site.succeed(["apply", &run]);
    let after = listing(&site.workspace());
    let expected = [
        ("changed", "file 644 one\nTWO\nthree\n"),
        ("full", "file 644 now a file\n"),
        ("kept", "file 644 as it was\n"),
        ("link", "link to changed"),
        ("new", "directory 755"),
        ("new/deep", "directory 755"),
        ("new/deep/file", "file 644 fresh\n"),
        ("script", "file 755 #!/bin/sh\n"),
    ];
    let expected = expected.map(|(path, text)| (PathBuf::from(path), text.to_owned()));
    assert_eq!(after, expected.into());
}

#[test]
fn a_path_can_be_applied_and_the_rest_stays_pending() {
    let site = furnished();
    let run = run(&site, "echo a > a; echo b > b; mkdir c; echo d > c/d; echo e > c/e");
    site.succeed(["apply", &run, "a", "c"]);
    assert_eq!(fs::read_to_string(site.workspace().join("a")).unwrap(), "a\n");
    assert_eq!(fs::read_to_string(site.workspace().join("c/e")).unwrap(), "e\n");
    assert!(!site.workspace().join("b").exists());
    assert_eq!(changes_of(&site, &run), [("b".to_owned(), "added".to_owned())]);
    site.succeed(["apply", &run, site.workspace().join("b").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(site.workspace().join("b")).unwrap(), "b\n");
    assert_eq!(site.succeed(["runs"]), "");
    assert!(site.succeed(["runs", "--all"]).contains("applied"));
    let left = fs::read_dir(site.state().join("runs").join(&run)).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["run.json"]);
}

#[test]
fn discarded_changes_are_gone() {
    let site = furnished();
    let before = listing(&site.workspace());
    let run = run(&site, CHANGE_ALL);
    site.succeed(["discard", &run]);
    assert_eq!(listing(&site.workspace()), before);
    assert!(site.refuse(["diff", &run]).contains("discarded"));
    assert!(site.refuse(["apply", &run]).contains("discarded"));
    assert_eq!(site.succeed(["runs"]), "");
    assert_eq!(site.succeed(["runs", "--json"]).trim(), "[]");
    // Nothing of it is left but its record.
    let left = fs::read_dir(site.state().join("runs").join(&run)).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["run.json"]);
    let help = site.succeed(["help", "runs"]);
    assert!(
        help.contains(&format!("the last {}", offleash_store::KEPT_TOMBSTONES)),
        "{help}"
    );
    assert!(site.succeed(["runs", "-a"]).contains("discarded"));
    let all: Value = serde_json::from_str(&site.succeed(["runs", "--all", "--json"])).unwrap();
    assert_eq!((&all[0]["id"], &all[0]["state"]), (&run.into(), &"discarded".into()));
}

#[test]
fn several_runs_are_discarded_at_once_and_one_that_cannot_be_is_told() {
    let site = Site::new();
    let runs: Vec<String> = (0..3).map(|number| run(&site, &format!("echo x > {number}"))).collect();
    // A name that no run can have keeps all others.
    assert!(site.refuse(["discard", &runs[0], "no-run"]).contains("no-run"));
    assert_eq!(site.succeed(["runs"]).lines().count(), 3);
    site.succeed(["discard", &runs[0]]);
    let said = site.refuse(["discard", &runs[1], &runs[0], &runs[2]]);
    assert!(said.contains(&runs[0]) && said.contains("discarded"), "{said}");
    assert_eq!(site.succeed(["runs"]), "");
}

#[test]
fn a_file_that_cannot_be_read_does_not_hide_the_other_changes() {
    let site = Site::new();
    if is_root() {
        return skip("root may read every file");
    }
    let closed = site.write("closed", "secret\n");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let run = run(&site, "rm -f closed; echo x > other");
    assert_eq!(
        site.succeed(["diff", &run]),
        "diff --git a/closed b/closed\ndeleted file mode 100000\n# the host's file cannot be read: Permission denied (os error 13)\n\
         diff --git a/other b/other\nnew file mode 100644\n--- /dev/null\n+++ b/other\n@@ -0,0 +1 @@\n+x\n"
    );
    site.succeed(["apply", &run]);
    assert!(!closed.exists());
}

#[test]
fn runs_lists_what_is_kept() {
    let site = furnished();
    let run = run(&site, "echo x > x");
    let shown = site.succeed(["runs"]);
    let listed: Value = serde_json::from_str(&site.succeed(["runs", "--json"])).unwrap();
    let started_at = listed[0]["started_at"].as_str().unwrap();
    insta::assert_snapshot!(site.plain(&shown.replace(started_at, "[time]")), @"[run]  kept       [time]  [site]/workspace  /bin/sh -c echo x > x");
    assert_eq!(listed[0]["id"], run.as_str());
    assert_eq!(listed[0]["state"], "kept");
    assert_eq!(listed[0]["workspace"], site.workspace().to_str().unwrap());
}

#[test]
fn a_run_without_changes_leaves_nothing() {
    let site = furnished();
    let run = run(&site, "cat kept > /dev/null");
    assert_eq!(site.succeed(["runs"]), "");
    assert!(site.refuse(["diff", &run]).contains(&run));
}

#[test]
fn names_that_run_code_later_are_applied_only_when_named() {
    let site = furnished();
    site.write(".git/config", "[core]\n");
    let script = "mkdir -p .git/hooks .vscode sub/.github/workflows; echo evil | tee .git/hooks/pre-commit .envrc \
                  .vscode/tasks.json sub/.github/workflows/ci.yml CLAUDE.md .git/config .npmrc harmless >/dev/null";
    let run = run(&site, script);
    let output = site.offleash(["apply", &run]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stderr(&output);
    for name in [
        ".git/hooks/pre-commit",
        ".envrc",
        ".vscode/tasks.json",
        "ci.yml",
        "CLAUDE.md",
        ".git/config",
        ".npmrc",
    ] {
        assert!(said.contains(name), "{name} in {said}");
    }
    assert!(said.contains("hint: "), "{said}");
    assert_eq!(
        stdout(&output)
            .lines()
            .filter(|line| line.ends_with("harmless"))
            .count(),
        1
    );
    assert!(site.workspace().join("harmless").exists());
    assert!(!site.workspace().join(".envrc").exists());
    assert!(!site.workspace().join(".git/hooks/pre-commit").exists());
    assert_eq!(
        fs::read_to_string(site.workspace().join(".git/config")).unwrap(),
        "[core]\n"
    );

    site.succeed(["apply", &run, ".envrc"]);
    assert_eq!(fs::read_to_string(site.workspace().join(".envrc")).unwrap(), "evil\n");
    assert!(!site.workspace().join(".npmrc").exists());
}

#[test]
fn naming_a_directory_above_does_not_name_what_is_protected_in_it() {
    let site = furnished();
    let run = run(&site, "mkdir sub; echo x > sub/.envrc; echo y > sub/plain");
    let output = site.offleash(["apply", &run, "sub"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(site.workspace().join("sub/plain").exists());
    assert!(!site.workspace().join("sub/.envrc").exists());
}

#[test]
fn the_owner_can_protect_further_names() {
    let site = furnished();
    let record = site.record(&["--protect", "Makefile"], "echo all: > Makefile; echo x > x");
    assert_eq!(record["changes"]["protected"], json!(["Makefile"]));
    let output = site.offleash(["apply", &id_of(&record)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!site.workspace().join("Makefile").exists());
    assert!(site.workspace().join("x").exists());
}

#[test]
fn a_host_that_changed_meanwhile_is_a_conflict_and_nothing_is_applied() {
    type Meddle = fn(&Site);
    let cases: [(&str, Meddle); 6] = [
        ("a changed file", |site| drop(site.write("changed", "by the user\n"))),
        ("a removed file", |site| {
            fs::remove_file(site.workspace().join("changed")).unwrap()
        }),
        ("a new file where one is added", |site| {
            drop(site.write("new/deep/file", "by the user\n"))
        }),
        ("a changed file where one is deleted", |site| {
            drop(site.write("deleted", "by the user\n"))
        }),
        ("another kind", |site| {
            fs::remove_file(site.workspace().join("changed")).unwrap();
            site.write("changed/inner", "by the user\n");
        }),
        ("a further file in a directory that is replaced", |site| {
            drop(site.write("full/more", "by the user\n"))
        }),
    ];
    for (case, meddle) in cases {
        let site = furnished();
        let run = run(&site, CHANGE_ALL);
        meddle(&site);
        let before = listing(&site.workspace());
        let said = site.conflict(&run);
        assert!(
            said.contains("the host since") || said.contains("did not see"),
            "{case}: {said}"
        );
        assert_eq!(listing(&site.workspace()), before, "{case}");
        // The run is as it was: what does not conflict can be applied by name.
        site.succeed(["apply", &run, "script"]);
    }
}

#[test]
fn apply_follows_no_link_out_of_the_workspace() {
    let site = Site::new();
    let outside = site.root().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "the host's\n").unwrap();
    site.write("dir/file", "in the workspace\n");
    let run = run(
        &site,
        "echo evil > dir/file; ln -s ../../outside made; ln -s /etc/passwd absolute",
    );
    let output = site.offleash(["apply", &run, "made", "absolute"]).output().unwrap();
    assert!(
        output.status.success(),
        "a link that was named is applied: {}",
        stderr(&output)
    );

    let run = self::run(&site, "echo evil > dir/file; ln -s ../../outside again");
    let output = site.offleash(["apply", &run]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("leads out of the workspace"),
        "{}",
        stderr(&output)
    );
    assert!(
        stderr(&output).contains("\nexit code 1: 1 change was not applied\nhint: "),
        "{}",
        stderr(&output)
    );
    assert!(fs::symlink_metadata(site.workspace().join("again")).is_err());
    assert_eq!(
        site.succeed(["diff", "--summary", &run]),
        "A again  (a link that leads out of the workspace, to `../../outside`)\n"
    );
    let patch = site.succeed(["diff", &run]);
    let line =
        "# not applied unless named: `again`: a link that leads out of the workspace, to `../../outside`\ndiff --git ";
    assert!(patch.starts_with(line), "{patch}");
    let shown: Value = serde_json::from_str(&site.succeed(["diff", "--json", &run])).unwrap();
    assert_eq!(
        (&shown[0]["leads_out"], &shown[0]["protected"]),
        (&json!(true), &Value::Null)
    );

    // The host's directory becomes a link after the run.
    let run = self::run(&site, "echo worse > dir/file");
    fs::rename(site.workspace().join("dir"), site.workspace().join("moved")).unwrap();
    symlink(&outside, site.workspace().join("dir")).unwrap();
    site.conflict(&run);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "the host's\n");
}

#[test]
fn special_files_are_never_applied() {
    let site = Site::new();
    let run = run(&site, "mkfifo pipe; echo x > x");
    let output = site.offleash(["apply", &run, "pipe", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("special file"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("name a path"), "{}", stderr(&output));
    assert!(fs::symlink_metadata(site.workspace().join("pipe")).is_err());
    assert!(site.workspace().join("x").exists());
}

#[test]
fn set_id_bits_of_the_workspace_are_not_passed_on() {
    let site = Site::new();
    let path = site.write("tool", "#!/bin/sh\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let run = run(&site, "cp -p tool copy 2>/dev/null; mv tool moved; echo more >> moved");
    site.succeed(["apply", &run]);
    for name in ["copy", "moved"] {
        let mode = fs::metadata(site.workspace().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{name}: {mode:o}");
    }
}

/// Names that break naive programs, each made inside, shown, and applied.
#[test]
fn odd_names_survive_diff_and_apply() {
    let site = Site::new();
    let long = "n".repeat(255);
    let names: [&[u8]; 7] = [
        b"new\nline",
        b"\x1b[2Jescape",
        b"inv\xfflid",
        b" space ",
        b"-dash",
        b"star*?[",
        long.as_bytes(),
    ];
    for (number, name) in names.iter().enumerate() {
        // The names come in by way of a file, because arguments may not be looked at by the shell.
        let file = site.write(format!("names/{number}"), name);
        assert!(file.exists());
    }
    let script = r#"for n in names/*; do name=$(cat "$n"; printf .); printf 'content\n' > "./${name%.}"; done"#;
    let run = run(&site, script);
    for arguments in [["diff", "--summary", &run], ["diff", "--json", &run]] {
        let output = site.offleash(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(
            !output.stdout.contains(&0x1b),
            "an escape sequence in {}",
            stdout(&output)
        );
        assert!(std::str::from_utf8(&output.stdout).is_ok());
    }
    assert_eq!(site.succeed(["diff", "--summary", &run]).lines().count(), names.len());
    site.succeed(["apply", &run]);
    for name in names {
        let path = site.workspace().join(OsStr::from_bytes(name));
        assert_eq!(fs::read_to_string(&path).unwrap(), "content\n", "{path:?}");
    }
}

#[test]
fn three_hundred_levels_of_directories_survive_diff_and_apply() {
    let site = Site::new();
    // 300 × 20 bytes is longer than PATH_MAX, so that nobody may use the path as a whole.
    let script = "i=0; while [ $i -lt 300 ]; do mkdir level-of-some-length && cd -P level-of-some-length || exit 1; \
                  i=$((i+1)); done; echo deep > file";
    let record = site.record(&["--level", "process"], script);
    assert_eq!(record["outcome"]["kind"], "exited", "{record}");
    assert_eq!(record["exit_code"], 0, "{record}");
    let run = id_of(&record);
    assert_eq!(site.succeed(["diff", "--summary", &run]).lines().count(), 301);
    site.succeed(["apply", &run]);
    let mut directory = fs::File::open(site.workspace()).unwrap();
    for _ in 0..300 {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        directory = rustix::fs::openat(&directory, "level-of-some-length", flags, rustix::fs::Mode::empty())
            .unwrap()
            .into();
    }
    assert_eq!(
        rustix::fs::statat(&directory, "file", rustix::fs::AtFlags::empty())
            .unwrap()
            .st_size,
        5
    );
}

#[test]
fn hard_links_and_large_files_survive() {
    let site = Site::new();
    let run = run(
        &site,
        "dd if=/dev/zero of=big bs=1M count=8 2>/dev/null; ln big same; truncate -s 100M sparse",
    );
    site.succeed(["apply", &run]);
    for (name, length) in [("big", 8 << 20), ("same", 8 << 20), ("sparse", 100 << 20)] {
        assert_eq!(
            fs::metadata(site.workspace().join(name)).unwrap().len(),
            length,
            "{name}"
        );
    }
}

#[test]
fn applied_files_belong_to_the_caller() {
    use std::os::unix::fs::MetadataExt as _;
    let site = Site::new();
    let run = run(&site, "mkdir d; echo x > d/x");
    site.succeed(["apply", &run]);
    for name in ["d", "d/x"] {
        let metadata = fs::metadata(site.workspace().join(name)).unwrap();
        assert_eq!(metadata.uid(), rustix::process::geteuid().as_raw(), "{name}");
    }
}

#[test]
fn a_further_command_line_form_of_a_run_is_kept_in_the_list() {
    let site = Site::new();
    let output = site
        .offleash(["run", "--json", "-c", "echo \u{1b}[2J > x", "--", "one"])
        .output()
        .unwrap();
    let record = record_of(&output);
    assert_eq!(record["exit_code"], 0, "{record}");
    let listed = site.offleash(["runs"]).output().unwrap();
    assert!(!listed.stdout.contains(&0x1b), "{}", stdout(&listed));
}

#[test]
fn a_run_that_is_going_on_can_be_looked_at_and_not_applied() {
    let site = Site::new();
    let mut child = start(&mut site.offleash(["run", "-q", "-c", "echo x > x; echo ready; read line; true"]));
    read_until(child.stdout.as_mut().unwrap(), "ready\n");
    let listed: Value = serde_json::from_str(&site.succeed(["runs", "--json"])).unwrap();
    assert_eq!(listed[0]["state"], "running");
    let run = listed[0]["id"].as_str().unwrap();
    assert_eq!(site.succeed(["diff", "-s", run]), "A x\n");
    for command in ["apply", "discard"] {
        let said = site.refuse([command, run]);
        assert!(said.contains("still going on"), "{said}");
    }
    assert!(finish(child).status.success());
    site.succeed(["apply", run]);
}

#[test]
fn of_two_applies_at_once_one_is_told_that_the_other_did_it() {
    let site = furnished();
    let run = run(&site, CHANGE_ALL);
    let outputs = std::thread::scope(|scope| {
        let apply = || site.offleash(["apply", &run]).output().unwrap();
        let both = [scope.spawn(apply), scope.spawn(apply)];
        both.map(|apply| apply.join().unwrap())
    });
    let succeeded = outputs.iter().filter(|output| output.status.success()).count();
    assert_eq!(succeeded, 1, "{outputs:?}");
    let other = outputs.iter().find(|output| !output.status.success()).unwrap();
    assert_eq!(other.status.code(), Some(125));
    assert!(stderr(other).contains("applied"), "{}", stderr(other));
    assert_eq!(
        fs::read_to_string(site.workspace().join("full")).unwrap(),
        "now a file\n"
    );
    assert!(
        !listing(&site.workspace())
            .keys()
            .any(|path| path.to_string_lossy().starts_with(".offleash-"))
    );
}

#[test]
fn a_path_may_begin_with_the_directory_itself() {
    let site = Site::new();
    let run = run(&site, "mkdir deep; echo x > deep/x; echo y > y");
    let told = site.succeed(["diff", &run, "deep/x"]);
    assert!(told.contains("deep/x") && !told.contains("b/y"), "{told}");
    for path in ["./deep/x", "deep/./x", "./deep"] {
        let found = site.succeed(["diff", "--summary", &run, path]);
        assert!(found.contains("deep") && !found.contains('y'), "{path}: {found}");
    }
    assert_eq!(site.succeed(["diff", &run, "./deep/x"]), told);
}
