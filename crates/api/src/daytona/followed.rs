//! Logs of a session's command as they are written, over a WebSocket.
//!
//! What was written is read from the sandbox's files whenever those change; the session's shell says when the command has ended.

use http::Response;
use offleash_supervisor::service::client::{ExecNews, ExecStream};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::{FileChannel, FileWatch};
use offleash_supervisor::service::message::Selector;

use super::socket::{self, NORMAL, WENT_WRONG};
use super::toolbox::Toolbox;
use crate::control::ApiRequest;
use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::websocket::{SocketGone, WebSocket};

/// The files of both streams, and what comes before each of their bytes in a message.
const STREAMS: [(&str, [u8; 3]); 2] = [("stdout", [1; 3]), ("stderr", [2; 3])];
/// What is read of a stream before the other has its turn.
const MAX_TURN: u64 = 1024 * 1024;
/// What a client may say in a message: nobody listens.
const MAX_SAID: usize = 4096;

/// Answers a request for the logs of the command in `place`, of the session whose shell is `shell`.
pub(super) async fn follow(
    asked: &ApiRequest<'_>,
    toolbox: &Toolbox<'_>,
    shell: &Selector,
    place: String,
) -> Result<Response<Body>, ApiRefusal> {
    let request = socket::asked_for(asked)?;
    let refused = |error| toolbox.refused(&error);
    // Both before anything is read, so that nothing is missed.
    let watch = toolbox.files().await?.watch(place.as_bytes(), false, false).await;
    let logs = FollowedLogs {
        watch: watch.map_err(refused)?,
        shell: toolbox.supervisor.attach(shell).await.map_err(refused)?,
        files: toolbox.files().await?,
        place,
        read: [0; 2],
    };
    Ok(request.answer(MAX_SAID, |mut socket| async move {
        match logs.tell(&mut socket).await {
            Ok(()) => socket.close(NORMAL, "").await,
            Err(FollowError::Gone(_)) => {}
            Err(FollowError::Sandbox(_)) => socket.close(WENT_WRONG, "the logs cannot be read any more").await,
        }
    }))
}

/// Why logs are followed no longer.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Gone(#[from] SocketGone),
    #[error(transparent)]
    Sandbox(#[from] SupervisorError),
}

/// Where a command writes.
struct FollowedLogs {
    place: String,
    files: FileChannel,
    watch: FileWatch,
    shell: ExecStream,
    /// How much of each stream was told.
    read: [u64; 2],
}

impl FollowedLogs {
    /// Tells what is written until the command has ended.
    async fn tell(mut self, socket: &mut WebSocket) -> Result<(), FollowError> {
        let mut shell_ended = false;
        loop {
            // Looked at before the streams are: what was written until then is told.
            let ended = shell_ended || self.has_ended().await?;
            while self.tell_turn(socket).await? {}
            if ended {
                return Ok(());
            }
            tokio::select! {
                changed = self.watch.next() => {
                    changed?;
                }
                news = self.shell.next() => {
                    let news = news?.ok_or(SupervisorError::Gone)?;
                    shell_ended = matches!(news, ExecNews::Ended(_));
                }
                said = socket.next() => {
                    said.ok_or(SocketGone)?;
                }
            }
        }
    }

    async fn has_ended(&mut self) -> Result<bool, FollowError> {
        let code = format!("{}/code", self.place);
        match self.files.stat(code.as_bytes()).await {
            // It is made before it is written.
            Ok(entry) => Ok(entry.size > 0),
            Err(SupervisorError::File { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells what is new, of each stream no more than is its turn; answers whether there may be more.
    async fn tell_turn(&mut self, socket: &mut WebSocket) -> Result<bool, FollowError> {
        let mut more = false;
        for ((name, prefix), read) in STREAMS.iter().zip(&mut self.read) {
            let path = format!("{}/{name}", self.place);
            let mut reader = match self.files.read(path.as_bytes(), *read, Some(MAX_TURN)).await {
                Ok(reader) => reader,
                // It is not there yet, or not any more.
                Err(SupervisorError::File { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut taken = 0;
            while let Some(piece) = reader.next().await? {
                taken += u64::try_from(piece.len()).unwrap_or(u64::MAX);
                if !piece.is_empty() {
                    socket.binary([&prefix[..], &piece].concat()).await?;
                }
            }
            *read = read.saturating_add(taken);
            more |= taken >= MAX_TURN;
        }
        Ok(more)
    }
}
