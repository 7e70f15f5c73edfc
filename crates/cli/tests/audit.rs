//! The audit log: what is written, and that nobody changes it without being noticed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use support::{Site, id_of, stderr, stdout};

fn log(site: &Site) -> PathBuf {
    site.state().join("audit.jsonl")
}

/// A log of three runs, one of them applied and one discarded.
fn with_events() -> (Site, Vec<String>) {
    let site = Site::new();
    let ids: Vec<_> = ["echo one > one", "echo two > two", "exit 3"]
        .map(|script| id_of(&site.record(&[], script)))
        .into();
    site.succeed(["apply", &ids[0]]);
    site.succeed(["discard", &ids[1]]);
    (site, ids)
}

fn shown(site: &Site) -> Vec<Value> {
    site.succeed(["audit", "show"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_directory_that_is_not_there_is_no_unbroken_log() {
    let site = Site::new();
    let missing = site.root().join("mistyped");
    for action in ["verify", "show"] {
        let said = site.refuse(["--state", missing.to_str().unwrap(), "audit", action]);
        assert!(said.contains("mistyped` does not exist"), "{said}");
    }
    assert!(!missing.exists());
}

#[test]
fn every_event_is_one_line_with_its_run() {
    let (site, ids) = with_events();
    let lines = shown(&site);
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line["event"].as_str().unwrap(), line["run"].as_str().unwrap()))
        .collect();
    let expected = [
        ("run_ended", 0),
        ("run_ended", 1),
        ("run_ended", 2),
        ("changes_applied", 0),
        ("changes_discarded", 1),
    ];
    assert_eq!(told, expected.map(|(event, run)| (event, ids[run].as_str())));
    assert_eq!(lines[2]["data"]["exit_code"], 3);
    assert_eq!(lines[2]["data"]["command"][2], "exit 3");
    assert_eq!(lines[3]["data"]["paths"], serde_json::json!(["one"]));
    assert_eq!(fs::read_to_string(log(&site)).unwrap().lines().count(), 5);
}

#[test]
fn an_untouched_log_is_unbroken() {
    let (site, _) = with_events();
    assert_eq!(site.succeed(["audit", "verify"]), "5 lines, unbroken\n");
    assert_eq!(Site::new().succeed(["audit", "verify"]), "0 lines, unbroken\n");
}

#[test]
fn whatever_is_changed_is_noticed() {
    type Tamper = fn(&str) -> String;
    let cases: [(&str, Tamper); 7] = [
        ("a changed word", |log| log.replacen("exit 3", "exit 0", 1)),
        ("a changed number", |log| {
            log.replacen("\"exit_code\":3", "\"exit_code\":0", 1)
        }),
        ("a removed line in the middle", |log| without(log, 2)),
        ("a removed first line", |log| without(log, 0)),
        ("a removed last line", |log| without(log, 4)),
        ("lines in another order", |log| {
            let mut lines: Vec<_> = log.lines().collect();
            lines.swap(1, 2);
            lines.join("\n") + "\n"
        }),
        ("an added line", |log| format!("{log}{}\n", log.lines().last().unwrap())),
    ];
    for (case, tamper) in cases {
        let (site, _) = with_events();
        let text = fs::read_to_string(log(&site)).unwrap();
        let tampered = tamper(&text);
        assert_ne!(text, tampered, "{case}");
        fs::write(log(&site), tampered).unwrap();
        let output = site.offleash(["audit", "verify"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{case}: {}", stdout(&output));
        for word in ["error: the audit log is broken at line", "\nhint: "] {
            assert!(stderr(&output).contains(word), "{case}: {}", stderr(&output));
        }
    }
}

fn without(log: &str, number: usize) -> String {
    let lines = log.lines().enumerate().filter(|(position, _)| *position != number);
    lines.map(|(_, line)| format!("{line}\n")).collect()
}

#[test]
fn a_log_that_was_emptied_or_removed_is_noticed() {
    for remove in [false, true] {
        let (site, _) = with_events();
        if remove {
            fs::remove_file(log(&site)).unwrap();
        } else {
            fs::write(log(&site), "").unwrap();
        }
        let output = site.offleash(["audit", "verify"]).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(1),
            "removed: {remove}: {}{}",
            stdout(&output),
            stderr(&output)
        );
    }
}

#[test]
fn runs_at_once_write_one_chain() {
    let site = Site::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..3).for_each(|_| drop(site.record(&["--no-workspace"], "true"))));
        }
    });
    assert!(site.succeed(["audit", "verify"]).ends_with(" lines, unbroken\n"));
    assert_eq!(
        shown(&site).iter().filter(|line| line["event"] == "run_ended").count(),
        12
    );
}

#[test]
fn a_run_whose_supervisor_died_is_in_the_log() {
    let site = Site::new();
    let mut child =
        support::processes::start(&mut site.offleash(["run", "-q", "-c", "echo x > x; echo ready; sleep 600"]));
    support::processes::read_until(child.stdout.as_mut().unwrap(), "ready\n");
    child.kill().unwrap();
    support::processes::wait(&mut child);
    support::processes::eventually("the end of the crashed run", || {
        site.succeed(["runs"]).contains("crashed").then_some(())
    });
    let lines = shown(&site);
    assert_eq!(lines.last().unwrap()["event"], "run_crashed");
    let run = lines.last().unwrap()["run"].as_str().unwrap().to_owned();
    // What it had changed is kept.
    assert_eq!(site.succeed(["diff", "-s", &run]), "A x\n");
    assert_eq!(support::processes::groups_of(&run), Vec::<PathBuf>::new());
}

#[test]
fn refused_commands_are_in_the_log() {
    let site = Site::new();
    site.offleash(["run", "-q", "--deny-command", "cat", "--", "cat"])
        .output()
        .unwrap();
    let lines = shown(&site);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["data"]["outcome"]["kind"], "command_denied");
    assert_eq!(lines[0]["data"]["denials"][0]["rule"], "commands.deny: cat");
}

#[test]
fn output_and_secrets_are_not_in_the_log() {
    let site = Site::new();
    let mut command = site.offleash(["run", "-q", "-c", "echo printed-by-the-command"]);
    command.env("API_KEY", "hunter2-the-value");
    assert!(command.output().unwrap().status.success());
    let text = fs::read_to_string(log(&site)).unwrap();
    assert!(!text.contains("hunter2"));
    assert_eq!(
        text.matches("printed-by-the-command").count(),
        1,
        "in the command line only: {text}"
    );
    assert!(text.contains("API_KEY"));
}

#[test]
fn the_log_cannot_drive_a_terminal_and_belongs_to_the_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new();
    site.record(&[], "printf '\\033[2J' > \"$(printf '\\033]0;x')\"; exit 1");
    let output = site.offleash(["audit", "show"]).output().unwrap();
    assert!(!output.stdout.contains(&0x1b));
    assert_eq!(fs::metadata(log(&site)).unwrap().permissions().mode() & 0o077, 0);
}
