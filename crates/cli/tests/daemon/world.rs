//! A daemon with a state directory of its own, of which nothing is left when the test ends, however it ends.

use std::path::Path;
use std::time::{Duration, Instant};

use offleash_core::exec::ExecEnd;
use offleash_daemon::registry::Registry;
use offleash_daemon::{
    AdmissionConfig, Caller, CreateRequest, Daemon, DaemonConfig, KeyStore, PoolConfig, SandboxContexts, SandboxView,
};
use offleash_interpreter::cell::{Cell, CellEnd, CellEvent};
use offleash_store::{HostIdentity, StateDirectory};
use offleash_supervisor::service::message::StartExec;
use offleash_supervisor::service::{ExecNews, SupervisorClient};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::support::Site;
use super::support::processes::TIMEOUT;

/// A state directory, and daemons for it.
pub(crate) struct World {
    pub(crate) site: Site,
}

/// No pool, no samples, and nothing that depends on what else the machine does.
pub(crate) fn config(state: &Path) -> DaemonConfig {
    DaemonConfig {
        state: Some(state.to_owned()),
        program: Some(super::support::binary()),
        create_timeout: TIMEOUT,
        admission: AdmissionConfig {
            min_memory_mib: 0,
            min_pids: 0,
            min_disk_mib: 0,
        },
        pool: PoolConfig {
            min: 0,
            max: 0,
            ..PoolConfig::default()
        },
        sample_every: Duration::ZERO,
        ..DaemonConfig::default()
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            site: Site::sharing_templates(),
        }
    }

    pub(crate) async fn daemon(&self) -> Daemon {
        self.daemon_with(|_| {}).await
    }

    pub(crate) async fn daemon_with(&self, change: impl FnOnce(&mut DaemonConfig)) -> Daemon {
        let mut config = config(&self.site.state());
        change(&mut config);
        within(Daemon::open(config)).await.unwrap()
    }

    /// Whether nothing of any sandbox is left: no process, no directory.
    pub(crate) fn is_empty(&self) -> bool {
        let sandboxes = self.site.state().join("sandboxes");
        let runs = self.site.state().join("runs");
        let count = |path: &Path| std::fs::read_dir(path).map_or(0, |entries| entries.flatten().count());
        supervisors_below(self.site.root()).is_empty() && count(&sandboxes) == 0 && count(&runs) == 0
    }

    /// Waits until nothing of any sandbox is left.
    pub(crate) async fn emptied(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.is_empty() {
            let left = || {
                let sandboxes = self.site.state().join("sandboxes");
                let runs = self.site.state().join("runs");
                let names = |path: &Path| -> Vec<_> {
                    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
                    entries.map(|entry| entry.file_name()).collect()
                };
                (supervisors_below(self.site.root()), names(&sandboxes), names(&runs))
            };
            assert!(Instant::now() < deadline, "left: {:?}", left());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets go of `daemon` and waits until it is gone: what it does in the background keeps it for a moment longer, in which
    /// it would still see its supervisors die.
    pub(crate) async fn close(&self, daemon: Daemon) {
        drop(daemon);
        let keys = KeyStore::open(Some(&self.site.state())).unwrap();
        eventually("the daemon's end", || (!keys.has_daemon().unwrap()).then_some(())).await;
    }

    pub(crate) fn registry(&self) -> Registry {
        let host = HostIdentity::of_this_process();
        let state = StateDirectory::open(Some(&self.site.state()), &host).unwrap();
        Registry::open(&state).unwrap()
    }
}

/// Sandboxes die with their supervisors; what those leave on disk is cleaned up by the next start.
impl Drop for World {
    fn drop(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let supervisors = supervisors_below(self.site.root());
            if supervisors.is_empty() || Instant::now() > deadline {
                break;
            }
            supervisors.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(5));
        }
        let cleaned = self.site.offleash(["run", "--quiet", "--", "true"]).output();
        drop(cleaned);
    }
}

/// Supervisors with something open below `root`, each of which holds the directory of its sandbox.
pub(crate) fn supervisors_below(root: &Path) -> Vec<i32> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid| is_supervisor(*pid) && has_open_below(*pid, root))
        .collect()
}

fn is_supervisor(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_dead = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !is_dead && command.ends_with(b"\0supervise\0sandbox\0")
}

fn has_open_below(pid: i32, root: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|target| target.starts_with(root))
}

/// Kills a process that is one of ours, and waits until it is dead: one that is being killed still looks alive.
pub(crate) fn kill(pid: i32) {
    if let Ok(process) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty())
        && is_supervisor(pid)
    {
        let _gone = pidfd_send_signal(&process, Signal::KILL);
        let patience = Timespec::try_from(TIMEOUT).unwrap();
        let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience));
        assert_eq!(ended, Ok(1), "{pid} was killed and lives");
    }
}

/// A sandbox of the owner's.
pub(crate) async fn create(daemon: &Daemon) -> SandboxView {
    create_with(daemon, |_| {}).await
}

pub(crate) async fn create_with(daemon: &Daemon, change: impl FnOnce(&mut CreateRequest)) -> SandboxView {
    let mut request = CreateRequest::default();
    change(&mut request);
    within(daemon.create(&Caller::local(), request)).await.unwrap()
}

/// What `sh -c SCRIPT` writes in a sandbox; it must succeed.
pub(crate) async fn output(supervisor: &SupervisorClient, script: &str) -> String {
    let start = StartExec {
        argv: ["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec()).into(),
        ..StartExec::default()
    };
    let mut stream = within(supervisor.start(start)).await.unwrap();
    let mut text = String::new();
    loop {
        match within(stream.next()).await.unwrap() {
            Some(ExecNews::Output { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(ExecNews::Ended(end)) => {
                assert_eq!(end, ExecEnd::Exited { code: 0 }, "{script}: {text}");
                return text;
            }
            other => panic!("{script}: {other:?}"),
        }
    }
}

/// How a cell ends.
pub(crate) async fn end_of(contexts: &SandboxContexts, id: &str, code: &str) -> Option<CellEnd> {
    let cell = Cell {
        code: code.to_owned(),
        ..Cell::default()
    };
    let mut events = within(contexts.execute(id, cell)).await.unwrap();
    let mut last = None;
    while let Some(event) = within(events.recv()).await {
        last = Some(event);
    }
    match last {
        Some(CellEvent::End(end)) => Some(end),
        _ => None,
    }
}

/// Nothing may hang.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.expect("nothing came of it")
}

/// Waits until `happened` answers something.
pub(crate) async fn eventually<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = happened() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a test on an event loop.
pub(crate) fn test(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work);
}
