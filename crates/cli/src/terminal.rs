//! The user's terminal: a run's streams and signals, raw mode, and output that cannot drive the terminal.

mod bar;
mod exec_io;
mod json;
mod neutral;
mod prompt;
mod quiet;
mod sizes;

pub(crate) use bar::Bar;
pub(crate) use exec_io::{Destination, TerminalIo};
pub(crate) use json::{json_document, json_line};
pub(crate) use neutral::literal;
pub(crate) use prompt::{Prompt, RememberRule};
pub(crate) use quiet::without_echo;
pub(crate) use sizes::rounded;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::in_words_of;
use crate::failure::Failure;

/// The standard stream that a path names, once more, as a file: what is opened anew would begin where that began. `-` is standard
/// output. `None` for all other paths.
pub(crate) fn stream_again(path: &Path) -> Option<io::Result<std::fs::File>> {
    let stream = match path.to_str()? {
        "-" | "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => rustix::stdio::stdout(),
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => rustix::stdio::stderr(),
        _ => return None,
    };
    Some(stream.try_clone_to_owned().map(std::fs::File::from))
}

/// Writes to standard output.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // Whoever read us has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| {
            Failure::new(format!("cannot write to standard output: {error}"))
                .with_hint("free some space on the disk that it goes to, or send it elsewhere")
        }),
    }
}

/// Whether a short write to standard output does not wait for whoever reads it.
pub(crate) fn takes_output() -> bool {
    let stdout = io::stdout();
    let mut output = [PollFd::new(&stdout, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut output, Some(&now)), Ok(1..)) && output[0].revents().contains(PollFlags::OUT)
}

/// Writes to standard output for the last time, and lets go of all three standard streams.
///
/// # Errors
/// When it cannot be written, also because nobody reads it.
pub(crate) fn answer_and_leave(bytes: &[u8]) -> io::Result<()> {
    answer_and_stay(bytes)?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Has what goes to standard error added to the file at `path`, which nobody else may read.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn complain_to(path: &Path) -> io::Result<()> {
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}

/// Writes to standard output for the last time, and lets go of it and of standard input.
///
/// # Errors
/// When it cannot be written, also because nobody reads it.
pub(crate) fn answer_and_stay(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Answers on standard output, which stays as it is for more.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn answer_on(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Has other streams as the standard streams of this process.
///
/// # Errors
/// `EBUSY`.
pub(crate) fn become_streams(streams: &[OwnedFd; 3]) -> io::Result<()> {
    rustix::stdio::dup2_stdin(&streams[0])?;
    rustix::stdio::dup2_stdout(&streams[1])?;
    rustix::stdio::dup2_stderr(&streams[2])?;
    Ok(())
}

/// Lets go of all three standard streams.
///
/// # Errors
/// When there is no `/dev/null`.
pub(crate) fn leave_streams() -> io::Result<()> {
    let null: OwnedFd = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?
        .into();
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Standard input and output, for a protocol that is spoken over them.
pub(crate) fn conversation() -> (tokio::io::Stdin, tokio::io::Stdout) {
    (tokio::io::stdin(), tokio::io::stdout())
}

/// The arguments that were typed, where they are not this process's own.
static TYPED: OnceLock<Vec<OsString>> = OnceLock::new();

/// Has flags called as in these arguments, whoever typed them.
pub(crate) fn speak_as(typed: &[OsString]) {
    TYPED.get_or_init(|| typed.to_vec());
}

/// Writes a line to standard error, in which flags are called as they were typed.
pub(crate) fn complain(line: &str) {
    let typed = TYPED.get_or_init(|| std::env::args_os().skip(1).collect());
    let line = in_words_of(line, typed);
    // There is nobody left to be told if this fails.
    let _written = writeln!(io::stderr().lock(), "{line}");
}

/// Writes a question to standard error, behind which it is answered.
pub(crate) fn ask(question: &str) {
    // As above.
    let _written = write!(io::stderr().lock(), "{question}");
}

/// Writes lines to standard error.
pub(crate) fn complain_at_length(lines: &[u8]) {
    // As above.
    let _written = io::stderr().lock().write_all(lines);
}

/// Standard error, for another process to write to.
///
/// # Errors
/// When there are too many descriptors, or none of it.
pub(crate) fn complaints() -> io::Result<OwnedFd> {
    io::stderr().as_fd().try_clone_to_owned()
}

/// Standard output, for what is too large to be held.
///
/// # Errors
/// As [`complaints`].
pub(crate) fn output() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Standard input, for what is too large to be held.
///
/// # Errors
/// As [`complaints`].
pub(crate) fn input() -> io::Result<std::fs::File> {
    io::stdin().as_fd().try_clone_to_owned().map(Into::into)
}

/// Whether standard output is a terminal.
pub(crate) fn shows_to_a_person() -> bool {
    io::stdout().is_terminal()
}
