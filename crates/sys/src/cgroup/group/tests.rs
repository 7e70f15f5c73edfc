//! Groups as this machine's kernel makes them; skipped, with the reason, where we may not make any.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::cgroup::{ControllerProblem, GroupEvents};

/// A shell that waits until it is told to go on, so that it can be put into a group first.
struct Waiting(Child);

impl Waiting {
    fn shell(script: &str) -> Self {
        let script = format!("read go; {script}");
        #[expect(clippy::disallowed_methods, reason = "a test needs a process to put into a group")]
        let child = Command::new("/bin/sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn start_in(group: &ControlGroup, script: &str) -> Self {
        let mut waiting = Self::shell(script);
        group.join(waiting.0.id()).unwrap();
        waiting.go_on();
        waiting
    }

    fn go_on(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes the group when a test ends, also by a failure.
struct Removed(ControlGroup);

impl std::ops::Deref for Removed {
    type Target = ControlGroup;

    fn deref(&self) -> &ControlGroup {
        &self.0
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.remove();
    }
}

fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "offleash-test-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

fn skip(reason: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
}

/// A group with `limits`, or `None` where the machine has none for us.
fn group(limits: GroupLimits) -> Option<Removed> {
    let hierarchy = ControlHierarchies::discover().unwrap();
    match ControlGroup::create(&hierarchy, &unique_name(), &limits) {
        Ok(group) => Some(Removed(group)),
        Err(CgroupError::Unavailable { controller, reason }) => {
            skip(&format!("{controller}: {reason}"));
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// A group in the version 2 tree only, which on a hybrid machine has no controllers.
fn group_of_version_2() -> Option<Removed> {
    let mut hierarchy = ControlHierarchies::discover().unwrap();
    hierarchy.keep_only(HierarchyVersion::V2);
    if let Err(reason) = hierarchy.availability(Controller::Freezer) {
        skip(&reason);
        return None;
    }
    Some(Removed(
        ControlGroup::create(&hierarchy, &unique_name(), &GroupLimits::default()).unwrap(),
    ))
}

fn pids(limit: u64) -> GroupLimits {
    GroupLimits {
        pids: Some(limit),
        ..GroupLimits::default()
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn limits_are_held_as_the_kernel_rounds_them_and_named_with_their_means() {
    let asked = GroupLimits {
        cpus_millis: Some(500),
        memory_bytes: Some((64 << 20) + 1),
        swap_bytes: Some(0),
        pids: Some(17),
        cpu_accounting: true,
        pause: true,
        ends_one: false,
    };
    let Some(group) = group(asked) else { return };
    let held = group.limits().unwrap();
    assert_eq!(
        held,
        GroupLimits {
            memory_bytes: Some(64 << 20),
            swap_bytes: Some(0),
            ..asked
        }
    );
    let version = if group.descriptor_for_clone().is_some() {
        "cgroup v2"
    } else {
        "cgroup v1"
    };
    assert_eq!(group.enforced()["memory"], format!("{version} memory"));
    assert_eq!(group.enforced()["pids"], format!("{version} pids"));
    assert_eq!(group.enforced()["cpus"], format!("{version} cpu"));
    assert!(group.enforced().contains_key("swap"));
}

#[test]
fn memory_of_sockets_is_limited_too_where_it_is_counted_apart() {
    let Some(group) = group(GroupLimits {
        memory_bytes: Some(64 << 20),
        ..GroupLimits::default()
    }) else {
        return;
    };
    let part = group.part(Controller::Memory).unwrap();
    let sockets = part.directory.read_number_if_there("memory.kmem.tcp.limit_in_bytes");
    match sockets.unwrap() {
        Some(limit) => assert_eq!(limit, 64 << 20),
        None => skip(&"memory of sockets is not counted apart"),
    }
}

#[test]
fn only_the_controllers_that_a_limit_needs_are_used() {
    let Some(group) = group(pids(10)) else { return };
    assert_eq!(group.enforced().keys().collect::<Vec<_>>(), [&"pids"]);
    assert_eq!(group.paths().count(), 1);
    assert_eq!(group.usage().unwrap().memory_peak, None);
}

#[test]
fn a_process_and_what_it_starts_are_in_the_group_and_counted() {
    let Some(group) = group(GroupLimits {
        memory_bytes: Some(256 << 20),
        cpu_accounting: true,
        ..pids(20)
    }) else {
        return;
    };
    let child = Waiting::start_in(
        &group,
        "sleep 100 & i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 100; :",
    );
    wait_until("three processes", || group.processes().unwrap().len() == 3);
    assert!(
        group
            .processes()
            .unwrap()
            .contains(&i32::try_from(child.0.id()).unwrap())
    );
    let usage = group.usage().unwrap();
    assert!(usage.pids_peak.unwrap() >= 3);
    assert!(usage.memory_peak.unwrap() > 0);
    let (user, system) = (usage.cpu_user_us.unwrap(), usage.cpu_system_us.unwrap());
    assert!(user + system > 1000, "{user} {system}");
    assert!(group.cpu_us().unwrap().unwrap() >= user + system);
}

#[test]
fn what_uses_more_memory_than_the_limit_is_killed_and_counted() {
    let limits = GroupLimits {
        memory_bytes: Some(24 << 20),
        swap_bytes: Some(0),
        ..GroupLimits::default()
    };
    let Some(group) = group(limits) else { return };
    assert_eq!(group.events().unwrap().oom_kills, Some(0));
    // `tail` keeps all of a line, and this line has no end.
    let mut child = Waiting::start_in(&group, "exec tail /dev/zero");
    assert_eq!(child.wait().signal(), Some(9));
    let events = group.events().unwrap();
    assert!(events.oom_kills >= Some(1), "{events:?}");
    let peak = group.usage().unwrap().memory_peak.unwrap_or(24 << 20);
    assert!((20 << 20..=24 << 20).contains(&peak), "{peak}");
}

#[test]
fn a_fork_beyond_the_limit_is_refused_and_counted() {
    let Some(group) = group(pids(4)) else { return };
    let script = "for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; exit 0";
    let mut child = Waiting::start_in(&group, script);
    assert!(!child.wait().success());
    assert_eq!(group.processes().unwrap().len(), 3);
    assert!(matches!(
        group.events().unwrap(),
        GroupEvents {
            pids_max_hits: Some(1..),
            ..
        }
    ));
}

#[test]
fn killing_ends_what_is_forking_at_the_same_time() {
    let forking = "while :; do (sleep 100 & sleep 100) & done";
    let by_pids = GroupLimits {
        pids: Some(200),
        ..GroupLimits::default()
    };
    let by_freezer = GroupLimits {
        pause: true,
        ..GroupLimits::default()
    };
    for limits in [by_pids, by_freezer] {
        let Some(group) = group(limits) else { return };
        let _child = Waiting::start_in(&group, forking);
        wait_until("some processes", || group.processes().unwrap().len() > 10);
        group.kill().unwrap();
        assert_eq!(group.processes().unwrap(), Vec::<i32>::new());
        group.remove().unwrap();
        assert!(group.paths().all(|path| !path.exists()));
    }
}

#[test]
fn a_frozen_group_uses_no_time_until_it_is_thawed() {
    let Some(group) = group(GroupLimits {
        pause: true,
        cpu_accounting: true,
        ..GroupLimits::default()
    }) else {
        return;
    };
    let _child = Waiting::start_in(&group, "while :; do :; done");
    wait_until("some CPU time", || group.cpu_us().unwrap() > Some(1000));
    group.freeze().unwrap();
    let before = group.cpu_us().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(group.cpu_us().unwrap().unwrap(), before);
    group.thaw().unwrap();
    wait_until("more CPU time", || group.cpu_us().unwrap().unwrap() > before);
}

#[test]
fn pausing_a_group_that_was_not_made_for_it_is_refused() {
    let Some(group) = group(pids(4)) else { return };
    if group.descriptor_for_clone().is_some() {
        return skip(&"version 2 can always pause");
    }
    let error = group.freeze().unwrap_err();
    assert!(
        matches!(
            error,
            CgroupError::Unavailable {
                controller: Controller::Freezer,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_creation_that_fails_midway_removes_what_it_made_and_nothing_else() {
    let hierarchy = ControlHierarchies::discover().unwrap();
    let limits = GroupLimits {
        memory_bytes: Some(64 << 20),
        ..pids(4)
    };
    let (memory, pids) = (hierarchy.parent(Controller::Memory), hierarchy.parent(Controller::Pids));
    let (Some(memory), Some(pids)) = (memory, pids) else {
        return skip(&"no controllers");
    };
    if memory == pids || trees_for(&hierarchy, &limits).is_err() {
        return skip(&"needs two hierarchies of version 1 in which we may make groups");
    }
    let name = unique_name();
    // Another's group with the same name in the hierarchy that comes second.
    fs::create_dir(pids.join(&name)).unwrap();
    let error = ControlGroup::create(&hierarchy, &name, &limits);
    let others = pids.join(&name).exists();
    let ours = memory.join(&name).exists();
    fs::remove_dir(pids.join(&name)).unwrap();
    assert!(
        matches!(error, Err(CgroupError::Io { action: "making", .. })),
        "{error:?}"
    );
    assert!(others && !ours);
}

#[test]
fn leftovers_of_a_crash_are_adopted_from_their_recorded_paths() {
    let Some(group) = group(GroupLimits {
        memory_bytes: Some(64 << 20),
        ..pids(20)
    }) else {
        return;
    };
    let mut child = Waiting::start_in(&group, "sleep 100 & sleep 100; :");
    wait_until("three processes", || group.processes().unwrap().len() == 3);
    let mut recorded: Vec<PathBuf> = group.paths().map(Path::to_path_buf).collect();
    let gone = recorded[0].with_file_name("offleash-test-that-never-was");
    recorded.push(gone);

    let adopted = ControlGroup::adopt(recorded.clone()).unwrap();
    assert_eq!(adopted.limits().unwrap().pids, Some(20));
    assert_eq!(adopted.processes().unwrap().len(), 3);
    adopted.kill().unwrap();
    adopted.remove().unwrap();
    assert_eq!(child.wait().signal(), Some(9));
    assert!(recorded.iter().all(|path| !path.exists()));
    // Once more, as when two supervisors start at the same time.
    adopted.kill().unwrap();
    adopted.remove().unwrap();
    assert_eq!(ControlGroup::adopt(recorded).unwrap().paths().count(), 0);
}

#[test]
fn a_record_that_names_anything_else_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let disguised = directory.path().join("offleash-1");
    fs::create_dir(&disguised).unwrap();
    for path in [
        disguised,
        "/sys/fs/cgroup".into(),
        "/sys/fs/cgroup/memory/../offleash-1".into(),
        "offleash-1".into(),
        "/".into(),
    ] {
        let error = ControlGroup::adopt([path.clone()]);
        assert!(matches!(error, Err(CgroupError::NotOurs { .. })), "{path:?}: {error:?}");
    }
}

#[test]
fn groups_inside_are_removed_too() {
    let Some(group) = group(pids(4)) else { return };
    for path in group.paths() {
        fs::create_dir_all(path.join("inner/innermost")).unwrap();
    }
    group.remove().unwrap();
    assert!(group.paths().all(|path| !path.exists()));
}

#[test]
fn a_group_in_use_is_not_removed_and_says_so() {
    let Some(group) = group(pids(4)) else { return };
    let _child = Waiting::start_in(&group, "sleep 100");
    let error = group.remove().unwrap_err();
    assert!(matches!(error, CgroupError::StillBusy { .. }), "{error:?}");
}

#[test]
fn ending_a_group_removes_it_with_whatever_is_in_it() {
    let limits = GroupLimits {
        memory_bytes: Some(64 << 20),
        pause: true,
        ..pids(8)
    };
    let Some(empty) = group(limits) else { return };
    empty.end().unwrap();
    assert!(empty.paths().all(|path| !path.exists()));
    let Some(used) = group(limits) else { return };
    let mut child = Waiting::start_in(&used, "sleep 100");
    // In the last part alone, so that the others are gone when it is killed.
    let (_, others) = used.parts.split_last().unwrap();
    for part in others {
        let above = part.directory.path().parent().unwrap();
        fs::write(above.join("cgroup.procs"), child.0.id().to_string()).unwrap();
    }
    used.end().unwrap();
    assert_eq!(child.wait().signal(), Some(9));
    assert!(used.paths().all(|path| !path.exists()));
}

#[test]
fn our_own_groups_are_left_as_they_were() {
    let hierarchy = ControlHierarchies::discover().unwrap();
    let state = || {
        let files = [
            "cgroup.subtree_control",
            "memory.limit_in_bytes",
            "pids.max",
            "cpu.cfs_quota_us",
            "cgroup.procs",
        ];
        let parents = Controller::ALL
            .into_iter()
            .filter_map(|controller| hierarchy.parent(controller));
        let texts = parents.flat_map(|parent| files.map(|file| fs::read_to_string(parent.join(file)).ok()));
        // Processes come and go, ours does not.
        let own = std::process::id().to_string();
        let trim = |text: String| {
            text.lines()
                .filter(|line| line.parse::<u32>().is_err() || *line == own)
                .collect()
        };
        texts.map(|text| text.map(trim)).collect::<Vec<Option<String>>>()
    };
    let before = state();
    let Some(group) = group(GroupLimits {
        memory_bytes: Some(64 << 20),
        cpus_millis: Some(100),
        ..pids(4)
    }) else {
        return;
    };
    if group.descriptor_for_clone().is_some() {
        return skip(&"version 2: our own group hands down controllers from now on");
    }
    assert_eq!(state(), before);
    group.remove().unwrap();
    assert_eq!(state(), before);
}

#[test]
fn version_2_kills_pauses_and_counts_without_any_controller() {
    let Some(group) = group_of_version_2() else { return };
    assert!(group.descriptor_for_clone().is_some());
    let mut child = Waiting::start_in(&group, "while :; do (sleep 100 & sleep 100) & done");
    wait_until("some processes", || group.processes().unwrap().len() > 10);
    group.freeze().unwrap();
    let usage = group.usage().unwrap();
    assert!(usage.cpu_user_us.unwrap() + usage.cpu_system_us.unwrap() > 0);
    let frozen = group.processes().unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(group.processes().unwrap(), frozen);
    group.kill().unwrap();
    assert_eq!(child.wait().signal(), Some(9));
    group.remove().unwrap();
}

#[test]
fn a_swap_limit_alone_is_refused_where_swap_is_counted_with_memory() {
    let hierarchy = ControlHierarchies::discover().unwrap();
    if !hierarchy.has_v1(Controller::Memory) || hierarchy.availability(Controller::Memory).is_err() {
        return skip(&"needs the memory controller of version 1");
    }
    let limits = GroupLimits {
        swap_bytes: Some(0),
        ..GroupLimits::default()
    };
    let name = unique_name();
    let error = ControlGroup::create(&hierarchy, &name, &limits).unwrap_err();
    let expected = matches!(
        error,
        CgroupError::Unavailable {
            reason: ControllerProblem::SwapWithoutMemory,
            ..
        }
    );
    assert!(expected, "{error:?}");
    assert!(!hierarchy.parent(Controller::Memory).unwrap().join(name).exists());
}

#[test]
#[ignore = "a measurement: run by name, alone, and read what it prints"]
fn measure_creating_joining_and_removing() {
    let hierarchy = ControlHierarchies::discover().unwrap();
    let memory_and_pids = GroupLimits {
        memory_bytes: Some(1 << 30),
        swap_bytes: Some(0),
        ..pids(512)
    };
    let cases = [
        ("memory, swap, pids", memory_and_pids),
        (
            "and CPU accounting",
            GroupLimits {
                cpu_accounting: true,
                ..memory_and_pids
            },
        ),
        (
            "and cpu",
            GroupLimits {
                cpu_accounting: true,
                cpus_millis: Some(1000),
                ..memory_and_pids
            },
        ),
        (
            "and freezer",
            GroupLimits {
                pause: true,
                ..memory_and_pids
            },
        ),
    ];
    for (what, limits) in cases {
        let mut times: [Vec<u128>; 6] = Default::default();
        for _ in 0..200 {
            let mut child = Waiting::shell("");
            let step = |index: usize, times: &mut [Vec<u128>; 6], since: Instant| {
                times[index].push(since.elapsed().as_nanos() / 100);
                Instant::now()
            };
            let begun = Instant::now();
            let now = step(0, &mut times, {
                drop(ControlHierarchies::discover().unwrap());
                begun
            });
            let group = ControlGroup::create(&hierarchy, &unique_name(), &limits).unwrap();
            let now = step(1, &mut times, now);
            group.join(child.0.id()).unwrap();
            let now = step(2, &mut times, now);
            group.events().unwrap();
            let now = step(3, &mut times, now);
            group.usage().unwrap();
            step(4, &mut times, now);
            child.go_on();
            child.wait();
            let now = Instant::now();
            group.remove().unwrap();
            step(5, &mut times, now);
        }
        let names = ["discover", "create", "join", "events", "usage", "remove"];
        for (name, times) in names.iter().zip(&mut times) {
            times.sort_unstable();
            let us = |part: usize| times[times.len() * part / 100] as f64 / 10.0;
            println!("{what}: {name} median {} µs, p95 {}, p99 {}", us(50), us(95), us(99));
        }
    }
}
