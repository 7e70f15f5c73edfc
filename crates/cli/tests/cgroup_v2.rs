//! Control groups of version 2, as they are on most machines: what holds, what is said, and that nothing stays.
//!
//! Run by `cargo xtask test` in a virtual machine too, as root and as an ordinary user with and without delegation;
//! `OFFLEASH_TEST_CONTROLLERS` says there which controllers must be usable. Skipped where version 1 is mounted.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts a shell itself"
)]

mod support;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "supervisor/world.rs"]
mod world;

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use serde_json::{Value, json};
use support::processes::{eventually, finish, groups_of, long_sleep, start, wait};
use support::{Site, binary, id_of, is_root, record_of, skip, stderr};
use world::{Kept, id, test, until};

const ALL: [&str; 3] = ["memory", "pids", "cpu"];

/// What doctor says of control groups.
fn doctor(site: &Site) -> Value {
    let output = site.offleash(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut checks = report["checks"].as_array().unwrap().iter();
    checks.find(|check| check["name"] == "cgroups").unwrap().clone()
}

/// The controllers that can be used here; `None` where version 2 is not alone.
fn usable(site: &Site) -> Option<Vec<String>> {
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        skip("control groups of version 1 are mounted");
        return None;
    }
    let words = |text: &str| {
        text.split([',', ' '])
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    };
    if let Ok(named) = std::env::var("OFFLEASH_TEST_CONTROLLERS") {
        return Some(words(&named));
    }
    let found = doctor(site)["found"].as_str().unwrap().to_owned();
    let list = found.split("; ").find_map(|part| part.strip_suffix(" can be used"));
    Some(list.map(words).unwrap_or_default())
}

/// The controllers that can be used here, `memory` among them.
fn usable_with_memory(site: &Site) -> Option<Vec<String>> {
    let usable = usable(site)?;
    if usable.iter().any(|controller| controller == "memory") {
        return Some(usable);
    }
    skip("the memory controller is not delegated");
    None
}

/// The groups of the one run that is going on.
fn groups_of_what_runs(site: &Site) -> Vec<PathBuf> {
    let live = std::fs::read_dir(site.state().join("live"))
        .into_iter()
        .flatten()
        .flatten();
    live.flat_map(|run| groups_of(&run.file_name().to_string_lossy()))
        .collect()
}

#[test]
fn doctor_names_what_can_be_used_and_what_to_do_about_the_rest() {
    let site = Site::new();
    let Some(usable) = usable(&site) else { return };
    let check = doctor(&site);
    let found = check["found"].as_str().unwrap();
    assert!(found.starts_with("version 2"), "{check}");
    for controller in ALL {
        let expected = usable.iter().any(|name| name == controller);
        assert_eq!(!found.contains(&format!("not {controller}: ")), expected, "{check}");
    }
    let whole = usable.len() == ALL.len();
    assert_eq!(check["status"] == "ok", whole, "{check}");
    assert_eq!(check["mend"].is_null(), whole, "{check}");
}

#[test]
fn each_limit_is_held_by_its_controller_or_says_what_holds_it_instead() {
    let site = Site::new();
    let Some(usable) = usable(&site) else { return };
    for level in ["process", "process-landlock"] {
        let flags = [
            "--level",
            level,
            "--degrade",
            "allow",
            "--memory",
            "64M",
            "--pids",
            "30",
            "--cpus",
            "0.5",
        ];
        let record = site.record(&flags, "cat /proc/self/cgroup");
        assert_eq!(record["exit_code"], 0, "{record}");
        for (limit, controller) in [("memory", "memory"), ("pids", "pids"), ("cpus", "cpu")] {
            let key = format!("limit.{limit}");
            let held = record["enforced"][&key].as_str().unwrap_or_default();
            let by_group = usable.iter().any(|name| name == controller);
            assert_eq!(
                held == format!("cgroup v2, controller {controller}"),
                by_group,
                "{level} {key}: {record}"
            );
            assert!(
                by_group
                    || ["without a cgroup", "no cgroup"]
                        .iter()
                        .any(|words| held.contains(words))
                    || record["not_enforced"][&key].is_string(),
                "{record}"
            );
        }
        if level == "process" {
            assert_eq!(record["stdout"]["data"], "0::/\n", "{record}");
        }
        assert_eq!(groups_of(&id_of(&record)), Vec::<PathBuf>::new());
    }
}

#[test]
fn the_kernel_holds_what_was_asked_while_it_runs_and_the_group_is_gone_afterwards() {
    let site = Site::new();
    let Some(usable) = usable_with_memory(&site) else {
        return;
    };
    let has_cpu = usable.iter().any(|name| name == "cpu");
    let cpus: &[&str] = if has_cpu { &["--cpus", "0.5"] } else { &[] };
    let flags = [
        &["run", "--json", "--memory", "64M", "--pids", "30"],
        cpus,
        &["--", "cat"],
    ]
    .concat();
    let child = start(&mut site.offleash(flags));
    let group = eventually("a group with the command in it", || {
        let group = groups_of_what_runs(&site).pop()?;
        let processes = std::fs::read_to_string(group.join("cgroup.procs")).ok()?;
        // The guest, and the command.
        (processes.lines().count() == 2).then_some(group)
    });
    let mut expected = vec![
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "30"),
    ];
    expected.extend(has_cpu.then_some(("cpu.max", "50000 100000")));
    for (file, value) in expected {
        assert_eq!(
            std::fs::read_to_string(group.join(file)).unwrap().trim(),
            value,
            "{file}"
        );
    }
    let record = record_of(&finish(child));
    assert_eq!(record["exit_code"], 0, "{record}");
    assert!(!group.exists(), "{group:?}");
    let usage = &record["usage"];
    let used = |what: &str| usage[what].as_u64().unwrap_or_default();
    assert!(used("peak_memory_bytes") >= 4096, "{record}");
    assert!(used("peak_pids") >= 2, "{record}");
    // The kernel knows the sum well, and divides it by where its clock found the processes: all of it may be one or the other.
    assert!(used("user_cpu_us") + used("system_cpu_us") > 0, "{record}");
}

#[test]
fn what_takes_too_much_memory_is_killed_by_the_kernel_and_told_as_that() {
    let site = Site::new();
    let Some(_) = usable_with_memory(&site) else { return };
    for level in ["process", "process-landlock"] {
        let flags = ["--level", level, "--degrade", "allow", "--memory", "32M"];
        let record = site.record(&flags, "x=$(head -c 60000000 /dev/zero | tr '\\0' a); echo survived");
        assert_eq!(
            record["outcome"],
            json!({ "kind": "out_of_memory", "limit": 32 << 20 }),
            "{record}"
        );
        assert_eq!(record["exit_code"], 137, "{record}");
        assert_eq!(record["limits_hit"][0]["limit"], "memory", "{record}");
        assert_eq!(groups_of(&id_of(&record)), Vec::<PathBuf>::new());
    }
}

#[test]
fn what_a_killed_supervisor_left_is_removed_by_the_next_start() {
    let site = Site::new();
    let Some(_) = usable_with_memory(&site) else { return };
    let word = long_sleep();
    let mut child = start(&mut site.offleash(["run", "--", "sleep", &word]));
    let group = eventually("a group with the command in it", || {
        let group = groups_of_what_runs(&site).pop()?;
        (!support::processes::processes_with(&word).is_empty()).then_some(group)
    });
    child.kill().unwrap();
    wait(&mut child);
    eventually("the end of the command", || {
        support::processes::processes_with(&word).is_empty().then_some(())
    });
    site.succeed(["runs"]);
    assert!(!group.exists(), "{group:?}");
}

#[test]
fn a_pause_freezes_the_group_and_asks_for_its_memory_and_a_resume_ends_it() {
    let Some(_) = usable_with_memory(&Site::new()) else {
        return;
    };
    test(async {
        let kept = Kept::new().await;
        let mut waiting = kept
            .shell("echo up; until test -e /tmp/go; do sleep 0.05; done; echo went on")
            .await;
        until(&mut waiting, "up").await;
        let groups = groups_of(&id(&kept.site));
        let [group] = groups.as_slice() else {
            panic!("{groups:?}")
        };
        let read = |file: &str| std::fs::read_to_string(group.join(file)).unwrap();
        let written = Written::to(group);
        kept.supervisor.pause().await.unwrap();
        assert_eq!(read("cgroup.freeze").trim(), "1");
        assert!(read("cgroup.events").contains("frozen 1"), "{}", read("cgroup.events"));
        // Since Linux 5.19.
        let can_reclaim = group.join("memory.reclaim").exists();
        let expected = ["cgroup.freeze", "memory.reclaim"];
        assert_eq!(written.names(), expected[..1 + usize::from(can_reclaim)]);
        assert!(kept.supervisor.hello().await.unwrap().paused);

        kept.supervisor.resume().await.unwrap();
        assert_eq!(read("cgroup.freeze").trim(), "0");
        assert!(read("cgroup.events").contains("frozen 0"), "{}", read("cgroup.events"));
        assert_eq!(kept.output("touch /tmp/go; echo alive").await, "alive\n");
        until(&mut waiting, "went on").await;
    });
}

/// The files of a group that are opened to be written to and closed, in that order.
struct Written(std::os::fd::OwnedFd);

impl Written {
    fn to(group: &Path) -> Self {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, group, WatchFlags::CLOSE_WRITE).unwrap();
        Self(watch)
    }

    fn names(&self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        let mut names: Vec<String> = Vec::new();
        while let Ok(event) = events.next() {
            assert!(event.events().contains(ReadFlags::CLOSE_WRITE), "{event:?}");
            names.extend(event.file_name().map(|name| name.to_str().unwrap().to_owned()));
        }
        names.dedup();
        names
    }
}

/// A group of root's own at the top, with nothing in it, removed at the end.
struct OwnGroup(PathBuf);

impl OwnGroup {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/sys/fs/cgroup/offleash-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A shell that enters the group and runs `script`, in which `"$@"` is `offleash run --json true`.
    fn record(&self, site: &Site, script: &str) -> Value {
        let script = format!("echo 0 > '{}/cgroup.procs' && {script}", self.0.display());
        let like = site.offleash([""; 0]);
        let mut command = std::process::Command::new("/bin/sh");
        command
            .args(["-c", &script, "sh"])
            .arg(binary())
            .args(["run", "--json", "--memory", "64M", "--", "true"]);
        command
            .env_clear()
            .envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.current_dir(site.workspace()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        record_of(&output)
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        for directory in [self.0.join("offleash-supervisor"), self.0.clone()] {
            let _gone = std::fs::remove_dir(directory);
        }
    }
}

/// Whether root may make groups here with the memory controller.
fn can_make_groups(site: &Site) -> bool {
    if usable(site).is_none() {
        return false;
    }
    let enabled = std::fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    let can = is_root() && enabled.contains("memory");
    if !can {
        skip("only root can make groups at the top, where the memory controller is enabled");
    }
    can
}

#[test]
fn alone_in_its_group_the_supervisor_moves_to_a_leaf_and_hands_controllers_down() {
    let site = Site::new();
    if !can_make_groups(&site) {
        return;
    }
    // Whether it is alone depends on helpers that may or may not have ended yet.
    for _ in 0..10 {
        let own = OwnGroup::new("helped");
        let record = own.record(&site, "exec \"$@\"");
        let enforced = &record["enforced"]["limit.memory"];
        assert_eq!(enforced, "cgroup v2, controller memory", "{record}");
    }
    let own = OwnGroup::new("alone");
    let record = own.record(&site, "exec \"$@\"");
    assert_eq!(
        record["enforced"]["limit.memory"], "cgroup v2, controller memory",
        "{record}"
    );
    assert!(own.read("cgroup.subtree_control").contains("memory"));
    assert_eq!(own.read("cgroup.procs"), "");
    assert!(own.0.join("offleash-supervisor").is_dir());
}

#[test]
fn beside_others_in_its_group_the_supervisor_changes_nothing_and_says_why() {
    let site = Site::new();
    if !can_make_groups(&site) {
        return;
    }
    let own = OwnGroup::new("beside");
    let record = own.record(&site, "\"$@\"; status=$?; exit $status");
    let held = record["enforced"]["limit.memory"].as_str().unwrap();
    assert!(held.contains("without a cgroup: 1 other processes are in"), "{held}");
    assert_eq!(own.read("cgroup.subtree_control"), "");
    assert!(!own.0.join("offleash-supervisor").exists());
}
