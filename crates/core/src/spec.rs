//! What was asked for: the one form that every door (command line, policy file, later REST and MCP) builds.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::command::CommandRules;
use crate::env::EnvRules;
use crate::gpu::GpuChoice;
use crate::id::RunId;
use crate::level::{DegradeMode, Level, LevelChoice};
use crate::limits::Limits;
use crate::monitor::MonitorRule;
use crate::path_rules::PathRules;
use crate::plan::SandboxUser;
use crate::template::TemplateName;
use crate::tool::{DeclaredTool, ToolGrant};
use crate::volume::VolumeKey;

mod network;

pub use network::{NetworkSpec, NetworkSpecError, PROXY_PORT};

/// A sandbox as its owner described it; paths are the host's, not yet resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    /// Which level.
    pub level: LevelChoice,
    /// The floor below which nothing runs.
    pub min_level: Option<Level>,
    /// Whether a weaker enforcement than asked for is acceptable.
    pub degrade: DegradeMode,
    /// What the root directory is.
    pub root: RootChoice,
    /// The workspace; `None` means none.
    pub workspace: Option<WorkspaceSpec>,
    /// Further host paths.
    pub mounts: Vec<MountSpec>,
    /// Volumes.
    pub volumes: Vec<VolumeMount>,
    /// Further empty directories.
    pub tmpfs: Vec<TmpfsSpec>,
    /// Toolchains by name (`pyenv`) or by path, granted read-only.
    pub toolchains: Vec<OsString>,
    /// Rules of the file system.
    pub paths: PathRules,
    /// Which executables may be run.
    pub commands: CommandRules,
    /// Which variables are passed and set.
    pub env: EnvRules,
    /// Resource limits.
    pub limits: Limits,
    /// The network.
    pub network: NetworkSpec,
    /// The OCI runtime of level `container`, by its name or its path; when absent, the strongest that is found.
    pub runtime: Option<std::ffi::OsString>,
    /// The virtual machine of level `microvm`.
    pub vm: crate::vm::VmSpec,
    /// The graphics cards that it is given; none when absent.
    pub gpu: Option<GpuChoice>,
    /// How user ids are mapped. When absent: a range for a root of its own where that can be had, else one id.
    pub ids: Option<IdChoice>,
    /// Whether processes in the sandbox may trace each other (debuggers, strace).
    pub allow_ptrace: bool,
    /// Whether it may be paused, for which a control group more may be needed.
    pub pausable: bool,
    /// What ends when it has no memory left.
    pub memory_end: MemoryEnd,
    /// Whose copies its processes may be.
    pub descent: ZygoteRole,
    /// Tools that code inside may call.
    pub tools: Vec<DeclaredTool>,
    /// What is granted of them; all that their owner grants when absent.
    pub tool_grants: Option<Vec<ToolGrant>>,
    /// Rules of monitoring: those that change built-in ones, and others.
    pub monitors: Vec<MonitorRule>,
    /// How many sandboxes wait, ready, for later runs of the same request: at most [`MAX_WARM`], none by default.
    pub warm: u8,
}

/// How many sandboxes one request can keep waiting for its like.
pub const MAX_WARM: u8 = 8;

/// What ends when a sandbox has no memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryEnd {
    /// The sandbox: what it was made for cannot be done.
    #[default]
    Sandbox,
    /// One process, the largest; the sandbox is there for others.
    Process,
}

/// Whether copies of processes can be moved from one sandbox into another. Only a process above the other's user
/// namespace can go there, so one of the two lies below the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZygoteRole {
    /// Neither gives nor takes any.
    #[default]
    Alone,
    /// Others may be made below it and be given copies of its processes. It is for code that all of them trust: that
    /// can do to them what it likes, and when its first process ends, so do they.
    Zygote,
    /// Made below a zygote.
    Below(ProcessRef),
}

impl SandboxSpec {
    /// Whether a person is asked about calls of a tool.
    pub fn asks_about_tools(&self) -> bool {
        ToolGrant::ask_of(&self.tools, self.tool_grants.as_deref())
    }
}

impl ZygoteRole {
    /// The first process of the zygote below which it is.
    pub fn zygote(self) -> Option<ProcessRef> {
        match self {
            Self::Below(zygote) => Some(zygote),
            Self::Alone | Self::Zygote => None,
        }
    }
}

/// A process of the host, told from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessRef {
    /// Its number.
    pub pid: u32,
    /// When it was started (proc_pid_stat(5), field 22).
    pub start_ticks: u64,
}

/// What the root directory of a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RootChoice {
    /// A read-only view of the host's system.
    #[default]
    System,
    /// The base template: the host's system below a writable layer, so that files can be written anywhere and packages
    /// installed, by the users `root` and `user`.
    Base {
        /// The template that lies between the host's system and the writable layer, if there is one.
        template: Option<TemplateName>,
        /// The snapshot that lies above that, if there is one.
        snapshot: Option<RunId>,
        /// The directory of the writable layer, which exists and may hold what an earlier sandbox left there; when absent,
        /// one that goes with the sandbox.
        layer: Option<PathBuf>,
    },
    /// An image of containers below a writable layer that goes with the sandbox.
    Image(Box<ImageSpec>),
}

/// An image that is here, and what its configuration says of its programs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageSpec {
    /// Its whole name.
    pub name: String,
    /// The digest of its manifest, by which it is opened.
    pub digest: String,
    /// Its accounts, the one first as which its programs are started; with the ids that it gives them.
    pub users: Vec<SandboxUser>,
    /// Its lists of users and of groups, as they are in its `/etc`; empty where it has none.
    pub passwd: String,
    /// See `passwd`.
    pub group: String,
    /// Variables of its programs.
    pub env: Vec<(String, String)>,
    /// The directory in which its programs start, absolute; `None` where it names none.
    pub working_directory: Option<PathBuf>,
    /// The snapshot that lies above it, if there is one.
    pub snapshot: Option<RunId>,
    /// The template that it is, if it is one.
    pub template: Option<TemplateName>,
    /// The directory of the writable layer, which exists; when absent, one that goes with the sandbox.
    pub layer: Option<PathBuf>,
}

/// The directory that the code works in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceSpec {
    /// The host's directory; it has the same path inside.
    pub path: PathBuf,
    /// What happens to changes.
    pub mode: WorkspaceMode,
}

/// What happens to changes in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceMode {
    /// They are kept aside until `apply` or `discard`.
    #[default]
    Overlay,
    /// They are kept aside and applied when the run ends, protected names excepted.
    Rw,
    /// There are none: the workspace is read-only.
    Ro,
}

/// Read-only or read-write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountAccess {
    /// Read only.
    #[default]
    Ro,
    /// Read and write, on the host itself.
    Rw,
}

/// A host path made visible in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSpec {
    /// The host's path.
    pub source: PathBuf,
    /// The absolute path inside.
    pub target: PathBuf,
    /// Read-only unless asked otherwise.
    pub access: MountAccess,
}

/// A volume that a sandbox is to have.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeMount {
    /// Which.
    pub volume: VolumeKey,
    /// The absolute path inside.
    pub target: PathBuf,
    /// Written to unless asked otherwise.
    pub access: MountAccess,
}

/// An empty directory in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TmpfsSpec {
    /// The absolute path inside.
    pub target: PathBuf,
    /// Its size; the `tmp` limit when absent.
    pub size: Option<crate::units::Bytes>,
}

/// How user ids are mapped into the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdChoice {
    /// One user id and one group id: all that code without capabilities can use.
    #[default]
    Single,
    /// 65,536 ids, from the subordinate ids of the caller or, for root, from an unused range.
    Range,
    /// One user id and one group id, which are 0 inside: for runtimes that are to be the superuser of where they are.
    Zero,
}

impl IdChoice {
    /// Whether it is one user id and one group id.
    pub fn is_one(self) -> bool {
        self != Self::Range
    }
}
