//! Standard input of a command: bytes that wait until the command reads.

use alloc::vec::Vec;

use offleash_protocol::INPUT_WINDOW;
use offleash_sys::pty;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// More bytes were sent than the protocol allows without an acknowledgement.
pub(crate) struct InputOverrun;

/// How often at most a program that takes its terminal raw is told that there is no more input.
const MAX_ENDS: u8 = 16;

/// What is on the other side of the descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// A pipe, whose end is told by closing it.
    Pipe,
    /// A terminal, whose end is told by the character for it.
    Terminal,
}

/// The way into a command's standard input.
pub(crate) struct ExecInput {
    /// `None` once closed, on either side.
    descriptor: Option<OwnedFd>,
    kind: InputKind,
    waiting: Vec<u8>,
    /// How much of `waiting` was written.
    written: usize,
    /// Whether it is to be closed when nothing waits any more.
    closing: bool,
    /// Whether the last byte written began a new line, after which one end-of-input character is enough.
    line_ended: bool,
    /// A terminal whose input has ended, and how often that may still be told.
    ended: Option<OwnedFd>,
    ends_left: u8,
}

impl ExecInput {
    /// Takes our end of the pipe or terminal, which must not block; `None` if the command gets no input.
    pub(crate) fn new(descriptor: Option<OwnedFd>, kind: InputKind) -> Self {
        Self {
            descriptor,
            kind,
            waiting: Vec::new(),
            written: 0,
            closing: false,
            line_ended: true,
            ended: None,
            ends_left: MAX_ENDS,
        }
    }

    /// The descriptor, if bytes wait for it to become writable.
    pub(crate) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor
            .as_ref()
            .filter(|_| self.unwritten() > 0)
            .map(AsFd::as_fd)
    }

    fn unwritten(&self) -> usize {
        self.waiting.len() - self.written
    }

    /// Queues bytes; those for an input that is closed count as taken.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), InputOverrun> {
        if self.closing || self.unwritten() + bytes.len() > INPUT_WINDOW {
            return Err(InputOverrun);
        }
        self.waiting.drain(..self.written);
        self.written = 0;
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    /// Says that nothing more will be queued.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Writes what the command takes now; answers how many bytes are done with.
    pub(crate) fn advance(&mut self) -> usize {
        let before = self.unwritten();
        while let Some(descriptor) = self.descriptor.as_ref().filter(|_| self.written < self.waiting.len()) {
            match rustix::io::write(descriptor, &self.waiting[self.written..]) {
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // The command closed it (EPIPE), or its terminal is gone (EIO).
                Err(_) => self.descriptor = None,
            }
        }
        if let Some(last) = self.written.checked_sub(1).and_then(|last| self.waiting.get(last)) {
            self.line_ended = *last == b'\n';
        }
        if self.descriptor.is_none() {
            self.written = self.waiting.len();
        }
        let done = before - self.unwritten();
        if self.unwritten() == 0 {
            self.waiting.clear();
            self.written = 0;
            self.finish();
        }
        done
    }

    fn finish(&mut self) {
        if !self.closing {
            return;
        }
        let Some(descriptor) = self.descriptor.take() else {
            return;
        };
        if self.kind == InputKind::Pipe {
            return;
        }
        if let Some(character) = pty::end_of_input(&descriptor) {
            // In the middle of a line the first only hands over the line so far (termios(3), VEOF).
            let characters = [character; 2];
            let count = if self.line_ended { 1 } else { 2 };
            // A terminal whose buffer is full of input that nobody reads has no use for its end either.
            let _ = rustix::io::write(&descriptor, &characters[..count]);
        }
        self.ended = Some(descriptor);
        self.note_output();
    }

    /// Tells a program that edits its lines itself once more that there is no more input: it may have begun another line. What
    /// it was told before it took its terminal raw, the kernel has dropped.
    pub(crate) fn note_output(&mut self) {
        let Some(descriptor) = self.ended.as_ref().filter(|_| self.ends_left > 0) else {
            return;
        };
        if let Some(character) = pty::end_of_raw_input(descriptor) {
            self.ends_left -= 1;
            // As above.
            let _ = rustix::io::write(descriptor, &[character]);
        }
    }
}
