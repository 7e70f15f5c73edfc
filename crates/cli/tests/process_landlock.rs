//! Attacks on the level that has no namespaces: the host's processes, files and sockets are all in reach, and only
//! Landlock, the filter and the supervisor stand before them. What it does as well as the other level is in `fallback`.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use support::processes::{
    copy_program, eventually, feed, long_sleep, niceness, processes_with, program, signal, start, wait,
};
use support::{Site, binary, id_of, is_root, skip, stderr, stdout};

const LEVEL: [&str; 2] = ["--level", "process-landlock"];

fn shell(site: &Site, script: &str) -> Output {
    site.run_shell(&LEVEL, script)
}

/// Runs a Python program inside, or says that there is none.
fn python(site: &Site, flags: &[&str], script: &str) -> Option<Output> {
    if program("python3").is_none() {
        skip("python3 is not installed");
        return None;
    }
    let mut arguments = vec!["run", "--quiet"];
    arguments.extend(LEVEL.iter().chain(flags));
    arguments.extend(["--", "python3", "-c", script]);
    Some(site.offleash(arguments).output().unwrap())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A file of this user outside of the workspace.
fn outside(site: &Site) -> std::path::PathBuf {
    let path = site.root().join("outside");
    fs::write(&path, "secret\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    path
}

#[test]
fn processes_of_the_host_are_neither_signalled_nor_looked_into() {
    let site = Site::new();
    let word = long_sleep();
    let mut victim = start(Command::new("sleep").arg(&word).env("OFFLEASH_TEST_SECRET", "seen"));
    let pid = victim.id();
    let script = format!(
        "kill -9 {pid} 2>/dev/null && echo signalled; kill -0 {pid} 2>/dev/null && echo found
         for file in environ maps mem fd/0; do cat /proc/{pid}/$file 2>/dev/null && echo $file; done
         echo 1000 2>/dev/null >/proc/{pid}/oom_score_adj && echo written
         renice -n 19 -p {pid} >/dev/null 2>&1 && echo reniced
         taskset -p 1 {pid} >/dev/null 2>&1 && echo bound; true"
    );
    let output = shell(&site, &script);
    let priority = niceness(&pid.to_string());
    signal(&victim, Signal::KILL);
    wait(&mut victim);
    assert_eq!(stdout(&output), "", "{}", stderr(&output));
    assert_eq!(priority, niceness("self"), "its priority is what it was");
}

#[test]
fn modes_and_times_of_files_outside_cannot_be_changed() {
    let site = Site::new();
    let outside = outside(&site);
    let before = fs::metadata(&outside).unwrap();
    let path = outside.display();
    let script = format!(
        "chmod 777 {path} && echo chmod; touch -d 2001-01-01 {path} && echo touch; ln -s {path} link
         chmod 777 link && echo link; chmod 777 ../../../../../../../../..{path} && echo dots
         touch -d 2001-01-01 link && echo touched-link; chgrp $(id -g) {path} && echo chgrp; chmod 777 . ; true"
    );
    let output = shell(&site, &script);
    assert_eq!(stdout(&output), "", "{}", stderr(&output));
    let after = fs::metadata(&outside).unwrap();
    assert_eq!(
        (after.mode(), after.mtime(), after.mtime_nsec()),
        (before.mode(), before.mtime(), before.mtime_nsec())
    );
}

#[test]
fn an_open_file_that_may_only_be_read_cannot_be_changed_either() {
    let site = Site::new();
    let granted = site.root().join("granted");
    fs::create_dir(&granted).unwrap();
    fs::write(granted.join("file"), "x").unwrap();
    fs::set_permissions(granted.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let mount = format!("{0}:{0}:ro", granted.display());
    let script = format!(
        "import os
fd = os.open('{}/file', os.O_RDONLY)
for change in (lambda: os.fchmod(fd, 0o777), lambda: os.chmod(f'/proc/self/fd/{{fd}}', 0o777), lambda: os.utime(fd, (1, 1)),
               lambda: os.setxattr(fd, 'user.x', b'y'), lambda: os.truncate('{0}/file', 0)):
    try:
        change()
        print('changed')
    except OSError:
        pass
print(os.read(fd, 9))",
        granted.display()
    );
    let Some(output) = python(&site, &["--mount", &mount], &script) else {
        return;
    };
    assert_eq!(stdout(&output), "b'x'\n", "{}", stderr(&output));
    assert_eq!(mode(&granted.join("file")), 0o640);
    assert_eq!(fs::read(granted.join("file")).unwrap(), b"x");
}

#[test]
fn what_tools_do_to_modes_and_times_of_their_own_files_works() {
    let site = Site::new();
    site.write("given", "x");
    let script = r#"
        printf '#!/bin/sh\necho ran\n' > program && chmod 750 program && ./program
        touch -d '2001-02-03 04:05:06' program && stat -c '%a %Y' program
        (cd .. && chmod 600 upper/given) && stat -c %a given
        mkdir d && cp -a program d/copy && stat -c '%a %Y' d/copy && ln -s program link && touch -h -d @5 link && stat -c %Y link
        chmod u+s program 2>/dev/null && echo set-user-id; chown 12345 program 2>/dev/null && echo given away
        tar cf a.tar program && mkdir e && tar xpf a.tar -C e && stat -c %a e/program"#;
    let output = shell(&site, script);
    assert_eq!(
        stdout(&output),
        "ran\n750 981173106\n600\n750 981173106\n5\n750\n",
        "{}",
        stderr(&output)
    );
}

#[test]
fn sockets_of_the_host_are_not_reached_by_any_kind_of_socket() {
    let site = Site::new();
    let path = site.root().join("socket");
    let datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let script = format!(
        "import socket
for family, kind in ((1, 1), (1, 2), (2, 1), (2, 2), (10, 1), (16, 3), (17, 3)):
    try:
        socket.socket(family, kind)
        print('opened', family, kind)
    except OSError:
        pass
try:
    one, other = socket.socketpair(1, 2)
    one.sendto(b'hello', '{}')
    print('sent')
except OSError:
    pass
one, other = socket.socketpair()
one.sendall(b'pairs work')
print(other.recv(99))",
        path.display()
    );
    let Some(output) = python(&site, &[], &script) else {
        return;
    };
    assert_eq!(stdout(&output), "b'pairs work'\n", "{}", stderr(&output));
    datagrams.recv(&mut [0; 9]).unwrap_err();
}

#[test]
fn memory_that_others_share_by_number_does_not_exist() {
    let site = Site::new();
    let script = "import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(0, 4096, 0o1600), ctypes.get_errno() == 38)";
    let Some(output) = python(&site, &[], script) else {
        return;
    };
    assert_eq!(stdout(&output), "-1 True\n", "{}", stderr(&output));
}

#[test]
fn code_that_kills_its_guest_does_not_outlive_the_run() {
    let site = Site::new();
    let word = long_sleep();
    let script =
        format!("setsid sleep {word} & (setsid setsid sleep {word} &); sleep 0.2; kill -9 $PPID; sleep {word}");
    let output = shell(&site, &script);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn code_that_stops_its_guest_does_not_outlive_the_supervisor() {
    let site = Site::new();
    let word = long_sleep();
    let script = format!("kill -STOP $PPID; setsid sleep {word} & sleep {word}");
    let mut arguments = vec!["run", "--quiet"];
    arguments.extend(LEVEL);
    arguments.extend(["--", "sh", "-c", &script]);
    let mut supervisor = start(&mut site.offleash(arguments));
    eventually("the start", || (processes_with(&word).len() >= 2).then_some(()));
    signal(&supervisor, Signal::KILL);
    wait(&mut supervisor);
    eventually("the end of everything", || {
        processes_with(&word).is_empty().then_some(())
    });
}

#[test]
fn a_supervisor_leaves_children_that_it_did_not_start_alone() {
    let site = Site::new();
    let word = long_sleep();
    // A shell that becomes offleash: what it started in the background is then offleash's child.
    let script = format!(
        "sleep {word} >/dev/null 2>&1 </dev/null & exec {} run -q --level process-landlock -- true",
        binary().display()
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .current_dir(site.workspace())
        .env("OFFLEASH_STATE", site.state());
    let output = feed(&mut command, Vec::new());
    let left = processes_with(&word);
    for pid in &left {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(left.len(), 1);
}

#[test]
fn what_a_rule_hides_in_the_workspace_is_not_in_the_copy_and_stays_on_the_host() {
    let site = Site::new();
    site.write(".env", "secret");
    site.write("kept", "x");
    let record = site.record(
        &["--level", "process-landlock", "--deny", ".env"],
        "cat .env; rm -rf .env kept",
    );
    assert_eq!(record["stdout"]["data"], "", "{record}");
    assert_eq!(record["changes"]["deleted"], 1, "{record}");
    site.succeed(["apply", &id_of(&record)]);
    assert_eq!(fs::read_to_string(site.workspace().join(".env")).unwrap(), "secret");
    assert!(!site.workspace().join("kept").exists());
}

#[test]
fn what_landlock_cannot_take_away_is_refused_unless_allowed() {
    let site = Site::new();
    for (flags, what) in [
        (vec!["--deny-command", "curl", "--deny", "/usr/share"], "hidden"),
        (vec!["--mount", "/usr/share:/mnt/share"], "/mnt/share"),
        (vec!["--tmpfs", "/mnt/memory"], "/mnt/memory"),
    ] {
        let mut arguments = vec!["run", "--level", "process-landlock"];
        arguments.extend(&flags);
        arguments.extend(["--", "true"]);
        let said = site.refuse(arguments);
        assert!(said.contains(what) && said.contains("--degrade allow"), "{said}");
        let mut allowed = vec!["--level", "process-landlock", "--degrade", "allow"];
        allowed.extend(&flags);
        let record = site.record(&allowed, "true");
        assert_eq!(record["exit_code"], 0, "{record}");
        let lacking = record["not_enforced"].as_object().unwrap();
        assert!(lacking.keys().any(|key| key.contains(what)), "{record}");
    }
    assert_eq!(site.succeed(["runs"]), "");
}

#[test]
fn a_workspace_that_does_not_fit_is_refused_with_the_way_out() {
    let site = Site::new();
    site.write("large", vec![b'x'; 1 << 20]);
    let said = site.refuse([
        "run",
        "--level",
        "process-landlock",
        "--workspace-size",
        "256K",
        "--",
        "true",
    ]);
    assert!(said.contains("`workspace` (256K)") && said.contains("DIR:ro"), "{said}");
    assert_eq!(site.succeed(["runs"]), "");
    let workspace = format!("{}:ro", site.workspace().display());
    let output = site.run_shell(
        &[
            "--level",
            "process-landlock",
            "--workspace-size",
            "256K",
            "-w",
            &workspace,
        ],
        "wc -c < large",
    );
    assert_eq!(stdout(&output).trim(), "1048576", "{}", stderr(&output));
}

#[test]
fn memory_pids_and_disk_end_typed() {
    let site = Site::new();
    // Many processes, each far below the limit, so that it takes the sum to notice.
    let memory = "for i in 1 2 3 4 5 6 7 8; do sh -c 'x=$(head -c 12000000 /dev/zero | tr \"\\\\0\" a); sleep 60; :' & done; wait";
    for (flags, script, key, expected) in [
        (["--memory", "48M"], memory, "kind", "out_of_memory"),
        (
            ["--workspace-size", "8M"],
            "head -c 100000000 /dev/zero > f; sleep 60",
            "limit",
            "workspace",
        ),
        (
            ["--inodes", "100"],
            "i=0; while :; do i=$((i+1)); echo > f$i; done",
            "limit",
            "inodes",
        ),
    ] {
        let record = site.record(&[&LEVEL, &flags[..], &["--wall-time", "60s"]].concat(), script);
        assert_eq!(record["outcome"][key], expected, "{record}");
    }
    let word = long_sleep();
    let flags = [&LEVEL[..], &["--pids", "20", "--wall-time", "60s"]].concat();
    let record = site.record(
        &flags,
        &format!("i=0; while [ $i -lt 60 ]; do sleep {word} & i=$((i+1)); done; wait"),
    );
    let hits = record["limits_hit"].as_array().unwrap();
    assert!(hits.iter().any(|hit| hit["limit"] == "pids"), "{record}");
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn a_fork_bomb_ends_with_its_run() {
    let site = Site::new();
    let word = long_sleep();
    let script = format!("b() {{ sleep {word} & b | b & }}; b 2>/dev/null; sleep {word}");
    let flags = [&LEVEL[..], &["--pids", "64", "--wall-time", "1s"]].concat();
    let output = site.run_shell(&flags, &format!("exec 2>/dev/null; {script}"));
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn a_terminal_is_refused_and_none_of_the_host_s_can_be_opened() {
    let site = Site::new();
    let output = shell(
        &site,
        "for t in /dev/tty /dev/ptmx /dev/pts/0 /dev/pts/1 /dev/console; do cat $t; done",
    );
    assert_eq!(stdout(&output), "");
    assert!(!stderr(&output).contains("Input/output"), "{}", stderr(&output));
    let said = site
        .offleash(["run", "--tty", "--level", "process-landlock", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(said.status.code(), Some(125));
    assert!(stderr(&said).contains("terminal"), "{}", stderr(&said));
}

#[test]
fn marks_of_the_layer_cannot_be_forged() {
    let site = Site::new();
    site.write("given", "x");
    let script = "import os
for name in ('user.overlay.opaque', 'user.overlay.whiteout', 'user.overlay.redirect'):
    try:
        os.setxattr('given', name, b'y')
        print('set')
    except OSError:
        pass
try:
    os.mknod('device', 0o20600, 0)
    print('made')
except OSError:
    pass
open('given', 'a').write('y')";
    let Some(output) = python(&site, &[], script) else {
        return;
    };
    assert_eq!(stdout(&output), "", "{}", stderr(&output));
    let runs = site.succeed(["runs"]);
    let run = runs.split_whitespace().next().unwrap();
    assert!(site.succeed(["diff", "--summary", run]).contains("given"));
}

/// Runs offleash as an ordinary user in a user namespace in which no other can be made; `None` where that cannot be.
fn without_namespaces(site: &Site, arguments: &[&str]) -> Option<Output> {
    // Root of a namespace would need many ids in it, so an ordinary user it is, who can read a copy of the binary.
    let copy = site.root().join("offleash");
    if !copy.exists() {
        copy_program(&binary(), &copy);
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(site.root(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = if is_root() {
        for directory in [site.workspace(), site.state()] {
            std::os::unix::fs::chown(directory, Some(4242), Some(4242)).unwrap();
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4242", "--regid=4242", "--clear-groups", "unshare"]);
        command
    } else {
        Command::new("unshare")
    };
    let script = "echo 0 > /proc/sys/user/max_user_namespaces || exit 99; exec \"$0\" \"$@\"";
    command.args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", script]);
    command
        .arg(copy)
        .args(arguments)
        .current_dir(site.workspace())
        .env_clear();
    command
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", site.root())
        .env("OFFLEASH_STATE", site.state());
    match command.output() {
        Ok(output) if output.status.code() != Some(99) && !stderr(&output).contains("unshare") => Some(output),
        _ => {
            skip("no user namespace can be made, or its limit cannot be set");
            None
        }
    }
}

#[test]
fn where_namespaces_are_forbidden_nothing_weaker_is_taken_by_itself() {
    let site = Site::new();
    let Some(output) = without_namespaces(&site, &["run", "--", "touch", "ran"]) else {
        return;
    };
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    for mend in ["offleash doctor", "--level process-landlock", "--degrade allow"] {
        assert!(said.contains(mend), "{mend}: {said}");
    }
    let floor = ["run", "--degrade", "allow", "--min-level", "process", "--", "true"];
    assert_eq!(without_namespaces(&site, &floor).unwrap().status.code(), Some(125));
}

#[test]
fn where_namespaces_are_forbidden_the_weaker_level_runs_when_allowed_and_is_named() {
    let site = Site::new();
    site.write("given", "x");
    let run = [
        "run",
        "--json",
        "--degrade",
        "allow",
        "--",
        "sh",
        "-c",
        "cat given; echo y > made",
    ];
    let Some(output) = without_namespaces(&site, &run) else {
        return;
    };
    let record = support::record_of(&output);
    assert_eq!(record["level"], "process-landlock", "{record}");
    assert_eq!(record["stdout"]["data"], "x", "{record}");
    assert!(
        record["not_enforced"]["level"].as_str().unwrap().contains("namespaces"),
        "{record}"
    );
    let applied = without_namespaces(&site, &["apply", &id_of(&record)]).unwrap();
    assert!(applied.status.success(), "{}", stderr(&applied));
    assert_eq!(fs::read_to_string(site.workspace().join("made")).unwrap(), "y\n");
}

#[test]
fn where_namespaces_are_forbidden_doctor_says_which_level_is_left() {
    let site = Site::new();
    let Some(output) = without_namespaces(&site, &["doctor", "--json"]) else {
        return;
    };
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let level = |name: &str| {
        let levels = report["levels"].as_array().unwrap();
        levels.iter().find(|level| level["level"] == name).unwrap()["available"].clone()
    };
    assert_eq!(level("process-landlock"), true, "{report}");
    assert_eq!(level("process"), false, "{report}");
}

/// All that this level can do for programs that size themselves.
#[test]
fn limits_show_by_affinity_and_a_sanitizer_finds_room() {
    let site = Site::new();
    let output = site.run_shell(&["--level", "process-landlock", "--cpus", "1"], "nproc");
    assert_eq!(stdout(&output), "1\n", "{}", stderr(&output));
    let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n";
    fs::write(site.workspace().join("program.c"), source).unwrap();
    let Some(compiler) = program("cc") else {
        return skip("there is no compiler");
    };
    let flags = ["-fsanitize=address", "-o", "program", "program.c"];
    let built = Command::new(compiler)
        .args(flags)
        .current_dir(site.workspace())
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        return skip("no compiler with sanitizers");
    }
    let output = site.run_shell(&["--level", "process-landlock", "--memory", "300M"], "./program");
    assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
}
