//! The client of a door, for a program with an event loop: the daemon.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_core::approval::ApprovalAnswer;
use rustix::fs::{CWD, Mode, OFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::door::{CallOutcome, DoorReply, DoorRequest, OpenApproval, SOCKET};
use crate::frames::{FrameDecoder, frame};

/// How long a door may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The door of a sandbox's tools, known by where it is.
#[derive(Debug, Clone)]
pub struct ToolsClient {
    directory: PathBuf,
}

/// Calls that the holder is to answer; dropped, they fail.
#[derive(Debug)]
pub struct ToolCalls {
    connection: DoorConnection,
}

#[derive(Debug)]
struct DoorConnection {
    stream: UnixStream,
    replies: FrameDecoder<DoorReply>,
}

impl ToolsClient {
    /// The door of the sandbox whose own directory this is.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Whether there is a door.
    pub fn is_there(&self) -> bool {
        self.directory.join(SOCKET).exists()
    }

    /// The questions that are open; none where there is no door.
    ///
    /// # Errors
    /// When it does not answer as it should.
    pub async fn approvals(&self) -> io::Result<Vec<OpenApproval>> {
        match self.ask(&DoorRequest::Approvals).await {
            Ok(DoorReply::Approvals(open)) => Ok(open),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Answers a question; `false` where none such is open.
    ///
    /// # Errors
    /// As [`Self::approvals`].
    pub async fn decide(&self, question: u64, answer: ApprovalAnswer) -> io::Result<bool> {
        self.done(&DoorRequest::Decide { question, answer }).await
    }

    /// Answers a call; `false` where none such waits.
    ///
    /// # Errors
    /// As [`Self::approvals`].
    pub async fn answer(&self, call: u64, outcome: CallOutcome) -> io::Result<bool> {
        self.done(&DoorRequest::Answer { call, outcome }).await
    }

    /// Hears of calls from now on, in place of whoever did before; `None` where there is no door.
    ///
    /// # Errors
    /// As [`Self::approvals`].
    pub async fn calls(&self) -> io::Result<Option<ToolCalls>> {
        let asked = timeout(ANSWER_TIMEOUT, async {
            let mut connection = self.connect(&DoorRequest::Calls).await?;
            connection.next().await.map(|first| (connection, first))
        });
        match asked.await? {
            Ok((connection, Some(DoorReply::Done))) => Ok(Some(ToolCalls { connection })),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn done(&self, request: &DoorRequest) -> io::Result<bool> {
        match self.ask(request).await {
            Ok(DoorReply::Done) => Ok(true),
            Ok(DoorReply::Missing) => Ok(false),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn ask(&self, request: &DoorRequest) -> io::Result<DoorReply> {
        let asked = timeout(ANSWER_TIMEOUT, async {
            let mut connection = self.connect(request).await?;
            connection.next().await
        });
        asked.await??.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    async fn connect(&self, request: &DoorRequest) -> io::Result<DoorConnection> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, &self.directory, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(&frame(request)?).await?;
        Ok(DoorConnection {
            stream,
            replies: FrameDecoder::new(),
        })
    }
}

impl ToolCalls {
    /// What there is to know next; `None` when nothing more comes.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn next(&mut self) -> io::Result<Option<DoorReply>> {
        self.connection.next().await
    }
}

impl DoorConnection {
    /// The next reply. May be dropped and called again: nothing is lost.
    async fn next(&mut self) -> io::Result<Option<DoorReply>> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(reply) = self.replies.next().map_err(io::Error::other)? {
                return Ok(Some(reply));
            }
            match self.stream.read(&mut buffer).await? {
                0 => return Ok(None),
                count => self.replies.push(buffer.get(..count).unwrap_or_default()),
            }
        }
    }
}

/// Whether nobody is there, as in a sandbox without tools, or one that ends.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}
