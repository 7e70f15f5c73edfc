//! Resource limits: what is bounded, by default to what, and under which name.

use crate::units::{Bytes, CpuCount, Millis};

/// The bounds of one run. `None` means that the owner lifted the limit by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// CPUs that may be used at once.
    pub cpus: Option<CpuCount>,
    /// CPU time of all processes together.
    pub cpu_time: Option<Millis>,
    /// Time from start to end.
    pub wall_time: Option<Millis>,
    /// Memory of all processes together: anonymous, page cache, tmpfs and kernel memory.
    pub memory: Option<Bytes>,
    /// Swap on top of `memory`.
    pub swap: Option<Bytes>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes that the changes in the workspace may take on disk.
    pub workspace: Option<Bytes>,
    /// Files, directories and links that the changes in the workspace may consist of.
    pub inodes: Option<u64>,
    /// Apparent size of the largest file, sparse or not.
    pub file_size: Option<Bytes>,
    /// Size of `/tmp`; `/dev/shm` and the home directory have the same each.
    pub tmp: Option<Bytes>,
    /// Open file descriptors of each process.
    pub open_files: Option<u64>,
    /// Bytes of output, standard output and standard error together.
    pub output: Option<Bytes>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpus: None,
            cpu_time: Some(Millis(3_600_000)),
            wall_time: Some(Millis(3_600_000)),
            memory: Some(Bytes::mib(4096)),
            swap: Some(Bytes(0)),
            pids: Some(512),
            workspace: Some(Bytes::mib(4096)),
            inodes: Some(500_000),
            file_size: Some(Bytes::mib(2048)),
            tmp: Some(Bytes::mib(1024)),
            open_files: Some(4096),
            output: Some(Bytes::mib(256)),
        }
    }
}

/// The name of a limit, as in flags, policy keys, records and `offleash explain limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// [`Limits::cpus`]
    Cpus,
    /// [`Limits::cpu_time`]
    CpuTime,
    /// [`Limits::wall_time`]
    WallTime,
    /// [`Limits::memory`]
    Memory,
    /// [`Limits::swap`]
    Swap,
    /// [`Limits::pids`]
    Pids,
    /// [`Limits::workspace`]
    Workspace,
    /// [`Limits::inodes`]
    Inodes,
    /// [`Limits::file_size`]
    FileSize,
    /// [`Limits::tmp`]
    Tmp,
    /// [`Limits::open_files`]
    OpenFiles,
    /// [`Limits::output`]
    Output,
}
