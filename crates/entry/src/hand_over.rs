//! Hands a run over, and waits for its end.

use core::ffi::CStr;

use crate::buffer::Buffer;
use crate::find;
use crate::kernel::{self, Descriptor, HERE, Memory};
use crate::key;
use crate::message::{Handover, RUN, TAKEN};
use crate::strings::{self, Strings};
use crate::words::Words;

/// How long a holder may take to look at everything again, s. One that was stopped takes longer; then the run makes a
/// sandbox of its own.
const LOOKING: u64 = 2;
/// The same for hearing what is to be run.
const HEARING: u64 = 2;
/// Room for the names of all that wait, and for a path.
const NAMES: usize = 4096;

/// What became of a run that was to be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is over, and all of it is told; this is the exit code.
    Ended(u8),
    /// It was not handed over: nothing waits for exactly this run, and nothing has been started.
    NotTaken,
    /// Nor this, but nobody has looked in the usual state directory: where that is could not be told.
    NotFound,
    /// Nobody has tried: the program started elsewhere.
    NotTried,
    /// It was handed over, and nothing is known of what became of it.
    Lost,
}

/// A run of this process's that is to be handed over.
#[derive(Debug)]
pub struct Run<'a, A: ?Sized, E: ?Sized> {
    list: &'a A,
    words: Words,
    env: &'a E,
    /// When it started, as [`kernel::now`] counts.
    started: u64,
}

/// A sandbox that is this run's now.
#[derive(Debug)]
struct Taken {
    socket: Descriptor,
    signals: Descriptor,
}

impl<'a, A: Strings + ?Sized, E: Strings + ?Sized> Run<'a, A, E> {
    /// The run of what stands in `list` from `first` on, with the environment `env` (`NAME=VALUE` each), from now on. `None` if it
    /// has no command, or none that is found without a parser.
    pub fn of(list: &'a A, first: usize, env: &'a E) -> Option<Self> {
        Some(Self {
            words: Words::split(list, first)?,
            list,
            env,
            started: kernel::now(),
        })
    }

    /// Hands it to a sandbox that waits for it, in the state directory `state` or, if none is given, the one that words and
    /// environment name, and waits for its end.
    pub fn hand_over(&self, state: Option<&CStr>) -> Outcome {
        match self.take(state) {
            Ok(Some(taken)) => follow(&taken).map_or(Outcome::Lost, Outcome::Ended),
            Ok(None) => Outcome::NotTaken,
            Err(outcome) => outcome,
        }
    }

    fn take(&self, state: Option<&CStr>) -> Result<Option<Taken>, Outcome> {
        let none = |_| Outcome::NotTaken;
        let user = kernel::user();
        kernel::open_standard_streams();
        let mut memory = Memory::new(key::ROOM + 2 * NAMES).map_err(none)?;
        let [scratch, names, cwd] = parts(memory.bytes(), [key::ROOM, NAMES, NAMES]).ok_or(Outcome::NotTaken)?;
        let (mut scratch, mut names, mut cwd) = (Buffer::new(scratch), Buffer::new(names), Buffer::new(cwd));

        if state.is_none() && !find::state_path(&mut scratch, (self.list, self.words), self.env, user) {
            return Err(Outcome::NotFound);
        }
        let Some(all) = state
            .or_else(|| find::zero_ended(&scratch))
            .and_then(|path| find::all(path, user))
        else {
            return Ok(None);
        };
        // What reads from a terminal has to belong to it.
        if kernel::is_terminal() {
            return Ok(None);
        }
        kernel::current_directory(&mut cwd).map_err(none)?;
        let cwd = cwd.text().ok_or(Outcome::NotTaken)?;
        let words = strings::from(self.list, 0).chain(strings::from(self.env, 0));
        // Each word of the message has its length, and a variable is two words.
        let length = words.map(|word| word.len() + 16).sum::<usize>() + cwd.len();
        let sizes = [key::ROOM + length, key::ROOM + 2 * length, 0];
        let mut memory = Memory::new(sizes.iter().sum()).map_err(none)?;
        let [key, message, _] = parts(memory.bytes(), sizes).ok_or(Outcome::NotTaken)?;
        let mut key = Buffer::new(key);
        key::write(&mut key, &mut scratch, (self.list, self.words), cwd, self.env).map_err(none)?;
        let key = key.text().ok_or(Outcome::NotTaken)?;
        scratch.clear();
        scratch.add(&key::name(key));
        scratch.add(b"\0");
        let Some(directory) = find::zero_ended(&scratch).and_then(|name| find::of_key(&all, name, user)) else {
            return Ok(None);
        };
        kernel::list(&directory, &mut names).map_err(none)?;
        let names = names.text().unwrap_or_default();
        if find::next(names, None).is_none() {
            return Ok(None);
        }
        // Before anybody can be asked to end what was handed over. A run of its own goes on with them blocked.
        let signals = kernel::queue(&crate::SIGNALS).map_err(none)?;
        let here = kernel::open(HERE, c".", libc::O_DIRECTORY).map_err(none)?;
        let mut message = Buffer::new(message);
        let handover = Handover {
            key,
            age: kernel::now().wrapping_sub(self.started),
            cwd,
            list: self.list,
            words: self.words,
            env: self.env,
        };
        handover.write(&mut message);
        let message = message.text().ok_or(Outcome::NotTaken)?;

        let mut last = None;
        while let Some(name) = find::next(names, last) {
            scratch.clear();
            find::reach(&mut scratch, &directory, name);
            let path = scratch.text().ok_or(Outcome::NotTaken)?;
            if let Ok(socket) = kernel::connect(path, HEARING)
                && kernel::peer(&socket) == Ok(user)
                && ask(&socket, message, &here)?
            {
                return Ok(Some(Taken { socket, signals }));
            }
            last = Some(name);
        }
        Ok(None)
    }
}

/// Cuts memory into parts.
fn parts(memory: &mut [u8], [a, b, c]: [usize; 3]) -> Option<[&mut [u8]; 3]> {
    let (first, rest) = memory.split_at_mut_checked(a)?;
    let (second, rest) = rest.split_at_mut_checked(b)?;
    let (third, _) = rest.split_at_mut_checked(c)?;
    Some([first, second, third])
}

/// Whether the sandbox behind `socket` is this run's now. `Lost` when that cannot be told: the command may have been started.
fn ask(socket: &Descriptor, message: &[u8], here: &Descriptor) -> Result<bool, Outcome> {
    if !say(socket, message, here) {
        return Ok(false);
    }
    let mut answer = [0];
    if !is_ready(socket) {
        // From here on nothing can be said to us: what was not said before is not said at all (unix_stream_sendmsg).
        let is_closed = kernel::close_for_reading(socket);
        if is_closed.is_err() || matches!(kernel::read(socket, &mut answer), Ok(1)) {
            return Err(Outcome::Lost);
        }
        return Ok(false);
    }
    Ok(matches!(kernel::read(socket, &mut answer), Ok(1)) && answer == [TAKEN])
}

fn say(socket: &Descriptor, message: &[u8], here: &Descriptor) -> bool {
    // The first byte is what is wanted.
    let Ok(sent @ 1..) = kernel::send_with(socket, RUN, message, [0, 1, 2, here.number()]) else {
        return false;
    };
    let mut rest = message.get(sent - 1..).unwrap_or_default();
    while !rest.is_empty() {
        match kernel::send(socket, rest) {
            Ok(sent @ 1..) => rest = rest.get(sent..).unwrap_or_default(),
            Err(libc::EINTR) => {}
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

fn is_ready(socket: &Descriptor) -> bool {
    loop {
        match kernel::wait(socket, None, Some(LOOKING)) {
            Err(libc::EINTR) => {}
            other => return other.is_ok_and(|[is_ready, _]| is_ready),
        }
    }
}

/// Passes signals on until the run is over; its exit code. `None` when the holder is gone.
fn follow(taken: &Taken) -> Option<u8> {
    let Taken { socket, signals } = taken;
    loop {
        let has_ended = match kernel::wait(socket, Some(signals), None) {
            Ok([has_ended, _]) => has_ended,
            Err(libc::EINTR) => continue,
            Err(_) => return None,
        };
        while let Some(signal) = kernel::next_signal(signals).ok()? {
            // Should it be over, it says so.
            let _passed = kernel::send(socket, &[signal]);
        }
        if has_ended {
            let mut code = [0];
            match kernel::read(socket, &mut code) {
                Ok(1..) => return Some(code[0]),
                Err(libc::EINTR) => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }
}
