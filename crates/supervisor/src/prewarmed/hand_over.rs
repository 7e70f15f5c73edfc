//! The side of a run: hands it to a sandbox that waits for exactly this run, and waits for its end.
//!
//! `offleash run` tries this before all else, so nothing here parses arguments, reads a policy or opens the state directory.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use offleash_store::WarmDirectory;
use offleash_sys::signals::{PASSED_ON, SignalQueue};
use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::claim::{Lost, connect_to, is_ours};
use super::key::Key;
use super::message::{Conversation, Handover, PrewarmedReply, PrewarmedRequest};
use super::words::RunWords;
use crate::frames::frame;

/// How long a supervisor may take to look at everything again. One that was stopped takes longer; then the run makes a sandbox
/// of its own.
const LOOKING: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The variable that names a state directory.
const STATE: &str = "OFFLEASH_STATE";

/// Hands the run with these words, which stand behind `offleash run`, to a sandbox that waits for it, and waits for its end;
/// its exit code.
///
/// `None` if none waits for exactly this run; then nothing has been started.
///
/// # Errors
/// [`Lost`] when nothing is known of what became of the run: its command may have been started.
pub fn hand_over(words: &[OsString]) -> Result<Option<u8>, Lost> {
    let started = Instant::now();
    let Some(words) = RunWords::split(words) else {
        return Ok(None);
    };
    match take(words, started)? {
        Some(mut taken) => taken.follow().map(Some),
        None => Ok(None),
    }
}

/// A sandbox that is this run's now.
struct Taken {
    stream: UnixStream,
    replies: Conversation<PrewarmedReply>,
    signals: SignalQueue,
}

fn take(words: RunWords<'_>, started: Instant) -> Result<Option<Taken>, Lost> {
    let of_environment = || std::env::var_os(STATE).filter(|state| !state.is_empty());
    let state = words.state().or_else(|| of_environment().map(PathBuf::from));
    let mut cwd = PathBuf::new();
    let mut key = None;
    let find_key = || {
        // What reads from a terminal has to belong to it.
        if std::io::stdin().is_terminal() {
            return None;
        }
        // One that cannot be reached from the root directory has no path.
        cwd = std::env::current_dir().ok().filter(|path| path.is_absolute())?;
        let found = Key::of_this_process(words.arguments, words.script.is_some(), &cwd).ok()?;
        Some(key.insert(found).name())
    };
    let directory = WarmDirectory::find(state.as_deref(), find_key);
    let (Some(directory), Some(key)) = (directory, key) else {
        return Ok(None);
    };
    let names = directory.names().unwrap_or_default();
    if names.is_empty() {
        return Ok(None);
    }
    // Before anybody can be asked to end what was handed over. A run of its own goes on with them blocked.
    let Ok(signals) = SignalQueue::new(&PASSED_ON) else {
        return Ok(None);
    };
    let handover = Handover::new(&key, started.elapsed(), cwd, words.script, words.command);
    // More than may be said is no run of a sandbox that waits.
    let Ok(request) = frame(&PrewarmedRequest::Run(Box::new(handover))) else {
        return Ok(None);
    };
    for name in names {
        if let Ok(stream) = connect_to(&directory.socket(&name))
            && is_ours(&stream)
            && let Some(replies) = ask(&stream, &request)?
        {
            return Ok(Some(Taken {
                stream,
                replies,
                signals,
            }));
        }
    }
    Ok(None)
}

/// What more is said by the sandbox behind `stream`, if it is this run's now.
///
/// # Errors
/// [`Lost`] when that cannot be told: the command may have been started.
fn ask(stream: &UnixStream, request: &[u8]) -> Result<Option<Conversation<PrewarmedReply>>, Lost> {
    use rustix::stdio::{stderr, stdin, stdout};

    let Ok(cwd) = std::fs::File::open(".") else {
        return Ok(None);
    };
    let descriptors = [stdin(), stdout(), stderr(), cwd.as_fd()];
    if socket::send_all(stream.as_fd(), request, &descriptors).is_err() {
        return Ok(None);
    }
    if !is_ready(stream) {
        // From here on nothing can be said to us: what was not said before is not said at all (unix_stream_sendmsg).
        let closed = stream.shutdown(Shutdown::Read);
        return match (closed, { stream }.read(&mut [0])) {
            (Ok(()), Ok(0) | Err(_)) => Ok(None),
            _ => Err(Lost),
        };
    }
    let mut replies = Conversation::default();
    match replies.next(stream) {
        Ok(PrewarmedReply::Taken) => Ok(Some(replies)),
        _ => Ok(None),
    }
}

fn is_ready(stream: &UnixStream) -> bool {
    let mut waiting = [PollFd::new(stream, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut waiting, Some(&LOOKING)) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}

impl Taken {
    /// Passes signals on until the run is over; its exit code.
    fn follow(&mut self) -> Result<u8, Lost> {
        loop {
            let mut has_news = self.replies.has_more();
            if !has_news {
                let mut waiting = [
                    PollFd::new(&self.stream, PollFlags::IN),
                    PollFd::new(&self.signals, PollFlags::IN),
                ];
                match rustix::event::poll(&mut waiting, None) {
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(_) => return Err(Lost),
                }
                has_news = !waiting[0].revents().is_empty();
            }
            while let Some(signal) = self.signals.next().map_err(|_| Lost)? {
                let said = frame(&PrewarmedRequest::Signal(signal)).map_err(|_| Lost)?;
                // Should it be over, it says so.
                let _passed = socket::send(self.stream.as_fd(), &said, &[]);
            }
            if has_news {
                match self.replies.next(&self.stream) {
                    Ok(PrewarmedReply::Ended { code }) => return Ok(code),
                    _ => return Err(Lost),
                }
            }
        }
    }
}
