//! Time, and what could outlast its end: R7, R9, R11.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::arena::{Attack, assert_no_process, can_attack, not_proven, run, token};
use super::support::processes::{eventually, groups_of, wait};
use super::support::{Site, id_of, is_root, record_of};

#[test]
pub(crate) fn r7_time_ends_whatever_a_program_does_about_it() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    for (name, program) in [
        ("sleep", "time.sleep(3600)"),
        (
            "ignored signals",
            "for n in range(1, 65):\n    if n not in (9, 19, 32, 33): signal.signal(n, signal.SIG_IGN)\ntime.sleep(3600)",
        ),
        (
            "blocked signals",
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(3600)",
        ),
        ("stopped", "os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(3600)"),
        ("own session", "if os.fork() == 0: os.setsid()\ntime.sleep(3600)"),
        ("other group", "if os.fork() == 0: os.setpgid(0, 0)\ntime.sleep(3600)"),
        ("closed streams", "os.closerange(0, 100)\ntime.sleep(3600)"),
        (
            "vfork",
            "libc.syscall(58) if False else os.posix_spawn('/bin/sleep', ['sleep', '3600'], {})\ntime.sleep(3600)",
        ),
        ("full pipe", "os.write(1, bytes(1 << 22))\ntime.sleep(3600)"),
    ] {
        let word = token("sleeper");
        let attack = Attack::new(&site, program)
            .argument(&word)
            .flags(["--wall-time", "500ms"]);
        let started = Instant::now();
        let output = run(&mut attack.sandboxed());
        let took = started.elapsed();
        let record = record_of(&output);
        assert_eq!(output.status.code(), Some(124), "{name}: {:#}", record["outcome"]);
        assert!(took < Duration::from_secs(300), "{name}: ended after {took:?}");
        assert_no_process(&word);
    }
    not_proven("endless sleeping", "it would never end");
}

#[test]
fn r7_a_grandchild_that_holds_the_output_does_not_hold_the_run() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let word = token("holder");
    let attack = Attack::new(
        &site,
        r##"
# A daemon that keeps standard output open; whoever waits for its end waits for an hour.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600 if os.path.exists("/home/user") else 6)
    os._exit(0)
attempt("started", lambda: True)
"##,
    )
    .argument(&word);
    let started = Instant::now();
    let inside = attack.inside();
    assert!(
        started.elapsed() < Duration::from_secs(300),
        "the run waited for {:?}",
        started.elapsed()
    );
    assert_eq!(inside.record["exit_code"], 0);
    assert_no_process(&word);
    // Without a sandbox whoever reads to the end waits for the daemon.
    let started = Instant::now();
    attack.outside().prove(&["started"]);
    assert!(
        started.elapsed() >= Duration::from_secs(5),
        "the daemon did not hold the output"
    );
}

#[test]
fn r9_many_short_runs_leave_nothing() {
    let site = Site::new();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_this_site = |mounts: &str| {
        mounts
            .lines()
            .filter(|line| line.contains(&*site.root().to_string_lossy()))
            .count()
    };
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let commands: Vec<_> = (0..12)
                .map(|_| site.offleash(["run", "--json", "--", "/bin/true"]))
                .collect();
            std::thread::spawn(move || {
                let outputs = commands.into_iter().map(|mut command| run(&mut command));
                outputs.map(|output| record_of(&output)).collect::<Vec<_>>()
            })
        })
        .collect();
    let records: Vec<Value> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert_eq!(records.len(), 48);
    for record in &records {
        assert_eq!(record["exit_code"], 0, "{record:#}");
        assert_eq!(groups_of(&id_of(record)), Vec::<std::path::PathBuf>::new());
    }
    let mut ids: Vec<_> = records.iter().map(id_of).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 48, "two runs had one id");
    assert_eq!(of_this_site(&mounts()), 0, "a mount is left");
    for directory in ["runs", "live"] {
        let left: Vec<_> = std::fs::read_dir(site.state().join(directory))
            .unwrap()
            .flatten()
            .collect();
        assert!(left.is_empty(), "left in `{directory}`: {left:?}");
    }
}

#[test]
fn r11_no_process_slips_out_of_the_group_or_past_the_end() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let word = token("slipper");
    // Each process forks and dies, so that whoever kills what it has listed always comes too late.
    let attack = Attack::new(
        &site,
        r##"
sys.stderr.write("running\n")
sys.stderr.flush()
while True:
    try:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
    except OSError:
        pass
"##,
    )
    .argument(&word)
    .flags(["--wall-time", "30s"]);
    let line: Vec<_> = attack.command_line();
    let mut arguments: Vec<std::ffi::OsString> = ["run", "--quiet", "--wall-time", "1s", "--", "/bin/sh", "-c"]
        .map(Into::into)
        .into();
    arguments.push("\"$@\"; sleep 60".into());
    arguments.push("sh".into());
    arguments.extend(line);
    let mut child = site
        .offleash(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    let groups = live_groups(&site);
    for group in &groups {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        assert!(members.lines().count() > 0 || members.is_empty(), "{}", group.display());
    }
    let status = wait(&mut child);
    assert_eq!(status.code(), Some(124));
    assert_no_process(&word);
    for group in groups {
        assert!(!group.exists(), "{} is left", group.display());
    }
}

/// The groups of the runs that are going on in this site.
fn live_groups(site: &Site) -> Vec<std::path::PathBuf> {
    let live = std::fs::read_dir(site.state().join("live")).unwrap().flatten();
    live.flat_map(|entry| groups_of(&entry.file_name().to_string_lossy()))
        .collect()
}

#[test]
fn r11_the_first_instruction_is_already_bounded() {
    if !can_attack() || !is_root() {
        return;
    }
    let site = Site::new();
    let word = token("bounded");
    let attack = Attack::new(
        &site,
        "sys.stderr.write('running\\n')\nsys.stderr.flush()\ntime.sleep(60)",
    )
    .argument(&word);
    let mut child = attack
        .sandboxed()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let member = eventually("the start of the attack", || {
        let supervisor = child.id();
        super::support::processes::processes_with(&word)
            .into_iter()
            .find(|pid| *pid != supervisor && speaks_python(*pid))
    });
    let groups = std::fs::read_to_string(format!("/proc/{member}/cgroup")).unwrap_or_default();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_no_process(&word);
    if groups.contains("offleash-") {
        return;
    }
    // A machine without a group for us bounds by other means, and the record says so.
    let record = site.record(&[], "true");
    let means = record["enforced"]["limit.pids"].as_str().unwrap_or_default().to_owned();
    assert!(
        !means.starts_with("cgroup"),
        "the process is in {groups:?}, and the record says {means}"
    );
}

fn speaks_python(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("python"))
}
