//! What the owner of a daemon can set.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::level::{Degrade, Level};
use offleash_core::template::Recipe;

use super::view::Limits;

/// What the owner of a daemon can set; [`DaemonConfig::default`] is what happens if nothing is.
#[derive(Debug, Clone)]
pub struct DaemonConfig {
    /// The state directory; the user's own if `None`.
    pub state: Option<PathBuf>,
    /// The program that keepers are; this one, even when its file has been replaced, if `None`.
    pub program: Option<PathBuf>,
    /// How long a sandbox lives whose creator does not say.
    pub default_timeout: Duration,
    /// The longest that anybody may ask for, counted from each request.
    pub max_timeout: Duration,
    /// What a sandbox may use whose creator does not say.
    pub default_limits: Limits,
    /// The most that anybody may ask for.
    pub max_limits: Limits,
    /// The level of sandboxes; the strongest that the machine offers if `None`.
    pub level: Option<Level>,
    /// Below which level none is made.
    pub min_level: Option<Level>,
    /// Whether sandboxes are made whose limits this machine cannot all enforce; each says what is not enforced.
    pub degrade: Degrade,
    /// Sandboxes at a time, of all keys; the warm pool's are not counted.
    pub max_sandboxes: usize,
    /// Sandboxes that are being made at a time; further ones wait.
    pub max_creating: usize,
    /// How long making one may take.
    pub create_timeout: Duration,
    /// When creates are refused because the machine is short of something.
    pub admission: AdmissionConfig,
    /// Sandboxes made ahead.
    pub pool: PoolConfig,
    /// How long the log of a sandbox that has ended can be read.
    pub keep_logs: Duration,
    /// How often use is sampled; not at all if zero.
    pub sample_every: Duration,
    /// Templates that are built when they are asked for.
    pub templates: TemplatesConfig,
    /// Where their builds write how they go on; nowhere if `None`.
    pub build_log: Option<Arc<OwnedFd>>,
}

/// Templates that are built when they are asked for: that of the code interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplatesConfig {
    /// Whether any is.
    pub build_on_first_use: bool,
    /// How long a create waits for one that is being built, before it is answered that it is to be tried again.
    pub wait: Duration,
    /// What it is built from.
    pub code_interpreter: Recipe,
    /// Variables of the build alone.
    pub build_env: Vec<(OsString, OsString)>,
}

/// When creates are refused because the machine is short of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Memory that must be available (`MemAvailable`), MiB.
    pub min_memory_mib: u64,
    /// Processes and threads that must be possible beside those that exist.
    pub min_pids: u64,
    /// Space that must be free on the disk of the state directory, MiB.
    pub min_disk_mib: u64,
}

/// Sandboxes of template `base` with the default limits and network, made ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many wait at least.
    pub min: usize,
    /// How many wait at most; the number between follows demand. Zero switches the pool off.
    pub max: usize,
    /// How many are made at a time.
    pub max_creating: usize,
    /// How long one waits before it is replaced by a fresh one.
    pub max_age: Duration,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            state: None,
            program: None,
            default_timeout: Duration::from_secs(300),
            max_timeout: Duration::from_secs(24 * 60 * 60),
            default_limits: Limits {
                cpus: 2,
                memory_mib: 512,
                disk_mib: 1024,
                pids: 512,
            },
            max_limits: Limits {
                cpus: 32,
                memory_mib: 64 * 1024,
                disk_mib: 100 * 1024,
                pids: 32 * 1024,
            },
            level: None,
            min_level: None,
            degrade: Degrade::Allow,
            max_sandboxes: 2000,
            max_creating: 16,
            create_timeout: Duration::from_secs(30),
            admission: AdmissionConfig::default(),
            pool: PoolConfig::default(),
            keep_logs: Duration::from_secs(24 * 60 * 60),
            sample_every: Duration::from_secs(5),
            templates: TemplatesConfig::default(),
            build_log: None,
        }
    }
}

impl Default for TemplatesConfig {
    fn default() -> Self {
        Self {
            build_on_first_use: true,
            // SDKs wait a minute for an answer.
            wait: Duration::from_secs(45),
            code_interpreter: Recipe::code_interpreter(),
            build_env: Vec::new(),
        }
    }
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            min_memory_mib: 256,
            min_pids: 512,
            min_disk_mib: 512,
        }
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            min: 2,
            max: 32,
            max_creating: 2,
            max_age: Duration::from_secs(60 * 60),
        }
    }
}
