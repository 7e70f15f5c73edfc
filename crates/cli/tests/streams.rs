//! Streams, signals, terminals and exit codes: what a person or a script at either end of a run sees.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "streams/terminals.rs"]
mod terminals;

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::json;
use support::processes::{
    eventually, feed, finish, groups_of, long_sleep, processes_with, program, read_until, signal, start, wait,
};
use support::{Site, record_of, skip, stderr, stdout};

fn shell(script: &str) -> [&str; 4] {
    ["run", "--quiet", "-c", script]
}

/// Waits until no process has `word` in its arguments.
fn gone(word: &str) {
    eventually("the end of every process", || {
        processes_with(word).is_empty().then_some(())
    });
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let site = Site::new();
    for code in [0, 1, 2, 42, 124, 125, 127, 128, 137, 255] {
        let output = site.run_shell(&[], &format!("exit {code}"));
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn a_command_ended_by_a_signal_is_128_and_the_signal() {
    let site = Site::new();
    for (name, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("KILL", 9),
        ("SEGV", 11),
        ("PIPE", 13),
        ("TERM", 15),
        ("USR1", 10),
    ] {
        let record = site.record(&[], &format!("kill -{name} $$"));
        assert_eq!(
            record["outcome"],
            json!({ "kind": "signaled", "signal": number, "name": format!("SIG{name}") })
        );
        assert_eq!(record["exit_code"], 128 + number, "{record}");
    }
}

#[test]
fn what_cannot_be_run_is_126_or_127_as_in_shells() {
    let site = Site::new();
    site.write("plain", "no program\n");
    let directory = site.workspace().display().to_string();
    for (command, code, kind) in [
        ("offleash-test-no-such-command", 127, "command_not_found"),
        ("/offleash/no/such/file", 127, "command_not_found"),
        ("./plain", 126, "not_executable"),
        (directory.as_str(), 126, "not_executable"),
    ] {
        let output = site.offleash(["run", "--json", "--", command]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}");
        assert_eq!(record_of(&output)["outcome"]["kind"], kind, "{command}");
        let output = site.offleash(["run", "--", command]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}");
        assert!(
            stderr(&output).contains(command) && stderr(&output).contains("hint: "),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn input_is_streamed_whatever_its_size() {
    let site = Site::new();
    let input: Vec<u8> = (0..20_000_000_u32)
        .map(|number| number.to_le_bytes()[usize::from(number % 7 == 0)])
        .collect();
    let output = feed(&mut site.offleash(["run", "--quiet", "--", "cat"]), input.clone());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout == input, "{} bytes came back", output.stdout.len());
}

#[test]
fn a_command_that_does_not_read_its_input_can_end() {
    let site = Site::new();
    let output = feed(
        &mut site.offleash(["run", "--quiet", "--", "true"]),
        vec![b'x'; 5_000_000],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let output = feed(
        &mut site.offleash(shell("head -c 3; exec 0<&-; echo; echo over")),
        vec![b'x'; 5_000_000],
    );
    assert_eq!(stdout(&output), "xxx\nover\n", "{}", stderr(&output));
}

#[test]
fn the_end_of_input_is_passed_on() {
    let site = Site::new();
    let mut child = start(&mut site.offleash(shell("read first; echo got $first; cat; echo end")));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "\n"), "got one\n");
    stdin.write_all(b"two\n").unwrap();
    drop(stdin);
    assert_eq!(stdout(&finish(child)), "two\nend\n");
}

#[test]
fn programs_can_be_fed_to_an_interpreter() {
    let site = Site::new();
    let output = feed(
        &mut site.offleash(["run", "--quiet", "sh", "-s", "one"]),
        "echo from input: $1",
    );
    assert_eq!(stdout(&output), "from input: one\n", "{}", stderr(&output));
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let output = feed(
        &mut site.offleash(["run", "--quiet", "python3", "-"]),
        "print('hello from the sandbox')",
    );
    assert_eq!(stdout(&output), "hello from the sandbox\n", "{}", stderr(&output));
}

#[test]
fn a_shell_string_takes_parameters() {
    let site = Site::new();
    let output = site
        .offleash(["run", "-q", "-c", "echo $# \"$1\" \"$2\" $0", "a b", "--c"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "2 a b --c sh\n", "{}", stderr(&output));
    let output = site
        .offleash(["run", "-q", "--", "echo", "-n", "--json"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "--json");
    let output = site.offleash(["run", "-q", "echo", "-n", "--json"]).output().unwrap();
    assert_eq!(stdout(&output), "--json", "after the command, flags are the command's");
}

#[test]
fn output_and_errors_stay_apart_and_bytes_are_kept() {
    let site = Site::new();
    let output = site.run_shell(&[], "printf 'out\\033[2J\\377\\000'; printf 'err\\n' >&2");
    assert_eq!(output.stdout, b"out\x1b[2J\xff\0");
    assert_eq!(output.stderr, b"err\n");
}

#[test]
fn output_is_passed_on_while_the_command_runs() {
    let site = Site::new();
    let mut child = start(&mut site.offleash(shell("echo first; read line; echo second; echo third >&2; read line")));
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "\n"), "first\n");
    child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "\n"), "second\n");
    assert_eq!(read_until(child.stderr.as_mut().unwrap(), "\n"), "third\n");
    assert!(finish(child).status.code().is_some());
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run() {
    let site = Site::new();
    let mut child = start(&mut site.offleash(["run", "--quiet", "--", "yes"]));
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "\n"), "y\n");
    drop(child.stdout.take());
    let output = finish(child);
    assert_eq!(output.status.code(), Some(141), "128 and SIGPIPE: {}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_reader_that_is_slow_loses_nothing() {
    let site = Site::new();
    let mut child = start(&mut site.offleash(shell("head -c 8000000 /dev/zero; echo >&2 written")));
    let mut stdout = child.stdout.take().unwrap();
    let mut total = 0;
    let mut buffer = vec![0; 1_000_000];
    loop {
        std::thread::sleep(std::time::Duration::from_millis(2));
        match stdout.read(&mut buffer).unwrap() {
            0 => break,
            read => total += read,
        }
    }
    assert_eq!(total, 8_000_000);
    assert!(finish(child).status.success());
}

#[test]
fn a_destination_that_is_full_is_a_failure_of_its_own() {
    let site = Site::new();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = site
        .offleash(["run", "--", "echo", "x"])
        .stdout(Stdio::from(full))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = output.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    for word in ["standard output: No space left", "hint: free some space on the disk"] {
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn a_script_whose_interpreter_is_missing_is_told_from_one_without_its_x_bit() {
    use std::os::unix::fs::PermissionsExt as _;

    let site = Site::new();
    let script = site.write("script", "#!/no/interpreter\n");
    for (mode, word) in [(0o755, "the interpreter in its first line"), (0o644, "x bit")] {
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(mode)).unwrap();
        let output = site.offleash(["run", "--", "./script"]).output().unwrap();
        assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn a_grandchild_that_holds_the_output_does_not_hang_the_run() {
    let site = Site::new();
    let word = long_sleep();
    for script in [
        format!("sleep {word} & echo done"),
        format!("(setsid sleep {word} &) ; echo done"),
    ] {
        let output = finish(start(&mut site.offleash(shell(&script))));
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output), "done\n");
        assert_eq!(processes_with(&word), Vec::<u32>::new());
    }
}

fn ready(child: &mut Child) {
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "\n"), "ready\n");
}

#[test]
fn an_interrupt_asks_the_command_once() {
    let site = Site::new();
    let script = "trap 'echo asked; exit 7' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = start(&mut site.offleash(shell(script)));
    ready(&mut child);
    signal(&child, Signal::INT);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "asked\n");
}

#[test]
fn a_second_interrupt_kills_everything() {
    let site = Site::new();
    let word = long_sleep();
    let script = format!(
        "trap 'echo asked' INT; (trap '' INT TERM HUP; sleep {word}) & echo ready; while :; do sleep 0.05; done"
    );
    let mut child = start(&mut site.offleash(["run", "--json", "-c", &script]));
    // With --json nothing is shown before the end.
    eventually("the start of the command", || {
        (!processes_with(&word).is_empty()).then_some(())
    });
    signal(&child, Signal::INT);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the command ignored the first one");
    signal(&child, Signal::INT);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_eq!(
        record_of(&output)["outcome"],
        json!({ "kind": "interrupted", "signal": 2 })
    );
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn a_run_that_a_second_interrupt_killed_says_so() {
    let site = Site::new();
    let script = "trap '' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = start(&mut site.offleash(["run", "-c", script]));
    read_until(child.stdout.as_mut().unwrap(), "ready\n");
    signal(&child, Signal::INT);
    std::thread::sleep(std::time::Duration::from_millis(100));
    signal(&child, Signal::INT);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("a second one kills"), "{}", stderr(&output));
}

#[test]
fn an_interrupted_command_is_told_as_shells_tell_it() {
    let site = Site::new();
    for (which, code) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let mut child = start(&mut site.offleash(shell("echo ready; exec sleep 600")));
        ready(&mut child);
        signal(&child, which);
        assert_eq!(finish(child).status.code(), Some(code));
    }
}

#[test]
fn other_signals_are_passed_on() {
    let site = Site::new();
    let script = "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo ready; while :; do sleep 0.05; done";
    let mut child = start(&mut site.offleash(shell(script)));
    ready(&mut child);
    signal(&child, Signal::USR1);
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "\n"), "one\n");
    signal(&child, Signal::USR2);
    assert_eq!(stdout(&finish(child)), "two\n");
}

#[test]
fn nothing_survives_the_supervisor() {
    let site = Site::new();
    let word = long_sleep();
    let mut child = start(&mut site.offleash(shell(&format!("setsid sleep {word} & echo ready; sleep {word}"))));
    ready(&mut child);
    child.kill().unwrap();
    wait(&mut child);
    gone(&word);
    // What is left in the state directory is finished by the next start.
    site.succeed(["runs"]);
    assert_eq!(std::fs::read_dir(site.state().join("runs")).unwrap().count(), 0);
    let log = site.succeed(["audit", "show"]);
    let crashed: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(crashed["event"], "run_crashed", "{log}");
    assert_eq!(
        groups_of(crashed["run"].as_str().unwrap()),
        Vec::<std::path::PathBuf>::new(),
        "{log}"
    );
}

#[test]
fn streams_that_are_closed_are_no_obstacle() {
    let site = Site::new();
    let binary = support::binary();
    let script = format!(
        "exec '{}' run -q -c 'cat; echo out; echo err >&2; exit 3' 0<&- 1>&- 2>&-",
        binary.display()
    );
    let mut command = site.offleash(["--version"]);
    let environment: Vec<_> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    #[expect(
        clippy::disallowed_methods,
        reason = "the shell closes what a program started from here would have"
    )]
    let mut shell = std::process::Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(script)
        .current_dir(site.workspace())
        .env_clear()
        .envs(environment);
    command.stdin(Stdio::null());
    let mut child = shell.spawn().unwrap();
    assert!(matches!(wait(&mut child).code(), Some(3 | 141)));
}
