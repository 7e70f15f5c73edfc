//! What others had to fix in their sandboxes, as far as files and processes are concerned: each must not happen here.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::arena::{Attack, HostState, assert_no_process, can_attack, not_proven, run, token};
use super::support::processes::{eventually, processes_with, wait};
use super::support::{Site, binary, is_root, stderr, stdout};

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

/// CVE-2026-25725: a protected file that is absent at the start can be made. sandbox-runtime 43d549e.
#[test]
fn a_protected_file_that_was_absent_is_not_made_on_the_host() {
    let site = Site::new();
    let flags = ["-w", ".:rw", "--protect", "guarded", "--protect", "deep/er/guarded"];
    let script = "mkdir -p .claude deep/er; echo evil > .claude/settings.json; echo evil > guarded; \
                  echo evil > deep/er/guarded; echo fine > ordinary";
    let output = site.run_shell(&flags, script);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(site.workspace().join("ordinary").exists(), "{}", stderr(&output));
    for name in [".claude/settings.json", "guarded", "deep/er/guarded"] {
        assert!(!site.workspace().join(name).exists(), "`{name}` was made on the host");
    }
}

/// CVE-2026-39861, sandbox-runtime 9f59523 and 98fe4ee: a link inside the workspace that leads out of it.
#[test]
fn a_link_that_leads_out_of_the_workspace_gives_nothing() {
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
fn writing_back_follows_no_link_that_the_sandbox_made() {
    let site = Site::new();
    let outside = site.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "original").unwrap();
    site.write("directory/file", "inner");
    let before = std::fs::read(outside.join("file")).unwrap();
    let script = format!(
        "rm -r directory; ln -s {outside} directory; ln -s {outside}/file file; ln -s {outside} late; rm late; mkdir late; \
         echo evil > late/file",
        outside = outside.display()
    );
    let output = site.run_shell(&["-w", ".:rw"], &script);
    assert!(output.status.success(), "{}", stderr(&output));
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
                  rm -rf gone old";
    let output = site.run_shell(&flags, script);
    assert!(output.status.success(), "{}", stderr(&output));
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
fn the_working_directory_grants_nothing() {
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

/// codex#12800: the sandbox was lost on a second way to start programs.
#[test]
fn every_way_to_start_a_program_stays_in_the_sandbox() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    std::fs::write(site.root().join("secret"), "canary").unwrap();
    let attack = Attack::new(
        &site,
        r##"
import subprocess
command = ["/bin/sh", "-c", "cat \"$1\"; unshare -U true && echo namespace", "sh", arguments[0]]
def got(output):
    return must(b"canary" in output or b"namespace" in output, "nothing")
def executed(start):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        start()
        os._exit(9)
    os.close(writer)
    output = os.read(reader, 4096)
    os.waitpid(child, 0)
    os.close(reader)
    return got(output)
def spawned(function):
    reader, writer = os.pipe()
    child = function(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)])
    os.close(writer)
    output = os.read(reader, 4096)
    os.waitpid(child, 0)
    os.close(reader)
    return got(output)
def detached():
    os.setsid()
    if os.fork() == 0:
        os.execv(command[0], command)
    os.wait()
    os._exit(0)
def by_descriptor():
    os.execve(os.open("/bin/sh", os.O_RDONLY), command, os.environ)
def by_loader():
    loaders = [name for name in os.listdir("/lib64") if name.startswith("ld-")] if os.path.isdir("/lib64") else []
    os.execv("/lib64/" + loaders[0], ["ld", "/bin/sh"] + command[1:])
attempt("subprocess", lambda: got(subprocess.run(command, stdout=subprocess.PIPE).stdout))
attempt("execv", executed, lambda: os.execv(command[0], command))
attempt("fexecve", executed, by_descriptor)
attempt("loader", executed, by_loader)
attempt("session", executed, detached)
attempt("posix_spawn", spawned, os.posix_spawn)
attempt("at exit", lambda: got(subprocess.run(["/bin/sh", "-c", "trap 'cat \"$1\"' EXIT", "sh", arguments[0]], stdout=subprocess.PIPE).stdout))
"##,
    )
    .argument(site.root().join("secret"));
    attack.inside().assert_all_refused();
    attack
        .outside()
        .prove(&["subprocess", "execv", "fexecve", "session", "posix_spawn", "at exit"]);
}

/// sandbox-runtime 7ee4ac6: a helper outside of the filter could be reached from inside.
#[test]
fn no_helper_outside_the_filter_is_visible() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let inside = Attack::new(
        &site,
        r##"
def status(pid, key):
    with open("/proc/%s/status" % pid) as file:
        return dict(line.split(":", 1) for line in file)[key].strip()
pids = [name for name in os.listdir("/proc") if name.isdigit()]
attempt("count", lambda: len(pids))
attempt("without filter", lambda: must([pid for pid in pids if status(pid, "Seccomp") == "0"], "none"))
attempt("with capabilities", lambda: must([pid for pid in pids if int(status(pid, "CapPrm"), 16)], "none"))
attempt("with new privileges", lambda: must([pid for pid in pids if status(pid, "NoNewPrivs") == "0"], "none"))
attempt("of others", lambda: must([pid for pid in pids if status(pid, "Uid").split()[0] != str(os.getuid())], "none"))
"##,
    )
    .inside();
    inside.assert_refused_except(&["count"]);
    assert_eq!(inside.got("count"), "2", "the first process and the attack");
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

/// nono's protected roots, codex' masked daemon directory: what the sandbox's owner keeps must be out of reach.
#[test]
fn the_state_directory_is_out_of_reach_even_below_the_workspace() {
    let site = Site::new();
    let state = site.workspace().join(".offleash-state");
    let text = state.to_string_lossy().into_owned();
    let first = run(&mut site.offleash(["run", "--quiet", "--state", &text, "--", "true"]));
    if !first.status.success() {
        // To refuse such a place is as good.
        return;
    }
    let audit = std::fs::read(state.join("audit.jsonl")).ok();
    let script = "ls -A .offleash-state 2>/dev/null; echo evil >> .offleash-state/audit.jsonl 2>/dev/null; \
                  rm -rf .offleash-state 2>/dev/null; mv .offleash-state away 2>/dev/null; cat away/* 2>/dev/null; true";
    for mode in [".:overlay", ".:rw"] {
        let arguments = [
            "run", "--quiet", "--state", &text, "-w", mode, "--", "/bin/sh", "-c", script,
        ];
        let output = run(&mut site.offleash(arguments));
        assert_eq!(stdout(&output), "", "{mode}: something of the state is visible");
        let verified = run(&mut site.offleash(["audit", "verify", "--state", &text]));
        assert!(
            verified.status.success(),
            "{mode}: {}{}",
            stdout(&verified),
            stderr(&verified)
        );
    }
    if let Some(audit) = audit {
        let now = std::fs::read(state.join("audit.jsonl")).unwrap();
        assert!(now.starts_with(&audit), "the audit log was rewritten");
    }
}

/// sandbox-runtime's README: the tool itself lies in the project that is writable.
#[test]
fn the_program_itself_is_not_replaced_by_a_run() {
    let site = Site::new();
    let own = site.workspace().join("node_modules").join("offleash");
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::fs::copy(binary(), &own).unwrap();
    let before = own.metadata().unwrap();
    let script = "rm -f node_modules/offleash 2>/dev/null; printf '#!/bin/sh\\necho evil\\n' > node_modules/offleash 2>/dev/null; \
                  chmod 755 node_modules/offleash 2>/dev/null; true";
    let mut command = std::process::Command::new(&own);
    command
        .args(["run", "--quiet", "-w", ".:overlay", "--", "/bin/sh", "-c", script])
        .current_dir(site.workspace());
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", site.root())
        .env("OFFLEASH_STATE", site.state());
    let output = run(&mut command);
    assert!(output.status.success(), "{}", stderr(&output));
    let after = own.metadata().unwrap();
    assert_eq!(
        (before.ino(), before.len()),
        (after.ino(), after.len()),
        "the program was replaced"
    );
}

/// sandbox-runtime 15bab51, codex' registry: names below `/tmp` that others can guess and plant.
#[test]
fn nothing_in_shared_directories_is_used() {
    let site = Site::new();
    let word = token("shared");
    let script = "while :; do sleep 60; done";
    let mut command = site.offleash(["run", "--quiet", "--", "/bin/sh", "-c", script, &word]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the start of the command", || {
        (processes_with(&word).len() > 1).then_some(())
    });
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().flatten();
    let open: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    child.kill().unwrap();
    wait(&mut child);
    assert_no_process(&word);
    assert!(open.len() > 3, "the supervisor holds more than its streams: {open:?}");
    let shared = |path: &&PathBuf| {
        ["/tmp", "/var/tmp", "/dev/shm"]
            .iter()
            .any(|shared| path.starts_with(shared))
    };
    let foreign: Vec<_> = open
        .iter()
        .filter(shared)
        .filter(|path| !path.starts_with(site.root()))
        .collect();
    assert!(
        foreign.is_empty(),
        "in directories that everybody can write: {foreign:?}"
    );
}

/// A state directory of another user, or one that others can write, is a trap.
#[test]
fn a_planted_state_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new();
    let open = site.root().join("open-state");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut places = vec![open];
    if is_root() {
        let foreign = site.root().join("foreign-state");
        std::fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(12345), Some(12345)).unwrap();
        places.push(foreign);
    } else {
        not_proven("a state directory of another user", "only root can make one");
    }
    for place in places {
        let text = place.to_string_lossy().into_owned();
        let output = run(&mut site.offleash(["run", "--state", &text, "--", "true"]));
        let mode = place.metadata().unwrap().mode() & 0o777;
        let refused = output.status.code() == Some(125);
        assert!(refused || mode == 0o700, "{text} was used as it is (mode {mode:o})");
    }
}

/// Options that look like paths, and paths that look like options, of a hostile caller.
#[test]
fn a_command_that_looks_like_an_option_stays_a_command() {
    let site = Site::new();
    for command in ["--privileged", "-c", "--level=none"] {
        let output = run(&mut site.offleash(["run", "--quiet", "--", command]));
        assert_eq!(output.status.code(), Some(127), "{command}: {}", stderr(&output));
    }
}

/// codex' and nono's lesson on `sh -c`: a command rule looks at the program, not at the text.
#[test]
fn a_denied_command_cannot_be_run_under_another_name() {
    let site = Site::new();
    symlink("/usr/bin/env", site.workspace().join("innocent")).unwrap();
    let script = "env; /usr/bin/env; ./innocent; exec env; command env; cp /usr/bin/env copy 2>/dev/null; true";
    let output = site.run_shell(&["--deny-command", "env"], script);
    assert!(
        !stdout(&output).contains("HOME="),
        "the denied command ran: {}",
        stdout(&output)
    );
    let plain = site.run_shell(&[], "env");
    assert!(stdout(&plain).contains("HOME="));
}
