//! Has the files of a sandbox copied for another one, by a process that ends with the daemon.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use offleash_core::error::ErrorKind;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::error::DaemonError;
use crate::helper_process::HelperProcess;
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
    process: HelperProcess,
    answer: OwnedFd,
}

impl Copier {
    fn start(program: Option<&Path>, order: &CopyOrder) -> io::Result<Self> {
        let order = order_file(order)?;
        let (answer, their_answer) = pipe_with(PipeFlags::CLOEXEC)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let descriptors = [order.as_fd(), their_answer.as_fd(), null.as_fd()];
        let process = HelperProcess::start(program, SupervisorRole::CopyLayer, &descriptors)?;
        Ok(Self { process, answer })
    }

    async fn answer(self) -> io::Result<CopyAnswer> {
        rustix::io::ioctl_fionbio(&self.answer, true)?;
        let answer_pipe = pipe::Receiver::from_owned_fd(self.answer)?;
        let mut answer = Vec::new();
        answer_pipe.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        self.process.ended().await?;
        only(&answer)
    }
}
