//! Resource limits: what is bounded, by default to what, and under which name.

mod error;
mod values;

use std::fmt;
use std::str::FromStr;

pub use self::error::{LimitError, LimitNameError};
use crate::text::Text;
use crate::units::{Bytes, CpuCount, Millis};

/// The word that lifts a limit.
pub const UNLIMITED: &str = "unlimited";

/// The bounds of one run. `None` means that the owner lifted the limit by name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// Directories in one another that the changes in the workspace may consist of.
    pub depth: Option<u64>,
    /// Apparent size of the largest file, sparse or not.
    pub file_size: Option<Bytes>,
    /// Size of `/tmp`; `/dev/shm` and the home directory have the same each.
    pub tmp: Option<Bytes>,
    /// Open file descriptors of each process.
    pub open_files: Option<u64>,
    /// Bytes of output, standard output and standard error together.
    pub output: Option<Bytes>,
    /// Bytes that all connections together carry, both ways.
    pub net_bytes: Option<Bytes>,
    /// Bytes that all connections together carry in a second, both ways.
    pub net_rate: Option<Bytes>,
    /// Connections in all.
    pub net_connections: Option<u64>,
    /// Connections at the same time.
    pub net_at_once: Option<u64>,
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
            depth: Some(MAX_DEPTH),
            file_size: Some(Bytes::mib(2048)),
            tmp: Some(Bytes::mib(1024)),
            open_files: Some(4096),
            output: Some(Bytes::mib(256)),
            net_bytes: Some(Bytes::mib(16 << 10)),
            net_rate: None,
            net_connections: Some(100_000),
            net_at_once: Some(1024),
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
    /// [`Limits::depth`]
    Depth,
    /// [`Limits::file_size`]
    FileSize,
    /// [`Limits::tmp`]
    Tmp,
    /// [`Limits::open_files`]
    OpenFiles,
    /// [`Limits::output`]
    Output,
    /// [`Limits::net_bytes`]
    NetBytes,
    /// [`Limits::net_rate`]
    NetRate,
    /// [`Limits::net_connections`]
    NetConnections,
    /// [`Limits::net_at_once`]
    NetAtOnce,
    /// Bytes of a volume, which belong to that and not to a sandbox; not in [`Self::ALL`].
    Volume,
    /// Files, directories and links of a volume, likewise.
    VolumeInodes,
}

/// In what a limit is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitUnit {
    /// CPUs, in thousandths.
    Cpus,
    /// Time, in milliseconds.
    Time,
    /// Bytes.
    Size,
    /// Things.
    Count,
}

/// One row of the table from which flags, policy keys, `explain` and the reference are made.
#[derive(Debug, Clone, Copy)]
pub struct LimitRow {
    /// The limit.
    pub name: LimitName,
    /// Its name in policies and records.
    pub word: &'static str,
    /// Its flag, with the dashes.
    pub flag: &'static str,
    /// In what it is counted.
    pub unit: LimitUnit,
    /// The smallest value that is accepted, in the smallest unit.
    pub least: u64,
    /// Why nothing smaller is accepted.
    pub why_least: &'static str,
    /// The largest value that is accepted, in the smallest unit.
    pub most: u64,
    /// What it bounds, as one sentence without a full stop.
    pub doc: &'static str,
}

/// Directories below so many others are not measured: nobody needs them, and the way back to each is long.
pub const MAX_DEPTH: u64 = 1024;

const MAX_SIZE: u64 = i64::MAX.unsigned_abs();
const MAX_TIME: u64 = 10 * 366 * 24 * 3_600_000;

const fn row(name: LimitName, words: (&'static str, &'static str), unit: LimitUnit, doc: &'static str) -> LimitRow {
    let most = match unit {
        LimitUnit::Cpus => 4_096_000,
        LimitUnit::Time => MAX_TIME,
        LimitUnit::Size | LimitUnit::Count => MAX_SIZE,
    };
    LimitRow {
        name,
        word: words.0,
        flag: words.1,
        unit,
        least: 0,
        why_least: "",
        most,
        doc,
    }
}

impl LimitRow {
    const fn at_least(self, least: u64, why_least: &'static str) -> Self {
        Self {
            least,
            why_least,
            ..self
        }
    }

    const fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Reads a value in the smallest unit of this limit.
    fn parse(&self, text: &str) -> Result<u64, LimitError> {
        let unit_error = |cause| LimitError::Unit {
            limit: self.name,
            cause,
        };
        let value = match self.unit {
            LimitUnit::Cpus => text.parse::<CpuCount>().map_err(unit_error)?.millis,
            LimitUnit::Time => text.parse::<Millis>().map_err(unit_error)?.0,
            LimitUnit::Size => text.parse::<Bytes>().map_err(unit_error)?.0,
            LimitUnit::Count => parse_count(text).ok_or_else(|| self.not_a_count(text))?,
        };
        if value < self.least {
            return Err(LimitError::TooSmall {
                limit: self.name,
                given: Text::from(text),
                least: self.show(self.least),
                why: self.why_least,
            });
        }
        if value > self.most {
            return Err(LimitError::TooLarge {
                limit: self.name,
                given: Text::from(text),
                most: self.show(self.most),
            });
        }
        Ok(value)
    }

    fn not_a_count(&self, text: &str) -> LimitError {
        LimitError::NotACount {
            limit: self.name,
            given: Text::from(text),
        }
    }

    /// A value of this limit as text that parses back.
    pub fn show(&self, value: u64) -> String {
        match self.unit {
            LimitUnit::Cpus => CpuCount { millis: value }.to_string(),
            LimitUnit::Time => Millis(value).to_string(),
            LimitUnit::Size => Bytes(value).to_string(),
            LimitUnit::Count => value.to_string(),
        }
    }
}

fn parse_count(text: &str) -> Option<u64> {
    // `u64::from_str` accepts a plus sign, which no other unit does.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Every limit, in the order of [`LimitName::ALL`]; behind them those of volumes.
pub const LIMITS: [LimitRow; 19] = [
    row(
        LimitName::Cpus,
        ("cpus", "--cpus"),
        LimitUnit::Cpus,
        "CPUs that may be used at once; all of them by default",
    )
    .at_least(10, "the kernel divides a CPU no finer"),
    row(
        LimitName::CpuTime,
        ("cpu_time", "--cpu-time"),
        LimitUnit::Time,
        "CPU time of all processes together",
    )
    .at_least(1, "no command starts in no time"),
    row(
        LimitName::WallTime,
        ("wall_time", "--wall-time"),
        LimitUnit::Time,
        "time from start to end",
    )
    .at_least(1, "no command starts in no time"),
    row(
        LimitName::Memory,
        ("memory", "--memory"),
        LimitUnit::Size,
        "memory of all processes together: anonymous, page cache, files in memory and kernel memory",
    )
    .at_least(8 << 20, "with less, not even the sandbox's own first process starts"),
    row(
        LimitName::Swap,
        ("swap", "--swap"),
        LimitUnit::Size,
        "swap on top of memory",
    ),
    row(
        LimitName::Pids,
        ("pids", "--pids"),
        LimitUnit::Count,
        "processes and threads",
    )
    .at_least(
        4,
        "a shell with one command needs as many with the sandbox's own first process",
    )
    .at_most(4_194_304),
    row(
        LimitName::Workspace,
        ("workspace", "--workspace-size"),
        LimitUnit::Size,
        "bytes that changes in the workspace take on disk",
    )
    .at_least(
        64 << 10,
        "the empty layer takes some; a workspace that may not change is `ro`",
    ),
    row(
        LimitName::Inodes,
        ("inodes", "--inodes"),
        LimitUnit::Count,
        "files, directories and links that changes in the workspace consist of",
    )
    .at_least(
        16,
        "the empty layer takes some; a workspace that may not change is `ro`",
    ),
    row(
        LimitName::Depth,
        ("depth", "--depth"),
        LimitUnit::Count,
        "levels of directories in changes in the workspace; what lies below 1024 cannot be measured, so lifting it helps \
         only with `workspace` and `inodes` lifted, too",
    )
    .at_least(16, "programs that build or install something make as many")
    .at_most(MAX_DEPTH),
    row(
        LimitName::FileSize,
        ("file_size", "--file-size"),
        LimitUnit::Size,
        "apparent size of the largest file, sparse or not",
    )
    .at_least(4096, "programs that write nothing else still write a lock or a pid"),
    row(
        LimitName::Tmp,
        ("tmp", "--tmp-size"),
        LimitUnit::Size,
        "size of `/tmp`, and the same again for `/var/tmp`, `/dev/shm` and the home directory each",
    )
    .at_least(64 << 10, "to tmpfs a size of 0 means no limit"),
    row(
        LimitName::OpenFiles,
        ("open_files", "--open-files"),
        LimitUnit::Count,
        "open file descriptors of each process",
    )
    .at_least(16, "the dynamic loader and a pipeline need as many")
    .at_most(1_048_576),
    row(
        LimitName::Output,
        ("output", "--output"),
        LimitUnit::Size,
        "bytes of output, standard output and standard error together",
    )
    .at_least(
        1,
        "a command that may print nothing is run with its output sent to /dev/null",
    ),
    row(
        LimitName::NetBytes,
        ("net_bytes", "--net-bytes"),
        LimitUnit::Size,
        "bytes that all connections together carry, both ways; when they are used up, connections are cut and further \
         ones refused",
    )
    .at_least(1, "without any, nothing is reached: leave out what lets it be reached"),
    row(
        LimitName::NetRate,
        ("net_rate", "--net-rate"),
        LimitUnit::Size,
        "bytes that all connections together carry in a second, both ways; what is more waits",
    )
    .at_least(1024, "with less, the answer to a single request takes minutes"),
    row(
        LimitName::NetConnections,
        ("net_connections", "--net-connections"),
        LimitUnit::Count,
        "connections in all; further ones are refused",
    )
    .at_least(1, "without any, nothing is reached: leave out what lets it be reached"),
    row(
        LimitName::NetAtOnce,
        ("net_at_once", "--net-at-once"),
        LimitUnit::Count,
        "connections at the same time; further ones are refused, or wait where offleash itself may have few files open",
    )
    .at_least(1, "without any, nothing is reached: leave out what lets it be reached"),
    row(
        LimitName::Volume,
        ("volume", "volume create --size"),
        LimitUnit::Size,
        "bytes that the files of a volume take on disk",
    ),
    row(
        LimitName::VolumeInodes,
        ("volume_inodes", "volume create --inodes"),
        LimitUnit::Count,
        "files, directories and links of a volume",
    ),
];

impl LimitName {
    /// Every limit of a sandbox.
    pub const ALL: [LimitName; 17] = [
        LimitName::Cpus,
        LimitName::CpuTime,
        LimitName::WallTime,
        LimitName::Memory,
        LimitName::Swap,
        LimitName::Pids,
        LimitName::Workspace,
        LimitName::Inodes,
        LimitName::Depth,
        LimitName::FileSize,
        LimitName::Tmp,
        LimitName::OpenFiles,
        LimitName::Output,
        LimitName::NetBytes,
        LimitName::NetRate,
        LimitName::NetConnections,
        LimitName::NetAtOnce,
    ];

    /// Its row in the table.
    pub const fn row(self) -> &'static LimitRow {
        &LIMITS[self as usize]
    }

    /// Whether it bounds what is left when a sandbox has ended, in its workspace or in a volume, and so holds whenever it was
    /// found.
    pub fn is_of_what_is_left(self) -> bool {
        self.is_of_changes() || matches!(self, Self::Volume | Self::VolumeInodes)
    }

    /// Whether it bounds what a run changes in its workspace.
    pub fn is_of_changes(self) -> bool {
        matches!(self, Self::Workspace | Self::Inodes | Self::Depth)
    }

    /// Its name in policies and records, such as `cpu_time`.
    pub const fn name(self) -> &'static str {
        self.row().word
    }

    /// Its flag, such as `--cpu-time`.
    pub const fn flag(self) -> &'static str {
        self.row().flag
    }

    /// What it bounds, as one sentence without a full stop.
    pub const fn doc(self) -> &'static str {
        self.row().doc
    }

    /// In what it is counted.
    pub const fn unit(self) -> LimitUnit {
        self.row().unit
    }

    /// The default as text that parses back, such as `4G` or `unlimited`.
    pub fn default_text(self) -> String {
        Limits::default().text(self)
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LimitName {
    type Err = LimitNameError;

    /// Reads the name as in policies (`cpu_time`) or as in flags (`cpu-time`, `--cpu-time`).
    fn from_str(text: &str) -> Result<Self, LimitNameError> {
        let is_meant = |name: &LimitName| {
            name.name() == text || name.flag() == text || name.flag().strip_prefix("--") == Some(text)
        };
        LimitName::ALL
            .into_iter()
            .find(is_meant)
            .ok_or_else(|| LimitNameError(Text::from(text)))
    }
}

#[cfg(test)]
mod tests;
