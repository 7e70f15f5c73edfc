//! Who holds a sandbox that waits: what it has of its caller, who reaches it, and what is left when either is killed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::processes::{eventually, groups_of, long_sleep, processes_with, read_until, signal, start, wait};
use super::support::{Site, binary, id_of, is_root, skip, stderr, stdout};
use super::{cool, heat, heated, pid_of, waiting, warm};

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_holder_has_nothing_of_its_caller() {
    let site = Site::new();
    let mut run = site.offleash(warm(&[], &["true"]));
    run.env("PASSWORD", "a secret of the caller's");
    assert!(run.output().unwrap().status.success());
    heated(&site);
    // One that a holder left in its place, too.
    let mut run = site.offleash(warm(&[], &["true"]));
    run.env("PASSWORD", "a secret of the caller's");
    assert!(run.output().unwrap().status.success());
    heated(&site);
    let pid = pid_of(&waiting(&site)[0]);
    let of = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let environment = fs::read_to_string(of("environ")).unwrap();
    let names: BTreeSet<&str> = environment
        .split_terminator('\0')
        .filter_map(|pair| pair.split('=').next())
        .collect();
    assert_eq!(names, BTreeSet::from(["HOME", "OFFLEASH_STATE", "PATH"]));
    assert_eq!(fs::read_link(of("cwd")).unwrap(), Path::new("/"));
    let stat = fs::read_to_string(of("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let (group, session, terminal) = (fields[2], fields[3], fields[4]);
    assert_eq!((group, session, terminal), (&*pid.to_string(), &*pid.to_string(), "0"));
    let open = |number: &str| fs::read_link(of("fd").join(number)).unwrap();
    assert!(
        open("0").to_string_lossy().starts_with("/memfd:order"),
        "{:?}",
        open("0")
    );
    assert_eq!((open("1"), open("2")), ("/dev/null".into(), "/dev/null".into()));
    let words = fs::read_to_string(of("cmdline")).unwrap();
    let arguments: Vec<&str> = words.split_terminator('\0').skip(1).collect();
    assert_eq!(arguments, ["supervise", "prewarmed"]);
    cool(&site);
}

#[test]
fn the_socket_is_nobody_elses_and_cannot_be_seen_inside() {
    let site = Site::new();
    heat(&site, &[]);
    let warm_directory = site.state().join("warm");
    for directory in [site.state(), warm_directory.clone()] {
        assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let key = fs::read_dir(&warm_directory).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o700);
    // Even where the directory around the state is shown.
    let mount = format!("{}:/around", site.root().display());
    let look = "find /around -path '*warm*' 2>/dev/null; true";
    let seen = site.succeed(["run", "--mount", &mount, "-c", look]);
    assert_eq!(seen, "");
    let shown = site.succeed(["run", "--mount", &mount, "--", "ls", "/around"]);
    assert!(shown.contains("state"), "the test shows nothing: {shown}");
    cool(&site);
}

#[test]
fn a_holder_that_is_killed_leaves_nothing() {
    let site = Site::new();
    let id = heat(&site, &[]);
    kill(pid_of(&waiting(&site)[0]));
    assert_eq!(site.succeed(warm(&[], &["echo", "made anew"])), "made anew\n");
    assert_ne!(heated(&site), id);
    assert_eq!(groups_of(&id), Vec::<PathBuf>::new());
    assert!(!site.state().join("runs").join(&id).exists());
    assert!(!site.state().join("live").join(&id).exists());
    cool(&site);
}

#[test]
fn a_run_that_is_killed_ends_what_runs_for_it() {
    let site = Site::new();
    let id = loop {
        let id = heat(&site, &[]);
        let word = long_sleep();
        let mut client = start(&mut site.offleash(warm(&[], &["sleep", &word])));
        eventually("the command", || processes_with(&word).len().ge(&2).then_some(()));
        // On a busy machine a run does not wait for what waits for it, and is made anew.
        let was_taken = waiting(&site).iter().all(|one| one["id"] != id.as_str());
        signal(&client, Signal::KILL);
        wait(&mut client);
        eventually("its end", || processes_with(&word).is_empty().then_some(()));
        if was_taken {
            break id;
        }
    };
    let log = site.state().join("audit.jsonl");
    let line = eventually("its record", || {
        let log = fs::read_to_string(&log).unwrap();
        log.lines()
            .find(|line| line.contains(&format!("\"run\":\"{id}\"")))
            .map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["data"]["outcome"]["kind"], "interrupted", "{line}");
    eventually("its group's end", || groups_of(&id).is_empty().then_some(()));
    heated(&site);
    cool(&site);
}

#[test]
fn a_holder_that_is_killed_while_a_run_goes_on_is_told_and_nothing_is_run_again() {
    let site = Site::new();
    heat(&site, &[]);
    let holder = pid_of(&waiting(&site)[0]);
    let word = long_sleep();
    let script = format!("echo once; sleep {word}; true");
    let mut run = site.offleash(warm(&[], &["sh", "-c", &script]));
    let mut client = start(run.stdout(Stdio::piped()).stderr(Stdio::piped()));
    read_until(client.stdout.as_mut().unwrap(), "once\n");
    eventually("the command", || (!processes_with(&word).is_empty()).then_some(()));
    kill(holder);
    let output = super::finish(client);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(stdout(&output), "");
    assert!(super::stderr(&output).contains("hint: "), "{}", super::stderr(&output));
    eventually("the end of what ran", || processes_with(&word).is_empty().then_some(()));
    cool(&site);
}

#[test]
fn signals_are_passed_on() {
    let site = Site::new();
    let id = heat(&site, &["--json"]);
    let script = "trap 'exit 42' TERM; touch /tmp/ready; echo started >&2; while :; do sleep 0.05; done";
    let mut run = site.offleash(warm(&["--json"], &["sh", "-c", script]));
    let client = start(run.stdout(Stdio::piped()));
    let run_of = || site.succeed(["runs"]).contains(&id).then_some(());
    eventually("the run", run_of);
    // The shell may not have come to its trap; then it is ended by the signal.
    signal(&client, Signal::TERM);
    let output = super::finish(client);
    let record = super::record_of(&output);
    assert_eq!(record["id"], *id);
    let kind = record["outcome"]["kind"].as_str().unwrap();
    assert!(matches!(kind, "exited" | "signaled"), "{record}");
    heated(&site);
    cool(&site);
}

#[test]
fn one_that_is_told_to_end_is_gone() {
    let site = Site::new();
    let id = heat(&site, &[]);
    let pid = pid_of(&waiting(&site)[0]);
    site.succeed(["warm", "stop", &id]);
    eventually("its end", || (!is_there(pid)).then_some(()));
    assert_eq!(groups_of(&id), Vec::<PathBuf>::new());
    cool(&site);
}

/// What confines such a process is told by nobody: which filter it has, which Landlock domain it is in.
#[test]
fn a_confined_caller_neither_takes_nor_keeps_one() {
    let site = Site::new();
    let id = heat(&site, &[]);
    let confined = |arguments: Vec<&str>| {
        let usual = site.offleash(arguments);
        #[expect(clippy::disallowed_methods, reason = "the program that confines is the system's")]
        let mut command = std::process::Command::new("setpriv");
        command
            .arg("--no-new-privs")
            .arg(usual.get_program())
            .args(usual.get_args());
        command.current_dir(site.workspace()).env_clear().stdin(Stdio::null());
        command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.output().unwrap()
    };
    assert_eq!(stdout(&confined(warm(&[], &["echo", "its own"]))), "its own\n");
    let left = waiting(&site);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["id"], Value::from(id));
    cool(&site);
    confined(warm(&[], &["true"]));
    assert_eq!(waiting(&site), Vec::<Value>::new());
}

#[test]
fn a_holder_that_does_not_listen_holds_nobody_up() {
    let site = Site::new();
    heat(&site, &[]);
    let holder = pid_of(&waiting(&site)[0]);
    let pid = Pid::from_raw(holder.cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let mut run = site.offleash(warm(&[], &["echo", "its own"]));
    // More than a socket holds.
    for number in 0..40 {
        run.env(format!("LARGE{number}"), "x".repeat(16 << 10));
    }
    let mut run = start(&mut run);
    let status = wait(&mut run);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(status.success(), "{status}");
    eventually("sandboxes that listen", || {
        site.succeed(["warm", "stop"]);
        waiting(&site).is_empty().then_some(())
    });
}

#[test]
fn the_usual_state_directory_is_looked_into_wherever_it_is() {
    if is_root() {
        return skip("the state directory of root is one for the whole machine");
    }
    for home_is_known in [true, false] {
        let site = Site::new();
        let ask = |words: &[&str]| {
            let mut command = site.offleash(words);
            command.env_remove("OFFLEASH_STATE");
            if !home_is_known {
                command
                    .env_remove("HOME")
                    .env("XDG_STATE_HOME", site.root().join("state-home"));
            }
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            stdout(&output)
        };
        let run = ["run", "--warm", "1", "--json", "--", "true"];
        ask(&run);
        let waiting = eventually("a sandbox that waits", || {
            let told: Vec<Value> = serde_json::from_str(&ask(&["warm", "ls", "--json"])).unwrap();
            Some(told.first()?["id"].as_str().unwrap().to_owned())
        });
        let record: Value = serde_json::from_str(&ask(&run)).unwrap();
        assert_eq!(id_of(&record), waiting);
        ask(&["warm", "stop"]);
    }
}

#[test]
fn closed_streams_are_nothing_else_in_a_sandbox_that_waited() {
    let site = Site::new();
    let script = "echo told; echo complained >&2; cat; sleep 0.2; echo b > b";
    for closed in ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"] {
        let run = |flags: &str| {
            let words = format!("exec \"$0\" run {flags} --workspace .:rw -- sh -c '{script}' {closed}");
            let like = site.offleash(["run"]);
            #[expect(clippy::disallowed_methods, reason = "the shell that closes the streams")]
            let mut command = std::process::Command::new("/bin/sh");
            command
                .arg("-c")
                .arg(words)
                .arg(binary())
                .stdin(Stdio::null())
                .env_clear();
            command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = command.current_dir(site.workspace()).output().unwrap();
            let written = fs::remove_file(site.workspace().join("b")).is_ok();
            (output.status.code(), stdout(&output), stderr(&output), written)
        };
        let alone = run("");
        assert_eq!((alone.0, alone.3), (Some(0), true), "{closed}: {alone:?}");
        assert_eq!(run("--warm 1"), alone, "{closed}");
        // One that waits is not taken if what is mounted on the machine has changed meanwhile; then there is the next one.
        let is_taken = |_| {
            let id = heated(&site);
            assert_eq!(run("--warm 1"), alone, "{closed}");
            site.succeed(["audit", "show"]).contains(&id)
        };
        assert!((0..10).any(is_taken), "{closed}");
        site.succeed(["warm", "stop"]);
    }
}

#[test]
fn a_run_is_told_when_so_many_wait_that_none_can_for_it() {
    let site = Site::new();
    let run = |number: usize| {
        let variable = format!("NUMBER={number}");
        let output = site.offleash(warm(&["-e", &variable], &["true"])).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let most = 16;
    for number in 0..most {
        assert_eq!(run(number), "");
    }
    eventually("those that wait", || (waiting(&site).len() == most).then_some(()));
    let told = run(most);
    assert!(told.contains("16 wait already"), "{told}");
    // Nothing is wrong with a run of a kind of which one waits.
    assert_eq!(run(0), "");
    cool(&site);
}
