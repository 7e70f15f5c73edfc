//! The record of a run: its fields, what they say, and where it is written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{Site, id_of, record_of, skip, stderr, stdout};

fn denial<'a>(record: &'a Value, subject: &str, name: &str) -> Option<&'a Value> {
    record["denials"]
        .as_array()
        .unwrap()
        .iter()
        .find(|denial| denial["subject"] == subject && denial["name"] == name)
}

#[test]
fn a_record_says_what_was_run_and_how_it_ended() {
    let site = Site::new();
    let record = site.record(&[], "echo out; echo err >&2; exit 3");
    assert_eq!(record["version"], 1);
    assert_eq!(
        record["command"],
        json!(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    );
    assert_eq!(record["level"], "process");
    assert_eq!(record["outcome"], json!({ "kind": "exited", "code": 3 }));
    assert_eq!(record["exit_code"], 3);
    assert_eq!(
        record["stdout"],
        json!({ "data": "out\n", "encoding": "utf-8", "bytes": 4, "truncated": false })
    );
    assert_eq!(
        record["stderr"],
        json!({ "data": "err\n", "encoding": "utf-8", "bytes": 4, "truncated": false })
    );
    assert_eq!(record["limits_hit"], json!([]));
    let id = id_of(&record);
    assert!(
        id.len() == 17
            && id
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
        "{id}"
    );
    let time = record["started_at"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
}

#[test]
fn a_record_is_one_line_and_all_of_the_output() {
    let site = Site::new();
    let output = site
        .offleash(["run", "--json", "-c", "echo a; echo b >&2"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output).lines().count(), 1);
    assert_eq!(stderr(&output), "");
}

#[test]
fn what_is_enforced_is_named_with_its_means() {
    let site = Site::new();
    let record = site.record(&[], "true");
    for control in [
        "namespaces",
        "seccomp",
        "landlock",
        "capabilities",
        "root",
        "network",
        "uid",
    ] {
        assert!(
            record["enforced"][control]
                .as_str()
                .is_some_and(|means| !means.is_empty()),
            "{control}: {record}"
        );
    }
    assert_eq!(record["not_enforced"], json!({}));
}

#[test]
fn output_that_is_no_text_is_base64() {
    let site = Site::new();
    let record = site.record(&[], r"printf '\377\376\000x'; printf 'e\033[2J' >&2");
    assert_eq!(
        record["stdout"],
        json!({ "data": "//4AeA==", "encoding": "base64", "bytes": 4, "truncated": false })
    );
    // JSON escapes what drives a terminal.
    assert_eq!(record["stderr"]["data"], "e\u{1b}[2J");
    let output = site
        .offleash(["run", "--json", "-c", r"printf 'e\033[2J'"])
        .output()
        .unwrap();
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn long_output_is_truncated_and_marked() {
    let site = Site::new();
    let record = site.record(&[], "head -c 3000000 /dev/zero | tr '\\0' x; echo short >&2");
    assert_eq!(record["stdout"]["bytes"], 3_000_000);
    assert_eq!(record["stdout"]["truncated"], true);
    assert_eq!(record["stdout"]["data"].as_str().unwrap().len(), 1 << 20);
    assert_eq!(record["stderr"]["truncated"], false);
}

#[test]
fn usage_is_measured() {
    let site = Site::new();
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; (sleep 0.2 & sleep 0.2 & wait); \
                  head -c 3000000 /dev/zero > written; sync written 2>/dev/null; true";
    let record = site.record(&[], script);
    let usage = &record["usage"];
    let number = |key: &str| usage[key].as_u64().unwrap_or_else(|| panic!("{key} in {usage}"));
    assert!(number("wall_ms") >= 200, "{usage}");
    assert!(number("user_cpu_us") + number("system_cpu_us") > 10_000, "{usage}");
    assert!(number("user_cpu_us") + number("system_cpu_us") < 600_000_000, "{usage}");
    assert!(number("workspace_bytes") >= 3_000_000, "{usage}");
    assert!(number("peak_memory_bytes") > 4096, "{usage}");
    assert!(number("peak_pids") >= 2, "{usage}");
    assert!(
        usage["read_bytes"].is_u64() && usage["written_bytes"].is_u64(),
        "{usage}"
    );
}

#[test]
fn a_refused_system_call_is_told_with_its_rule() {
    let site = Site::new();
    let record = site.record(
        &[],
        "echo x > x; chmod 4755 x 2>/dev/null; unshare -U true 2>/dev/null; true",
    );
    let chmod = record["denials"]
        .as_array()
        .unwrap()
        .iter()
        .find(|denial| denial["name"].as_str().is_some_and(|name| name.contains("chmod")));
    let chmod = chmod.unwrap_or_else(|| panic!("no denial of chmod: {record}"));
    assert_eq!(chmod["subject"], "syscall");
    assert!(
        chmod["rule"].as_str().unwrap().contains("seccomp") && chmod["count"].as_u64().unwrap() >= 1,
        "{chmod}"
    );
    assert!(denial(&record, "syscall", "unshare").is_some(), "{record}");
}

#[test]
fn withheld_secrets_are_told_by_name_and_never_by_value() {
    let site = Site::new();
    let mut command = site.offleash(["run", "--json", "-c", "env"]);
    command
        .env("GITHUB_TOKEN", "hunter2-the-value")
        .env("PLAIN", "plain-value")
        .env("LC_TIME", "C");
    let output = command.output().unwrap();
    let record = record_of(&output);
    let denial = denial(&record, "env", "GITHUB_TOKEN").unwrap_or_else(|| panic!("{record}"));
    assert!(denial["rule"].as_str().unwrap().contains("secret"), "{denial}");
    assert!(
        !stdout(&output).contains("hunter2") && !stdout(&output).contains("plain-value"),
        "{record}"
    );
    assert!(
        record["stdout"]["data"].as_str().unwrap().contains("LC_TIME=C"),
        "{record}"
    );
}

#[test]
fn a_command_that_a_rule_refuses_is_told_with_the_rule() {
    let site = Site::new();
    let output = site
        .offleash(["run", "--json", "--deny-command", "cat", "--", "cat", "/etc/hostname"])
        .output()
        .unwrap();
    let record = record_of(&output);
    assert_eq!(output.status.code(), Some(126));
    assert_eq!(
        record["outcome"],
        json!({ "kind": "command_denied", "rule": "commands.deny: cat" })
    );
    assert_eq!(denial(&record, "command", "cat").unwrap()["rule"], "commands.deny: cat");
}

#[test]
fn arguments_that_are_no_text_are_kept() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let site = Site::new();
    let arguments = [
        OsStr::new("run"),
        OsStr::new("--json"),
        OsStr::new("printf"),
        OsStr::new("%s"),
        OsStr::from_bytes(b"\xff\n"),
    ];
    let record = record_of(&site.offleash(arguments).output().unwrap());
    assert_eq!(record["command"][2], json!({ "base64": "/wo=" }), "{record}");
    assert_eq!(record["stdout"]["data"], "/wo=");
}

#[test]
fn a_report_is_written_beside_the_normal_output() {
    let site = Site::new();
    let report = site.root().join("report.json");
    let output = site
        .offleash([
            "run",
            "--report",
            report.to_str().unwrap(),
            "-c",
            "echo out; echo err >&2; exit 4",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(stdout(&output), "out\n");
    assert_eq!(stderr(&output), "err\n");
    let record: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(record["exit_code"], 4);
    assert_eq!(record["stdout"]["data"], "out\n");
}

#[test]
fn a_report_named_as_a_dash_follows_the_output() {
    let site = Site::new();
    let said = site.succeed(["run", "--report", "-", "-c", "echo out; echo x > file"]);
    let record = said.strip_prefix("out\n").unwrap_or_else(|| panic!("{said}"));
    let record: Value = serde_json::from_str(record).unwrap();
    assert_eq!(record["stdout"]["data"], "out\n");
    assert!(!site.workspace().join("-").exists());
}

#[test]
fn a_report_in_the_file_of_the_output_follows_it() {
    let site = Site::new();
    let file = fs::File::create(site.root().join("both")).unwrap();
    for _ in 0..2 {
        // One after another, at one and the same place in the file.
        let mut run = site.offleash(["run", "--report", "/dev/stdout", "-c", "echo out"]);
        assert!(run.stdout(file.try_clone().unwrap()).status().unwrap().success());
    }
    let said = fs::read_to_string(site.root().join("both")).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[2]), (4, "out", "out"), "{said}");
    for record in [lines[1], lines[3]] {
        assert_eq!(serde_json::from_str::<Value>(record).unwrap()["exit_code"], 0);
    }
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_run() {
    let site = Site::new();
    let said = site.refuse(["run", "--report", "/proc/nothing/report.json", "-c", "touch ran"]);
    assert!(said.contains("/proc/nothing/report.json"), "{said}");
    assert_eq!(site.succeed(["runs"]), "");
    if !is_dev_full_there() {
        return skip("/dev/full does not exist");
    }
    let said = site.refuse(["run", "--report", "/dev/full", "-c", "true"]);
    assert!(said.contains("No space left"), "{said}");
}

#[test]
fn a_report_of_an_earlier_run_stays_when_nothing_runs() {
    let site = Site::new();
    let report = site.root().join("report.json");
    let report = report.to_str().unwrap();
    fs::write(
        report,
        "of an earlier run, which wrote much more than the next one will\n".repeat(1000),
    )
    .unwrap();
    let earlier = fs::read(report).unwrap();
    site.refuse([
        "run",
        "--report",
        report,
        "--level",
        "microvm",
        "--vm-kernel",
        "/no/such",
        "--",
        "true",
    ]);
    assert_eq!(fs::read(report).unwrap(), earlier);
    site.succeed(["run", "--report", report, "--", "true"]);
    let record: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(record["exit_code"], 0);
}

fn is_dev_full_there() -> bool {
    fs::metadata("/dev/full").is_ok()
}

#[test]
fn changes_are_summed_up() {
    let site = Site::new();
    site.write("changed", "a");
    site.write("gone", "a");
    site.write("mode", "a");
    let record = site.record(
        &[],
        "echo b > changed; rm gone; chmod 700 mode; echo c > new; echo d > .envrc",
    );
    assert_eq!(
        record["changes"],
        json!({ "added": 2, "modified": 1, "deleted": 1, "mode": 1, "applied": false, "protected": [".envrc"], "error": null })
    );
}

#[test]
fn ids_of_runs_sort_by_time_and_differ() {
    let site = Site::new();
    let ids: Vec<_> = (0..4).map(|_| id_of(&site.record(&[], "true"))).collect();
    let mut sorted = ids.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(ids, sorted);
}

#[test]
fn many_runs_at_once_are_as_one() {
    let site = Site::new();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let site = &site;
            scope.spawn(move || {
                let record = site.record(&[], &format!("echo {number} > mine; cat mine"));
                assert_eq!(record["stdout"]["data"], format!("{number}\n"), "{record}");
            });
        }
    });
    let runs: Value = serde_json::from_str(&site.succeed(["runs", "--json"])).unwrap();
    assert_eq!(
        runs.as_array()
            .unwrap()
            .iter()
            .filter(|run| run["state"] == "kept")
            .count(),
        16
    );
    assert_eq!(fs::read_dir(site.workspace()).unwrap().count(), 0);
}

#[test]
fn nothing_remains_of_a_run_that_is_over() {
    let site = Site::new();
    let word = support::processes::long_sleep();
    let script = format!("setsid sleep {word} & (sleep {word} &) ; mkdir /tmp/x; exit 5");
    let record = site.record(&["--no-workspace"], &script);
    assert_eq!(record["exit_code"], 5, "{record}");
    assert_eq!(support::processes::processes_with(&word), Vec::<u32>::new());
    assert_eq!(
        support::processes::groups_of(&id_of(&record)),
        Vec::<std::path::PathBuf>::new()
    );
    assert_eq!(fs::read_dir(site.state().join("runs")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(site.state().join("live")).unwrap().count(), 0);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&*site.root().to_string_lossy()), "{mounts}");
}

#[test]
fn a_sandbox_that_cannot_be_made_has_a_record_and_a_line_in_the_log() {
    let site = Site::new();
    let impossible = [
        "run",
        "--json",
        "--level",
        "process-landlock",
        "--allow",
        "example.com",
        "--",
        "true",
    ];
    let output = site.offleash(impossible).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["outcome"]["kind"], "failed", "{record}");
    assert_eq!(record["exit_code"], 125);
    let message = record["outcome"]["message"].as_str().unwrap();
    assert!(message.contains("gateway"), "{message}");
    let log = stdout(&site.offleash(["audit", "show"]).output().unwrap());
    assert!(log.contains(record["id"].as_str().unwrap()), "{log}");
}
