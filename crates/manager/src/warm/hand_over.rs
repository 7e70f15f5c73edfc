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
use super::message::{Handover, TAKEN};
use super::words::RunWords;

/// How long a holder may take to look at everything again. One that was stopped takes longer; then the run makes a sandbox
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
        Some(taken) => taken.follow().map(Some),
        None => Ok(None),
    }
}

/// A sandbox that is this run's now.
struct Taken {
    stream: UnixStream,
    signals: SignalQueue,
}

fn take(words: RunWords<'_>, started: Instant) -> Result<Option<Taken>, Lost> {
    let state = words.state().or_else(|| std::env::var_os(STATE).map(PathBuf::from));
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
    let handover = Handover {
        age: started.elapsed(),
        cwd,
        script: words.script.cloned(),
        command: words.command.to_vec(),
        env: std::env::vars_os().collect(),
    };
    let request = handover.encode(key.text());
    for name in names {
        if let Ok(stream) = connect_to(&directory.socket(&name))
            && is_ours(&stream)
            && ask(&stream, &request)?
        {
            return Ok(Some(Taken { stream, signals }));
        }
    }
    Ok(None)
}

/// Whether the sandbox behind `stream` is this run's now.
///
/// # Errors
/// [`Lost`] when that cannot be told: the command may have been started.
fn ask(stream: &UnixStream, request: &[u8]) -> Result<bool, Lost> {
    use rustix::stdio::{stderr, stdin, stdout};

    let Ok(cwd) = std::fs::File::open(".") else {
        return Ok(false);
    };
    let descriptors = [stdin(), stdout(), stderr(), cwd.as_fd()];
    if socket::send_all(stream.as_fd(), request, &descriptors).is_err() {
        return Ok(false);
    }
    let mut answer = [0];
    if !is_ready(stream) {
        // From here on nothing can be said to us: what was not said before is not said at all (unix_stream_sendmsg).
        let closed = stream.shutdown(Shutdown::Read);
        return match (closed, { stream }.read(&mut answer)) {
            (Ok(()), Ok(0) | Err(_)) => Ok(false),
            _ => Err(Lost),
        };
    }
    Ok(matches!({ stream }.read(&mut answer), Ok(1)) && answer == [TAKEN])
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
    fn follow(&self) -> Result<u8, Lost> {
        loop {
            let mut waiting = [
                PollFd::new(&self.stream, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            match rustix::event::poll(&mut waiting, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Err(Lost),
            }
            let has_ended = !waiting[0].revents().is_empty();
            while let Some(signal) = self.signals.next().map_err(|_| Lost)? {
                if let Ok(signal) = u8::try_from(signal) {
                    // Should it be over, it says so.
                    let _passed = socket::send(self.stream.as_fd(), &[signal], &[]);
                }
            }
            if has_ended {
                let mut code = [0];
                match (&self.stream).read(&mut code) {
                    Ok(1..) => return Ok(code[0]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => return Err(Lost),
                }
            }
        }
    }
}
