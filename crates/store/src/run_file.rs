//! `run.json`: what a run was and how it ended.
//!
//! Written once when the run is created and replaced by renaming when its state changes. It is not synced: a power
//! failure may leave it empty, which is reported as a damaged run, and the workspace is untouched in any case.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::clock::Baseline;
use crate::failure::{FileError, Tried};

pub(crate) const RUN_FILE: &str = "run.json";
const NEW_RUN_FILE: &str = "run.json.new";
/// `argv` is limited to a few MiB by the kernel; base64 and JSON at most double it.
const MAX_RUN_FILE: u64 = 32 << 20;

/// The contents of `run.json`.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct RunFile {
    pub(crate) version: u32,
    pub(crate) id: RunId,
    pub(crate) command: Vec<Text>,
    pub(crate) started_at: String,
    pub(crate) phase: Phase,
    pub(crate) layers: Vec<LayerFile>,
    pub(crate) protect: Vec<Text>,
    pub(crate) home: Option<Text>,
    pub(crate) baseline: Baseline,
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
pub(crate) enum Phase {
    Started,
    Kept,
    Crashed,
    Applied,
    Discarded,
}

impl RunFile {
    /// Writes it for the first time.
    pub(crate) fn create(&self, directory: &OwnedFd) -> Result<(), FileError> {
        write(directory, RUN_FILE, &self.bytes()?)
    }

    /// Replaces it, so that either the old or the new one is there at any time.
    pub(crate) fn replace(&self, directory: &OwnedFd) -> Result<(), FileError> {
        write(directory, NEW_RUN_FILE, &self.bytes()?)?;
        rustix::fs::renameat(directory, NEW_RUN_FILE, directory, RUN_FILE).tried("replacing", RUN_FILE)
    }

    fn bytes(&self) -> Result<Vec<u8>, FileError> {
        serde_json::to_vec(self)
            .map_err(std::io::Error::from)
            .tried("encoding", RUN_FILE)
    }

    /// Reads it; `Ok(Err(why))` if what is there cannot be understood, `None` if nothing is there.
    pub(crate) fn read(directory: &OwnedFd) -> Result<Option<Result<Self, String>>, FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, RUN_FILE, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.tried("opening", RUN_FILE)?,
        };
        let mut bytes = Vec::new();
        std::fs::File::from(file)
            .take(MAX_RUN_FILE)
            .read_to_end(&mut bytes)
            .tried("reading", RUN_FILE)?;
        Ok(Some(serde_json::from_slice(&bytes).map_err(|error| error.to_string())))
    }
}

fn write(directory: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), FileError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR).tried("creating", name)?;
    std::fs::File::from(file).write_all(bytes).tried("writing", name)
}
