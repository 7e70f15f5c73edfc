//! What others had to fix in their sandboxes, as far as paths and rules are concerned: each must not happen here.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Output, Stdio};

use super::arena::{Attack, HostState, assert_no_process, can_attack, run, token};
use super::support::processes::{eventually, processes_with, wait};
use super::support::{Site, stderr, stdout};

fn policy(site: &Site, text: &str) -> String {
    let path = site.root().join("policy.toml");
    std::fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

/// CVE-2025-66479 of sandbox-runtime: an empty list was taken for no list.
#[test]
fn an_empty_allow_list_allows_nothing() {
    let site = Site::new();
    let policy = policy(&site, "[commands]\nallow = []\n");
    for program in ["/bin/true", "/bin/sh", "true"] {
        let output = run(&mut site.offleash(["run", "--policy", &policy, "--", program]));
        assert_eq!(output.status.code(), Some(126), "{program}: {}", stderr(&output));
    }
    let plain = run(&mut site.offleash(["run", "--", "/bin/true"]));
    assert!(plain.status.success(), "without the list it runs: {}", stderr(&plain));
}

/// The script came to its end, and not everything was written back.
fn assert_held_back(output: &Output) {
    let answer = (output.status.code(), stdout(output));
    assert_eq!(answer, (Some(1), "done\n".to_owned()), "{}", stderr(output));
}

/// CVE-2026-25725: a protected file that is absent at the start can be made. sandbox-runtime 43d549e.
#[test]
fn a_protected_file_that_was_absent_is_not_made_on_the_host() {
    let site = Site::new();
    let flags = ["-w", ".:rw", "--protect", "guarded", "--protect", "deep/er/guarded"];
    let script = "mkdir -p .claude deep/er; echo evil > .claude/settings.json; echo evil > guarded; \
                  echo evil > deep/er/guarded; echo fine > ordinary && echo done";
    let output = site.run_shell(&flags, script);
    assert_held_back(&output);
    assert!(site.workspace().join("ordinary").exists(), "{}", stderr(&output));
    for name in [".claude/settings.json", "guarded", "deep/er/guarded"] {
        assert!(!site.workspace().join(name).exists(), "`{name}` was made on the host");
    }
}

/// CVE-2026-39861, sandbox-runtime 9f59523 and 98fe4ee: a link inside the workspace that leads out of it.
#[test]
pub(crate) fn a_link_that_leads_out_of_the_workspace_gives_nothing() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let outside = site.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "canary").unwrap();
    symlink(&outside, site.workspace().join("src")).unwrap();
    symlink(outside.join("made"), site.workspace().join("dangling")).unwrap();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
attempt("read", lambda: must(b"canary" in read("src/secret"), "something else"))
attempt("write", lambda: write("src/secret"))
attempt("make", lambda: write("src/made"))
attempt("through a dangling link", lambda: write("dangling"))
"##,
    );
    for mode in [".:overlay", ".:rw", ".:ro"] {
        attack.again().flags(["-w", mode]).inside().assert_all_refused();
        before.assert_unchanged(&site);
    }
    attack
        .outside()
        .prove(&["read", "write", "make", "through a dangling link"]);
}

/// Links and directories that the sandbox exchanges for others, so that writing back would follow them.
#[test]
pub(crate) fn writing_back_follows_no_link_that_the_sandbox_made() {
    let site = Site::new();
    let outside = site.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "original").unwrap();
    site.write("directory/file", "inner");
    let before = std::fs::read(outside.join("file")).unwrap();
    let script = format!(
        "rm -r directory; ln -s {outside} directory; ln -s {outside}/file file; ln -s {outside} late; rm late; mkdir late; \
         echo evil > late/file && echo done",
        outside = outside.display()
    );
    let output = site.run_shell(&["-w", ".:rw"], &script);
    assert_held_back(&output);
    assert_eq!(
        std::fs::read(outside.join("file")).unwrap(),
        before,
        "the file behind the link was written"
    );
    let names: Vec<_> = std::fs::read_dir(&outside)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(names, ["file"]);
    // And once more over what is a link on the host by now.
    let output = site.run_shell(
        &["-w", ".:rw"],
        "rm -f directory late; mkdir directory; echo evil > directory/file",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), before);
}

/// sandbox-runtime 7fcfd84 and ec9fc45: the protected file stays, the directory above it is exchanged.
#[test]
fn a_protected_path_cannot_be_replaced_by_moving_what_is_above_it() {
    let site = Site::new();
    let guarded = site.write("config/guarded/file", "original\n");
    site.write(".git/hooks/post-checkout", "original\n");
    let flags = ["-w", ".:rw", "--protect", "config/guarded"];
    let script = "mv config old; mkdir -p config/guarded; echo evil > config/guarded/file; \
                  mv .git gone; mkdir -p .git/hooks; echo evil > .git/hooks/post-checkout; \
                  rm -rf gone old && echo done";
    let output = site.run_shell(&flags, script);
    assert_held_back(&output);
    for path in [guarded, site.workspace().join(".git/hooks/post-checkout")] {
        let contents = std::fs::read_to_string(&path).unwrap_or_default();
        assert_ne!(contents, "evil\n", "{} was replaced", path.display());
    }
}

/// sandbox-runtime ebf2912, 7858097, ddf1224 and 5ee384f: a later mount covers the mask of a denied path.
#[test]
fn a_denied_path_stays_denied_whatever_is_granted_around_it() {
    let site = Site::new();
    site.write("data/secret", "canary\n");
    site.write("data/other", "fine\n");
    let workspace = site.workspace();
    let data = workspace.join("data");
    let secret = data.join("secret").to_string_lossy().into_owned();
    let (data, above) = (
        data.to_string_lossy().into_owned(),
        workspace.to_string_lossy().into_owned(),
    );
    let script = format!("cat {secret} 2>&1; cat data/secret 2>&1; cat {data}/other");
    for flags in [
        vec!["--deny", &secret],
        vec!["--deny", &secret, "--read", &data],
        vec!["--read", &data, "--deny", &secret],
        vec!["--deny", "data/secret", "--read", &above, "--read", &data],
        vec!["--deny", "data/secret", "-w", ".:ro"],
        vec!["--deny", "data/secret", "-w", ".:rw"],
    ] {
        let output = site.run_shell(&flags, &script);
        let said = stdout(&output);
        // A combination that cannot hold may be refused, but never half kept.
        assert!(!said.contains("canary"), "{flags:?}: the denied file was read: {said}");
    }
    let plain = site.run_shell(&[], "cat data/secret");
    assert_eq!(stdout(&plain), "canary\n", "without the rule it can be read");
}

/// Claude Code before 2.1.40 and codex#22179: a rule with a wildcard was ignored on Linux.
#[test]
fn a_deny_rule_with_a_wildcard_counts() {
    let site = Site::new();
    for name in [".env", "a/.env", "a/b/.env", "a/b/key.pem", "key.pem", "a/visible"] {
        site.write(name, "canary\n");
    }
    for (pattern, hidden) in [
        ("**/.env", &[".env", "a/.env", "a/b/.env"][..]),
        ("**/*.pem", &["key.pem", "a/b/key.pem"]),
        ("*.pem", &["key.pem"]),
        ("a/*/key.pem", &["a/b/key.pem"]),
        ("a/**", &["a/.env", "a/b/.env", "a/visible"]),
    ] {
        let output = site.run_shell(&["--deny", pattern], &format!("cat {} 2>/dev/null", hidden.join(" ")));
        assert!(!stdout(&output).contains("canary"), "{pattern}: {}", stdout(&output));
        let output = run(&mut site.offleash(["run", "--quiet", "--deny", pattern, "--", "true"]));
        assert!(output.status.success(), "{pattern} is refused: {}", stderr(&output));
    }
    let plain = site.run_shell(&[], "cat .env");
    assert_eq!(stdout(&plain), "canary\n");
}

/// A name that is hidden cannot be uncovered or taken by something else that then reaches the host.
#[test]
fn a_denied_name_cannot_be_replaced() {
    let site = Site::new();
    let secret = site.write("secret/file", "original\n");
    let script = "mv secret moved 2>/dev/null; rm -rf secret 2>/dev/null; mkdir -p secret 2>/dev/null; \
                  echo evil > secret/file 2>/dev/null; cat moved/file 2>/dev/null; cat secret/file 2>/dev/null; true";
    for pattern in ["secret", "secret/file"] {
        let output = site.run_shell(&["-w", ".:rw", "--deny", pattern], script);
        assert!(!stdout(&output).contains("original"), "{pattern}: {}", stdout(&output));
        let now = std::fs::read_to_string(&secret).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        assert_eq!(now, "original\n", "{pattern}");
    }
}

/// CVE-2025-59532 of codex: a working directory chosen by the model became the writable root.
#[test]
pub(crate) fn the_working_directory_grants_nothing() {
    let site = Site::new();
    let outside = site.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    for cwd in [
        outside.to_string_lossy().into_owned(),
        "/".to_owned(),
        "/etc".to_owned(),
        "/usr".to_owned(),
    ] {
        let output = site.run_shell(&["--cwd", &cwd], "touch made 2>/dev/null && pwd");
        assert!(
            !outside.join("made").exists() && !Path::new(&cwd).join("made").exists(),
            "written in {cwd}"
        );
        assert!(!output.status.success(), "{cwd} is writable: {}", stdout(&output));
    }
}

/// Workspaces that are the whole machine or a whole home directory are mistakes, whoever chose them.
#[test]
fn a_workspace_that_is_everything_is_refused() {
    let site = Site::new();
    for workspace in ["/", "/..", "/etc", "/usr", "/proc", "/root/.."] {
        let output = run(&mut site.offleash(["run", "-w", workspace, "--", "true"]));
        assert!(!output.status.success(), "`{workspace}` was accepted as the workspace");
    }
    let home = site.root().to_string_lossy().into_owned();
    let output = run(&mut site.offleash(["run", "-w", &home, "--", "true"]));
    assert!(
        !output.status.success(),
        "the home directory was accepted as the workspace"
    );
}

/// srt#139: stub files for protected names were left on the host after a SIGKILL.
#[test]
fn no_stub_files_are_made_on_the_host() {
    let site = Site::new();
    site.write("file", "x");
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(site.workspace())
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        names.sort();
        names
    };
    let word = token("stub");
    let before = names();
    for mode in [".:overlay", ".:rw", ".:ro"] {
        let arguments = [
            "run",
            "--quiet",
            "-w",
            mode,
            "--protect",
            "absent",
            "--deny",
            "absent-too",
            "--deny",
            "**/.env",
        ];
        let mut command =
            site.offleash(
                arguments
                    .iter()
                    .chain(&["--", "/bin/sh", "-c", "while :; do sleep 60; done", &word]),
            );
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("the start of the command", || {
            (processes_with(&word).len() > 1).then_some(())
        });
        assert_eq!(names(), before, "mode {mode}: made while it runs");
        child.kill().unwrap();
        wait(&mut child);
        assert_no_process(&word);
        assert_eq!(names(), before, "mode {mode}: left after a kill");
    }
}
