//! The side of a sandbox that waits: the socket, who may ask, and what was handed over.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_store::WarmDirectory;
use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::claim::is_ours;
use super::key::Key;
use super::message::{Conversation, Handover, PrewarmedReply, PrewarmedRequest};
use super::place::Described;
use super::reserved::{PlaceError, SocketPlace};
use crate::frames::frame;
use crate::lifecycle::PrewarmedSandbox;

/// How long whoever asks may take to say what.
const ASKING_TIMEOUT: Duration = Duration::from_secs(2);

/// A sandbox that waits, to be found by runs until this is dropped.
#[derive(Debug)]
pub struct PrewarmedSocket {
    place: SocketPlace,
    key: Key,
    description: Described,
}

/// What a supervisor was asked for.
#[derive(Debug)]
pub enum Asked {
    /// A run wants the sandbox.
    Run(Caller, Box<HandedRun>),
    /// It is to end: nobody asked for so long, somebody said so (who waits until this is dropped), or the sandbox can be of
    /// no use any more.
    End(Option<Caller>),
}

/// What a run handed over.
#[derive(Debug)]
pub struct HandedRun {
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
    conversation: Conversation<PrewarmedRequest>,
}

impl PrewarmedSocket {
    /// Has the sandbox `id`, which is ready, be found at its place.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn open(mut place: SocketPlace, key: Key, id: &RunId, description: Described) -> Result<Self, PlaceError> {
        place.open(OsStr::new(id.as_str()))?;
        Ok(Self {
            place,
            key,
            description,
        })
    }

    /// Waits for a run, at most until `until`.
    pub fn wait(&self, prepared: &mut PrewarmedSandbox, until: Instant) -> Asked {
        let mut asked = None;
        prepared.wait(self.place.listener.as_fd(), until, &mut || {
            asked = self.place.accept().and_then(|stream| self.hear(stream));
            asked.is_some()
        });
        asked.unwrap_or(Asked::End(None))
    }

    fn hear(&self, stream: UnixStream) -> Option<Asked> {
        let (request, descriptors) = heard(&stream)?;
        match request {
            PrewarmedRequest::Stop => Some(Asked::End(Some(Caller::new(stream)))),
            PrewarmedRequest::Describe => {
                let described = PrewarmedReply::Described(self.description.clone());
                // Who does not wait for the answer does not want it.
                let _told = frame(&described).and_then(|told| socket::send_all(stream.as_fd(), &told, &[]));
                None
            }
            PrewarmedRequest::Run(handover) => {
                let [input, output, errors, cwd] = <[OwnedFd; 4]>::try_from(descriptors).ok()?;
                let is_ours = handover.is_for(&self.key);
                let given = HandedRun {
                    handover: *handover,
                    streams: [input, output, errors],
                    cwd,
                };
                is_ours.then(|| Asked::Run(Caller::new(stream), Box::new(given)))
            }
            PrewarmedRequest::Signal(_) => None,
        }
    }
}

impl SocketPlace {
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
        matches!(request, PrewarmedRequest::Stop).then(|| Caller::new(stream))
    }
}

/// What somebody asks for, with the descriptors that came with it.
fn heard(stream: &UnixStream) -> Option<(PrewarmedRequest, Vec<OwnedFd>)> {
    stream.set_read_timeout(Some(ASKING_TIMEOUT)).ok()?;
    let mut conversation = Conversation::default();
    let request = conversation.next(stream).ok()?;
    Some((request, conversation.descriptors))
}

impl Caller {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            conversation: Conversation::default(),
        }
    }

    /// Tells the run that the sandbox is its own. From then on it does not start its command itself.
    ///
    /// # Errors
    /// When the run is gone or has lost patience: then nothing may be started.
    pub fn take(&self) -> io::Result<()> {
        socket::send(self.stream.as_fd(), &frame(&PrewarmedReply::Taken)?, &[])?;
        self.stream.set_nonblocking(true)
    }

    /// The next signal that the run was sent, to be asked when [`Self::as_fd`] is readable; `None` when there is none now.
    ///
    /// # Errors
    /// `UnexpectedEof` when the run's process has died.
    pub fn signal(&mut self) -> io::Result<Option<i32>> {
        match self.conversation.next(&self.stream) {
            Ok(PrewarmedRequest::Signal(signal)) => Ok(Some(signal)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Ok(_) | Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Another handle to the same connection.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::new(self.stream.try_clone()?))
    }

    /// Tells the run its exit code: all of it is over and told.
    pub fn end(&self, code: u8) {
        // It may have been killed meanwhile.
        let _told =
            frame(&PrewarmedReply::Ended { code }).and_then(|told| socket::send(self.stream.as_fd(), &told, &[]));
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Asks the supervisor at `name` for something else than a run; answers what it says until it closes.
pub(super) fn ask(directory: &WarmDirectory, name: &OsStr, request: &PrewarmedRequest) -> Option<Vec<PrewarmedReply>> {
    let stream = super::claim::connect(directory, name)?;
    stream.set_read_timeout(Some(ASKING_TIMEOUT)).ok()?;
    socket::send(stream.as_fd(), &frame(request).ok()?, &[]).ok()?;
    let mut conversation = Conversation::default();
    let mut said = Vec::new();
    loop {
        match conversation.next(&stream) {
            Ok(reply) => said.push(reply),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Some(said),
            Err(_) => return None,
        }
    }
}

/// The directory of the program's file, for messages.
pub(super) const SELF: &str = "/proc/self/exe";

/// Whether the program of this process still has its name: one that was replaced has no later runs.
pub(super) fn is_current() -> bool {
    rustix::fs::stat(Path::new(SELF)).is_ok_and(|found| found.st_nlink > 0)
}
