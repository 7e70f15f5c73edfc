//! The process that makes a snapshot, in steps; it ends with the daemon.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use offleash_core::error::ErrorKind;
use offleash_planner::base::{SnapshotOrder, SnapshotStep};
use offleash_supervisor::frames::{FrameDecoder, order_file};
use offleash_supervisor::roles::SupervisorRole;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use crate::error::DaemonError;
use crate::helper_process::HelperProcess;

/// What was tried, for errors.
const COPY: &str = "copy the files of a sandbox";

/// A process that makes a snapshot, and is killed when this is dropped before that is whole.
pub(super) struct SnapshotCopier {
    source: String,
    process: HelperProcess,
    steps: pipe::Receiver,
    decoder: FrameDecoder<SnapshotStep>,
    go_on: OwnedFd,
}

impl SnapshotCopier {
    /// Starts it; it begins at once, while the sandbox goes on.
    pub(super) fn start(program: Option<&Path>, order: &SnapshotOrder) -> Result<Self, DaemonError> {
        Self::spawn(program, order).map_err(DaemonError::host("start a copy"))
    }

    fn spawn(program: Option<&Path>, order: &SnapshotOrder) -> io::Result<Self> {
        let file = order_file(order)?;
        let (steps, their_steps) = pipe_with(PipeFlags::CLOEXEC)?;
        let (their_go_on, go_on) = pipe_with(PipeFlags::CLOEXEC)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let descriptors = [file.as_fd(), their_steps.as_fd(), null.as_fd(), their_go_on.as_fd()];
        let process = HelperProcess::start(program, SupervisorRole::CopySnapshot, &descriptors)?;
        rustix::io::ioctl_fionbio(&steps, true)?;
        Ok(Self {
            source: order.from.as_str().to_owned(),
            process,
            steps: pipe::Receiver::from_owned_fd(steps)?,
            decoder: FrameDecoder::new(),
            go_on,
        })
    }

    /// Waits until all is copied that can be while the sandbox runs.
    pub(super) async fn ready(&mut self) -> Result<(), DaemonError> {
        match self.next().await? {
            SnapshotStep::Ready => Ok(()),
            step => Err(self.failure(step)),
        }
    }

    /// Has the rest copied: the sandbox stands still. Answers bytes and files.
    pub(super) async fn copy_rest(&mut self) -> Result<(u64, u64), DaemonError> {
        rustix::io::write(&self.go_on, b"!").map_err(|error| DaemonError::host(COPY)(error.into()))?;
        match self.next().await? {
            SnapshotStep::Copied { bytes, entries } => Ok((bytes, entries)),
            step => Err(self.failure(step)),
        }
    }

    /// Waits until it is whole.
    pub(super) async fn kept(mut self) -> Result<(), DaemonError> {
        match self.next().await? {
            SnapshotStep::Kept => {}
            step => return Err(self.failure(step)),
        }
        self.process.ended().await.map_err(DaemonError::host(COPY))
    }

    async fn next(&mut self) -> Result<SnapshotStep, DaemonError> {
        let mut buffer = [0; 4096];
        loop {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            let step = self.decoder.next().map_err(invalid).map_err(DaemonError::host(COPY))?;
            if let Some(step) = step {
                return Ok(step);
            }
            match self.steps.read(&mut buffer).await.map_err(DaemonError::host(COPY))? {
                0 => return Err(DaemonError::host(COPY)(io::ErrorKind::UnexpectedEof.into())),
                length => self.decoder.push(&buffer[..length]),
            }
        }
    }

    fn failure(&self, step: SnapshotStep) -> DaemonError {
        match step {
            SnapshotStep::TooLarge { what } => DaemonError::NotCopied {
                id: self.source.clone(),
                why: format!("it has more {what} than it may have"),
                kind: ErrorKind::Exhausted,
            },
            SnapshotStep::Failed { reason, errno } => {
                let error = errno.map_or_else(|| io::Error::other(reason.clone()), io::Error::from_raw_os_error);
                match DaemonError::host(COPY)(error) {
                    DaemonError::Host { tried, .. } => DaemonError::Host {
                        tried,
                        source: reason.into(),
                    },
                    short => short,
                }
            }
            step => DaemonError::host(COPY)(io::Error::other(format!("it said {step:?} out of turn"))),
        }
    }
}
