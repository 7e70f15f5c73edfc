//! The audit log: one JSON line per event, chained by hashes.
//!
//! ```json
//! {"seq":1,"time":"2025-01-02T03:04:05.678Z","event":"run_started","run":"r…","data":{…},"prev":"…","hash":"…"}
//! ```
//!
//! `hash` is the SHA-256 of the line up to the comma before it; `prev` is the hash of the line before, or 64 zeros. So
//! no line can be changed, removed or moved without the next ones telling. The end is vouched for by `audit.head`,
//! which holds the number and hash of the last line and the length of the log.
//!
//! A line that a crash cut short stays as it is; the next append ends it with a newline and adds a `recovered` event
//! that holds its length and hash, by which `verify` tells it from tampering.
//!
//! A log that has grown is set aside as `audit-000001.jsonl`, by the number of its first line, and the next one begins with a `rotated` event that is chained to
//! its last line. `verify` goes through those that are here; who moves the oldest away is told how many lines are missing at the beginning.
//!
//! What this cannot show: that the owner of the state directory, who can write both files, made up a log that is
//! consistent; and lines lost in a power failure, after which the log ends before what `audit.head` says, as it does
//! when somebody cut it. Nothing is synced, so that an append costs some ten system calls.

mod append;
mod line;
mod rotate;
mod verify;

use std::path::PathBuf;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::RunId;

use crate::StateDirectory;
use crate::failure::FileError;

pub use verify::{AuditLines, BadLine, VerifyReport};

/// The audit log of a state directory.
#[derive(Debug)]
pub struct AuditLog {
    state: StateDirectory,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEvent {
    /// What, such as `run_started`.
    pub event: String,
    /// The run it belongs to.
    pub run: Option<RunId>,
    /// Whatever else belongs to it. Larger than 256 KiB it is replaced by its size and hash.
    pub data: serde_json::Value,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AuditLine {
    /// Number, from 1.
    pub seq: u64,
    /// RFC 3339, UTC.
    pub time: String,
    /// What happened.
    pub event: String,
    /// The run it belongs to.
    pub run: Option<RunId>,
    /// Whatever else belongs to it.
    pub data: serde_json::Value,
    /// Hash of the line before.
    pub prev: String,
    /// Hash of this line.
    pub hash: String,
}

/// What an append found out of order and continued after; a `recovered` line in the log says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogRecovery {
    /// A crash cut the last line short.
    TornLine,
    /// The log ends before what `audit.head` says: `verify` reports it from now on.
    Truncated,
    /// `audit.head` was missing or unreadable.
    HeadLost,
}

/// Why the audit log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A call failed.
    #[error("cannot use the audit log")]
    File {
        /// The call.
        #[from]
        source: FileError,
    },
    /// A line cannot be understood.
    #[error("line {line} of the audit log is damaged: {why}")]
    Damaged {
        /// Its number in the file, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
}

impl Explained for AuditError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File { source } => source.kind(),
            Self::Damaged { .. } => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::File { source } => source
                .hint()
                .or_else(|| Some("name another state directory with `--state DIR` or `OFFLEASH_STATE`".into())),
            Self::Damaged { .. } => Some("`offleash audit verify` says from where on it cannot be trusted".into()),
        }
    }
}

impl AuditLog {
    /// The log in `state`; nothing is opened or made before it is needed.
    pub fn new(state: &StateDirectory) -> Self {
        Self { state: state.clone() }
    }

    /// Adds an event at the end. What had to be mended first is returned.
    ///
    /// # Errors
    /// `File` if the log cannot be opened, locked or written.
    pub fn append(&self, event: &AuditEvent) -> Result<Option<LogRecovery>, AuditError> {
        append::append(&self.state, event)
    }

    /// Checks every line, and the end.
    ///
    /// # Errors
    /// `File` if the log cannot be read; what is wrong with it is in the report.
    pub fn verify(&self) -> Result<VerifyReport, AuditError> {
        verify::verify(&self.state)
    }

    /// The lines in order, unchecked; one that cannot be understood is an error and the next one follows.
    ///
    /// # Errors
    /// `File` if the log cannot be opened. A log that does not exist is empty.
    pub fn show(&self) -> Result<AuditLines, AuditError> {
        AuditLines::open(&self.state)
    }

    /// Sets the log aside and begins another, in which the chain goes on; answers where the former is. `None` where nothing was ever
    /// written.
    ///
    /// # Errors
    /// `File` if files cannot be opened, locked, written or renamed; the log is whole then, under one name or the other.
    pub fn rotate(&self) -> Result<Option<PathBuf>, AuditError> {
        rotate::rotate(&self.state)
    }

    /// Where the log is.
    pub fn path(&self) -> PathBuf {
        self.state.path().join(line::LOG)
    }
}

#[cfg(test)]
mod tests;
