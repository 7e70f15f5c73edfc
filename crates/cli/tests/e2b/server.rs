//! The real server, on a port and with a state directory of its own, of which nothing is left when the test ends.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::client::{ask, json};
use crate::support::disks::SmallDisk;
use crate::support::processes::{TIMEOUT, eventually, groups_of, signal, wait};
use crate::support::{Site, stderr, stdout};

/// No sandbox is made ahead: what is there is what a test made. It may take as long as it does on a loaded machine.
pub(crate) const NO_POOL: &str = "[pool]\nmin = 0\nmax = 0\n[sandboxes]\ncreate_timeout_seconds = 600\n";
/// A few are, as usual, and use is sampled often, so that no test waits for it.
pub(crate) const WITH_POOL: &str =
    "[pool]\nmin = 1\nmax = 2\n[sandboxes]\nsample_seconds = 1\ncreate_timeout_seconds = 600\n";

/// A server.
pub(crate) struct Server {
    /// Of its own for the state directory, and gone before that.
    disk: Option<SmallDisk>,
    pub(crate) site: Site,
    scheme: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    config: PathBuf,
    child: Child,
}

impl Server {
    /// Starts one, and makes a key.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_on(Site::sharing_templates(), None, config)
    }

    /// Starts one whose state directory is on a disk of that size, if there can be one.
    pub(crate) fn start_on_small_disk(mebibytes: u64, config: &str) -> Option<Self> {
        let site = Site::new();
        let disk = SmallDisk::mount(&site.state(), mebibytes)?;
        std::fs::set_permissions(site.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Some(Self::start_on(site, Some(disk), config))
    }

    /// Starts one at a place.
    pub(crate) fn start_on(site: Site, disk: Option<SmallDisk>, config: &str) -> Self {
        let file = site.root().join("serve.toml");
        std::fs::write(&file, config).unwrap();
        let (child, scheme, address) = spawn(&site, &file);
        let made = site.offleash(["key", "create"]).output().unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        Self {
            disk,
            scheme,
            address,
            key: stdout(&made).trim().to_owned(),
            config: file,
            child,
            site,
        }
    }

    /// What clients are to call it.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Its process.
    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// Ends it the hard way, at whatever it is doing.
    pub(crate) fn kill_now(&self) {
        signal(&self.child, Signal::KILL);
    }

    /// Starts one after it once it has ended, on the same state directory and another port.
    pub(crate) fn wait_and_start_again(&mut self) {
        wait(&mut self.child);
        (self.child, _, self.address) = spawn(&self.site, &self.config);
    }

    /// Ends it as its owner does, and starts one after it with another configuration.
    pub(crate) fn start_again_with(&mut self, config: &str) {
        signal(&self.child, Signal::TERM);
        assert!(wait(&mut self.child).success());
        std::fs::write(&self.config, config).unwrap();
        (self.child, self.scheme, self.address) = spawn(&self.site, &self.config);
    }

    /// Asks the control plane.
    pub(crate) fn ask(&self, request: &str, body: &str) -> (u16, Value) {
        let (status, body) = ask(self.address, &self.key, request, "", body.as_bytes()).unwrap();
        (status, if body.is_empty() { Value::Null } else { json(&body) })
    }

    /// Makes a sandbox and answers its id.
    pub(crate) fn create(&self) -> String {
        let (status, sandbox) = self.ask("POST /v2/sandboxes", r#"{"templateID":"base","timeout":3600}"#);
        assert_eq!(status, 201, "{sandbox}");
        sandbox["sandboxID"].as_str().unwrap().to_owned()
    }

    /// Runs a line of a shell in a sandbox, which must succeed, and answers what it wrote.
    pub(crate) fn shell(&self, id: &str, line: &str) -> String {
        let answer = self.run(id, line);
        assert_eq!(answer["exit_code"], 0, "{line}: {answer}");
        answer["stdout"].as_str().unwrap().to_owned()
    }

    /// Runs a line of a shell in a sandbox, and answers what came of it.
    pub(crate) fn run(&self, id: &str, line: &str) -> Value {
        let command = serde_json::json!({ "shell": line }).to_string();
        let (status, answer) = self.ask(&format!("POST /v1/sandboxes/{id}/run"), &command);
        if status != 200 {
            let (_, events) = self.ask(&format!("GET /events/sandboxes/{id}"), "");
            panic!("{status} {line}: {answer}; what became of it: {events}");
        }
        answer
    }

    /// The sandboxes of the key that are there.
    pub(crate) fn list(&self) -> Vec<String> {
        let mut found = Vec::new();
        for state in ["running", "paused"] {
            let (status, sandboxes) = self.ask(&format!("GET /v2/sandboxes?state={state}&limit=100"), "");
            assert_eq!(status, 200, "{sandboxes}");
            let ids = sandboxes.as_array().unwrap().iter();
            found.extend(ids.map(|sandbox| sandbox["sandboxID"].as_str().unwrap().to_owned()));
        }
        found
    }

    /// Every directory that a sandbox of this server has.
    pub(crate) fn directories(&self) -> Vec<String> {
        names_in(&self.site.state().join("sandboxes"))
    }

    /// Kills every sandbox, ends the server, and fails if anything of them remains.
    pub(crate) fn end(mut self) {
        let mut ids = self.directories();
        for id in self.list() {
            let (status, answer) = self.ask(&format!("DELETE /sandboxes/{id}"), "");
            assert_eq!(status, 204, "{id}: {answer}");
            ids.push(id);
        }
        signal(&self.child, Signal::TERM);
        assert!(wait(&mut self.child).success());
        self.clear();
        drop(self.disk.take());
        self.assert_nothing_left(&ids);
    }

    /// Ends the sandboxes of the pool, which belong to no key and live on; another server cleans up after them.
    fn clear(&mut self) {
        sweep(self.site.root());
        std::fs::write(&self.config, NO_POOL).unwrap();
        (self.child, _, self.address) = spawn(&self.site, &self.config);
        let deadline = Instant::now() + TIMEOUT;
        while !self.directories().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&self.child, Signal::TERM);
        wait(&mut self.child);
    }

    fn assert_nothing_left(&self, ids: &[String]) {
        eventually("the end of every process", || {
            processes_of(self.site.root()).is_empty().then_some(())
        });
        for id in ids {
            eventually("the end of every control group", || {
                groups_of(id).is_empty().then_some(())
            });
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.site.root().to_str().unwrap()), "{mounts}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(&self.child, Signal::KILL);
            wait(&mut self.child);
        }
        if !self.directories().is_empty() {
            self.clear();
        }
    }
}

fn spawn(site: &Site, config: &Path) -> (Child, &'static str, SocketAddr) {
    let errors = std::fs::File::options()
        .append(true)
        .create(true)
        .open(site.root().join("serve.log"))
        .unwrap();
    let mut command = site.offleash(["serve", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(config).stdout(Stdio::piped()).stderr(errors);
    let mut child = command.spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next();
    let Some(Ok(line)) = line else {
        let status = wait(&mut child);
        let log = std::fs::read_to_string(site.root().join("serve.log")).unwrap();
        panic!("the server did not start: {status}: {log}");
    };
    let (variable, address) = line.split_once("://").unwrap_or_else(|| panic!("{line}"));
    let scheme = if variable.ends_with("=https") { "https" } else { "http" };
    (child, scheme, address.parse().unwrap())
}

/// The processes that have something below `root` open: the server, and the supervisors of its sandboxes. What is inside of
/// sandboxes dies with its supervisor.
pub(crate) fn processes_of(root: &Path) -> Vec<u32> {
    let numbers = names_in(Path::new("/proc"))
        .into_iter()
        .filter_map(|name| name.parse().ok());
    let is_ours = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0);
        words.any(|word| word == b"supervise" || word == b"serve") && has_open(*pid, root)
    };
    numbers.filter(is_ours).collect()
}

/// Whether a process has something below `root` open, even something that was removed since.
fn has_open(pid: u32, root: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    open.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok())
        .any(|target| target.starts_with(root))
}

/// Kills every process of a server, again until there are none.
pub(crate) fn sweep(root: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = processes_of(root);
        if found.is_empty() || Instant::now() > deadline {
            break;
        }
        found.into_iter().for_each(send_kill);
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn send_kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let _gone = pidfd_send_signal(&process, Signal::KILL);
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// How many supervisors live.
pub(crate) fn supervisors_of(server: &Server) -> usize {
    let found = processes_of(&server.site.state().join("runs"));
    // The server may look at one as well.
    found.into_iter().filter(|pid| *pid != server.child.id()).count()
}

/// The supervisor of a sandbox.
pub(crate) fn supervisor_of(server: &Server, id: &str) -> u32 {
    let supervisors = processes_of(&server.site.state().join("runs").join(id));
    assert_eq!(supervisors.len(), 1, "{id}: {supervisors:?}");
    supervisors[0]
}

/// The children of a process.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
