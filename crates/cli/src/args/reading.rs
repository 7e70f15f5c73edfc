//! Arguments are read with what the environment says, and without it where a variable says nothing.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

/// The variable that stands for `--state`.
pub(crate) const STATE: &str = "OFFLEASH_STATE";

/// What the variable says that stands for `--state`; one that is empty says nothing.
pub(super) fn state_of_environment() -> Option<OsString> {
    std::env::var_os(STATE).filter(|state| !state.is_empty())
}

/// Reads arguments, with what the environment says.
///
/// # Errors
/// What the parser says, help included.
pub(crate) fn parsed<P: CommandFactory + FromArgMatches>(
    words: impl IntoIterator<Item = OsString>,
) -> Result<P, clap::Error> {
    let mut command = P::command();
    if std::env::var_os(STATE).is_some_and(|state| state.is_empty()) {
        command = without_variable(command);
    }
    let mut matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The same parser, which does not heed the variable that stands for `--state`.
fn without_variable(command: clap::Command) -> clap::Command {
    command.mut_arg("state", |state| state.env(clap::builder::Resettable::Reset))
}

/// What is said of arguments that are refused, as it would be without the variable that stands for `--state`: usage lines
/// take it for an argument that was written, or has to be.
pub(crate) fn as_written<P: CommandFactory>(
    error: clap::Error,
    words: impl IntoIterator<Item = OsString>,
) -> clap::Error {
    let is_help = !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || std::env::var_os(STATE).is_none() {
        return error;
    }
    // What is wrong with the variable itself is not said again.
    without_variable(P::command())
        .try_get_matches_from(words)
        .err()
        .unwrap_or(error)
}
