//! Has the files of a sandbox copied for another one, by a process that ends with the daemon.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use offleash_core::error::ErrorKind;
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::error::DaemonError;
use crate::launch::{OWN_PROGRAM, Process};
use offleash_planner::base::{CopyAnswer, CopyOrder};
use offleash_supervisor::frames::{only, order_file};
use offleash_supervisor::roles::SupervisorRole;

/// Longest answer of one that copies.
const MAX_ANSWER: u64 = 64 * 1024;

/// Copies what `order` says, within `patience`; answers how many bytes on disk that are. What was copied when it fails is to
/// be removed.
///
/// # Errors
/// `NotCopied`, `Short`, `Host`. Nothing is copied any more then.
pub(crate) async fn copy(program: Option<&Path>, order: &CopyOrder, patience: Duration) -> Result<u64, DaemonError> {
    let copier = Copier::start(program, order).map_err(DaemonError::host("start a copy"))?;
    let not_copied = |why: String, kind| DaemonError::NotCopied {
        id: order.from.as_str().to_owned(),
        why,
        kind,
    };
    let Ok(answered) = timeout(patience, copier.answer()).await else {
        let why = format!("it takes longer than {} s", patience.as_secs_f64());
        return Err(not_copied(why, ErrorKind::Unavailable));
    };
    match answered.map_err(DaemonError::host("copy the files of a sandbox"))? {
        CopyAnswer::Copied { bytes, .. } => Ok(bytes),
        CopyAnswer::TooLarge { what } => {
            let why = format!("it has more {what} than it may have");
            Err(not_copied(why, ErrorKind::Exhausted))
        }
        CopyAnswer::Failed { reason, errno } => {
            let error = match errno {
                // Known by its number, whatever the text.
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::other(reason.clone()),
            };
            Err(match DaemonError::host("copy the files of a sandbox")(error) {
                DaemonError::Host { tried, .. } => DaemonError::Host {
                    tried,
                    source: reason.into(),
                },
                short => short,
            })
        }
    }
}

/// A process that copies, and is killed when this is dropped.
struct Copier {
    process: Option<Process>,
    answer: Option<OwnedFd>,
}

impl Copier {
    fn start(program: Option<&Path>, order: &CopyOrder) -> io::Result<Self> {
        let order = order_file(order)?;
        let (answer, their_answer) = pipe_with(PipeFlags::CLOEXEC)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let program = program.unwrap_or(Path::new(OWN_PROGRAM));
        let spawned = spawn(&SpawnCommand {
            argv: &SupervisorRole::CopyLayer.arguments(program.as_os_str().as_bytes()),
            env: &[],
            cwd: Some(b"/"),
            descriptors: &[order.as_fd(), their_answer.as_fd(), null.as_fd()],
            user: None,
            session: SessionChoice::New,
            // Threads of the event loop end with the daemon.
            orphaned: OrphanFate::Dies,
        })
        .map_err(io::Error::other)?;
        // Not reaped yet, so its number is still its own.
        let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
        let process = Process::new(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(Self {
            process: Some(process),
            answer: Some(answer),
        })
    }

    async fn answer(mut self) -> io::Result<CopyAnswer> {
        let answer = self.answer.take().ok_or(io::ErrorKind::InvalidInput)?;
        rustix::io::ioctl_fionbio(&answer, true)?;
        let answer_pipe = pipe::Receiver::from_owned_fd(answer)?;
        let mut answer = Vec::new();
        answer_pipe.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        if let Some(process) = self.process.take() {
            process.ended().await?;
        }
        only(&answer)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            let _killed = process.kill();
            // Nobody waits for its end but the kernel.
            tokio::spawn(process.ended());
        }
    }
}
