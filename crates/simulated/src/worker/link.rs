//! The worker's end of its socket. Every question waits for its answer.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use offleash_core::exec::OutputStream;
use offleash_protocol::{MessageDecoder, encode};
use offleash_sys::socket;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::engine::{EngineCode, EngineHost, ProgramPlace, ProgramRequest, ProgramRun, ScriptHost, ScriptLanguage};
use crate::wire::{FileAnswer, FileRequest, FromWorker, InterpreterAnswer, MAX_PIECE, ToWorker};

const READ_AT_ONCE: usize = 64 * 1024;

/// The socket, and what was read of it.
#[derive(Debug)]
pub(super) struct Link(Mutex<LinkState>);

#[derive(Debug)]
struct LinkState {
    socket: OwnedFd,
    incoming: MessageDecoder<ToWorker>,
    buffer: Vec<u8>,
}

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(LinkState {
            socket,
            incoming: MessageDecoder::new(),
            buffer: vec![0; READ_AT_ONCE],
        }))
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message; `None` when the supervisor is gone.
    ///
    /// # Errors
    /// When the socket fails, or what comes is no message.
    pub(super) fn next(&self) -> io::Result<Option<ToWorker>> {
        self.state().next()
    }

    /// Sends a message, and waits until it is taken.
    ///
    /// # Errors
    /// When the supervisor is gone, or it is too long.
    pub(super) fn send(&self, message: &FromWorker) -> io::Result<()> {
        self.state().send(message)
    }

    /// Asks, and ends the process if nobody answers: whatever it did then would be done for nobody.
    fn ask(&self, question: &FromWorker) -> ToWorker {
        let mut state = self.state();
        let answer = state.send(question).and_then(|()| state.next());
        match answer {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(_) => std::process::exit(1),
        }
    }
}

impl LinkState {
    /// The next message, which nothing was read of yet, and the descriptor that comes with it.
    fn next_with_descriptor(&mut self) -> io::Result<(Option<ToWorker>, Option<OwnedFd>)> {
        let mut came = None;
        loop {
            if let Some(message) = self.incoming.next().map_err(io::Error::other)? {
                return Ok((Some(message), came));
            }
            let received = socket::receive(self.socket.as_fd(), self.buffer.as_mut_slice());
            let (count, descriptors) = match received {
                // The filter of a worker that kept the machine's root lets it receive none. The answer says so.
                Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                    return Ok((self.next()?, None));
                }
                received => received?,
            };
            came = came.or(descriptors.into_iter().next());
            match count {
                0 => return Ok((None, came)),
                count => self.incoming.push(self.buffer.get(..count).unwrap_or_default()),
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<ToWorker>> {
        loop {
            if let Some(message) = self.incoming.next().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            match rustix::net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((0, _)) => return Ok(None),
                Ok((count, _)) => self.incoming.push(self.buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&mut self, message: &FromWorker) -> io::Result<()> {
        let bytes = encode(message).map_err(io::Error::other)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl ScriptHost for Link {
    fn files(&self, request: FileRequest) -> FileAnswer {
        match self.ask(&FromWorker::Files(request)) {
            ToWorker::Files(answer) => answer,
            _ => FileAnswer::Failed {
                errno: Errno::PROTO.raw_os_error(),
            },
        }
    }

    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool {
        for piece in bytes.chunks(MAX_PIECE) {
            let bytes = piece.to_vec();
            if self.send(&FromWorker::Output { stream, bytes }).is_err() {
                std::process::exit(1);
            }
        }
        true
    }

    fn interpreter(&self, language: ScriptLanguage) -> Result<OwnedFd, String> {
        let mut state = self.state();
        let answer = state
            .send(&FromWorker::Interpreter(language))
            .and_then(|()| state.next_with_descriptor());
        match answer {
            Ok((Some(ToWorker::Interpreter(InterpreterAnswer::Here)), Some(file))) => Ok(file),
            Ok((Some(ToWorker::Interpreter(InterpreterAnswer::NotHere { why })), _)) => Err(why),
            Ok((Some(_), _)) => Err("it came without its file".to_owned()),
            Ok((None, _)) | Err(_) => std::process::exit(1),
        }
    }
}

impl EngineHost for Link {
    fn find_program(&self, name: &str) -> ProgramPlace {
        match self.ask(&FromWorker::Program(name.to_owned())) {
            ToWorker::Program(place) => place,
            _ => ProgramPlace::Nowhere,
        }
    }

    fn run_program(&self, request: ProgramRequest) -> Option<ProgramRun> {
        match self.ask(&FromWorker::Run(request)) {
            ToWorker::Ran(run) => Some(run),
            _ => None,
        }
    }

    fn code(&self, mount: u32, path: &[u8], anew: bool) -> Result<EngineCode, i32> {
        let path = path.to_vec();
        let mut answer = self.ask(&FromWorker::Code { mount, path, anew });
        let mut code = Vec::new();
        loop {
            match answer {
                ToWorker::NoCode { errno } => return Err(errno),
                ToWorker::Code(piece) => {
                    code.extend_from_slice(&piece.bytes);
                    match (piece.is_last, piece.is_compiled) {
                        (true, true) => return Ok(EngineCode::Compiled(code)),
                        (true, false) => return Ok(EngineCode::Source(code)),
                        (false, _) => {}
                    }
                }
                _ => return Err(Errno::PROTO.raw_os_error()),
            }
            answer = match self.next() {
                Ok(Some(next)) => next,
                Ok(None) | Err(_) => std::process::exit(1),
            };
        }
    }

    fn keep_compiled(&self, compiled: &[u8]) {
        let pieces = compiled.chunks(MAX_PIECE);
        let last = pieces.len();
        for (number, piece) in pieces.enumerate() {
            let (is_last, bytes) = (number + 1 == last, piece.to_vec());
            if self.send(&FromWorker::Compiled { is_last, bytes }).is_err() {
                std::process::exit(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use offleash_sys::seccomp::compile_code_worker;

    use super::*;

    #[test]
    fn a_worker_that_may_receive_no_file_hears_why_there_is_none() {
        let (own, mut supervisor) = UnixStream::pair().unwrap();
        let link = Link::new(own.into());
        // The filter is this thread's alone.
        let worker = std::thread::spawn(move || {
            compile_code_worker().install().unwrap();
            link.interpreter(ScriptLanguage::Python).map(drop)
        });
        let mut asked = [0; 64];
        assert_ne!(supervisor.read(&mut asked).unwrap(), 0);
        let why = "there is none".to_owned();
        let answer = ToWorker::Interpreter(InterpreterAnswer::NotHere { why: why.clone() });
        supervisor.write_all(&encode(&answer).unwrap()).unwrap();
        assert_eq!(worker.join().unwrap(), Err(why));
    }
}
