//! Sandboxes that wait for runs: a run in one of them is as any other, it is for this run alone, and nothing of one stays.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "warm/lives.rs"]
mod lives;
#[path = "warm/python.rs"]
mod python;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::processes::{copy_program, eventually, feed, finish, groups_of, read_until, start};
use support::{Site, id_of, record_of, stderr, stdout};

/// A sandbox that waits, as `warm ls` tells.
fn waiting(site: &Site) -> Vec<Value> {
    let told = site.succeed(["warm", "ls", "--json"]);
    serde_json::from_str::<Vec<Value>>(&told).unwrap()
}

fn pid_of(waiting: &Value) -> u32 {
    u32::try_from(waiting["pid"].as_u64().unwrap()).unwrap()
}

fn warm<'a>(flags: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--warm", "1"], flags, &["--"], command].concat()
}

/// Has one sandbox wait for runs with these flags; its id, which is that of the run that takes it.
fn heat(site: &Site, flags: &[&str]) -> String {
    let output = site.offleash(warm(flags, &["true"])).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    heated(site)
}

/// The id of the one sandbox that waits.
fn heated(site: &Site) -> String {
    eventually("a sandbox that waits", || {
        let waiting = waiting(site);
        assert!(waiting.len() <= 1, "{waiting:?}");
        Some(waiting.first()?["id"].as_str().unwrap().to_owned())
    })
}

/// Ends what waits, and sees that nothing is left of it or of any run.
fn cool(site: &Site) {
    site.succeed(["warm", "stop"]);
    assert_eq!(waiting(site), Vec::<Value>::new());
    let left = |name: &str| fs::read_dir(site.state().join(name)).map_or(0, Iterator::count);
    eventually("the end of all that waited", || {
        (left("live") == 0 && left("runs") == 0 && left("warm") == 0).then_some(())
    });
}

/// A record without what differs from run to run.
fn comparable(mut record: Value) -> Value {
    let id = id_of(&record);
    for name in ["id", "started_at", "usage"] {
        record[name] = Value::Null;
    }
    // Root's sandboxes have another id of the host each.
    record["enforced"]["uid"] = Value::Null;
    let text = record.to_string().replace(&id, "ID");
    serde_json::from_str(&text).unwrap()
}

fn both(site: &Site, flags: &[&str], command: &[&str]) -> (Output, Output) {
    let cold = [&["run"], flags, &["--"], command].concat();
    let cold = site.offleash(cold).output().unwrap();
    heat(site, flags);
    let warm = site.offleash(warm(flags, command)).output().unwrap();
    (cold, warm)
}

#[test]
fn a_run_in_a_sandbox_that_waited_is_recorded_as_any_other() {
    let site = Site::new();
    let commands: [(&[&str], i32); 3] = [
        (
            &["sh", "-c", "echo out; echo err >&2; pwd; id; env | sort; umask; exit 7"],
            7,
        ),
        (&["sh", "-c", "kill -SEGV $$"], 139),
        (&["./nothing", "a"], 127),
    ];
    for (command, code) in commands {
        let cold = site
            .offleash([&["run", "--json", "--"], command].concat())
            .output()
            .unwrap();
        let id = heat(&site, &["--json"]);
        let warm = site.offleash(warm(&["--json"], command)).output().unwrap();
        assert_eq!(warm.status.code(), Some(code), "{}", stderr(&warm));
        let record = record_of(&warm);
        assert_eq!(id_of(&record), id, "it was made anew");
        assert_eq!(comparable(record), comparable(record_of(&cold)));
        assert_eq!(stderr(&warm), stderr(&cold));
        heated(&site);
        cool(&site);
    }
}

#[test]
fn a_policy_that_is_named_keeps_them_as_the_flag_does() {
    let site = Site::new();
    site.write("own.toml", "warm = 1\n");
    let run = ["run", "--policy", "own.toml", "--json", "--", "true"];
    site.succeed(run);
    let id = heated(&site);
    let taken = site.offleash(run).output().unwrap();
    assert_eq!(id_of(&record_of(&taken)), id, "it was made anew");
    heated(&site);
    // What it says now counts, also for those that wait.
    site.write("own.toml", "warm = 0\n");
    let id = heated(&site);
    let taken = site.offleash(run).output().unwrap();
    assert_ne!(id_of(&record_of(&taken)), id);
    cool(&site);
    site.write("offleash.toml", "warm = 1\n");
    let refused = site.offleash(["run", "--", "true"]).output().unwrap();
    assert!(
        stderr(&refused).contains("this one widens warm"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn streams_notes_and_codes_are_the_same() {
    let site = Site::new();
    site.write("file", "old");
    let commands: [&[&str]; 4] = [
        &["sh", "-c", "echo out; echo err >&2; exit 3"],
        &["sh", "-c", "no-such-command"],
        &["no-such-command", "x"],
        &["sh", "-c", "head -c 200000 /dev/zero"],
    ];
    for command in commands {
        let (cold, warm) = both(&site, &["--output", "100k"], command);
        assert_eq!(stdout(&warm), stdout(&cold), "{command:?}");
        assert_eq!(stderr(&warm), stderr(&cold), "{command:?}");
        assert_eq!(warm.status, cold.status, "{command:?}");
        heated(&site);
        cool(&site);
    }
}

#[test]
fn input_goes_in_and_scripts_have_their_parameters() {
    let site = Site::new();
    let id = heat(&site, &[]);
    let output = feed(&mut site.offleash(warm(&[], &["cat"])), "what was typed\n");
    assert_eq!(stdout(&output), "what was typed\n");
    assert_ne!(heated(&site), id);
    cool(&site);
    let script = |text: &'static str| ["run", "--warm", "1", "-c", text, "--", "a b"];
    assert_eq!(site.succeed(script("echo one $1")), "one a b\n");
    let id = heated(&site);
    assert_eq!(site.succeed(script("echo two $1; echo x > made")), "two a b\n");
    assert!(site.succeed(["runs"]).contains(&id), "it was made anew");
    assert_eq!(site.succeed(["diff", "-s", &id]).trim_end(), "A made");
    site.succeed(["apply", &id]);
    assert_eq!(fs::read_to_string(site.workspace().join("made")).unwrap(), "x\n");
}

#[test]
fn what_happened_in_the_workspace_meanwhile_is_seen_and_is_no_conflict() {
    let site = Site::new();
    site.write("a/file", "before");
    let id = heat(&site, &[]);
    site.write("a/file", "after");
    site.write("b/new", "new");
    fs::rename(site.workspace().join("a"), site.workspace().join("c")).unwrap();
    let said = site.succeed(warm(&[], &["sh", "-c", "cat c/file b/new; ls; echo mine >> c/file"]));
    assert_eq!(said, "afternewb\nc\n");
    site.succeed(["apply", &id]);
    assert_eq!(
        fs::read_to_string(site.workspace().join("c/file")).unwrap(),
        "aftermine\n"
    );
}

#[test]
fn what_a_run_would_look_at_is_looked_at_again() {
    let site = Site::new();
    let policy = site.root().join("policy.toml");
    let mounted = site.root().join("mounted");
    fs::write(&policy, "[limits]\npids = 50\n").unwrap();
    fs::write(&mounted, "one").unwrap();
    let mount = format!("{}:/data", mounted.display());
    let flags = [
        "--policy",
        policy.to_str().unwrap(),
        "--mount",
        &mount,
        "--deny",
        "secret",
    ];
    let replace = |path: &PathBuf, text: &str| {
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 4] = [
        ("policy", &|| fs::write(&policy, "[limits]\npids = 60\n").unwrap()),
        ("mounted file", &|| replace(&mounted, "two")),
        ("hidden name", &|| drop(site.write("secret", "x"))),
        ("workspace", &|| {
            fs::set_permissions(site.workspace(), fs::Permissions::from_mode(0o750)).unwrap();
        }),
    ];
    for (what, change) in changes {
        let id = heat(&site, &flags);
        change();
        let said = site.succeed(warm(&flags, &["cat", "/data"]));
        assert_eq!(said, fs::read_to_string(&mounted).unwrap(), "{what}");
        let log = fs::read_to_string(site.state().join("audit.jsonl")).unwrap();
        assert!(
            !log.contains(&format!("\"run\":\"{id}\"")),
            "{what}: an outdated one was taken"
        );
        assert_ne!(heated(&site), id, "{what}");
        cool(&site);
    }
}

#[test]
fn another_environment_is_the_commands_and_another_program_has_others() {
    let site = Site::new();
    let id = heat(&site, &["--env", "ASKED"]);
    let arguments = warm(&["--env", "ASKED"], &["sh", "-c", "echo $ASKED"]);
    let output = site.offleash(&arguments).env("ASKED", "given now").output().unwrap();
    assert_eq!(stdout(&output), "given now\n");
    let log = fs::read_to_string(site.state().join("audit.jsonl")).unwrap();
    assert!(log.contains(&format!("\"run\":\"{id}\"")), "it was made anew");
    let next = heated(&site);
    let other = site.root().join("offleash");
    copy_program(&support::binary(), &other);
    #[expect(clippy::disallowed_methods, reason = "a test starts programs itself")]
    let mut upgraded = Command::new(&other);
    let like = site.offleash(&arguments);
    upgraded
        .args(&arguments)
        .current_dir(site.workspace())
        .env_clear()
        .stdin(Stdio::null());
    upgraded.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert!(upgraded.output().unwrap().status.success());
    let log = fs::read_to_string(site.state().join("audit.jsonl")).unwrap();
    assert!(
        !log.contains(&format!("\"run\":\"{next}\"")),
        "another program's was taken"
    );
    site.succeed(["warm", "stop"]);
}

#[test]
fn two_at_once_have_one_each() {
    let site = Site::new();
    heat(&site, &["--json"]);
    let run = || {
        start(
            site.offleash(warm(&["--json"], &["sh", "-c", "echo x; sleep 0.3"]))
                .stdout(Stdio::piped()),
        )
    };
    let (one, other) = (run(), run());
    let ids = [finish(one), finish(other)].map(|output| {
        assert!(output.status.success(), "{}", stderr(&output));
        id_of(&record_of(&output))
    });
    assert_ne!(ids[0], ids[1]);
    let log = fs::read_to_string(site.state().join("audit.jsonl")).unwrap();
    for id in &ids {
        assert_eq!(log.matches(&format!("\"run\":\"{id}\"")).count(), 1, "{log}");
        assert_eq!(groups_of(id), Vec::<PathBuf>::new());
    }
    heated(&site);
    cool(&site);
}

#[test]
fn runs_that_end_at_once_leave_no_more_than_was_asked_for_and_those_are_ended_ready_or_not() {
    let site = Site::new();
    for is_ready in [true, false] {
        let run = |_| start(&mut site.offleash(warm(&[], &["sh", "-c", "echo on; cat"])));
        let mut runs: Vec<_> = (0..6).map(run).collect();
        for run in &mut runs {
            read_until(run.stdout.as_mut().unwrap(), "on\n");
        }
        for run in &mut runs {
            drop(run.stdin.take());
        }
        for run in runs {
            let output = finish(run);
            assert!(output.status.success(), "{}", stderr(&output));
        }
        if is_ready {
            heated(&site);
        }
        cool(&site);
    }
}

#[test]
fn those_that_become_ready_while_others_are_ended_are_ended_too() {
    let site = Site::new();
    for _ in 0..5 {
        let output = site.offleash(["run", "--warm", "2", "--", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        cool(&site);
    }
}

#[test]
fn nothing_waits_that_was_not_asked_for() {
    let site = Site::new();
    site.succeed(["run", "--", "true"]);
    site.succeed(["run", "--warm", "0", "--", "true"]);
    assert_eq!(waiting(&site), Vec::<Value>::new());
    assert!(!site.state().join("warm").exists());
    let said = site.refuse(["warm", "stop", "r0"]);
    assert!(said.contains("waits for a run"), "{said}");
}
