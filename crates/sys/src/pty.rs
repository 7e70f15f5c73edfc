//! Pseudo-terminals.
//!
//! Opened through the `/dev/ptmx` that is visible, so inside a sandbox a terminal of its own devpts. Deliberately not
//! here: the user's own terminal, and becoming a session's terminal, which [`crate::spawn`] does in the child.

use alloc::vec::Vec;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, Winsize};

/// Both ends of a new terminal; closed at exec.
#[derive(Debug)]
pub struct Pty {
    /// What the terminal's user would see and type, not blocking.
    pub controller: OwnedFd,
    /// What the program gets.
    pub terminal: OwnedFd,
}

/// Opens a terminal of this size in characters.
///
/// # Errors
/// `ENOENT` without `/dev/ptmx`, `ENOSPC` when there are too many.
pub fn open(rows: u16, columns: u16) -> Result<Pty, Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&controller)?;
    let terminal = match rustix::pty::ioctl_tiocgptpeer(&controller, flags) {
        // gVisor has no such request. Within a sandbox that is one kernel's alone nobody mounts anything at its name.
        Err(Errno::NOTTY | Errno::INVAL) => by_name(&controller)?,
        opened => opened?,
    };
    rustix::fs::fcntl_setfl(&controller, OFlags::RDWR | OFlags::NONBLOCK)?;
    resize(&controller, rows, columns)?;
    Ok(Pty { controller, terminal })
}

/// Opens the other end by its name.
fn by_name(controller: &OwnedFd) -> Result<OwnedFd, Errno> {
    let name = rustix::pty::ptsname(controller, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(name, flags, rustix::fs::Mode::empty())
}

/// Gives the terminal another size; its foreground processes get SIGWINCH.
///
/// # Errors
/// `ENOTTY`.
pub fn resize(controller: impl AsFd, rows: u16, columns: u16) -> Result<(), Errno> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(controller, size)
}

/// The size of a terminal in characters: rows and columns.
///
/// # Errors
/// `ENOTTY` for what is none.
pub fn size(terminal: impl AsFd) -> Result<(u16, u16), Errno> {
    let size = rustix::termios::tcgetwinsize(terminal)?;
    Ok((size.ws_row, size.ws_col))
}

/// How a terminal treats what is typed and written.
#[derive(Clone, Debug)]
pub struct TerminalSettings(Termios);

impl TerminalSettings {
    /// Those of a terminal.
    ///
    /// # Errors
    /// `ENOTTY` for what is none.
    pub fn of(terminal: impl AsFd) -> Result<Self, Errno> {
        rustix::termios::tcgetattr(terminal).map(Self)
    }

    /// The same, but everything is passed on as it comes (termios(3), "Raw mode").
    #[must_use]
    pub fn raw(&self) -> Self {
        let mut raw = self.0.clone();
        raw.make_raw();
        Self(raw)
    }

    /// Gives them to a terminal.
    ///
    /// # Errors
    /// `ENOTTY`, and `EIO` where nobody is at the other end.
    pub fn apply(&self, terminal: impl AsFd) -> Result<(), Errno> {
        rustix::termios::tcsetattr(terminal, OptionalActions::Now, &self.0)
    }
}

/// The process group that has the terminal, if any.
pub fn foreground_group(controller: impl AsFd) -> Option<i32> {
    rustix::termios::tcgetpgrp(controller)
        .ok()
        .map(rustix::process::Pid::as_raw_pid)
}

/// The character that ends input (usually Ctrl-D), unless the program takes its input raw.
pub fn end_of_input(controller: impl AsFd) -> Option<u8> {
    end_of(controller, true)
}

/// The same where the program takes its input raw, and only its own reading makes an end of it.
pub fn end_of_raw_input(controller: impl AsFd) -> Option<u8> {
    end_of(controller, false)
}

fn end_of(controller: impl AsFd, is_canonical: bool) -> Option<u8> {
    let settings = rustix::termios::tcgetattr(controller).ok()?;
    let is_so = settings.local_modes.contains(LocalModes::ICANON) == is_canonical;
    is_so.then(|| settings.special_codes[SpecialCodeIndex::VEOF])
}
