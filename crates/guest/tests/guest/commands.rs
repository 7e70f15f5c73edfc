//! Commands: how they start, what they get, how their end is reported.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{Role, command, roles, shell, start};
use offleash_protocol::{ExecCommand, ExitReport, StartFailure};

const EXITED_WELL: Option<ExitReport> = Some(ExitReport::Exited { code: 0 });

#[test]
fn a_command_writes_both_streams_and_exits() {
    for role in roles() {
        let outcome = start(role).run(shell("echo out; echo err >&2"));
        assert_eq!(
            (&outcome.stdout[..], &outcome.stderr[..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(outcome.end, EXITED_WELL);
        assert!(outcome.pid.is_some() && outcome.max_rss_kib > 0);
    }
}

#[test]
fn ends_are_reported_as_they_were() {
    let mut guest = start(Role::Subreaper);
    for (script, end) in [
        ("exit 3", ExitReport::Exited { code: 3 }),
        ("exit 255", ExitReport::Exited { code: 255 }),
        ("kill -9 $$", ExitReport::Signaled { signal: 9 }),
        ("kill -SEGV $$", ExitReport::Signaled { signal: 11 }),
        ("kill -PIPE $$", ExitReport::Signaled { signal: 13 }),
    ] {
        assert_eq!(guest.run(shell(script)).end, Some(end), "{script}");
    }
}

fn write_file(directory: &std::path::Path, name: &str, content: &[u8], mode: u32) -> String {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap_or_else(|error| panic!("{name}: {error}"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    path.to_str().expect("a temporary path is text").to_owned()
}

#[test]
fn what_cannot_start_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8], mode| write_file(directory.path(), name, content, mode);
    let not_executable = |errno| ExitReport::NotStarted(StartFailure::NotExecutable { errno });
    let not_found = ExitReport::NotStarted(StartFailure::NotFound);
    let mut guest = start(Role::Subreaper);
    for (program, end) in [
        ("no-such-command".to_owned(), not_found.clone()),
        ("/no/such/command".to_owned(), not_found.clone()),
        ("/etc/passwd/command".to_owned(), not_found.clone()),
        (String::new(), not_found.clone()),
        ("x".repeat(300), not_found.clone()),
        (".".to_owned(), not_found.clone()),
        ("/".to_owned(), not_executable(21)),
        (file("plain", b"#!/bin/sh\n", 0o644), not_executable(13)),
        (file("binary", b"\x01\0\x02\n", 0o755), not_executable(8)),
        (file("orphan", b"#!/no/such/interpreter\n", 0o755), not_executable(2)),
    ] {
        let outcome = guest.run(command(&[&program]));
        assert_eq!((outcome.end, outcome.pid), (Some(end), None), "{program}");
    }
    let request = ExecCommand {
        cwd: b"/no/such/directory".to_vec(),
        ..command(&["true"])
    };
    let failure = StartFailure::Directory { errno: 2 };
    assert_eq!(guest.run(request).end, Some(ExitReport::NotStarted(failure)));
    assert_eq!(guest.run(command(&["true"])).end, EXITED_WELL);
}

#[test]
fn text_without_an_interpreter_is_run_by_the_shell() {
    let directory = tempfile::tempdir().unwrap();
    let script = write_file(directory.path(), "script", b"echo \"$0|$1|$2\"\n", 0o755);
    let outcome = start(Role::Subreaper).run(command(&[&script, "a b", "c"]));
    assert_eq!(outcome.text(), format!("{script}|a b|c\n"));
    let empty = write_file(directory.path(), "empty", b"", 0o755);
    assert_eq!(start(Role::Subreaper).run(command(&[&empty])).end, EXITED_WELL);
}

#[test]
fn a_command_is_looked_up_as_shells_do() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let place = directory.path().join(name);
        std::fs::create_dir(&place).expect("mkdir");
        place
    };
    let (first, second, third, here) = (place("first"), place("second"), place("third"), place("here"));
    std::fs::create_dir(first.join("tool")).unwrap();
    write_file(&second, "tool", b"#!/bin/sh\necho refused\n", 0o644);
    write_file(&third, "tool", b"#!/bin/sh\necho third\n", 0o755);
    write_file(&here, "tool", b"#!/bin/sh\necho here\n", 0o755);
    let request = |path: &[&std::path::Path], tail: &str| {
        let path = path
            .iter()
            .map(|part| part.to_str().expect("text").to_owned())
            .collect::<Vec<_>>()
            .join(":")
            + tail;
        let cwd = here.to_str().expect("text").as_bytes().to_vec();
        ExecCommand {
            env: vec![(b"PATH".to_vec(), path.into_bytes())],
            cwd,
            ..command(&["tool"])
        }
    };
    let mut guest = start(Role::Subreaper);
    assert_eq!(guest.run(request(&[&first, &second, &third], "")).text(), "third\n");
    assert_eq!(
        guest.run(request(&[&first], "")).end,
        Some(ExitReport::NotStarted(StartFailure::NotFound))
    );
    let refused = StartFailure::NotExecutable { errno: 13 };
    assert_eq!(
        guest.run(request(&[&second, &first], "")).end,
        Some(ExitReport::NotStarted(refused))
    );
    // An empty entry would be the working directory; only a named one counts.
    assert_eq!(
        guest.run(request(&[], "::")).end,
        Some(ExitReport::NotStarted(StartFailure::NotFound))
    );
    assert_eq!(guest.run(request(&[], "::.")).text(), "here\n");
}

#[test]
fn a_command_gets_three_descriptors_and_nothing_else() {
    for role in roles() {
        let outcome = start(role).run(command(&[
            "sh",
            "-c",
            // By builtins alone: a pipeline would have descriptors of its own for a moment.
            "for n in 0 1 2 3 4 5 6 7 8 9; do if [ -e /proc/$$/fd/$n ]; then printf '%s ' $n; fi; done",
        ]));
        assert_eq!(outcome.text(), "0 1 2 ", "{role:?}");
    }
}

#[test]
fn a_command_gets_exactly_its_environment_and_directory() {
    let mut request = command(&["/usr/bin/env"]);
    request.env = vec![
        (b"ONE".to_vec(), b"1=\xff\n2".to_vec()),
        (b"EMPTY".to_vec(), Vec::new()),
    ];
    assert_eq!(start(Role::Subreaper).run(request).stdout, b"ONE=1=\xff\n2\nEMPTY=\n");
    let request = ExecCommand {
        cwd: b"/usr".to_vec(),
        ..command(&["pwd"])
    };
    assert_eq!(start(Role::Subreaper).run(request).text(), "/usr\n");
}

#[test]
fn an_environment_that_cannot_be_is_refused() {
    let mut guest = start(Role::Subreaper);
    for (name, value) in [(&b""[..], &b"x"[..]), (b"A=B", b"x"), (b"A\0", b"x"), (b"A", b"\0")] {
        let request = ExecCommand {
            env: vec![(name.to_vec(), value.to_vec())],
            ..command(&["/bin/true"])
        };
        let failure = StartFailure::Other {
            step: "environment".to_owned(),
            errno: 22,
        };
        assert_eq!(guest.run(request).end, Some(ExitReport::NotStarted(failure)));
    }
}

#[test]
fn signals_are_default_and_unblocked_in_a_command() {
    for role in roles() {
        let status = start(role).run(command(&["cat", "/proc/self/status"])).text();
        for mask in ["SigBlk:", "SigIgn:", "SigCgt:"] {
            assert!(
                status.contains(&format!("{mask}\t0000000000000000\n")),
                "{role:?}: {status}"
            );
        }
    }
}

#[test]
fn a_command_leads_a_session_without_a_terminal() {
    let outcome = start(Role::Subreaper).run(shell("cut -d' ' -f1,5,6,7 /proc/$$/stat"));
    let fields: Vec<i64> = outcome
        .text()
        .split_whitespace()
        .map(|field| field.parse().unwrap())
        .collect();
    assert_eq!(fields[..3], [i64::from(outcome.pid.unwrap()); 3]);
    assert_eq!(fields[3], 0);
}

#[test]
fn the_oom_score_is_raised_and_never_lowered() {
    for role in roles() {
        let mut guest = start(role);
        let read = || shell("cat /proc/self/oom_score_adj");
        let before: i16 = guest.run(read()).text().trim().parse().unwrap();
        let outcome = guest.run(ExecCommand {
            oom_score_adj: Some(before + 7),
            ..read()
        });
        assert_eq!(outcome.text().trim(), (before + 7).to_string(), "{role:?}");
        let outcome = guest.run(ExecCommand {
            oom_score_adj: Some(before - 1),
            ..read()
        });
        assert_eq!(outcome.text().trim(), before.to_string());
        assert!(guest.problems.is_empty(), "{:?}", guest.problems);
    }
}

#[test]
fn an_argument_list_of_two_megabytes_arrives() {
    let long = "x".repeat(100_000);
    let mut argv = vec!["sh", "-c", "echo $#; echo ${#1}", "sh"];
    argv.extend([&long[..]; 18]);
    assert_eq!(start(Role::Subreaper).run(command(&argv)).text(), "18\n100000\n");
    // More than the kernel takes.
    argv.extend([&long[..]; 50]);
    let failure = ExitReport::NotStarted(StartFailure::NotExecutable { errno: 7 });
    assert_eq!(start(Role::Subreaper).run(command(&argv)).end, Some(failure));
}

#[test]
fn a_hundred_commands_in_sequence_leave_nothing_open() {
    for role in roles() {
        let mut guest = start(role);
        for number in 0..100 {
            assert_eq!(
                guest.run(command(&["echo", &number.to_string()])).text(),
                format!("{number}\n")
            );
        }
        assert_eq!(guest.usage().processes, 0);
        if role == Role::Subreaper && rustix::process::geteuid().is_root() {
            let open = std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().count();
            assert_eq!(
                open, 6,
                "three standard streams, the control socket, the signals, the score"
            );
        }
    }
}

#[test]
fn a_hundred_commands_at_once_keep_their_output_apart() {
    let mut guest = start(Role::Subreaper);
    let execs: Vec<u32> = (0..100)
        .map(|number| guest.exec(shell(&format!("sleep 0.0{}; echo {number}", number % 10))))
        .collect();
    for (number, exec) in execs.into_iter().enumerate() {
        let outcome = guest.wait(exec);
        assert_eq!((outcome.text(), outcome.end), (format!("{number}\n"), EXITED_WELL));
    }
}
