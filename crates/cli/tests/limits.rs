//! Every limit from the outside: what hits it ends typed, and the record says which limit it was. The same tests hold
//! where a control group bounds the sandbox and where rlimits and a watcher do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "limits/files.rs"]
mod files;
#[path = "limits/sanitizers.rs"]
mod sanitizers;
#[path = "limits/shown.rs"]
mod shown;
mod support;

use std::process::Command;

use offleash_core::limits::{LIMITS, LimitName, LimitRow};
use serde_json::{Value, json};
use support::processes::{feed, long_sleep, processes_with, program};
use support::{Site, record_of, skip, stderr, stdout};

fn exceeded(limit: LimitName, value: u64) -> Value {
    json!({ "kind": "limit_exceeded", "limit": limit.name(), "value": value })
}

fn hits(record: &Value, limit: LimitName) -> Vec<&str> {
    let hits = record["limits_hit"].as_array().unwrap().iter();
    hits.filter(|hit| hit["limit"] == limit.name())
        .map(|hit| hit["effect"].as_str().unwrap())
        .collect()
}

fn assert_ended_by(record: &Value, limit: LimitName, value: u64, code: u8) {
    assert_eq!(record["outcome"], exceeded(limit, value), "{record}");
    assert_eq!(hits(record, limit), ["killed"], "{record}");
    assert_eq!(record["exit_code"], code, "{record}");
}

#[test]
fn wall_time_ends_a_run_with_124() {
    let site = Site::new();
    let word = long_sleep();
    let record = site.record(&["--wall-time", "300ms"], &format!("sleep {word} & sleep {word}"));
    assert_ended_by(&record, LimitName::WallTime, 300, 124);
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn wall_time_cannot_be_outlived_by_ignoring_signals() {
    let site = Site::new();
    let record = site.record(
        &["--wall-time", "300ms"],
        "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
    );
    assert_ended_by(&record, LimitName::WallTime, 300, 124);
}

#[test]
fn cpu_time_ends_a_run_with_137() {
    let site = Site::new();
    for script in [
        "while :; do :; done",
        "(while :; do :; done) & (while :; do :; done) & wait",
        "trap '' XCPU; while :; do :; done",
    ] {
        let record = site.record(&["--cpu-time", "1s", "--wall-time", "60s"], script);
        assert_ended_by(&record, LimitName::CpuTime, 1000, 137);
        let used =
            record["usage"]["user_cpu_us"].as_u64().unwrap() + record["usage"]["system_cpu_us"].as_u64().unwrap();
        // The kernel's own count goes by ticks, and runs ahead on a machine that shares its processor.
        assert!(used >= 300_000, "{script}: {record}");
    }
}

#[test]
fn cpu_time_of_short_processes_adds_up() {
    let site = Site::new();
    // No single process comes near the limit.
    let script = "while :; do sh -c 'i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done'; done";
    let record = site.record(&["--cpu-time", "1s", "--wall-time", "80s"], script);
    assert_ended_by(&record, LimitName::CpuTime, 1000, 137);
}

#[test]
fn more_memory_than_allowed_is_told_as_that() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let flags = [
        "run",
        "--json",
        "--memory",
        "64M",
        "--",
        "python3",
        "-c",
        "held = [bytearray(b'x') * 1000000 for _ in range(400)]",
    ];
    let record = record_of(&site.offleash(flags).output().unwrap());
    // A program may also see the refusal itself, where no group bounds the whole sandbox.
    if record["outcome"]["kind"] == "out_of_memory" {
        assert_eq!(record["outcome"]["limit"], 64 << 20);
        assert_eq!(record["exit_code"], 137);
        assert_eq!(hits(&record, LimitName::Memory), ["killed"], "{record}");
    } else {
        assert!(
            record["stderr"]["data"].as_str().unwrap().contains("MemoryError"),
            "{record}"
        );
        assert!(
            record["enforced"]["limit.memory"]
                .as_str()
                .unwrap()
                .contains("RLIMIT_DATA"),
            "{record}"
        );
        assert_eq!(hits(&record, LimitName::Memory), ["reported"], "{record}");
    }
}

#[test]
fn what_only_the_command_knows_of_is_told_in_its_words() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let many = "held = [open('/dev/null') for _ in range(100)]";
    let caught = format!("try:\n    {many}\nexcept OSError as error:\n    print(error)\n");
    let long = "open('long', 'wb').truncate(2 << 20)";
    for (limit, value, flags, code, exit_code) in [
        (LimitName::OpenFiles, 64, ["--open-files", "64"], many, 1),
        (LimitName::OpenFiles, 64, ["--open-files", "64"], &caught, 0),
        (LimitName::OpenFiles, 200, ["--open-files", "200"], many, 0),
        (LimitName::FileSize, 1 << 20, ["--file-size", "1M"], long, 1),
    ] {
        let command = ["--", "python3", "-c", code];
        let arguments = |more: &[&'static str]| [&["run"], more, &flags, &command].concat();
        let record = record_of(&site.offleash(arguments(&["--json"])).output().unwrap());
        assert_eq!(record["exit_code"], exit_code, "{record}");
        let expected = if exit_code == 0 { vec![] } else { vec!["reported"] };
        assert_eq!(hits(&record, limit), expected, "{record}");
        let output = site.offleash(arguments(&[])).output().unwrap();
        let line = format!("raise it with `{}`", limit.flag());
        assert_eq!(stderr(&output).contains(&line), exit_code != 0, "{}", stderr(&output));
        for hit in record["limits_hit"].as_array().unwrap() {
            assert_eq!(hit["value"], value, "{record}");
        }
    }
}

#[test]
fn open_files_that_were_allowed_from_outside_are_told_as_what_they_are() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let many = "held = [open('/dev/null') for _ in range(2000)]";
    let asked = site.offleash(["run", "--json", "--", "python3", "-c", many]);
    let output = allowing_less("-n 100", &asked).output().unwrap();
    let record = record_of(&output);
    assert_eq!(hits(&record, LimitName::OpenFiles), ["reported"], "{record}");
    assert_eq!(record["limits_hit"][0]["value"], 100, "{record}");
}

/// As `asked`, below a shell's `ulimit`.
fn allowing_less(limit: &str, asked: &Command) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the shell that allows less")]
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")])
        .arg(asked.get_program())
        .args(asked.get_args())
        .current_dir(asked.get_current_dir().unwrap())
        .env_clear()
        .envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// The size is that of the caller's files, of which the log is one.
#[test]
fn a_log_that_may_not_grow_is_told_of_and_the_command_has_the_usual_signals() {
    let site = Site::new();
    site.succeed(["run", "-q", "--", "true"]);
    let log = site.state().join("audit.jsonl");
    let (written, longest) = (std::fs::read_to_string(&log).unwrap(), 64 * 1024);
    // Of lines that are no events, which nobody looks at before the last one.
    let filled = format!("{}{written}", "{}\n".repeat(longest / 3));
    std::fs::write(&log, filled).unwrap();
    let script = "head -c 200000 /dev/zero > long; echo $?";
    let asked = site.offleash(["run", "-q", "-c", script]);
    let output = allowing_less("-f 128", &asked).output().unwrap();
    assert_eq!(stdout(&output), "153\n");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("audit.jsonl"), "{}", stderr(&output));
}

#[test]
fn running_out_of_memory_is_137_and_says_so() {
    let site = Site::new();
    // Many processes, each far below the limit, as a fork bomb of memory does it. The shell keeps what it has: it would
    // become its last command.
    let script = "for i in 1 2 3 4 5 6 7 8; do sh -c 'x=$(head -c 12000000 /dev/zero | tr \"\\\\0\" a); sleep 60; :' & done; wait";
    let record = site.record(&["--memory", "48M", "--wall-time", "80s"], script);
    assert_eq!(
        record["outcome"],
        json!({ "kind": "out_of_memory", "limit": 48 << 20 }),
        "{record}"
    );
    assert_eq!(record["exit_code"], 137);
    let output = site
        .offleash(["run", "--memory", "48M", "--wall-time", "80s", "-c", script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(137));
    let said = stderr(&output);
    assert!(
        said.contains("out of memory (limit 48M)") && said.contains("`--memory`"),
        "{said}"
    );
}

#[test]
fn files_in_memory_count_as_memory() {
    let site = Site::new();
    // The time to be noticed in, where no control group refuses the memory itself.
    let script =
        "head -c 200000000 /dev/zero > /tmp/a; head -c 200000000 /dev/zero > /dev/shm/b; sleep 30; echo survived";
    let record = site.record(&["--memory", "64M", "--wall-time", "80s"], script);
    assert_eq!(
        record["outcome"],
        json!({ "kind": "out_of_memory", "limit": 64 << 20 }),
        "{record}"
    );
    assert_eq!(hits(&record, LimitName::Memory), ["killed"], "{record}");
}

fn stdout_of(record: &Value) -> &str {
    record["stdout"]["data"].as_str().unwrap()
}

#[test]
fn no_more_processes_than_allowed() {
    let site = Site::new();
    let word = long_sleep();
    let script = format!("i=0; while [ $i -lt 60 ]; do sleep {word} & i=$((i+1)); done; echo started");
    let record = site.record(&["--pids", "20", "--wall-time", "60s"], &script);
    assert!(
        record["stderr"]["data"]
            .as_str()
            .unwrap()
            .to_lowercase()
            .contains("fork"),
        "{record}"
    );
    assert!(record["usage"]["peak_pids"].as_u64().unwrap() <= 20, "{record}");
    // A limit of the user namespace has no counter that says so, but what was started is there to be counted.
    assert_eq!(hits(&record, LimitName::Pids), ["refused"], "{record}");
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn a_fork_bomb_is_ended_by_the_clock_and_leaves_nothing() {
    let site = Site::new();
    let word = long_sleep();
    let script = format!("bomb() {{ sleep {word} & bomb & bomb & wait; }}; bomb");
    let record = site.record(&["--pids", "64", "--wall-time", "2s"], &script);
    assert_ne!(record["exit_code"], 0, "{record}");
    assert_eq!(processes_with(&word), Vec::<u32>::new());
}

#[test]
fn processes_that_were_refused_are_told() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let script = "import os, time\ntry:\n    for _ in range(30):\n        if os.fork() == 0:\n            time.sleep(0.3)\n            \
                  os._exit(0)\nexcept BlockingIOError:\n    print('refused')\n";
    let report = site.root().join("report.json");
    let (report, flags) = (report.to_str().unwrap(), ["run", "--pids", "5", "--report"]);
    let output = site
        .offleash(flags)
        .args([report, "--", "python3", "-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let told = String::from_utf8_lossy(&output.stderr).contains("the limit `pids` is 5; raise it with `--pids`");
    let counted = !hits(&record, LimitName::Pids).is_empty();
    assert_eq!(told, counted, "{output:?}\n{record}");
    // Without a group of its own nobody counts what the kernel refuses.
    if record["enforced"]["limit.pids"]
        .as_str()
        .is_some_and(|how| how.starts_with("cgroup"))
    {
        assert!(told && output.stdout == b"refused\n", "{output:?}");
    }
}

#[test]
fn the_pids_of_other_runs_do_not_count() {
    let site = Site::new();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    site.record(
                        &["--pids", "12"],
                        "for i in 1 2 3 4 5 6; do sleep 0.5 & done; wait; echo all",
                    )
                })
            })
            .collect();
        for run in runs {
            let record = run.join().unwrap();
            assert_eq!(stdout_of(&record), "all\n", "{record}");
        }
    });
}

#[test]
fn more_output_than_allowed_ends_the_run() {
    let site = Site::new();
    for script in ["yes", "yes >&2", "yes | head -c 60000; yes >&2"] {
        let record = site.record(&["--output", "100K", "--wall-time", "60s"], script);
        assert_ended_by(&record, LimitName::Output, 100 << 10, 137);
        let bytes = record["stdout"]["bytes"].as_u64().unwrap() + record["stderr"]["bytes"].as_u64().unwrap();
        assert_eq!(bytes, 100 << 10, "{script}: {record}");
    }
    let output = site
        .offleash(["run", "--output", "100K", "--", "yes"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(137));
    assert_eq!(output.stdout.len(), 100 << 10);
    assert!(stderr(&output).contains("`--output`"), "{}", stderr(&output));
}

#[test]
fn exactly_as_much_output_as_allowed_is_no_failure() {
    let site = Site::new();
    let output = site
        .offleash(["run", "--output", "100K", "--", "head", "-c", "102400", "/dev/zero"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout.len(), 100 << 10);
}

#[test]
fn cpus_can_be_bounded_to_one() {
    let site = Site::new();
    let record = site.record(&["--cpus", "1"], "taskset -c 0-1023 nproc 2>/dev/null || nproc");
    assert_eq!(record["exit_code"], 0, "{record}");
    let enforced = record["enforced"]["limit.cpus"].as_str().unwrap();
    if enforced.contains("affinity") {
        assert_eq!(record["stdout"]["data"], "1\n", "not to be left again: {record}");
    }
}

#[test]
fn a_part_of_a_cpu_is_enforced_or_refused_or_reported() {
    let site = Site::new();
    let output = site
        .offleash(["run", "--json", "--cpus", "0.5", "--", "true"])
        .output()
        .unwrap();
    if output.status.success() {
        assert!(record_of(&output)["enforced"]["limit.cpus"].is_string());
    } else {
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));
        let record = site.record(&["--cpus", "0.5", "--degrade", "allow"], "true");
        assert_eq!(record["exit_code"], 0, "{record}");
        assert!(record["not_enforced"]["limit.cpus"].is_string(), "{record}");
    }
}

/// The limits that a run is given; volumes have theirs from whoever made them.
fn of_runs() -> impl Iterator<Item = &'static LimitRow> {
    LIMITS.iter().filter(|row| row.flag.starts_with("--"))
}

#[test]
fn every_limit_is_enforced_or_said_not_to_be() {
    let site = Site::new();
    let flags = ["--cpus", "1", "--memory", "1G", "--net-rate", "1G"];
    let record = site.record(&flags, "true");
    for row in of_runs() {
        let key = format!("limit.{}", row.word);
        let said = [&record["enforced"][&key], &record["not_enforced"][&key]]
            .iter()
            .any(|text| text.is_string());
        assert!(said, "{key}: {record}");
    }
}

#[test]
fn every_limit_can_be_lifted_by_name() {
    let site = Site::new();
    for row in of_runs() {
        let output = site
            .offleash(["run", "-q", row.flag, "unlimited", "--", "true"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {}", row.flag, stderr(&output));
    }
}

#[test]
fn a_limit_that_is_not_hit_is_not_reported() {
    let site = Site::new();
    let record = site.record(&[], "head -c 100000 /dev/zero > x; (echo | cat) | cat");
    assert_eq!(record["limits_hit"], json!([]), "{record}");
    assert_eq!(record["exit_code"], 0);
}

#[test]
fn limits_come_from_the_policy_and_flags_win() {
    let site = Site::new();
    site.write("policy.toml", "[limits]\nwall_time = \"3s\"\nopen_files = 77\n");
    let output = site
        .offleash(["run", "--json", "--policy", "policy.toml", "-c", "ulimit -n; sleep 30"])
        .output()
        .unwrap();
    let record = record_of(&output);
    assert_ended_by(&record, LimitName::WallTime, 3000, 124);
    assert_eq!(stdout_of(&record), "77\n", "{record}");
    let flags = [
        "run",
        "--json",
        "--policy",
        "policy.toml",
        "--wall-time",
        "60s",
        "-c",
        "sleep 4; echo through",
    ];
    assert_eq!(
        stdout_of(&record_of(&site.offleash(flags).output().unwrap())),
        "through\n"
    );
}

#[test]
fn input_does_not_count_as_output() {
    let site = Site::new();
    let output = feed(
        &mut site.offleash(["run", "--output", "1K", "--", "wc", "-c"]),
        vec![b'x'; 1_000_000],
    );
    assert_eq!(stdout(&output).trim(), "1000000", "{}", stderr(&output));
}

#[test]
fn few_descriptors_are_enough_to_start_with() {
    let site = Site::new();
    let least = ["run", "-q", "--open-files", "16"];
    for more in [vec![], vec!["--allow", "example.com"]] {
        let arguments = [least.to_vec(), more.clone(), vec!["--", "sh", "-c", "ulimit -n"]].concat();
        let output = site.offleash(arguments).output().unwrap();
        assert_eq!(stdout(&output), "16\n", "{more:?}: {}", stderr(&output));
    }
}
