//! Streams: input, output, terminals, and processes that hold them open.

use std::time::{Duration, Instant};

use crate::harness::{Role, command, eventually, roles, shell, start};
use offleash_protocol::{ExecCommand, ExitReport, StdinKind, ToGuest};
use sha2::{Digest, Sha256};

const EXITED_WELL: Option<ExitReport> = Some(ExitReport::Exited { code: 0 });

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes without a pattern that a lost or doubled piece would preserve.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn fifty_megabytes_of_output_arrive_unchanged() {
    for role in roles() {
        let script = "head -c 50000000 /dev/urandom | tee /dev/fd/3 | sha256sum >&2";
        let outcome = start(role).run(command(&[
            "sh",
            "-c",
            &format!("exec 3>&1; {{ {script}; }}  >/dev/null"),
        ]));
        assert_eq!(outcome.stdout.len(), 50_000_000);
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert_eq!(said.split(' ').next().unwrap(), hex(&Sha256::digest(&outcome.stdout)));
    }
}

#[test]
fn ten_megabytes_go_in_and_come_back() {
    for role in roles() {
        let mut guest = start(role);
        let bytes = noise(10_000_000);
        let exec = guest.exec(ExecCommand {
            stdin: StdinKind::Stream,
            ..command(&["cat"])
        });
        guest.feed(exec, &bytes);
        let outcome = guest.wait(exec);
        assert_eq!(outcome.end, EXITED_WELL);
        assert!(
            outcome.stdout == bytes,
            "{} of {} bytes came back",
            outcome.stdout.len(),
            bytes.len()
        );
        assert_eq!(outcome.taken, bytes.len());
    }
}

#[test]
fn input_that_nobody_reads_counts_as_taken_once_it_is_closed() {
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(ExecCommand {
        stdin: StdinKind::Stream,
        ..shell("exec <&-; echo closed; sleep 60")
    });
    guest.wait_for_output(exec, "closed");
    guest.feed(exec, &noise(1_000_000));
    guest.pump_until(|guest| guest.outcome(exec).taken == 1_000_000);
    guest.send(&ToGuest::Signal {
        exec,
        signal: 15,
        group: true,
    });
    assert_eq!(guest.wait(exec).end, Some(ExitReport::Signaled { signal: 15 }));
}

#[test]
fn more_input_than_the_window_ends_the_guest() {
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(ExecCommand {
        stdin: StdinKind::Stream,
        ..command(&["sleep", "60"])
    });
    for _ in 0..6 {
        guest.send(&ToGuest::Input {
            exec,
            bytes: vec![0; 64 * 1024],
        });
    }
    guest.pump_until(|_| false);
    assert_eq!(guest.exit_code(), 71);
}

#[test]
fn without_input_a_command_sees_its_end() {
    let outcome = start(Role::Subreaper).run(shell("cat; readlink /proc/self/fd/0"));
    assert_eq!((outcome.text(), outcome.end), ("/dev/null\n".to_owned(), EXITED_WELL));
}

#[test]
fn a_descendant_that_holds_the_output_open_does_not_delay_the_end() {
    for role in roles() {
        let mut guest = start(role);
        let begun = Instant::now();
        let outcome = guest.run(shell("sleep 3600 & echo said"));
        assert_eq!((outcome.text(), outcome.end), ("said\n".to_owned(), EXITED_WELL));
        assert!(begun.elapsed() < Duration::from_secs(600));
        assert_eq!(guest.usage().processes, 1);
    }
}

/// The last thing that a command does before it ends is to fill its pipe: all of it must arrive.
#[test]
fn output_written_just_before_the_end_is_never_lost() {
    let mut guest = start(Role::Subreaper);
    for _ in 0..50 {
        let outcome = guest.run(shell("sleep 60 & head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2"));
        assert_eq!(
            (outcome.stdout.len(), outcome.stderr.len(), outcome.end),
            (60_000, 60_000, EXITED_WELL)
        );
    }
}

/// A descendant that writes without pause must not keep the end of the command from being reported.
#[test]
fn a_descendant_that_floods_the_output_does_not_delay_the_end() {
    let mut guest = start(Role::Subreaper);
    let outcome = guest.run(shell("yes & sleep 0.2; echo last >&2"));
    assert_eq!((&outcome.stderr[..], outcome.end), (&b"last\n"[..], EXITED_WELL));
}

#[test]
fn what_is_written_after_the_end_is_dropped_and_its_writer_lives_on() {
    for role in roles() {
        let mut guest = start(role);
        let directory = tempfile::tempdir().unwrap();
        let gate = directory.path().join("gate");
        // Had the pipe been closed, `head` would be killed, and its shell end; were it not read, `head` would wait.
        let script = format!(
            "(until test -e {}; do sleep 0.01; done; for i in 1 2 3 4 5; do head -c 100000 /dev/zero || exit; done; \
             : > {}; exec sleep 60) & echo first",
            gate.display(),
            directory.path().join("written").display()
        );
        let outcome = guest.run(shell(&script));
        assert_eq!(outcome.text(), "first\n");
        std::fs::write(gate, "").unwrap();
        eventually("everything is written", || directory.path().join("written").exists());
        assert_eq!(guest.usage().processes, 1);
    }
}

#[test]
fn a_host_that_reads_nothing_is_not_flooded_and_is_still_heard() {
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(command(&["yes"]));
    std::thread::sleep(Duration::from_millis(300));
    // Nothing was read so far; the guest's memory is bounded and it takes requests nevertheless.
    guest.pump_until(|guest| guest.outcome(exec).pid.is_some());
    let resident = resident_kib(guest.pid());
    assert!(resident < 16 * 1024, "{resident} KiB");
    guest.send(&ToGuest::Signal {
        exec,
        signal: 9,
        group: false,
    });
    assert_eq!(guest.wait(exec).end, Some(ExitReport::Signaled { signal: 9 }));
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("it has memory");
    line.split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

#[test]
fn a_terminal_has_the_size_it_was_given_and_is_told_of_another() {
    for role in roles() {
        let mut guest = start(role);
        let script = "stty size; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.01; done";
        let exec = guest.exec(ExecCommand {
            tty: Some((31, 97)),
            stdin: StdinKind::Stream,
            ..shell(script)
        });
        guest.wait_for_output(exec, "ready");
        guest.send(&ToGuest::Resize {
            exec,
            rows: 44,
            columns: 123,
        });
        let outcome = guest.wait(exec);
        assert_eq!(
            (outcome.text().as_str(), outcome.end),
            ("31 97\r\nready\r\n44 123\r\n", Some(ExitReport::Exited { code: 5 }))
        );
    }
}

#[test]
fn a_terminal_is_the_controlling_one_and_carries_all_streams() {
    let script = "tty; test -t 0 && test -t 1 && test -t 2 && echo all >/dev/tty; echo err >&2";
    let outcome = start(Role::Subreaper).run(ExecCommand {
        tty: Some((24, 80)),
        ..shell(script)
    });
    let text = outcome.text();
    assert!(
        text.starts_with("/dev/pts/") && text.ends_with("\r\nall\r\nerr\r\n"),
        "{text:?}"
    );
    assert!(outcome.stderr.is_empty());
}

#[test]
fn keys_and_the_end_of_input_work_on_a_terminal() {
    let mut guest = start(Role::Subreaper);
    let request = |script| ExecCommand {
        tty: Some((24, 80)),
        stdin: StdinKind::Stream,
        ..shell(script)
    };
    let exec = guest.exec(request("stty -echo; echo ready; cat; echo done"));
    guest.wait_for_output(exec, "ready");
    // Not at the beginning of a line, where one end-of-input character would not do.
    guest.feed(exec, b"one\ntwo");
    assert_eq!(guest.wait(exec).text(), "ready\r\none\r\ntwodone\r\n");
    let exec = guest.exec(request("stty -echo; echo ready; exec sleep 60"));
    guest.wait_for_output(exec, "ready");
    guest.send(&ToGuest::Input { exec, bytes: vec![3] });
    assert_eq!(guest.wait(exec).end, Some(ExitReport::Signaled { signal: 2 }));
}

#[test]
fn who_takes_a_terminal_raw_after_the_end_of_input_is_told_of_it_too() {
    let mut guest = start(Role::Subreaper);
    // As editors of lines do it: raw first, then the prompt.
    let read = "c=$(dd bs=1 count=1 2>/dev/null | od -An -tx1)";
    let script = format!(
        "stty -echo; echo ready; sleep 0.2; stty raw; printf prompt; \
         while {read}; do case $c in *04*) printf end; exit;; esac; done"
    );
    let exec = guest.exec(ExecCommand {
        tty: Some((24, 80)),
        stdin: StdinKind::Stream,
        ..shell(&script)
    });
    guest.wait_for_output(exec, "ready");
    guest.feed(exec, b"");
    assert_eq!(guest.wait(exec).text(), "ready\r\npromptend");
}

#[test]
fn a_terminal_that_a_descendant_holds_does_not_delay_the_end() {
    let mut guest = start(Role::Subreaper);
    for _ in 0..20 {
        let script = "trap '' HUP; sleep 60 & head -c 3000 /dev/zero | tr '\\0' x";
        let outcome = guest.run(ExecCommand {
            tty: Some((24, 80)),
            ..shell(script)
        });
        assert_eq!((outcome.stdout.len(), outcome.end), (3000, EXITED_WELL));
    }
}
