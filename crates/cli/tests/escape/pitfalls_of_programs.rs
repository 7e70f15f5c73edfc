//! What others had to fix in their sandboxes, as far as programs and their own state are concerned: likewise.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::process::Stdio;

use super::arena::{Attack, assert_no_process, can_attack, not_proven, run, token};
use super::support::processes::{copy_program, eventually, processes_with, wait};
use super::support::{Site, binary, is_root, stderr, stdout};

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
    copy_program(&binary(), &own);
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
