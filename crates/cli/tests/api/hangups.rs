//! What becomes of the command of `offleash exec` when its caller has enough: by a signal, by going away.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::server::{QUIET, Server};
use crate::support::Site;
use crate::support::processes::{eventually, signal, wait};
use crate::support::terminal::Terminal;

/// A shell in the sandbox that has said `begun`, and its output.
fn begun(server: &Server, id: &str, script: &str) -> (Child, impl Iterator<Item = String>) {
    let mut command = server.site.offleash(["exec", id, "bash", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("begun"));
    (child, lines)
}

/// Whether the sandbox has a process of this name.
fn has(server: &Server, id: &str, name: &str) -> bool {
    let list = "for f in /proc/[0-9]*/comm; do read -r name < $f && echo $name; done 2> /dev/null; true";
    let names = server.say(&["exec", id, "bash", "-c", list]);
    names.lines().any(|line| line == name)
}

/// Waits until the program that a shell has begun is there: a shell that gets a signal between its last look for one and
/// the start of a child waits for that child.
fn sleeps(server: &Server, id: &str) {
    eventually("the sleep", || has(server, id, "sleep").then_some(()));
}

fn nothing_sleeps(server: &Server, id: &str) {
    eventually("the end of the sleep", || (!has(server, id, "sleep")).then_some(()));
}

#[test]
fn an_interrupt_is_the_commands_and_a_second_one_kills_it() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create", "--timeout", "10m"]);
    let id = id.trim();
    // What does nothing about it ends of it, with all that it started.
    let (mut child, _) = begun(&server, id, "echo begun; sleep 1000; sleep 1000");
    sleeps(&server, id);
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(130));
    nothing_sleeps(&server, id);
    // What handles it says how it ended.
    let handles = "trap 'echo caught; exit 3' INT; echo begun; while :; do sleep 0.05; done";
    let (mut child, mut lines) = begun(&server, id, handles);
    signal(&child, Signal::INT);
    assert_eq!(
        (lines.next().as_deref(), wait(&mut child).code()),
        (Some("caught"), Some(3))
    );
    // What goes on all the same is killed.
    let stays = "trap 'echo not yet' INT; echo begun; while :; do sleep 0.05; done";
    let (mut child, mut lines) = begun(&server, id, stays);
    signal(&child, Signal::INT);
    assert_eq!(lines.next().as_deref(), Some("not yet"));
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(130));
    nothing_sleeps(&server, id);
    // The others that ask are passed on as they are.
    for (sent, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let (mut child, _) = begun(&server, id, "echo begun; exec sleep 1000");
        sleeps(&server, id);
        signal(&child, sent);
        assert_eq!(wait(&mut child).code(), Some(code));
        nothing_sleeps(&server, id);
    }
}

#[test]
fn a_command_ends_with_the_client_that_was_killed() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create", "--timeout", "10m"]);
    let id = id.trim();
    let (mut child, _) = begun(&server, id, "echo begun; exec sleep 1000");
    sleeps(&server, id);
    signal(&child, Signal::KILL);
    assert_eq!(wait(&mut child).signal(), Some(9));
    nothing_sleeps(&server, id);
    // Nor is it enough not to listen.
    let (mut child, _) = begun(&server, id, "trap '' HUP; echo begun; exec sleep 1000");
    sleeps(&server, id);
    signal(&child, Signal::KILL);
    wait(&mut child);
    nothing_sleeps(&server, id);
    // At a terminal as without.
    let terminal = Terminal::new(24, 80);
    let mut command = server
        .site
        .offleash(["exec", "-it", id, "bash", "-c", "echo be''gun; sleep 1000"]);
    let mut child = terminal.start(&mut command);
    terminal.wait_for("begun");
    sleeps(&server, id);
    signal(&child, Signal::KILL);
    wait(&mut child);
    nothing_sleeps(&server, id);
}

#[test]
fn a_command_goes_on_when_it_is_the_server_that_ends() {
    let mut server = Server::start_with(&format!("drain_seconds = 1\n{QUIET}"), &[]);
    let id = server.say(&["create", "--timeout", "10m"]);
    let id = id.trim().to_owned();
    let (mut child, _) = begun(&server, &id, "echo begun; exec sleep 1000");
    sleeps(&server, &id);
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
    assert_eq!(wait(&mut child).code(), Some(125));
    let site = std::mem::replace(&mut server.site, Site::new());
    let next = Server::start_on(site, QUIET, &[]);
    assert!(has(&next, &id, "sleep"));
}
