//! A sandbox with a supervisor of its own, of which nothing is left when the test ends, however it ends.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::level::DegradeMode;
use offleash_core::spec::ZygoteRole;
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_supervisor::frames::{frame, only};
use offleash_supervisor::roles::{SUPERVISE_COMMAND, SupervisorRole};
use offleash_supervisor::service::answer::{LaunchAnswer, MadeSandbox};
use offleash_supervisor::service::message::{Hello, StartExec};
use offleash_supervisor::service::order::{LimitsOrder, NetworkOrder, SupervisorOrder, Template};
use offleash_supervisor::service::{ExecNews, ExecStream, SupervisorClient};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::support::Site;
use super::support::processes::{TIMEOUT, groups_of};

/// A sandbox that is kept.
pub(crate) struct Kept {
    pub(crate) site: Site,
    pub(crate) supervisor: SupervisorClient,
    pub(crate) hello: Hello,
    pub(crate) descent: ZygoteRole,
}

/// An id for each site; groups of all sandboxes of a machine are in one place.
pub(crate) fn id(site: &Site) -> String {
    let name = site.root().file_name().unwrap().to_str().unwrap();
    let unique = name.bytes().flat_map(|byte| [b'a' + byte / 16, b'a' + byte % 16]);
    let unique: Vec<u8> = unique.collect();
    format!("i{}", str::from_utf8(&unique[unique.len() - 12..]).unwrap())
}

/// What is ordered unless a test wants something else.
pub(crate) fn order(site: &Site) -> SupervisorOrder {
    let directory = site.state().join("sandboxes").join(id(site));
    std::fs::create_dir_all(&directory).unwrap();
    SupervisorOrder {
        id: id(site).parse().unwrap(),
        state: Text::from(site.state()),
        directory: Text::from(directory),
        template: Template::System,
        env: vec![(Text(b"OWN".to_vec()), Text(b"value".to_vec()))],
        level: None,
        runtime: None,
        hypervisor: None,
        acceleration: None,
        vm_kernel: None,
        min_level: None,
        degrade: DegradeMode::Allow,
        limits: LimitsOrder {
            memory: Some(Bytes::mib(512)),
            pids: Some(128),
            disk: Some(Bytes::mib(512)),
            ..LimitsOrder::default()
        },
        network: NetworkOrder::default(),
        allow_ptrace: false,
        descent: ZygoteRole::Alone,
        wants_copy: false,
        is_copied: false,
        is_kept: false,
        snapshot: None,
        volumes: Vec::new(),
        longest_hold_ms: None,
        tools: None,
        monitors: Vec::new(),
    }
}

/// Starts a supervisor and answers what it says; the end of it is waited for.
pub(crate) fn launch(order: &SupervisorOrder) -> LaunchAnswer {
    let mut command = Command::new(super::support::binary());
    command
        .args([SUPERVISE_COMMAND, SupervisorRole::Sandbox.word()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let order = frame(order).unwrap();
    child.stdin.take().unwrap().write_all(&order).unwrap();
    let mut answer = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut answer).unwrap();
    std::thread::spawn(move || child.wait());
    only(&answer).unwrap()
}

impl Kept {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// With an order that `change` has changed.
    pub(crate) async fn with(change: impl FnOnce(&mut SupervisorOrder)) -> Self {
        let site = Site::new();
        let mut order = order(&site);
        change(&mut order);
        let MadeSandbox { hello, descent, .. } = launch(&order).into_result().unwrap();
        let supervisor = SupervisorClient::in_directory(order.directory.as_path());
        Self {
            site,
            supervisor,
            hello,
            descent,
        }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.site.state().join("sandboxes").join(id(&self.site))
    }

    /// Starts `sh -c SCRIPT`.
    pub(crate) async fn shell(&self, script: &str) -> ExecStream {
        self.supervisor.start(shell(script)).await.unwrap()
    }

    /// What `sh -c SCRIPT` writes to its standard output; it must succeed.
    pub(crate) async fn output(&self, script: &str) -> String {
        let (output, end) = collect(self.shell(script).await).await;
        assert_eq!(end, Some(ExecEnd::Exited { code: 0 }), "{script}: {output}");
        output
    }

    pub(crate) fn kill_supervisor(&self) {
        let pid = Pid::from_raw(self.hello.pid.cast_signed()).unwrap();
        if is_supervisor(self.hello.pid)
            && let Ok(supervisor) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _gone = pidfd_send_signal(&supervisor, Signal::KILL);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.kill_supervisor();
        let deadline = Instant::now() + TIMEOUT;
        while is_supervisor(self.hello.pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        // What a dead supervisor leaves is cleaned up by the next start.
        let cleaned = self.site.offleash(["run", "--quiet", "--", "true"]).output();
        drop(cleaned);
    }
}

/// Whether a process of this number lives and is a supervisor.
pub(crate) fn is_supervisor(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_dead = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !is_dead && command.ends_with(b"\0supervise\0sandbox\0")
}

pub(crate) fn shell(script: &str) -> StartExec {
    StartExec {
        argv: ["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec()).into(),
        ..StartExec::default()
    }
}

/// Everything that a command writes, and how it ends; `None` if the sandbox is gone before.
pub(crate) async fn collect(mut stream: ExecStream) -> (String, Option<ExecEnd>) {
    let mut text = String::new();
    let end = loop {
        match within(stream.next()).await.unwrap() {
            Some(ExecNews::Output { stream, bytes }) => {
                if stream == OutputStream::Stdout {
                    text.push_str(&String::from_utf8_lossy(&bytes));
                }
            }
            Some(ExecNews::TimedOut) => text.push_str("[timed out]"),
            Some(ExecNews::Ended(end)) => break Some(end),
            None => break None,
        }
    };
    (text, end)
}

/// The next piece of output.
pub(crate) async fn piece(stream: &mut ExecStream) -> Vec<u8> {
    match within(stream.next()).await.unwrap() {
        Some(ExecNews::Output { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Output until there is `wanted` in it.
pub(crate) async fn until(stream: &mut ExecStream, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        text.push_str(&String::from_utf8_lossy(&piece(stream).await));
    }
    text
}

/// Nothing may hang.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.expect("nothing came of it")
}

/// Runs a test on an event loop.
pub(crate) fn test(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work);
}

/// Whether there is anything at `path`.
pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// What a sandbox is on this machine besides its processes.
pub(crate) fn remains(site: &Site) -> Vec<PathBuf> {
    let mut found = groups_of(&id(site));
    for part in ["runs", "live"] {
        found.extend(
            [site.state().join(part).join(id(site))]
                .into_iter()
                .filter(|path| exists(path)),
        );
    }
    found
}
