//! A terminal for the command of somebody who sits at one: a session of its own cannot have that of another.
//!
//! The command gets a new terminal, which becomes its session's, so that job control and Ctrl-C work in it; what is typed
//! and shown is carried between the two, and the user's own is raw meanwhile.

use alloc::vec::Vec;

use offleash_sys::pty::{self, Pty, TerminalSettings};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How much waits to be taken by either side; more is not read.
const WAITING: usize = 16 * 1024;
/// How often in a row one side is read.
const READS: usize = 8;

/// Carries what is typed and shown.
pub(super) struct TerminalRelay {
    user: OwnedFd,
    /// How the user's terminal was before.
    settings: TerminalSettings,
    command: TerminalSide,
    typed: Vec<u8>,
    shown: Vec<u8>,
}

/// The controlling end of the command's terminal, until either end has hung up.
struct TerminalSide(Option<OwnedFd>);

impl TerminalRelay {
    /// A terminal for a command whose streams would be these, and the streams that it gets: those of them that are the
    /// user's terminal become the new one. Nothing is made where input and output are not both a terminal, of which this
    /// process is in the foreground; then the command has the streams as they are.
    ///
    /// # Errors
    /// When no terminal is to be had.
    pub(super) fn between(streams: [OwnedFd; 3]) -> Result<(Option<Self>, [OwnedFd; 3]), Errno> {
        let own_group = rustix::process::getpgrp().as_raw_pid();
        let is_mine = pty::foreground_group(&streams[0]) == Some(own_group);
        let (Ok((rows, columns)), Ok(_)) = (pty::size(&streams[0]), pty::size(&streams[1])) else {
            return Ok((None, streams));
        };
        if !is_mine {
            return Ok((None, streams));
        }
        let Pty { controller, terminal } = pty::open(rows, columns)?;
        let settings = TerminalSettings::of(&streams[0])?;
        settings.apply(&terminal)?;
        let copy = || rustix::io::fcntl_dupfd_cloexec(&terminal, 3);
        let given = |stream: OwnedFd| match pty::size(&stream) {
            Ok(_) => copy(),
            Err(_) => Ok(stream),
        };
        let user = reopened(&streams[0])?;
        let [input, output, errors] = streams;
        let streams = [given(input)?, given(output)?, given(errors)?];
        let mut relay = Self {
            user,
            settings,
            command: TerminalSide(Some(controller)),
            typed: Vec::new(),
            shown: Vec::new(),
        };
        relay.take();
        Ok((Some(relay), streams))
    }

    /// What is waited for.
    pub(super) fn interests(&self) -> impl Iterator<Item = PollFd<'_>> {
        let flags = |reads: bool, writes: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, reads);
            flags.set(PollFlags::OUT, writes);
            flags
        };
        let user = flags(self.typed.len() < WAITING, !self.shown.is_empty());
        let command = flags(self.shown.len() < WAITING, !self.typed.is_empty());
        let controller = self.command.0.as_ref();
        let user = controller.map(|_| PollFd::new(&self.user, user));
        user.into_iter()
            .chain(controller.map(|controller| PollFd::new(controller, command)))
    }

    /// Carries what can be carried at once.
    pub(super) fn carry(&mut self) {
        let Some(controller) = &self.command.0 else { return };
        let is_there = fill(&self.user, &mut self.typed);
        let shows = fill(controller, &mut self.shown);
        let takes = empty(controller, &mut self.typed);
        let sees = empty(&self.user, &mut self.shown);
        // Whoever has hung up hears that of the other: the command by `SIGHUP`.
        if !(is_there && shows && takes && sees) {
            self.command.0 = None;
        }
    }

    /// Gives the command's terminal the size of the user's; the kernel tells who is in its foreground.
    pub(super) fn resize(&self) {
        if let (Some(controller), Ok((rows, columns))) = (&self.command.0, pty::size(&self.user)) {
            // Programs then believe the size before.
            let _ = pty::resize(controller, rows, columns);
        }
    }

    /// Has the user's terminal pass on everything.
    pub(super) fn take(&mut self) {
        // One that has hung up is noticed when it is read.
        let _ = self.settings.raw().apply(&self.user);
        self.resize();
    }

    /// Gives the user's terminal back as it was.
    pub(super) fn leave(&self) {
        let _ = self.settings.apply(&self.user);
    }
}

impl Drop for TerminalRelay {
    fn drop(&mut self) {
        while let Some(controller) = &self.command.0 {
            // What the command wrote is all there when its end is known; what others still write is not waited for.
            let before = self.shown.len();
            let is_open = fill(controller, &mut self.shown);
            if !is_open || self.shown.len() == before {
                self.command.0 = None;
            }
            while !self.shown.is_empty() {
                let mut polled = [PollFd::new(&self.user, PollFlags::OUT)];
                let waited = rustix::event::poll(&mut polled, None);
                if !matches!(waited, Ok(_) | Err(Errno::INTR)) || !empty(&self.user, &mut self.shown) {
                    self.shown.clear();
                }
            }
        }
        self.leave();
    }
}

/// The same terminal by a file of its own, for which nobody else has to wait or not wait.
fn reopened(terminal: &OwnedFd) -> Result<OwnedFd, Errno> {
    let number = crate::accounts::decimal(rustix::fd::AsRawFd::as_raw_fd(&terminal.as_fd()).unsigned_abs());
    let path = [b"/proc/self/fd/", number.as_slice()].concat();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Reads what is there, as long as not too much waits; `false` when the other side has hung up.
fn fill(from: &OwnedFd, waiting: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    for _ in 0..READS {
        if waiting.len() >= WAITING {
            return true;
        }
        match rustix::io::read(from, &mut buffer) {
            Ok(0) => return false,
            Ok(length) => waiting.extend_from_slice(&buffer[..length]),
            Err(Errno::AGAIN) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Writes what can be written; `false` when the other side has hung up.
fn empty(into: &OwnedFd, waiting: &mut Vec<u8>) -> bool {
    while !waiting.is_empty() {
        match rustix::io::write(into, waiting) {
            Ok(length) => drop(waiting.drain(..length)),
            Err(Errno::AGAIN) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
