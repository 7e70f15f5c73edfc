//! The worker: callers inside, one socket to the host.

use alloc::vec::Vec;

use offleash_protocol::tools::{LENGTH, MAX_ANSWER, MAX_CALLS, MAX_REQUEST, NumberedFrames, SOCKET, header};
use offleash_sys::spawn;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Bytes of the longest name of a socket, without the zero before it (unix(7)).
const LONGEST_NAME: usize = 107;
/// Bytes taken from a socket at once.
const PIECE: usize = 64 * 1024;

/// Starts the worker on the host's socket; answers its process id.
pub(crate) fn start(host: OwnedFd) -> Result<i32, Errno> {
    spawn::fork_worker(host, None, |became, host| match became.and_then(|()| listen()) {
        Ok(listeners) => {
            let worker = ToolWorker {
                host,
                listeners,
                from_host: NumberedFrames::default(),
                to_host: Vec::new(),
                callers: Vec::new(),
                last_call: 0,
                buffer: alloc::vec![0; PIECE],
            };
            worker.serve();
            0
        }
        Err(_) => 1,
    })
}

/// Listens at the name, and at the same with zeros behind it, as older versions of Node.js write each.
fn listen() -> Result<[OwnedFd; 2], Errno> {
    let mut padded = [0; LONGEST_NAME];
    padded.iter_mut().zip(SOCKET).for_each(|(place, byte)| *place = *byte);
    Ok([listen_at(SOCKET)?, listen_at(&padded)?])
}

fn listen_at(name: &[u8]) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, 128)?;
    Ok(listener)
}

struct ToolWorker {
    host: OwnedFd,
    listeners: [OwnedFd; 2],
    from_host: NumberedFrames,
    /// What the host has not taken yet: a request of each caller at most.
    to_host: Vec<u8>,
    callers: Vec<Caller>,
    last_call: u32,
    buffer: Vec<u8>,
}

struct Caller {
    socket: OwnedFd,
    call: u32,
    state: CallState,
}

enum CallState {
    /// So much of the request is here.
    Asking(Vec<u8>),
    /// The host has it.
    Waiting,
    /// So much of the answer was taken.
    Answered(Vec<u8>, usize),
    Done,
}

#[derive(Clone, Copy)]
enum ReadyEnd {
    Host,
    Listener(usize),
    Caller(usize),
}

/// The host is gone, or says what makes no sense.
struct HostGone;

impl ToolWorker {
    fn serve(mut self) {
        while self.round().is_ok() {}
    }

    fn round(&mut self) -> Result<(), HostGone> {
        for ready in self.wait()? {
            match ready {
                ReadyEnd::Host => {
                    self.send()?;
                    self.receive()?;
                }
                ReadyEnd::Listener(index) => self.accept(index),
                ReadyEnd::Caller(index) => self.attend(index),
            }
        }
        self.callers.retain(|caller| !matches!(caller.state, CallState::Done));
        self.send()
    }

    fn wait(&self) -> Result<Vec<ReadyEnd>, HostGone> {
        let mut ends = Vec::with_capacity(2 + self.callers.len());
        let mut polled = Vec::with_capacity(2 + self.callers.len());
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.to_host.is_empty());
        ends.push(ReadyEnd::Host);
        polled.push(PollFd::from_borrowed_fd(self.host.as_fd(), flags));
        for (index, caller) in self.callers.iter().enumerate() {
            let flags = match caller.state {
                CallState::Answered(..) => PollFlags::OUT,
                CallState::Asking(_) => PollFlags::IN,
                // Only that it leaves.
                CallState::Waiting | CallState::Done => PollFlags::RDHUP,
            };
            ends.push(ReadyEnd::Caller(index));
            polled.push(PollFd::from_borrowed_fd(caller.socket.as_fd(), flags));
        }
        if self.callers.len() < MAX_CALLS {
            for (index, listener) in self.listeners.iter().enumerate() {
                ends.push(ReadyEnd::Listener(index));
                polled.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
            }
        }
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(HostGone),
        }
        let ready = ends.into_iter().zip(polled);
        Ok(ready
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|(end, _)| end)
            .collect())
    }

    fn accept(&mut self, listener: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Some(listener) = self.listeners.get(listener).filter(|_| self.callers.len() < MAX_CALLS) else {
            return;
        };
        if let Ok(socket) = rustix::net::accept_with(listener, flags) {
            // One of a caller who is long gone is free again.
            self.last_call = self.last_call.wrapping_add(1);
            self.callers.push(Caller {
                socket,
                call: self.last_call,
                state: CallState::Asking(Vec::new()),
            });
        }
    }

    fn attend(&mut self, index: usize) {
        let Some(caller) = self.callers.get_mut(index) else {
            return;
        };
        match &mut caller.state {
            CallState::Asking(request) => match take(&caller.socket, &mut self.buffer, request) {
                TakenRequest::Part => {}
                TakenRequest::Whole => {
                    let body = request.get(LENGTH..).unwrap_or_default();
                    self.to_host.extend_from_slice(&header(caller.call, body.len()));
                    self.to_host.extend_from_slice(body);
                    caller.state = CallState::Waiting;
                }
                TakenRequest::None => caller.state = CallState::Done,
            },
            CallState::Waiting => {
                self.to_host.extend_from_slice(&header(caller.call, 0));
                caller.state = CallState::Done;
            }
            CallState::Answered(answer, taken) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                match rustix::net::send(&caller.socket, answer.get(*taken..).unwrap_or_default(), flags) {
                    Ok(count) => *taken += count,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => *taken = answer.len(),
                }
                if *taken >= answer.len() {
                    caller.state = CallState::Done;
                }
            }
            CallState::Done => {}
        }
    }

    fn send(&mut self) -> Result<(), HostGone> {
        while !self.to_host.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.host, &self.to_host, flags) {
                Ok(count) => drop(self.to_host.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return Err(HostGone),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), HostGone> {
        match rustix::net::recv(&self.host, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(HostGone),
            Ok((count, _)) => self.from_host.push(&self.buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(HostGone),
        }
        while let Some((call, body)) = self.from_host.next(MAX_ANSWER).map_err(|_| HostGone)? {
            let is_it = |caller: &&mut Caller| caller.call == call && matches!(caller.state, CallState::Waiting);
            if let Some(caller) = self.callers.iter_mut().find(is_it) {
                let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
                caller.state = CallState::Answered([&length[..], body].concat(), 0);
            }
        }
        Ok(())
    }
}

enum TakenRequest {
    Part,
    Whole,
    /// The caller left, or what it sends is no request.
    None,
}

/// Takes what a caller sent.
fn take(socket: &OwnedFd, buffer: &mut [u8], request: &mut Vec<u8>) -> TakenRequest {
    match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
        Ok((0, _)) => return TakenRequest::None,
        Ok((count, _)) => request.extend_from_slice(&buffer[..count]),
        Err(Errno::AGAIN | Errno::INTR) => return TakenRequest::Part,
        Err(_) => return TakenRequest::None,
    }
    let Some((length, body)) = request.split_first_chunk::<LENGTH>() else {
        return TakenRequest::Part;
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    match body.len().cmp(&length) {
        _ if length == 0 || length > MAX_REQUEST => TakenRequest::None,
        core::cmp::Ordering::Less => TakenRequest::Part,
        core::cmp::Ordering::Equal => TakenRequest::Whole,
        // One connection is one call.
        core::cmp::Ordering::Greater => TakenRequest::None,
    }
}
