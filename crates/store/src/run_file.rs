//! The record of a run: what it was, and how it ended.
//!
//! While a run goes on the record is in its mark `live/ID`, a line of JSON; when the run is kept it becomes `run.json`
//! in the run's directory, which is replaced by renaming whenever its state changes. So a run that changes nothing
//! never writes `run.json`. Neither is synced: a power failure may leave a record empty, which is reported as a damaged
//! run, and the workspace is untouched in any case.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::clock::ClockBaseline;
use crate::failure::{FailedCall, FileError};
use crate::leads_out::HostPath;

pub(crate) const RUN_FILE: &str = "run.json";
const NEW_RUN_FILE: &str = "run.json.new";
/// `argv` is limited to a few MiB by the kernel; base64 and JSON at most double it, and a mark holds two records.
const MAX_RUN_FILE: u64 = 64 << 20;

/// What a record that was read says, or why it cannot be understood.
pub(crate) type RecordReading = Result<RunFile, String>;

/// What is recorded of a run.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct RunFile {
    pub(crate) version: u32,
    pub(crate) id: RunId,
    pub(crate) command: Vec<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) purpose: Option<Text>,
    pub(crate) started_at: String,
    pub(crate) phase: RunPhase,
    pub(crate) layers: Vec<LayerFile>,
    pub(crate) protect: Vec<Text>,
    pub(crate) home: Option<Text>,
    /// What the sandbox had of the host, to which links may lead.
    pub(crate) host_paths: Vec<HostPath>,
    pub(crate) baseline: ClockBaseline,
    pub(crate) cgroups: Vec<Text>,
}

/// A host directory and the layer above it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct LayerFile {
    pub(crate) root: Text,
    pub(crate) root_inode: u64,
    /// The mode of the host directory, and of the upper directory, when the run started.
    pub(crate) root_mode: u32,
}

/// Where a run is in its life; who holds its lock says whether it is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunPhase {
    Started,
    Kept,
    Crashed,
    Applied,
    Discarded,
}

impl RunFile {
    /// Writes or replaces `run.json`, so that either the old or the new one is there at any time.
    pub(crate) fn replace(&self, directory: &OwnedFd) -> Result<(), FileError> {
        let bytes = self.bytes().tried("encoding", RUN_FILE)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, NEW_RUN_FILE, flags, Mode::RUSR | Mode::WUSR)
            .tried("creating", NEW_RUN_FILE)?;
        File::from(file).write_all(&bytes).tried("writing", NEW_RUN_FILE)?;
        rustix::fs::renameat(directory, NEW_RUN_FILE, directory, RUN_FILE).tried("replacing", RUN_FILE)
    }

    fn bytes(&self) -> std::io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// A line for the mark of a run that goes on.
    pub(crate) fn line(&self) -> std::io::Result<Vec<u8>> {
        let mut line = self.bytes()?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads `run.json`; `None` if there is none.
    pub(crate) fn read(directory: &OwnedFd) -> Result<Option<RecordReading>, FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, RUN_FILE, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.tried("opening", RUN_FILE)?,
        };
        let bytes = read_all(file.into()).tried("reading", RUN_FILE)?;
        Ok(Some(understood(&bytes)))
    }

    /// Reads the record in a mark; `None` if it has none.
    ///
    /// The last whole line counts. Lines are only ever added, so who reads while one is written, or after its writer
    /// was killed, finds the one before.
    pub(crate) fn read_line(mark: File) -> std::io::Result<Option<RecordReading>> {
        let bytes = read_all(mark)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map(|end| &bytes[..end]);
        let last = whole.and_then(|lines| lines.split(|byte| *byte == b'\n').next_back());
        Ok(last.map(understood))
    }
}

fn read_all(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_RUN_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn understood(bytes: &[u8]) -> RecordReading {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
