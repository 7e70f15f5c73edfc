//! The guest's side: whoever connects is told how the command ended that was asked for.
//!
//! Nothing here waits, and each connection is bounded in what it may hold: those who connect are whoever lives here.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use offleash_protocol::sudo::{SudoReply, SudoRequest, SudoRun};
use offleash_protocol::{ExitReport, MessageDecoder, StartFailure, encode};
use offleash_sys::pty;
use offleash_sys::spawn::{self, ChildStarter, EndedChild, OrphanFate, SessionChoice, SignalTarget, SpawnCommand};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::execution::{end_of, give_to, spawn_as_told, user_of};
use crate::oom_score::OomScore;
use crate::processes::{self, GuestRole};

/// Connections at a time.
const MAX_CLIENTS: usize = 64;

/// The command's standard streams.
const STREAMS: usize = 3;

/// What may be sent to a command: `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGUSR1`, `SIGUSR2`, `SIGALRM`, `SIGTERM`, `SIGCONT`,
/// `SIGSTOP`, `SIGWINCH`.
const PASSED_ON: [i32; 10] = [1, 2, 3, 10, 12, 14, 15, 18, 19, 28];

const SIGKILL: i32 = 9;

/// Listens for those who want to be somebody else.
pub(crate) struct SudoServer {
    starter: ChildStarter,
    listener: OwnedFd,
    clients: Vec<SudoClient>,
    /// Nobody can be let in until somebody is gone.
    is_full: bool,
}

struct SudoClient {
    starter: ChildStarter,
    socket: OwnedFd,
    decoder: MessageDecoder<SudoRequest>,
    descriptors: Vec<OwnedFd>,
    /// The process of the command that was started and has not ended.
    command: Option<i32>,
    is_done: bool,
}

/// What a client did that is no conversation.
struct ClientError;

impl SudoServer {
    /// Listens at a path where nothing else is left by then; the directory that it is in is made if it is missing.
    pub(crate) fn listen(path: &[u8], starter: ChildStarter) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let directory = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        match rustix::fs::mkdir(&path[..directory.max(1)], Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&listener, &address)?;
        // Everybody may ask.
        rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o666), rustix::fs::AtFlags::empty())?;
        rustix::net::listen(&listener, 128)?;
        Ok(Self {
            starter,
            listener,
            clients: Vec::new(),
            is_full: false,
        })
    }

    /// Where somebody may knock, if there is room.
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_full).then(|| self.listener.as_fd())
    }

    /// The sockets of those who were let in, in the order of their numbers.
    pub(crate) fn clients(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.iter().map(|client| client.socket.as_fd())
    }

    /// Lets somebody in. When too many are there who have asked nothing yet, the first of them has to go.
    pub(crate) fn accept(&mut self) {
        if self.clients.len() >= MAX_CLIENTS {
            match self.clients.iter_mut().find(|client| client.command.is_none()) {
                Some(idle) => idle.is_done = true,
                None => {
                    self.is_full = true;
                    return;
                }
            }
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => self.clients.push(SudoClient {
                starter: self.starter,
                socket,
                decoder: MessageDecoder::new(),
                descriptors: Vec::new(),
                command: None,
                is_done: false,
            }),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // As without descriptors: asking again at once would be of no use.
            Err(_) => self.is_full = true,
        }
    }

    /// Takes what a client sent, by way of `buffer`.
    pub(crate) fn serve(&mut self, client: usize, buffer: &mut [u8], oom_score: &OomScore) {
        let Some(client) = self.clients.get_mut(client) else {
            return;
        };
        if !client.is_done && client.receive(buffer, oom_score).is_err() {
            client.is_done = true;
        }
    }

    /// Tells the client whose command that was.
    pub(crate) fn command_ended(&mut self, ended: &EndedChild) {
        self.is_full = false;
        if let Some(client) = self.clients.iter_mut().find(|client| client.command == Some(ended.pid)) {
            client.command = None;
            client.answer(end_of(ended.how));
        }
    }

    /// Lets go of clients that are done; the command of one that left goes with it.
    pub(crate) fn tidy(&mut self, role: GuestRole) {
        if !self.clients.iter().any(|client| client.is_done) {
            return;
        }
        self.is_full = false;
        for client in self.clients.iter().filter(|client| client.is_done) {
            if let Some(command) = client.command {
                // Not reaped yet, so it is the one that was meant.
                let _ = spawn::signal(SignalTarget::Group(command), SIGKILL);
                processes::signal_session(role, command, command, SIGKILL);
            }
        }
        self.clients.retain(|client| !client.is_done);
    }
}

impl SudoClient {
    fn receive(&mut self, buffer: &mut [u8], oom_score: &OomScore) -> Result<(), ClientError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            received => received.map_err(|_| ClientError)?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
        if is_cut || received.bytes == 0 || self.descriptors.len() > STREAMS {
            return Err(ClientError);
        }
        self.decoder.push(&buffer[..received.bytes]);
        while let Some(request) = self.decoder.next().map_err(|_| ClientError)? {
            self.carry_out(request, oom_score)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, request: SudoRequest, oom_score: &OomScore) -> Result<(), ClientError> {
        match (request, self.command) {
            (SudoRequest::Run(run), None) if self.descriptors.len() == STREAMS => {
                match start(self.starter, &run, &self.descriptors, oom_score) {
                    Ok(command) => self.command = Some(command),
                    Err(failure) => self.answer(ExitReport::NotStarted(failure)),
                }
                self.descriptors.clear();
                Ok(())
            }
            (SudoRequest::Signal { signal }, Some(command)) if PASSED_ON.contains(&signal) => {
                // It may be dead already.
                let _ = spawn::signal(SignalTarget::Group(command), signal);
                Ok(())
            }
            _ => Err(ClientError),
        }
    }

    fn answer(&mut self, end: ExitReport) {
        if let Ok(frame) = encode(&SudoReply { end }) {
            // Nothing was sent before, so there is room, or nobody is there.
            let _ = rustix::net::send(&self.socket, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        self.is_done = true;
    }
}

fn start(
    starter: ChildStarter,
    run: &SudoRun,
    descriptors: &[OwnedFd],
    oom_score: &OomScore,
) -> Result<i32, StartFailure> {
    let streams: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let user = user_of(run.user)?;
    if run.terminal
        && let Some(terminal) = descriptors.first().filter(|first| pty::size(first).is_ok())
    {
        // So that it can be opened again by name (`/dev/stderr`).
        give_to(user, core::slice::from_ref(terminal), true);
    }
    let command = SpawnCommand {
        argv: &run.argv,
        env: &run.env,
        cwd: Some(&run.cwd),
        descriptors: &streams,
        session: if run.terminal {
            SessionChoice::WithTerminal
        } else {
            SessionChoice::New
        },
        orphaned: OrphanFate::Dies,
        user: Some(user),
    };
    let (spawned, _) = oom_score.inherited(|| spawn_as_told(starter, &command));
    Ok(spawned?.pid)
}
