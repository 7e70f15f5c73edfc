//! A daemon of the benchmark's own, with a state directory and a key.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::client::answered;
use super::http::Connection;
use crate::error::TaskError;

/// How long a pool may take to fill.
const FILLED: Duration = Duration::from_secs(600);

/// A running daemon; ended when dropped, with its sandboxes.
#[derive(Debug)]
pub(in crate::bench) struct Daemon {
    child: Child,
    binary: PathBuf,
    state: tempfile::TempDir,
    pub(in crate::bench) address: SocketAddr,
    pub(in crate::bench) key: String,
}

impl Daemon {
    /// Starts `binary` with a pool of `pool` sandboxes.
    pub(super) fn start(binary: &Path, pool: usize) -> Result<Self, TaskError> {
        let state = tempfile::tempdir().map_err(TaskError::file("making", "a state directory"))?;
        let text = format!("[sandboxes]\nmax = 2000\n[pool]\nmin = {pool}\nmax = {pool}\n");
        Self::start_in(binary, state, &text)
    }

    /// Starts `binary` over a state directory with that configuration.
    pub(in crate::bench) fn start_in(binary: &Path, state: tempfile::TempDir, text: &str) -> Result<Self, TaskError> {
        let config = state.path().join("serve.toml");
        fs::write(&config, text).map_err(TaskError::file("writing", &config))?;
        let key = Self::made_key(binary, state.path())?;
        let mut child = Command::new(binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--state"])
            .arg(state.path())
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(TaskError::start("offleash serve"))?;
        let address = child.stdout.take().and_then(|stdout| {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.find_map(|line| {
                let (_, url) = line.split_once("E2B_API_URL=")?;
                let address = url.trim_matches(['"', '\'', '/']).strip_prefix("http://")?;
                address.parse().ok()
            })
        });
        let daemon = Self {
            address: address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))),
            child,
            binary: binary.to_owned(),
            state,
            key,
        };
        match daemon.address.port() {
            0 => Err(answered("offleash serve", "no line with E2B_API_URL".to_owned())),
            _ => Ok(daemon),
        }
    }

    /// Waits until `count` sandboxes are in the pool.
    pub(super) fn wait_until_filled(&self, count: usize) -> Result<(), TaskError> {
        self.wait_until_filled_with("base", count)
    }

    /// Waits until `count` sandboxes of a template can be handed out.
    pub(in crate::bench) fn wait_until_filled_with(&self, template: &str, count: usize) -> Result<(), TaskError> {
        let wanted = format!("offleash_pool_sandboxes{{template=\"{template}\"}}");
        let deadline = Instant::now() + FILLED;
        let failed = |error| TaskError::file("asking for", "/metrics")(error);
        let mut connection = Connection::open(self.address, &self.key).map_err(failed)?;
        while Instant::now() < deadline {
            let answer = connection.send("GET", "/metrics", &[], &[]).map_err(failed)?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let pooled = text.lines().find(|line| line.starts_with(&wanted));
            let pooled = pooled.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
            if pooled.is_some_and(|pooled: usize| pooled >= count) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(answered("the daemon", format!("its pool has no {count} sandboxes")))
    }

    fn made_key(binary: &Path, state: &Path) -> Result<String, TaskError> {
        let mut command = Command::new(binary);
        let output = command.args(["key", "create", "--state"]).arg(state).output();
        let output = output.map_err(TaskError::start("offleash key create"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let is_key = |word: &&str| word.starts_with("e2b_") && word.len() == 44;
        let key = text.split_whitespace().find(is_key);
        key.map(str::to_owned)
            .ok_or_else(|| answered("offleash key create", format!("no key in `{text}`")))
    }

    /// The daemon's own process.
    pub(in crate::bench) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Proportional set size of the daemon's own process, KiB.
    pub(super) fn memory_kib(&self) -> Result<u64, TaskError> {
        kib_of(&format!("/proc/{}/smaps_rollup", self.child.id()), "Pss:")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ids = Command::new(&self.binary)
            .args(["ls", "-q", "--state"])
            .arg(self.state.path())
            .output();
        if let Ok(ids) = ids {
            let ids = String::from_utf8_lossy(&ids.stdout).into_owned();
            for some in ids.lines().collect::<Vec<_>>().chunks(50) {
                let mut stop = Command::new(&self.binary);
                stop.arg("stop").arg("--state").arg(self.state.path()).args(some);
                // What is left ends with its time.
                let _stopped = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        }
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Memory that the machine has left, KiB.
pub(super) fn available_kib() -> Result<u64, TaskError> {
    kib_of("/proc/meminfo", "MemAvailable:")
}

fn kib_of(path: &str, name: &str) -> Result<u64, TaskError> {
    let text = fs::read_to_string(path).map_err(TaskError::file("reading", path))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| answered("the kernel", format!("no {name} in {path}")))
}
