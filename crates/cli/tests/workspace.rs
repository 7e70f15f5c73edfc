//! The workspace from the outside: what a run leaves on the host, what can be seen of its changes, and what becomes
//! of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use serde_json::{Value, json};
use support::listing::listing;
use support::{Site, id_of, record_of, stderr, stdout};

/// A workspace with something of every kind.
fn furnished() -> Site {
    let site = Site::new();
    site.write("kept", "as it was\n");
    site.write("changed", "one\ntwo\nthree\n");
    site.write("deleted", "away\n");
    site.write("script", "#!/bin/sh\n");
    site.write("full/inner", "inner\n");
    symlink("kept", site.workspace().join("link")).unwrap();
    site
}

/// Changes something of every kind.
const CHANGE_ALL: &str = "printf 'one\\nTWO\\nthree\\n' > changed; rm deleted; chmod 755 script; ln -sfn changed link; \
                          mkdir -p new/deep; echo fresh > new/deep/file; rm -r full; echo now a file > full";

fn run(site: &Site, script: &str) -> String {
    let record = site.record(&[], script);
    assert_eq!(record["outcome"], json!({ "kind": "exited", "code": 0 }), "{record}");
    id_of(&record)
}

fn changes_of(site: &Site, run: &str) -> Vec<(String, String)> {
    let changes: Value = serde_json::from_str(&site.succeed(["diff", "--json", run])).unwrap();
    let text = |change: &Value, key: &str| change[key].as_str().unwrap().to_owned();
    changes
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (text(change, "path"), text(change, "kind")))
        .collect()
}

#[test]
fn the_host_is_untouched_until_changes_are_applied() {
    let site = furnished();
    let before = listing(&site.workspace());
    let run = run(&site, CHANGE_ALL);
    assert_eq!(listing(&site.workspace()), before);
    let summary = site.succeed(["diff", "--summary", &run]);
    insta::assert_snapshot!(summary, @r"
    M changed
    D deleted
    T full
    D full/inner
    L link
    A new
    A new/deep
    A new/deep/file
    m script
    ");
    assert_eq!(listing(&site.workspace()), before);
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
    assert!(site.succeed(["runs"]).contains("applied"));
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
    assert!(site.succeed(["runs"]).contains("discarded"));
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
        let said = site.refuse(["apply", &run]);
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
    assert!(stderr(&output).contains("leaves the workspace"), "{}", stderr(&output));
    assert!(fs::symlink_metadata(site.workspace().join("again")).is_err());

    // The host's directory becomes a link after the run.
    let run = self::run(&site, "echo worse > dir/file");
    fs::rename(site.workspace().join("dir"), site.workspace().join("moved")).unwrap();
    symlink(&outside, site.workspace().join("dir")).unwrap();
    site.refuse(["apply", &run]);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "the host's\n");
}

#[test]
fn special_files_are_never_applied() {
    let site = Site::new();
    let run = run(&site, "mkfifo pipe; echo x > x");
    let output = site.offleash(["apply", &run, "pipe", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("special file"), "{}", stderr(&output));
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

#[test]
fn two_runs_at_once_do_not_see_each_other() {
    let site = furnished();
    let both = std::thread::scope(|scope| {
        let runs: Vec<_> = ["first", "second"]
            .map(|name| {
                let site = &site;
                let script =
                    format!("echo {name} > mine; echo {name} > changed; echo {name} > {name}; sleep 0.3; cat mine; ls");
                scope.spawn(move || site.record(&[], &script))
            })
            .into();
        runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
    });
    let said = |record: &Value| record["stdout"]["data"].as_str().unwrap().to_owned();
    assert!(
        said(&both[0]).starts_with("first\n") && !said(&both[0]).contains("second"),
        "{}",
        both[0]
    );
    assert!(
        said(&both[1]).starts_with("second\n") && !said(&both[1]).contains("first"),
        "{}",
        both[1]
    );

    let (first, second) = (id_of(&both[0]), id_of(&both[1]));
    site.succeed(["apply", &first]);
    let said = site.refuse(["apply", &second]);
    assert!(said.contains("changed on the host"), "{said}");
    site.succeed(["apply", &second, "second"]);
    assert_eq!(fs::read_to_string(site.workspace().join("changed")).unwrap(), "first\n");
}

#[test]
fn rw_writes_back_when_the_run_ends_and_holds_protected_names_back() {
    let site = furnished();
    let mut flags = vec!["run", "--workspace"];
    let workspace = format!("{}:rw", site.workspace().display());
    flags.extend([workspace.as_str(), "--", "/bin/sh", "-c", CHANGE_ALL]);
    let output = site.offleash(flags).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let after = listing(&site.workspace());
    assert_eq!(after[&PathBuf::from("full")], "file 644 now a file\n");
    assert!(!after.contains_key(&PathBuf::from("deleted")));
    assert_eq!(
        site.succeed(["runs"])
            .lines()
            .filter(|line| line.contains("kept"))
            .count(),
        0
    );

    let record = site.record(&["--workspace", &workspace], "echo evil > .envrc; echo good > good");
    assert_eq!(record["changes"]["applied"], true);
    assert_eq!(record["changes"]["protected"], json!([".envrc"]));
    assert!(site.workspace().join("good").exists());
    let names: Vec<_> = listing(&site.workspace()).into_keys().collect();
    assert!(!names.contains(&PathBuf::from(".envrc")), "{names:?}");
    assert_eq!(
        changes_of(&site, &id_of(&record)),
        [(".envrc".to_owned(), "added".to_owned())]
    );
}

#[test]
fn rw_says_what_it_held_back() {
    let site = Site::new();
    let workspace = format!("{}:rw", site.workspace().display());
    let output = site
        .offleash(["run", "-w", &workspace, "-c", "echo evil > .envrc"])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(stderr(&output).contains("not written back"), "{}", stderr(&output));
}

#[test]
fn no_ghost_files_are_made_on_the_host() {
    for mode in ["overlay", "rw", "ro"] {
        let site = furnished();
        let before = listing(&site.workspace());
        let workspace = format!("{}:{mode}", site.workspace().display());
        let record = site.record(
            &["--workspace", &workspace, "--deny", "**/.env", "--protect", "absent"],
            "ls -la",
        );
        assert_eq!(record["exit_code"], 0, "{record}");
        assert_eq!(listing(&site.workspace()), before, "{mode}");
    }
}

#[test]
fn ro_can_be_read_and_not_written() {
    let site = furnished();
    let before = listing(&site.workspace());
    let workspace = format!("{}:ro", site.workspace().display());
    let script = "cat kept; echo x > kept; echo x > new; rm deleted; mkdir d; chmod 777 script; true";
    let record = site.record(&["--workspace", &workspace], script);
    assert_eq!(record["stdout"]["data"], "as it was\n");
    assert_eq!(
        record["stderr"]["data"]
            .as_str()
            .unwrap()
            .matches("Read-only file system")
            .count(),
        5,
        "{record}"
    );
    assert_eq!(listing(&site.workspace()), before);
}

#[test]
fn without_a_workspace_the_current_directory_is_not_there() {
    let site = furnished();
    let script = format!("pwd; ls -A; cat {}/kept", site.workspace().display());
    let record = site.record(&["--no-workspace"], &script);
    assert_eq!(record["changes"], Value::Null);
    assert!(!record["stdout"]["data"].as_str().unwrap().contains("kept"), "{record}");
    assert!(
        record["stderr"]["data"].as_str().unwrap().contains("No such file"),
        "{record}"
    );
}

#[test]
fn the_command_starts_where_the_caller_is() {
    let site = furnished();
    fs::create_dir_all(site.workspace().join("sub/dir")).unwrap();
    let workspace = site.workspace();
    let inner = workspace.join("sub/dir");
    let mut command = site.offleash(["run", "-q", "-w", workspace.to_str().unwrap(), "--", "/bin/pwd"]);
    let output = command.current_dir(&inner).output().unwrap();
    assert_eq!(stdout(&output).trim(), inner.to_str().unwrap(), "{}", stderr(&output));

    let output = site
        .offleash(["run", "-q", "--cwd", "/usr", "--", "/bin/pwd"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output).trim(), "/usr", "{}", stderr(&output));
    let output = site
        .offleash(["run", "-q", "--cwd", "sub", "--", "/bin/pwd"])
        .output()
        .unwrap();
    assert_eq!(
        stdout(&output).trim(),
        workspace.join("sub").to_str().unwrap(),
        "{}",
        stderr(&output)
    );
}

#[test]
fn host_paths_are_mounted_where_asked() {
    let site = Site::new();
    let data = site.root().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "data\n").unwrap();
    let (data, file) = (data.display().to_string(), data.join("file").display().to_string());
    let script =
        "cat /mnt/ro/file /mnt/file /mnt/rw/file; echo x > /mnt/ro/x; echo x > /mnt/file; echo new > /mnt/rw/new; true";
    let record = site.record(
        &[
            "--mount",
            &format!("{data}:/mnt/ro"),
            "--mount",
            &format!("{file}:/mnt/file"),
            "--mount",
            &format!("{data}:/mnt/rw:rw"),
        ],
        script,
    );
    assert_eq!(record["stdout"]["data"], "data\ndata\ndata\n", "{record}");
    assert_eq!(
        record["stderr"]["data"].as_str().unwrap().matches("Read-only").count(),
        2,
        "{record}"
    );
    assert_eq!(fs::read_to_string(format!("{data}/new")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(file).unwrap(), "data\n");
}

#[test]
fn a_tmpfs_holds_as_much_as_asked_and_leaves_nothing() {
    let site = Site::new();
    let script = "echo x > /scratch/x && cat /scratch/x; dd if=/dev/zero of=/scratch/big bs=1M count=4 2>&1 | tail -1";
    let record = site.record(&["--tmpfs", "/scratch:2M"], script);
    assert!(
        record["stdout"]["data"].as_str().unwrap().starts_with("x\n"),
        "{record}"
    );
    let out = record["stdout"]["data"].as_str().unwrap();
    assert!(
        out.contains("2097152") || out.contains("209") || out.contains("No space"),
        "{record}"
    );
    assert!(!PathBuf::from("/scratch").exists());
}

#[test]
fn a_denied_path_is_hidden_and_cannot_reach_the_host() {
    let site = Site::new();
    site.write(".env", "SECRET=1\n");
    site.write("sub/.env", "SECRET=2\n");
    site.write("plain", "plain\n");
    let record = site.record(
        &["--deny", "**/.env"],
        "cat plain; cat .env; cat sub/.env; rm -f .env; echo x > .env; true",
    );
    assert_eq!(record["stdout"]["data"], "plain\n");
    assert_eq!(fs::read_to_string(site.workspace().join(".env")).unwrap(), "SECRET=1\n");
    if record["changes"]["added"].as_u64() != Some(0) || record["changes"]["modified"].as_u64() != Some(0) {
        site.offleash(["apply", &id_of(&record)]).output().unwrap();
        assert_eq!(fs::read_to_string(site.workspace().join(".env")).unwrap(), "SECRET=1\n");
    }
}

#[test]
fn host_paths_can_be_granted_for_reading() {
    let site = Site::new();
    let data = site.root().join("granted");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "granted\n").unwrap();
    let shown = data.display().to_string();
    let record = site.record(&[], &format!("cat {shown}/file"));
    assert_eq!(record["exit_code"], 1);
    let record = site.record(&["--read", &shown], &format!("cat {shown}/file; echo x > {shown}/file"));
    assert_eq!(record["stdout"]["data"], "granted\n", "{record}");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "granted\n");
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
fn files_that_only_the_owner_may_read_can_be_read_and_changed_inside() {
    let site = Site::new();
    let path = site.write("private", "mine\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let run = run(&site, "cat private && echo changed > private");
    site.succeed(["apply", &run]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "changed\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
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
