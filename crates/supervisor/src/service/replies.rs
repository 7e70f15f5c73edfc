//! A connection to a supervisor as the client sees it: frames in, each with the descriptor that came with it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use offleash_protocol::MessageDecoder;
use offleash_sys::socket;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

use super::error::SupervisorError;
use super::message::SupervisorReply;

/// How much is read at once.
const AT_ONCE: usize = 64 * 1024;

/// The replies that come over one connection.
#[derive(Debug)]
pub(super) struct Replies {
    stream: UnixStream,
    decoder: MessageDecoder<SupervisorReply>,
    descriptors: VecDeque<OwnedFd>,
}

impl Replies {
    /// Sends the request `frame` over a connection that does not block.
    ///
    /// What fits goes out before the event loop knows of the connection: the supervisor wakes once, and we not at all, until it
    /// answers.
    pub(super) async fn asking(connection: OwnedFd, frame: &[u8]) -> Result<Self, SupervisorError> {
        let failed = |error| SupervisorError::io("ask the supervisor of the sandbox")(error);
        let sent = match send(&connection, frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) if is_gone(&error.into()) => frame.len(),
            Err(error) => return Err(failed(error.into())),
        };
        let mut stream = UnixStream::from_std(connection.into()).map_err(failed)?;
        match stream.write_all(frame.get(sent..).unwrap_or_default()).await {
            // It may have said why before it hung up.
            Err(error) if !is_gone(&error) => return Err(failed(error)),
            _ => {}
        }
        Ok(Self {
            stream,
            decoder: MessageDecoder::new(),
            descriptors: VecDeque::new(),
        })
    }

    /// The next reply; `None` when the supervisor has hung up. May be dropped and called again: nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Option<SupervisorReply>, SupervisorError> {
        loop {
            if let Some(reply) = self.decoder.next()? {
                return Ok(Some(reply));
            }
            // Many streams wait for long: what waits keeps no buffer.
            if self.decoder.pending() == 0 {
                self.decoder = MessageDecoder::new();
            }
            let readable = self.stream.readable().await;
            readable.map_err(SupervisorError::io("hear the supervisor of the sandbox"))?;
            let mut buffer = vec![0; AT_ONCE];
            let stream = &self.stream;
            let received = stream.try_io(Interest::READABLE, || socket::receive(stream.as_fd(), &mut buffer));
            match received {
                Ok((0, _)) => return Ok(None),
                Ok((length, descriptors)) => {
                    self.decoder.push(buffer.get(..length).unwrap_or_default());
                    self.descriptors.extend(descriptors);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(SupervisorError::io("hear the supervisor of the sandbox")(error)),
            }
        }
    }

    /// The descriptor that came with the last reply.
    pub(super) fn take_descriptor(&mut self) -> Result<OwnedFd, SupervisorError> {
        self.descriptors.pop_front().ok_or_else(|| SupervisorError::Protocol {
            reason: "a descriptor is missing".to_owned(),
        })
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected
    )
}
