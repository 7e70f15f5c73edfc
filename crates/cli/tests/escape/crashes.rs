//! The supervisor is killed: R8. Nothing that it started may live on, and what it left is gone after the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::arena::{assert_no_process, run, token};
use super::support::processes::{eventually, groups_of, processes_with, wait};
use super::support::{Site, is_root, stderr, stdout};

/// A process, told apart from a later one with the same number by the time of its start.
type Process = (u32, String);

/// The fields of `/proc/PID/stat` after the name: state, parent, …, start time (proc_pid_stat(5)).
fn stat_of(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(
        stat.rsplit_once(") ")?
            .1
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    )
}

fn lives(process: &Process) -> bool {
    stat_of(process.0).is_some_and(|stat| stat[19] == process.1 && stat[0] != "Z")
}

/// Everything that `ancestor` has started, directly or not.
fn descendants(ancestor: u32) -> BTreeSet<Process> {
    let mut parents: BTreeMap<u32, (u32, String)> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(stat) = stat_of(pid) {
            parents.insert(pid, (stat[1].parse().unwrap(), stat[19].clone()));
        }
    }
    let descends = |pid: u32| {
        let mut at = pid;
        while let Some((parent, _)) = parents.get(&at) {
            if *parent == ancestor {
                return true;
            }
            at = *parent;
        }
        false
    };
    parents
        .iter()
        .filter(|(pid, _)| descends(**pid))
        .map(|(pid, (_, start))| (*pid, start.clone()))
        .collect()
}

/// A supervisor, which a failed test does not leave behind.
struct Supervisor(Child);

impl Deref for Supervisor {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Supervisor {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Dead and reaped already, if the test went well.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A sandbox that is going to be orphaned.
struct Orphanage {
    site: Site,
    /// The ids of all runs that were seen.
    runs: BTreeSet<OsString>,
}

impl Orphanage {
    fn new() -> Self {
        Self {
            site: Site::new(),
            runs: BTreeSet::new(),
        }
    }

    fn start(&self, flags: &[&str], script: &str, word: &str) -> Supervisor {
        let mut arguments = vec!["run", "--quiet"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", "/bin/sh", "-c", script, word]);
        let mut command = self.site.offleash(arguments);
        Supervisor(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Kills the supervisor, and waits until everything that it had started is gone.
    fn orphan(&mut self, supervisor: &mut Child, word: &str) {
        let pid = Pid::from_child(supervisor);
        // Stopped, so that it starts nothing while its children are listed. It may have ended already.
        let _stopped = kill_process(pid, Signal::STOP);
        let started = descendants(supervisor.id());
        self.note_runs();
        supervisor.kill().unwrap();
        wait(supervisor);
        let alive = || {
            started
                .iter()
                .filter(|process| lives(process))
                .cloned()
                .collect::<Vec<_>>()
        };
        eventually(&format!("the end of {:?}", alive()), || {
            alive().is_empty().then_some(())
        });
        assert_no_process(word);
        // The next start cleans up, before another one is killed.
        let listed = run(&mut self.site.offleash(["runs"]));
        assert!(listed.status.success(), "{}", stderr(&listed));
    }

    /// What is in a directory of the state. A supervisor that was killed early enough has made none.
    fn entries(&self, directory: &str) -> Vec<std::fs::DirEntry> {
        match std::fs::read_dir(self.site.state().join(directory)) {
            Ok(entries) => entries.map(Result::unwrap).collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => panic!("{directory}: {error}"),
        }
    }

    fn note_runs(&mut self) {
        for directory in ["live", "runs"] {
            let entries = self.entries(directory);
            self.runs.extend(entries.iter().map(std::fs::DirEntry::file_name));
        }
    }

    /// What the audit log says of a run.
    fn log_of(&self, id: &std::ffi::OsStr) -> String {
        let log = std::fs::read_to_string(self.site.state().join("audit.jsonl")).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains(&*id.to_string_lossy()))
            .collect()
    }

    /// After the next start of offleash there is no group, mount, lock or unfinished run; only kept changes remain.
    fn assert_reaped(&mut self) {
        self.note_runs();
        let listed = run(&mut self.site.offleash(["runs", "--all"]));
        assert!(listed.status.success(), "{}", stderr(&listed));
        let live = self.entries("live");
        assert!(live.is_empty(), "still taken for alive: {live:?}");
        for id in &self.runs {
            let left = groups_of(&id.to_string_lossy());
            assert!(
                left.is_empty(),
                "left of {id:?}: {left:?}; the log says {}",
                self.log_of(id)
            );
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = self.site.root().to_string_lossy().into_owned();
        assert!(!mounts.contains(&root), "a mount is left: {mounts}");
        let listed = stdout(&listed);
        for entry in self.entries("runs") {
            let id = entry.file_name().to_string_lossy().into_owned();
            assert!(
                listed.contains(&id),
                "the directory of {id} is left, and `runs` does not list it: {listed}"
            );
            let discarded = run(&mut self.site.offleash(["discard", &id]));
            let was_discarded = stderr(&discarded).contains("was discarded");
            assert!(discarded.status.success() || was_discarded, "{}", stderr(&discarded));
        }
        // A discarded run may keep its record, and nothing of its layers.
        for entry in self.entries("runs") {
            assert!(
                !entry.path().join("layer-0").join("upper").exists(),
                "{entry:?} holds changes"
            );
        }
        let next = self.site.run_shell(&[], "echo works");
        assert_eq!(stdout(&next), "works\n", "the next run is harmed: {}", stderr(&next));
    }
}

#[test]
fn r8_a_supervisor_killed_at_any_moment_leaves_nothing() {
    let mut orphanage = Orphanage::new();
    // The whole of a start takes a few milliseconds, on a busy machine with a debug build some dozens.
    for step in 0..60_u64 {
        let word = token("orphan");
        let began = Instant::now();
        let mut supervisor = orphanage.start(&[], "while :; do sleep 3600; done", &word);
        let delay = Duration::from_micros(step * step * 10);
        while began.elapsed() < delay {
            std::hint::spin_loop();
        }
        orphanage.orphan(&mut supervisor, &word);
    }
    orphanage.assert_reaped();
}

#[test]
fn r8_a_supervisor_killed_while_it_ends_leaves_nothing() {
    let mut orphanage = Orphanage::new();
    for step in 0..30_u64 {
        let word = token("ending");
        let began = Instant::now();
        let mut supervisor = orphanage.start(&[], "echo change > file; (sleep 3600 &)", &word);
        while began.elapsed() < Duration::from_millis(5 + step) {
            std::hint::spin_loop();
        }
        orphanage.orphan(&mut supervisor, &word);
    }
    orphanage.assert_reaped();
    assert!(
        !orphanage.site.workspace().join("file").exists(),
        "a change reached the host"
    );
}

/// How far a start has come, as far as it can be seen from outside.
fn has_reached(stage: &str, orphanage: &Orphanage, supervisor: u32, word: &str) -> bool {
    let entries = |directory: &str| {
        let found = orphanage.entries(directory);
        found.iter().map(std::fs::DirEntry::file_name).collect::<Vec<_>>()
    };
    let named = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match stage {
        "claimed" => !entries("live").is_empty(),
        "recorded" => !entries("runs").is_empty(),
        "first process" => !descendants(supervisor).is_empty(),
        "group" => entries("live")
            .iter()
            .any(|id| !groups_of(&id.to_string_lossy()).is_empty()),
        "guest" => descendants(supervisor).iter().any(|(pid, _)| {
            let name = named(*pid);
            !name.is_empty() && name.trim() != "offleash" && !name.starts_with("offleash.")
        }),
        "command" => processes_with(word).len() > 1 && descendants(supervisor).len() > 1,
        _ => unreachable!(),
    }
}

#[test]
fn r8_a_supervisor_killed_at_each_stage_leaves_nothing() {
    for stage in ["claimed", "recorded", "first process", "group", "guest", "command"] {
        let mut orphanage = Orphanage::new();
        if stage == "group" && !is_root() {
            // This user may have no groups; then there is no such stage.
            continue;
        }
        let word = token("stage");
        let mut supervisor = orphanage.start(&[], "while :; do sleep 3600; done", &word);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !has_reached(stage, &orphanage, supervisor.id(), &word) && Instant::now() < deadline {
            std::hint::spin_loop();
        }
        orphanage.orphan(&mut supervisor, &word);
        orphanage.assert_reaped();
    }
}

#[test]
pub(crate) fn r8_nothing_escapes_the_end_of_the_supervisor() {
    let mut orphanage = Orphanage::new();
    for script in [
        "trap '' TERM INT HUP QUIT; while :; do sleep 3600; done",
        "setsid sh -c 'while :; do sleep 3600; done' \"$0\" & setsid setsid sleep 3600 & while :; do sleep 3600; done",
        "kill -STOP $$; sleep 3600",
        "while :; do (sleep 0.01 &) ; done",
        "exec > /dev/null 2>&1 < /dev/null; (while :; do sleep 3600; done) & sleep 3600",
    ] {
        let word = token("stubborn");
        let mut supervisor = orphanage.start(&[], script, &word);
        eventually("the start of the command", || {
            (processes_with(&word).len() > 1).then_some(())
        });
        std::thread::sleep(Duration::from_millis(50));
        orphanage.orphan(&mut supervisor, &word);
    }
    orphanage.assert_reaped();
}

#[test]
fn r8_changes_of_a_crashed_run_are_kept_aside() {
    let mut orphanage = Orphanage::new();
    orphanage.site.write("file", "original\n");
    let word = token("kept");
    for mode in [".:overlay", ".:rw"] {
        let script = "echo changed > file; echo new > new; touch ready; while :; do sleep 3600; done";
        let mut supervisor = orphanage.start(&["-w", mode], script, &word);
        let state = orphanage.site.state();
        eventually("the change", || {
            let runs = std::fs::read_dir(state.join("runs")).ok()?.flatten();
            runs.map(|run| run.path().join("layer-0/upper/ready"))
                .find(|ready| ready.exists())
        });
        orphanage.orphan(&mut supervisor, &word);
        let listed = stdout(&run(&mut orphanage.site.offleash(["runs"])));
        let line = listed
            .lines()
            .find(|line| line.split_whitespace().nth(1) == Some("crashed"))
            .unwrap_or_else(|| panic!("no such run: {listed}"));
        let id = line.split_whitespace().next().unwrap().to_owned();
        let diff = stdout(&run(&mut orphanage.site.offleash(["diff", &id])));
        assert!(diff.contains("+changed") && diff.contains("new"), "{diff}");
        assert_eq!(
            std::fs::read_to_string(orphanage.site.workspace().join("file")).unwrap(),
            "original\n"
        );
        assert!(
            !orphanage.site.workspace().join("new").exists(),
            "mode {mode}: a change reached the host"
        );
        let discarded = run(&mut orphanage.site.offleash(["discard", &id]));
        assert!(discarded.status.success(), "{}", stderr(&discarded));
    }
    orphanage.assert_reaped();
}

#[test]
fn r8_the_loss_of_the_first_process_ends_the_run() {
    let mut orphanage = Orphanage::new();
    let word = token("guestless");
    let mut supervisor = orphanage.start(&[], "while :; do sleep 3600; done", &word);
    eventually("the start of the command", || {
        (processes_with(&word).len() > 1).then_some(())
    });
    let started = descendants(supervisor.id());
    let first = started
        .iter()
        .find(|(pid, _)| stat_of(*pid).is_some_and(|stat| stat[1] == supervisor.id().to_string()));
    let (first, _) = first.unwrap();
    kill_process(Pid::from_raw(i32::try_from(*first).unwrap()).unwrap(), Signal::KILL).unwrap();
    let status = wait(&mut supervisor);
    assert_eq!(status.code(), Some(125));
    eventually("the end of the sandbox", || {
        started.iter().all(|process| !lives(process)).then_some(())
    });
    assert_no_process(&word);
    orphanage.assert_reaped();
}
