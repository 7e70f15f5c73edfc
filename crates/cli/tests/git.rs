//! Git inside a workspace: what a person or an agent does there all day has to work, and run nothing outside.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "git is run outside the sandbox as well"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use support::processes::program;
use support::{Site, id_of, skip, stderr, stdout};

/// Git on the host, with no configuration but this.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args([
        "-c",
        "protocol.file.allow=always",
        "-c",
        "user.name=Host",
        "-c",
        "user.email=host@example.com",
    ]);
    command
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// A workspace that is a repository with one commit; nothing where git is missing.
fn repository() -> Option<Site> {
    if program("git").is_none() {
        skip("git is not installed");
        return None;
    }
    let site = Site::new();
    site.write("file", "one\n");
    git(&site.workspace(), &["init", "--quiet", "--initial-branch=main"]);
    git(&site.workspace(), &["config", "user.name", "Inside"]);
    git(&site.workspace(), &["config", "user.email", "inside@example.com"]);
    git(&site.workspace(), &["add", "."]);
    git(&site.workspace(), &["commit", "--quiet", "-m", "first"]);
    Some(site)
}

/// Runs a script in a sandbox, which must succeed; answers its output and the run.
fn inside(site: &Site, directory: &Path, script: &str) -> (String, String) {
    let output = site
        .offleash(["run", "--json", "-c", &format!("set -e; {script}")])
        .current_dir(directory)
        .output()
        .unwrap();
    let record = support::record_of(&output);
    assert_eq!(record["exit_code"], 0, "{record}");
    (record["stdout"]["data"].as_str().unwrap().to_owned(), id_of(&record))
}

#[test]
fn status_log_and_diff_work() {
    let Some(site) = repository() else { return };
    site.write("file", "two\n");
    let (shown, _) = inside(
        &site,
        &site.workspace(),
        "git status --short; git log --format=%s; git diff --stat | tail -1",
    );
    assert_eq!(
        shown,
        " M file\nfirst\n 1 file changed, 1 insertion(+), 1 deletion(-)\n"
    );
}

#[test]
fn what_did_not_change_is_not_read_again_and_the_index_is_left_alone() {
    let Some(site) = repository() else { return };
    let file = site.workspace().join("file");
    // Older than the index: of the same second git reads everywhere.
    let touched = Command::new("touch").args(["-d", "2020-01-01"]).arg(&file).status();
    assert!(touched.unwrap().success());
    git(&site.workspace(), &["update-index", "--refresh"]);
    // Another change time; and whoever reads it fails.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let script = "! cat file 2>/dev/null; git status --short";
    let output = site
        .offleash(["run", "--json", "-c", script])
        .current_dir(site.workspace())
        .output()
        .unwrap();
    let record = support::record_of(&output);
    assert_eq!(record["stdout"]["data"], "", "{record}");
    assert_eq!(record["stderr"]["data"], "", "{record}");
    assert_eq!(record["exit_code"], 0, "{record}");
    assert_eq!(site.succeed(["runs"]), "", "nothing was written");
    // What did change is seen, by its size or its time.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let script = "echo six > file; git status --short; git checkout --quiet file; git status --short; \
                  echo seven > file; git status --short";
    assert_eq!(inside(&site, &site.workspace(), script).0, " M file\n M file\n");
}

#[test]
fn the_user_s_and_the_repository_s_configuration_go_before_the_sandbox_s() {
    let Some(site) = repository() else { return };
    let script = "git config core.checkStat; git config core.trustctime; git config --global core.checkStat default; \
                  git config core.checkStat; git config core.trustctime true; git config core.trustctime; \
                  GIT_CONFIG_NOSYSTEM=1 git config --global --unset core.checkStat; GIT_CONFIG_NOSYSTEM=1 git config core.checkStat || echo none";
    assert_eq!(
        inside(&site, &site.workspace(), script).0,
        "minimal\nfalse\ndefault\ntrue\nnone\n"
    );
}

#[test]
fn a_commit_can_be_made_and_applied() {
    let Some(site) = repository() else { return };
    let script = "echo two > file; git add file; git commit --quiet -m second; git status --short; git log --format=%s";
    let (shown, run) = inside(&site, &site.workspace(), script);
    assert_eq!(shown, "second\nfirst\n");
    assert_eq!(git(&site.workspace(), &["log", "--format=%s"]), "first\n");
    let output = site.offleash(["apply", &run]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        git(&site.workspace(), &["log", "--format=%s %an"]),
        "second Inside\nfirst Host\n"
    );
    assert_eq!(git(&site.workspace(), &["status", "--short"]), "");
    assert_eq!(fs::read_to_string(site.workspace().join("file")).unwrap(), "two\n");
    git(&site.workspace(), &["fsck", "--strict"]);
}

#[test]
fn branches_stashes_and_clones_work() {
    let Some(site) = repository() else { return };
    let script = "git switch --quiet -c topic; echo x > x; git add x; git commit --quiet -m topic; git switch --quiet main; \
                  git merge --quiet topic; echo y >> file; git stash --quiet; git stash pop --quiet; git clone --quiet . ../clone 2>/dev/null || \
                  git clone --quiet . /tmp/clone; git gc --quiet; git log --format=%s";
    assert_eq!(inside(&site, &site.workspace(), script).0, "topic\nfirst\n");
}

#[test]
fn hooks_and_configuration_that_were_planted_do_not_reach_the_host() {
    let Some(site) = repository() else { return };
    let proof = site.root().join("proof");
    let script = format!(
        "printf '#!/bin/sh\\ntouch {proof}\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
         git config core.fsmonitor 'touch {proof}'; git config core.pager 'touch {proof}'; echo z > z; git add z",
        proof = proof.display()
    );
    let (_, run) = inside(&site, &site.workspace(), &script);
    let output = site.offleash(["apply", &run]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains(".git/hooks/pre-commit") && stderr(&output).contains(".git/config"),
        "{}",
        stderr(&output)
    );
    git(&site.workspace(), &["status"]);
    git(&site.workspace(), &["commit", "--quiet", "-m", "by the host"]);
    assert!(!proof.exists());
}

#[test]
fn a_worktree_works_and_its_commits_reach_the_repository() {
    let Some(site) = repository() else { return };
    let tree = site.root().join("tree");
    git(
        &site.workspace(),
        &["worktree", "add", "--quiet", "-b", "side", tree.to_str().unwrap()],
    );
    let script = "git status --short; echo two > file; git commit --quiet -am second; git log --format=%s";
    let (shown, run) = inside(&site, &tree, script);
    assert_eq!(shown, "second\nfirst\n");
    assert_eq!(git(&site.workspace(), &["log", "--format=%s", "side"]), "first\n");
    // What lies in the repository and not in the worktree is shown so that `apply` takes it.
    let index = format!("{}/.git/worktrees/tree/index", site.workspace().display());
    let summary = site.succeed(["diff", "--summary", &run]);
    assert!(summary.contains(&format!("M {index}\n")), "{summary}");
    let patch = site.succeed(["diff", &run]);
    let root = format!("# below `{}/.git`:\n", site.workspace().display());
    assert!(patch.contains(&root), "{patch}");
    assert_eq!(site.succeed(["apply", &run, &index]), format!("M {index}\n"));
    let output = site.offleash(["apply", &run]).current_dir(&tree).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        git(&site.workspace(), &["log", "--format=%s", "side"]),
        "second\nfirst\n"
    );
    assert_eq!(git(&tree, &["status", "--short"]), "");
}

#[test]
fn a_submodule_works_from_within_and_from_above() {
    let Some(site) = repository() else { return };
    let other = site.root().join("other");
    fs::create_dir(&other).unwrap();
    git(&other, &["init", "--quiet", "--initial-branch=main"]);
    fs::write(other.join("inner"), "inner\n").unwrap();
    git(&other, &["add", "."]);
    git(&other, &["commit", "--quiet", "-m", "inner"]);
    git(
        &site.workspace(),
        &["submodule", "--quiet", "add", other.to_str().unwrap(), "sub"],
    );
    git(&site.workspace(), &["commit", "--quiet", "-m", "with a submodule"]);
    git(&site.workspace().join("sub"), &["config", "user.name", "Inside"]);
    git(
        &site.workspace().join("sub"),
        &["config", "user.email", "inside@example.com"],
    );

    let (shown, _) = inside(
        &site,
        &site.workspace(),
        "git submodule status | cut -c1; git -C sub log --format=%s; git status --short",
    );
    assert_eq!(shown, " \ninner\n");

    let sub = site.workspace().join("sub");
    let (shown, run) = inside(
        &site,
        &sub,
        "echo more >> inner; git commit --quiet -am more; git log --format=%s",
    );
    assert_eq!(shown, "more\ninner\n");
    let output = site.offleash(["apply", &run]).current_dir(&sub).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(git(&sub, &["log", "--format=%s"]), "more\ninner\n");
}

#[test]
fn a_git_file_cannot_show_another_repository() {
    let Some(site) = repository() else { return };
    let stranger = site.root().join("stranger");
    fs::create_dir(&stranger).unwrap();
    fs::write(
        stranger.join(".git"),
        format!("gitdir: {}\n", site.workspace().join(".git").display()),
    )
    .unwrap();
    let output = site
        .offleash(["run", "-q", "-c", "git log"])
        .current_dir(&stranger)
        .output()
        .unwrap();
    assert!(
        !output.status.success() && !stdout(&output).contains("first"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_directory_of_a_repository_is_told_from_one_and_the_whole_can_be_given() {
    let Some(site) = repository() else { return };
    let below = site.workspace().join("below");
    fs::create_dir(&below).unwrap();
    let top = site.workspace().canonicalize().unwrap();
    let top = top.to_str().unwrap();
    let run = |flags: &[&str]| {
        let command = ["--", "git", "status", "--short"];
        let mut run = site.offleash([&["run"], flags, &command].concat());
        run.current_dir(&below).output().unwrap()
    };
    let part = run(&[]);
    assert_eq!(part.status.code(), Some(128));
    let hint = format!("`--workspace {top}` gives it the whole");
    assert!(stderr(&part).contains(&hint), "{}", stderr(&part));
    let whole = run(&["--workspace", top]);
    assert!(whole.status.success(), "{}", stderr(&whole));
    assert!(!stderr(&whole).contains("gives it the whole"), "{}", stderr(&whole));
}
