//! The channel: messages as they are framed by their own length, and answers, each written as a whole.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::bounds::MAX_MESSAGE;
use crate::error::TreeError;
use crate::message::HEADER;

/// How much is read at once where messages are short.
const CHUNK: usize = 64 * 1024;

/// Reads messages.
#[derive(Debug)]
pub(crate) struct MessageReader<'a> {
    channel: BorrowedFd<'a>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<'a> MessageReader<'a> {
    pub(crate) fn new(channel: BorrowedFd<'a>) -> Self {
        Self {
            channel,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
        }
    }

    /// The next message with its header, or `None` when the channel ended between two.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, TreeError> {
        while self.end - self.start < HEADER {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let count = read(self.channel, self.buffer.get_mut(self.end..).unwrap_or_default())?;
            if count == 0 {
                let have = self.end;
                return if have == 0 {
                    Ok(None)
                } else {
                    Err(TreeError::Truncated { have })
                };
            }
            self.end += count;
        }
        let there = self.buffer.get(self.start..self.end).unwrap_or_default();
        let length = there.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let Some(wanted) = usize::try_from(length)
            .ok()
            .filter(|wanted| (HEADER..=MAX_MESSAGE).contains(wanted))
        else {
            return Err(TreeError::MessageLength {
                length,
                most: MAX_MESSAGE,
            });
        };
        let mut have = there.len().min(wanted);
        let mut message = Vec::with_capacity(wanted);
        message.extend_from_slice(there.get(..have).unwrap_or_default());
        self.start += have;
        message.resize(wanted, 0);
        while have < wanted {
            let count = read(self.channel, message.get_mut(have..).unwrap_or_default())?;
            if count == 0 {
                return Err(TreeError::Truncated { have });
            }
            have += count;
        }
        Ok(Some(message))
    }
}

fn read(channel: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, TreeError> {
    loop {
        match rustix::io::read(channel, &mut *into) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(channel, rustix::event::PollFlags::IN).map_err(broken("read"))?,
            // The other end is gone, with something that we wrote unread.
            Err(Errno::CONNRESET) => return Ok(0),
            Err(error) => return Err(broken("read")(error.into())),
        }
    }
}

/// Writes answers, one after another.
#[derive(Debug)]
pub(crate) struct ReplyWriter<'a> {
    channel: BorrowedFd<'a>,
    turn: Mutex<()>,
}

impl<'a> ReplyWriter<'a> {
    pub(crate) fn new(channel: BorrowedFd<'a>) -> Self {
        Self {
            channel,
            turn: Mutex::new(()),
        }
    }

    /// Writes `reply` as a whole; `false` when the other end is gone.
    pub(crate) fn send(&self, reply: &[u8]) -> Result<bool, TreeError> {
        let _turn = self.turn.lock().map_err(|_| TreeError::Worker)?;
        let mut rest = reply;
        while !rest.is_empty() {
            match rustix::net::send(self.channel, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    wait(self.channel.as_fd(), rustix::event::PollFlags::OUT).map_err(broken("write to"))?;
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(broken("write to")(error.into())),
            }
        }
        Ok(true)
    }
}

/// Waits until a channel that does not block can go on.
fn wait(channel: BorrowedFd<'_>, for_what: rustix::event::PollFlags) -> io::Result<()> {
    let mut watched = [rustix::event::PollFd::from_borrowed_fd(channel, for_what)];
    match rustix::event::poll(&mut watched, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn broken(step: &'static str) -> impl FnOnce(io::Error) -> TreeError {
    move |source| TreeError::Channel { step, source }
}
