//! Viewers who may look at a screen and not drive it: what they say is read, and what would change something goes no further.
//!
//! The page of a viewer is not trusted with that, and neither is what listens in the sandbox: whoever has the address of one
//! that only looks writes to the WebSocket what they like. So frames of the client are taken apart here, messages of the
//! Remote Framebuffer Protocol in them are judged by a list of what asks for pictures, and only those are put into frames again.
//! Deliberately not here: what the screen says, which is passed on as it is.

mod frames;
mod requests;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use self::frames::{ClientFrames, FramePart};
use self::requests::ScreenRequests;

/// How much of a client is read at once, bytes.
const AT_ONCE: usize = 4096;

/// Why a viewer is hung up on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum ViewerError {
    /// What it says is no frame of a WebSocket's client, or one of an extension that nobody agreed to.
    #[error("a viewer breaks the WebSocket protocol")]
    Frame,
    /// What is in the frames is no message that is known, so nobody can say where the next one begins.
    #[error("a viewer says what is not understood")]
    Message,
}

/// Carries what both sides say once they speak WebSocket, of the client's what asks for pictures alone. `held` is kept until one of
/// them is gone.
pub(super) async fn relay<H>(theirs: OnUpgrade, ours: OnUpgrade, held: H) {
    if let (Ok(theirs), Ok(ours)) = tokio::join!(theirs, ours) {
        let (from_client, mut to_client) = tokio::io::split(TokioIo::new(theirs));
        let (mut from_program, to_program) = tokio::io::split(TokioIo::new(ours));
        // How a connection ends that nobody answers for is no news.
        tokio::select! {
            _ended = tokio::io::copy(&mut from_program, &mut to_client) => {}
            _ended = pass_on(from_client, to_program) => {}
        }
    }
    drop(held);
}

/// Passes on what a client asks for, until it is gone or says what it must not.
async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut judge = ViewerJudge::default();
    let mut bytes = [0; AT_ONCE];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        let passed = judge.take(&bytes[..count])?;
        to.write_all(&passed).await?;
    }
}

/// What goes on of what a viewer says.
#[derive(Debug, Default)]
struct ViewerJudge {
    frames: ClientFrames,
    requests: ScreenRequests,
}

impl ViewerJudge {
    /// Takes bytes of the client's; answers those that go to the screen, as frames.
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<u8>, ViewerError> {
        let mut passed = Vec::new();
        for part in self.frames.take(bytes)? {
            match part {
                FramePart::Control { opcode, payload } => frames::write(&mut passed, opcode, &payload),
                FramePart::Data(data) => {
                    let asked = self.requests.take(&data)?;
                    if !asked.is_empty() {
                        frames::write(&mut passed, frames::BINARY, &asked);
                    }
                }
            }
        }
        Ok(passed)
    }
}

#[cfg(test)]
mod tests;
