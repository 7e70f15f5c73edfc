//! A watcher on real processes; with a control group where the machine has one for us.

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use offleash_core::spec::MemoryEnd;
use offleash_core::units::{Bytes, Millis};
use offleash_sys::cgroup::{CgroupError, ControlHierarchies, GroupLimits};
use offleash_sys::process;

use super::super::testing::unlimited;
use offleash_core::limits::MAX_DEPTH;

use super::*;

#[path = "watcher_group_tests.rs"]
mod with_a_group;

/// A first process that waits until it is told to go on.
struct WaitingSandbox {
    child: Child,
    pid: Pid,
}

impl WaitingSandbox {
    fn new(script: &str) -> Self {
        let script = format!("read go; {script}");
        #[expect(clippy::disallowed_methods, reason = "a test needs a process to watch")]
        let child = Command::new("/bin/sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        Self { child, pid }
    }

    fn go_on(&mut self) {
        drop(self.go_on_and_keep_input());
    }

    fn go_on_and_keep_input(&mut self) -> ChildStdin {
        let mut input = self.child.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        input
    }

    /// Ticks until a limit is hit.
    fn first_hit(&mut self, watcher: &mut LimitWatcher) -> LimitHit {
        self.go_on();
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let now = Instant::now();
            assert!(now < deadline, "no limit was hit");
            if let Some(hit) = watcher.tick(now).into_iter().next() {
                assert_eq!(watcher.tick(Instant::now()), [], "told twice");
                return hit;
            }
            std::thread::sleep(watcher.next_tick().saturating_duration_since(Instant::now()));
        }
    }

    fn end(&self, watcher: &mut LimitWatcher) -> FinalReport {
        self.kill_all();
        let resources = process::reap(self.pid).unwrap();
        watcher.finish(&resources).unwrap()
    }

    fn kill_all(&self) {
        for pid in ProcessTree::new(self.pid).processes() {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

impl Drop for WaitingSandbox {
    fn drop(&mut self) {
        self.kill_all();
        let _ = self.child.wait();
    }
}

fn group(limits: GroupLimits) -> Option<ControlGroup> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("offleash-watcher-test-{}-{number}", std::process::id());
    match ControlGroup::create(&ControlHierarchies::discover().unwrap(), &name, &limits) {
        Ok(group) => Some(group),
        Err(CgroupError::Unavailable { controller, reason }) => {
            let _ = writeln!(std::io::stderr(), "SKIP: {controller}: {reason}");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// A layer below a directory on a disk.
fn layer() -> tempfile::TempDir {
    layer_in("/var/tmp")
}

fn layer_in(parent: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(parent).unwrap();
    fs::create_dir(directory.path().join("upper")).unwrap();
    directory
}

#[test]
fn without_a_group_memory_of_all_processes_together_is_bounded() {
    let limits = Limits {
        memory: Some(Bytes::mib(40)),
        ..unlimited()
    };
    // Neither process alone is above the limit. The shell would become its last command, and give the memory up.
    let each = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 600; :";
    let mut sandbox = WaitingSandbox::new(&format!("({each}) & ({each}) & wait"));
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new());
    let hit = sandbox.first_hit(&mut watcher);
    assert_eq!(hit, killed(LimitName::Memory, 40 << 20));
    let last = sandbox.end(&mut watcher);
    assert!(last.out_of_memory);
    assert!(last.usage.peak_memory_bytes.unwrap() > 40 << 20);
    assert_eq!(last.limits_hit, []);
}

#[test]
fn without_a_group_the_largest_process_is_killed_where_the_sandbox_outlives_that_and_then_all() {
    let limits = Limits {
        memory: Some(Bytes::mib(40)),
        ..unlimited()
    };
    let each = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 600; :";
    let mut sandbox = WaitingSandbox::new(&format!("({each}) & ({each}) & wait"));
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new()).ending(MemoryEnd::Process);
    assert_eq!(sandbox.first_hit(&mut watcher).effect, LimitEffect::Ended);
    assert_eq!(watcher.was_out_of_memory(Instant::now()), Some(40 << 20));
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(watcher.tick(Instant::now()), [], "the other one has what it has");
    assert_eq!(watcher.was_out_of_memory(Instant::now()), None);
    // Memory that goes with no process.
    watcher.note_guest_usage(50 << 20);
    assert_eq!(watcher.tick(Instant::now()), [], "one more is killed");
    assert_eq!(watcher.tick(Instant::now() + Duration::from_millis(900)), []);
    let hits = watcher.tick(Instant::now() + Duration::from_millis(1100));
    assert_eq!(hits, [killed(LimitName::Memory, 40 << 20)]);
    assert!(sandbox.end(&mut watcher).out_of_memory);
}

#[test]
fn without_a_group_memory_that_processes_share_is_not_held_against_them() {
    let limits = Limits {
        memory: Some(Bytes::mib(80)),
        ..unlimited()
    };
    let mut sandbox = WaitingSandbox::new(
        "x=$(head -c 30000000 /dev/zero | tr '\\0' a); for i in 1 2 3 4 5; do (sleep 600; :) & done; sleep 600",
    );
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new());
    sandbox.go_on();
    let deadline = Instant::now() + Duration::from_secs(120);
    while ProcessTree::new(sandbox.pid).processes().len() < 11 {
        assert!(Instant::now() < deadline);
        assert_eq!(watcher.tick(Instant::now()), []);
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..20 {
        assert_eq!(watcher.tick(Instant::now()), []);
        std::thread::sleep(Duration::from_millis(5));
    }
    let tree = ProcessTree::new(sandbox.pid);
    assert!(
        tree.usage(&tree.processes()).anonymous_bytes > 80 << 20,
        "the test does not test anything"
    );
}

#[test]
fn without_a_group_what_the_guest_tells_of_its_tmpfs_counts_as_memory() {
    let limits = Limits {
        memory: Some(Bytes::mib(64)),
        ..unlimited()
    };
    let sandbox = WaitingSandbox::new("sleep 600");
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new());
    watcher.note_guest_usage(60 << 20);
    assert_eq!(watcher.tick(Instant::now()), []);
    watcher.note_guest_usage(65 << 20);
    assert_eq!(watcher.tick(Instant::now()), [killed(LimitName::Memory, 64 << 20)]);
}

#[test]
fn without_a_group_too_many_processes_end_the_run() {
    let limits = Limits {
        pids: Some(4),
        ..unlimited()
    };
    // As many as there may be, and, when it is told, more.
    let mut sandbox =
        WaitingSandbox::new("sleep 600 & sleep 600 & sleep 600 & read more; sleep 600 & sleep 600 & wait");
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new());
    let mut input = sandbox.go_on_and_keep_input();
    let tree = ProcessTree::new(sandbox.pid);
    let grown_to = |count| {
        while tree.processes().len() < count {
            std::thread::yield_now();
        }
    };
    grown_to(4);
    assert_eq!(watcher.tick(Instant::now()), [refused(LimitName::Pids, 4)]);
    assert_eq!(watcher.tick(Instant::now()), [], "told twice");
    input.write_all(b"more\n").unwrap();
    grown_to(6);
    assert_eq!(watcher.tick(Instant::now()), [killed(LimitName::Pids, 4)]);
    assert_eq!(watcher.tick(Instant::now()), [], "told twice");
    assert_eq!(sandbox.end(&mut watcher).usage.peak_pids, Some(6));
}

#[test]
fn without_a_group_processes_are_counted_once_more_at_the_end() {
    let limits = Limits {
        pids: Some(4),
        ..unlimited()
    };
    for (ended, expected) in [(0, vec![]), (1, vec![refused(LimitName::Pids, 4)])] {
        let mut sandbox = WaitingSandbox::new("sleep 600 & sleep 600 & wait");
        let mut watcher = LimitWatcher::new(limits.clone(), None, sandbox.pid, Vec::new());
        sandbox.go_on();
        while ProcessTree::new(sandbox.pid).processes().len() < 3 {
            std::thread::yield_now();
        }
        assert_eq!(watcher.count_before_the_end(ended), expected, "{ended}");
        assert_eq!(watcher.count_before_the_end(ended), [], "told twice");
        assert_eq!(sandbox.end(&mut watcher).usage.peak_pids, Some(3));
    }
}

#[test]
fn cpu_time_of_all_processes_together_is_bounded() {
    let limits = Limits {
        cpu_time: Some(Millis(300)),
        ..unlimited()
    };
    let mut sandbox = WaitingSandbox::new("(while :; do :; done) & while :; do :; done");
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new());
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::CpuTime, 300));
    let usage = sandbox.end(&mut watcher).usage;
    assert!(usage.user_cpu_us + usage.system_cpu_us >= 300_000, "{usage:?}");
}

#[test]
fn with_a_group_cpu_time_of_children_that_nobody_waits_for_counts() {
    let Some(group) = group(GroupLimits {
        cpu_accounting: true,
        ..GroupLimits::default()
    }) else {
        return;
    };
    let mut sandbox =
        WaitingSandbox::new("trap '' CHLD; while :; do (i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done); done");
    group.join(sandbox.child.id()).unwrap();
    let limits = Limits {
        cpu_time: Some(Millis(200)),
        ..unlimited()
    };
    let mut watcher = LimitWatcher::new(limits, Some(group), sandbox.pid, Vec::new());
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::CpuTime, 200));
    sandbox.end(&mut watcher);
}

#[test]
fn with_a_group_one_process_alone_is_looked_at_seldom_until_something_is_started() {
    let limits = Limits {
        pids: Some(17),
        ..unlimited()
    };
    let in_group = GroupLimits {
        pids: Some(17),
        ..GroupLimits::default()
    };
    let Some(group) = group(in_group) else { return };
    let mut sandbox = WaitingSandbox::new("sleep 1000 & wait");
    group.join(sandbox.child.id()).unwrap();
    let mut watcher = LimitWatcher::new(limits, Some(group), sandbox.pid, Vec::new());
    let later = watcher.started + Duration::from_secs(60);
    let usual = schedule::interval(Duration::from_secs(60), false);
    watcher.tick(later);
    assert_eq!(watcher.next_tick() - later, schedule::ALONE);
    watcher.expect_work();
    assert!(watcher.next_tick() <= Instant::now() + usual);
    sandbox.go_on();
    while watcher.is_alone() {
        std::thread::yield_now();
    }
    watcher.tick(later);
    assert_eq!(watcher.next_tick() - later, usual);
    sandbox.end(&mut watcher);
}

#[test]
fn the_kernels_kill_for_want_of_memory_is_told_and_the_group_is_removed() {
    let limits = Limits {
        memory: Some(Bytes::mib(24)),
        ..unlimited()
    };
    let in_group = GroupLimits {
        memory_bytes: Some(24 << 20),
        swap_bytes: Some(0),
        ..GroupLimits::default()
    };
    let Some(group) = group(in_group) else { return };
    let paths: Vec<PathBuf> = group.paths().map(Into::into).collect();
    let mut sandbox = WaitingSandbox::new("tail /dev/zero; sleep 600");
    group.join(sandbox.child.id()).unwrap();
    let mut watcher = LimitWatcher::new(limits, Some(group), sandbox.pid, Vec::new());
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::Memory, 24 << 20));
    let last = sandbox.end(&mut watcher);
    assert!(last.out_of_memory && last.limits_hit.is_empty());
    assert!(
        last.usage.peak_memory_bytes.is_none_or(|peak| peak > 20 << 20),
        "{last:?}"
    );
    assert!(paths.iter().all(|path| !path.exists()));
}

#[test]
fn what_happens_after_the_last_tick_is_in_the_final_report() {
    let limits = Limits {
        memory: Some(Bytes::mib(24)),
        pids: Some(3),
        workspace: Some(Bytes::mib(1)),
        ..unlimited()
    };
    let in_group = GroupLimits {
        memory_bytes: Some(24 << 20),
        swap_bytes: Some(0),
        pids: Some(3),
        ..GroupLimits::default()
    };
    let Some(group) = group(in_group) else { return };
    let layer = layer();
    let mut sandbox = WaitingSandbox::new("tail /dev/zero; sleep 600 & sleep 600 & sleep 600 & sleep 600 & sleep 600");
    group.join(sandbox.child.id()).unwrap();
    let mut watcher = LimitWatcher::new(limits, Some(group), sandbox.pid, vec![layer.path().into()]);
    fs::write(layer.path().join("upper/large"), vec![1; 2 << 20]).unwrap();
    sandbox.go_on();
    // A shell that cannot fork gives up by itself.
    let resources = process::reap(sandbox.pid).unwrap();
    sandbox.pid = Pid::from_raw(i32::MAX).unwrap();
    let last = watcher.finish(&resources).unwrap();
    let limits_hit: Vec<(LimitName, LimitEffect)> = last.limits_hit.iter().map(|hit| (hit.limit, hit.effect)).collect();
    assert_eq!(
        limits_hit,
        [
            (LimitName::Memory, LimitEffect::Killed),
            (LimitName::Pids, LimitEffect::Refused),
            (LimitName::Workspace, LimitEffect::Killed),
        ]
    );
    assert!(last.usage.workspace_bytes.unwrap() >= 2 << 20);
}

#[test]
fn bytes_on_disk_are_bounded_over_all_layers_together() {
    let layers = [layer(), layer()];
    let limits = Limits {
        workspace: Some(Bytes::mib(12)),
        ..unlimited()
    };
    let write = |number: usize| {
        format!(
            "head -c 8000000 /dev/zero > {}/upper/f",
            layers[number].path().display()
        )
    };
    let mut sandbox = WaitingSandbox::new(&format!("{}; {}; sync; sleep 600", write(0), write(1)));
    let paths = layers.iter().map(|layer| layer.path().into()).collect();
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, paths);
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::Workspace, 12 << 20));
    assert!(sandbox.end(&mut watcher).usage.workspace_bytes.unwrap() >= 12 << 20);
}

#[test]
fn inodes_are_bounded() {
    let layer = layer();
    let limits = Limits {
        inodes: Some(100),
        ..unlimited()
    };
    let script = format!(
        "i=0; while [ $i -lt 150 ]; do : > {}/upper/$i; i=$((i+1)); done; sleep 600",
        layer.path().display()
    );
    let mut sandbox = WaitingSandbox::new(&script);
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, vec![layer.path().into()]);
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::Inodes, 100));
}

/// What is below the deepest that is measured is bounded even when the limit is lifted.
#[test]
fn depth_is_bounded() {
    let nested = |depth, inodes| {
        let layer = layer();
        let limits = Limits {
            depth,
            inodes,
            ..unlimited()
        };
        let script = format!(
            "cd {0}/upper; for i in 1 2 3 4 5 6 7 8 9 10 11; do mkdir -p {1}; cd -P {1}; done; sleep 600",
            layer.path().display(),
            "d/".repeat(100)
        );
        let mut sandbox = WaitingSandbox::new(&script);
        let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, vec![layer.path().into()]);
        sandbox.first_hit(&mut watcher)
    };
    assert_eq!(nested(Some(100), None), killed(LimitName::Depth, 100));
    assert_eq!(nested(Some(MAX_DEPTH), Some(5000)), killed(LimitName::Depth, MAX_DEPTH));
    assert_eq!(nested(None, Some(5000)), killed(LimitName::Inodes, 5000));
}

#[test]
fn a_file_without_a_name_that_is_still_open_counts_as_disk() {
    let layer = layer();
    let limits = Limits {
        workspace: Some(Bytes::mib(64)),
        ..unlimited()
    };
    let path = layer.path().join("upper/gone");
    let script = format!(
        "exec 3> {0}; rm {0}; head -c 100000000 /dev/zero >&3; sync; sleep 600",
        path.display()
    );
    let mut sandbox = WaitingSandbox::new(&script);
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, vec![layer.path().into()]);
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::Workspace, 64 << 20));
}

#[test]
fn a_file_without_a_name_that_is_concealed_in_a_socket_counts_as_disk() {
    // Such a file is known by the free space alone: what others remove meanwhile would make up for it, so nobody else's
    // file system is used but one that is all but empty.
    let layer = layer_in("/dev/shm");
    let limits = Limits {
        workspace: Some(Bytes::mib(32)),
        ..unlimited()
    };
    // Small steps, none of which is worth a search by itself.
    let program = r#"
import array, os, socket, time
a, b = socket.socketpair()
for _ in range(50):
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    os.unlink("f")
    os.write(fd, bytes(4 << 20))
    os.fsync(fd)
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    time.sleep(0.05)
time.sleep(100)"#;
    let script = format!("cd {}/upper; python3 -c '{program}' & wait", layer.path().display());
    let mut sandbox = WaitingSandbox::new(&script);
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, vec![layer.path().into()]);
    assert_eq!(sandbox.first_hit(&mut watcher), killed(LimitName::Workspace, 32 << 20));
}

#[test]
fn what_others_write_to_the_disk_is_not_held_against_a_sandbox_that_conceals_nothing() {
    let layer = layer();
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    let limits = Limits {
        workspace: Some(Bytes::mib(8)),
        ..unlimited()
    };
    let mut sandbox = WaitingSandbox::new("sleep 600 & wait");
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, vec![layer.path().into()]);
    sandbox.go_on();
    let file = fs::File::create(elsewhere.path().join("file")).unwrap();
    (&file).write_all(&vec![1; 48 << 20]).unwrap();
    file.sync_all().unwrap();
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        assert_eq!(watcher.tick(Instant::now()), []);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_others_wrote_long_ago_is_not_held_against_a_sandbox_that_conceals_something_now() {
    const MIB: u64 = 1 << 20;
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut foreign = ForeignGrowth::default();
    foreign.note(start, 900 * MIB, false);
    foreign.note(after(2), 900 * MIB, true);
    assert_eq!(foreign.bytes, 0, "one search may have had luck");
    for seconds in 4..10 {
        foreign.note(after(seconds), (900 + seconds) * MIB, false);
    }
    assert_eq!(foreign.bytes, 904 * MIB, "the least of what was left over");
    foreign.note(after(10), 2000 * MIB, true);
    assert_eq!(
        foreign.bytes,
        904 * MIB,
        "what came while something was concealed is not forgiven"
    );
    foreign.note(after(11), 100 * MIB, true);
    assert_eq!(foreign.bytes, 100 * MIB, "others gave space back");
}

#[test]
fn a_layer_that_cannot_be_measured_ends_the_run_and_is_named_at_the_end() {
    let limits = Limits {
        workspace: Some(Bytes::mib(64)),
        ..unlimited()
    };
    let sandbox = WaitingSandbox::new("sleep 600");
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, vec!["/nonexistent".into()]);
    assert_eq!(watcher.tick(Instant::now()), [killed(LimitName::Workspace, 64 << 20)]);
    sandbox.kill_all();
    let error = watcher.finish(&process::reap(sandbox.pid).unwrap()).unwrap_err();
    assert!(error.to_string().contains("could not be measured"), "{error}");
}

#[test]
fn nothing_is_looked_at_more_often_than_its_limit_can_be_reached() {
    let sandbox = WaitingSandbox::new("sleep 600");
    let limits = Limits {
        cpu_time: Some(Millis(3_600_000)),
        ..unlimited()
    };
    let mut watcher = LimitWatcher::new(limits, None, sandbox.pid, Vec::new());
    let now = Instant::now();
    watcher.tick(now);
    assert!(
        watcher.cpu_due > now + Duration::from_secs(1),
        "an hour cannot pass in a second"
    );
    assert!(watcher.next_tick() >= now + Duration::from_millis(10));
    assert!(watcher.next_tick() <= now + Duration::from_millis(100));
}

#[test]
#[ignore = "a measurement: run by name, alone, and read what it prints"]
fn measure_a_tick() {
    let limits = Limits {
        memory: Some(Bytes::mib(1024)),
        pids: Some(512),
        ..Limits::default()
    };
    let in_group = GroupLimits {
        memory_bytes: Some(1 << 30),
        swap_bytes: Some(0),
        pids: Some(512),
        cpu_accounting: true,
        ..GroupLimits::default()
    };
    for with_group in [true, false] {
        let mut sandbox = WaitingSandbox::new("for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait");
        let group = if with_group { group(in_group) } else { None };
        if let Some(group) = &group {
            group.join(sandbox.child.id()).unwrap();
        }
        let layer = layer();
        let mut watcher = LimitWatcher::new(limits.clone(), group, sandbox.pid, vec![layer.path().into()]);
        sandbox.go_on();
        std::thread::sleep(Duration::from_millis(200));
        let mut times: Vec<Duration> = (0..1000)
            .map(|_| {
                let began = Instant::now();
                watcher.tick(began);
                began.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!(
            "tick, ten processes, group {with_group}: median {:?}, p99 {:?}",
            times[500], times[990]
        );
        let began = Instant::now();
        sandbox.end(&mut watcher);
        println!("end: {:?}", began.elapsed());
    }
}
