//! A line that is typed and not shown.

use std::fs::File;
use std::io::{self, IsTerminal as _};

use rustix::termios::{LocalModes, OptionalActions, Termios};

/// A terminal that does not show what is typed, until this is dropped.
#[derive(Debug)]
pub(crate) struct QuietTerminal {
    terminal: File,
    before: Termios,
}

/// Has a terminal not show what is typed; `None` if `input` is none.
///
/// # Errors
/// When the terminal cannot be set.
pub(crate) fn without_echo(input: &File) -> io::Result<Option<QuietTerminal>> {
    if !input.is_terminal() {
        return Ok(None);
    }
    let terminal = input.try_clone()?;
    let before = rustix::termios::tcgetattr(&terminal)?;
    let mut quiet = before.clone();
    quiet.local_modes &= !LocalModes::ECHO;
    quiet.local_modes |= LocalModes::ECHONL | LocalModes::ICANON;
    rustix::termios::tcsetattr(&terminal, OptionalActions::Flush, &quiet)?;
    Ok(Some(QuietTerminal { terminal, before }))
}

impl Drop for QuietTerminal {
    fn drop(&mut self) {
        // A terminal that has gone has nothing to be set.
        let _gone = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}
