//! The side of a sandbox that waits: the socket, who may ask, and what was handed over.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_core::plan::Environment;
use offleash_store::WarmDirectory;
use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::claim::is_ours;
use super::key::Key;
use super::message::{self, Handover, Parts, Request, TAKEN, add, add_list, add_variables};
use super::reserved::{Place, PlaceError};
use crate::lifecycle::Prepared;

/// How long whoever asks may take to say what.
const ASKING: Duration = Duration::from_secs(2);

/// What a holder is told when it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The arguments of the run that it is for, without the command.
    pub arguments: Vec<OsString>,
    /// Whether the command is a script for the shell.
    pub has_script: bool,
    /// Where the run is started.
    pub cwd: PathBuf,
    /// The key of whoever started it. A holder that is not like that process is of no use to its like.
    pub key: Vec<u8>,
    /// The variables that a command of the run before had from its caller, for what is started before a run asks.
    pub env: Environment,
}

impl Order {
    /// The order for holders of runs with these arguments, from a process of this key.
    pub fn new(arguments: Vec<OsString>, has_script: bool, cwd: PathBuf, key: &Key) -> Self {
        Self {
            arguments,
            has_script,
            cwd,
            key: key.text().to_vec(),
            env: Environment::new(),
        }
    }

    /// The same, with variables for what is started before a run asks.
    #[must_use]
    pub fn with_variables(self, env: Environment) -> Self {
        Self { env, ..self }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        add(&mut text, &self.key);
        add(&mut text, &u64::from(self.has_script).to_le_bytes());
        add(&mut text, self.cwd.as_os_str().as_encoded_bytes());
        add_list(&mut text, &self.arguments);
        add_variables(&mut text, &self.env);
        text
    }

    /// What a holder reads on its standard input. `None` if it is no order.
    pub fn decode(text: &[u8]) -> Option<Self> {
        let mut parts = Parts(text);
        let key = parts.next()?.to_vec();
        let has_script = parts.number()? != 0;
        let cwd = parts.word()?.into();
        let arguments = parts.list()?;
        let env = parts.variables()?;
        Some(Self {
            arguments,
            has_script,
            cwd,
            key,
            env,
        })
    }

    /// Whether this process is what the order's author was.
    pub fn is_for(&self, key: &Key) -> bool {
        self.key == key.text()
    }
}

/// A sandbox that waits, to be found by runs until this is dropped.
#[derive(Debug)]
pub struct Holder {
    place: Place,
    key: Key,
    description: String,
}

/// What a holder was asked for.
#[derive(Debug)]
pub enum Asked {
    /// A run wants the sandbox.
    Run(Caller, Box<Given>),
    /// It is to end: nobody asked for so long, somebody said so (who waits until this is dropped), or the sandbox can be of
    /// no use any more.
    End(Option<Caller>),
}

/// What a run handed over.
#[derive(Debug)]
pub struct Given {
    /// In words.
    pub handover: Handover,
    /// Its standard streams.
    pub streams: [OwnedFd; 3],
    /// Its current directory.
    pub cwd: OwnedFd,
}

/// The run that asked. It makes a sandbox of its own when this is dropped before [`Self::take`].
#[derive(Debug)]
pub struct Caller {
    stream: UnixStream,
}

impl Holder {
    /// Has the sandbox `id`, which is ready, be found at its place.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn open(mut place: Place, key: Key, id: &RunId, description: String) -> Result<Self, PlaceError> {
        place.open(OsStr::new(id.as_str()))?;
        Ok(Self {
            place,
            key,
            description,
        })
    }

    /// Waits for a run, at most until `until`.
    pub fn wait(&self, prepared: &mut Prepared, until: Instant) -> Asked {
        loop {
            if Instant::now() >= until || !self.wait_once(prepared, until) || !prepared.is_alive() {
                return Asked::End(None);
            }
            let Some(stream) = self.place.accept() else {
                continue;
            };
            if let Some(asked) = self.hear(stream) {
                return asked;
            }
        }
    }

    fn wait_once(&self, prepared: &Prepared, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let mut waiting = prepared.interests();
        waiting.push(PollFd::new(&self.place.listener, PollFlags::IN));
        let timeout = Timespec::try_from(left).ok();
        matches!(
            rustix::event::poll(&mut waiting, timeout.as_ref()),
            Ok(_) | Err(Errno::INTR)
        )
    }

    fn hear(&self, stream: UnixStream) -> Option<Asked> {
        let (request, descriptors) = heard(&stream)?;
        match request {
            Request::Stop => Some(Asked::End(Some(Caller { stream }))),
            Request::Describe => {
                // Who does not wait for the answer does not want it.
                let _told = (&stream).write_all(self.description.as_bytes());
                None
            }
            Request::Run => {
                let [input, output, errors, cwd] = <[OwnedFd; 4]>::try_from(descriptors).ok()?;
                let (key, handover) = Handover::decode(&message::read(&stream).ok()?)?;
                let given = Given {
                    handover,
                    streams: [input, output, errors],
                    cwd,
                };
                (key == self.key.text()).then(|| Asked::Run(Caller { stream }, Box::new(given)))
            }
        }
    }
}

impl Place {
    /// Takes a connection of this user's, if there is one.
    fn accept(&self) -> Option<UnixStream> {
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(1)) {
            return None;
        }
        let (stream, _) = self.listener.accept().ok()?;
        is_ours(&stream).then_some(stream)
    }

    /// Whoever has said meanwhile that what is made for this place is to end, and waits until this is dropped.
    pub fn told_to_end(&self) -> Option<Caller> {
        let stream = self.accept()?;
        let (request, _) = heard(&stream)?;
        matches!(request, Request::Stop).then_some(Caller { stream })
    }
}

/// What somebody asks for, with the descriptors that came with it.
fn heard(stream: &UnixStream) -> Option<(Request, Vec<OwnedFd>)> {
    stream.set_read_timeout(Some(ASKING)).ok()?;
    let mut byte = [0];
    let (length, descriptors) = socket::receive(stream.as_fd(), &mut byte).ok()?;
    if length == 0 {
        return None;
    }
    Some((Request::of(byte[0])?, descriptors))
}

impl Caller {
    /// Tells the run that the sandbox is its own. From then on it does not start its command itself.
    ///
    /// # Errors
    /// When the run is gone or has lost patience: then nothing may be started.
    pub fn take(&self) -> io::Result<()> {
        socket::send(self.stream.as_fd(), &[TAKEN], &[])?;
        self.stream.set_nonblocking(true)
    }

    /// The next signal that the run was sent, to be asked when [`Self::as_fd`] is readable; `None` when there is none now.
    ///
    /// # Errors
    /// `UnexpectedEof` when the run's process has died.
    pub fn signal(&self) -> io::Result<Option<i32>> {
        let mut byte = [0];
        match (&self.stream).read(&mut byte) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(Some(byte[0].into())),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Another handle to the same connection.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            stream: self.stream.try_clone()?,
        })
    }

    /// Tells the run its exit code: all of it is over and told.
    pub fn end(&self, code: u8) {
        // It may have been killed meanwhile.
        let _told = socket::send(self.stream.as_fd(), &[code], &[]);
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Asks the holder at `name` for something else than a run; answers what it says until it closes.
pub(super) fn ask(directory: &WarmDirectory, name: &OsStr, request: Request) -> Option<String> {
    let stream = super::claim::connect(directory, name)?;
    stream.set_read_timeout(Some(ASKING)).ok()?;
    socket::send(stream.as_fd(), &[request.byte()], &[]).ok()?;
    let mut text = String::new();
    let read = stream.take(1024 * 1024).read_to_string(&mut text);
    read.is_ok().then_some(text)
}

/// The directory of the program's file, for messages.
pub(super) const SELF: &str = "/proc/self/exe";

/// Whether the program of this process still has its name: one that was replaced has no later runs.
pub(super) fn is_current() -> bool {
    rustix::fs::stat(Path::new(SELF)).is_ok_and(|found| found.st_nlink > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives() {
        let order = Order {
            arguments: vec!["--warm".into(), "".into()],
            has_script: true,
            cwd: "/w".into(),
            key: b"key".to_vec(),
            env: vec![("A".into(), "".into())],
        };
        assert_eq!(Order::decode(&order.encode()), Some(order.clone()));
        let cut = order.encode().len() - 1;
        assert_eq!(Order::decode(&order.encode()[..cut]), None);
    }
}
