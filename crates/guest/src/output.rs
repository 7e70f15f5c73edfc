//! Standard output or error of a command: read while the host takes it, and drained when the command has ended.

use offleash_protocol::{GuestStream, OUTPUT_CHUNK};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// More than a terminal can hold on the way to us: 64 KiB before and 4 KiB behind the line discipline.
const TERMINAL_BUFFER: u64 = 128 * 1024;

/// What kind of descriptor the output comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputKind {
    /// A pipe, which knows how much it holds.
    Pipe,
    /// A terminal, which does not, but is empty when it says so.
    Terminal,
}

/// The way out of a command.
pub(crate) struct ExecOutput {
    /// `None` once all writers are gone.
    descriptor: Option<OwnedFd>,
    kind: OutputKind,
    stream: GuestStream,
    /// After the command's end: at most so many bytes are still its own.
    owed: Option<u64>,
}

impl ExecOutput {
    /// Takes our end of the pipe or terminal, which must not block.
    pub(crate) fn new(descriptor: OwnedFd, kind: OutputKind, stream: GuestStream) -> Self {
        Self {
            descriptor: Some(descriptor),
            kind,
            stream,
            owed: None,
        }
    }

    pub(crate) fn stream(&self) -> GuestStream {
        self.stream
    }

    /// The descriptor, if anything may still come that belongs to the command.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().filter(|_| !self.is_done()).map(AsFd::as_fd)
    }

    /// Notes that the command has ended: what is there now is still to be sent, what comes later is not.
    ///
    /// Everything that the command wrote before its end is in the pipe by now. Waiting for the end of the pipe would
    /// wait for whatever process inherited the other side.
    pub(crate) fn command_ended(&mut self) {
        self.owed = Some(match (&self.descriptor, self.kind) {
            (None, _) => 0,
            (Some(pipe), OutputKind::Pipe) => rustix::io::ioctl_fionread(pipe).unwrap_or(0),
            (Some(_), OutputKind::Terminal) => TERMINAL_BUFFER,
        });
    }

    /// Whether nothing more will come from the command.
    pub(crate) fn is_done(&self) -> bool {
        self.descriptor.is_none() || self.owed == Some(0)
    }

    /// What remains open for processes that the command left behind.
    pub(crate) fn into_leftover(self) -> Option<OwnedFd> {
        self.descriptor
    }

    /// Reads one piece of at most `room` bytes into `buffer`; answers its length, zero if there is nothing now.
    pub(crate) fn read(&mut self, buffer: &mut [u8], room: usize) -> usize {
        let owed = self
            .owed
            .map_or(usize::MAX, |owed| usize::try_from(owed).unwrap_or(usize::MAX));
        let limit = room.min(OUTPUT_CHUNK).min(buffer.len()).min(owed);
        let Some(descriptor) = self.descriptor.as_ref().filter(|_| limit > 0) else {
            return 0;
        };
        match rustix::io::read(descriptor, &mut buffer[..limit]) {
            Ok(0) => self.descriptor = None,
            Ok(count) => {
                self.owed = self
                    .owed
                    .map(|owed| owed.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX)));
                return count;
            }
            // Empty: nothing more is owed, if the command has ended.
            Err(Errno::AGAIN) => self.owed = self.owed.map(|_| 0),
            Err(Errno::INTR) => {}
            // A terminal that no process has open any more says EIO.
            Err(_) => self.descriptor = None,
        }
        0
    }
}
