//! What a run and the process that holds a sandbox for it say to each other, and what that process is told at its start.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use offleash_core::plan::Environment;
use offleash_core::text::Text;
use offleash_protocol::{Dialogue, MessageDecoder};
use offleash_sys::socket;
use serde::{Deserialize, Serialize};

use super::key::Key;
use super::place::Described;
use crate::frames::{environment, text_pairs, texts, words};

/// How much is read at once: as much as most runs say.
const AT_ONCE: usize = 8 * 1024;

/// What is said to the process that holds a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PrewarmedRequest {
    /// A run wants the sandbox. Its standard streams and its directory come with the first byte.
    Run(Box<Handover>),
    /// To say what it holds; [`PrewarmedReply::Described`].
    Describe,
    /// To end; it hangs up when all is gone.
    Stop,
    /// A signal that the run was sent which has the sandbox.
    Signal(i32),
}

impl Dialogue for PrewarmedRequest {
    // Arguments and environment together have at most 6 MiB (execve(2)).
    const MAX_FRAME: usize = 16 * 1024 * 1024;
}

/// What it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PrewarmedReply {
    /// The sandbox is the run's, and its command is about to be started.
    Taken,
    /// What it holds.
    Described(Described),
    /// The run is over, with this exit code.
    Ended {
        /// That.
        code: u8,
    },
}

impl Dialogue for PrewarmedReply {
    const MAX_FRAME: usize = 16 * 1024 * 1024;
}

/// What a run hands over, besides what is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// What it has to have in common with the process that it asks.
    #[serde(with = "offleash_protocol::bytes")]
    key: Vec<u8>,
    /// How long ago the run started.
    pub age: Duration,
    cwd: Text,
    script: Option<Text>,
    command: Vec<Text>,
    env: Vec<(Text, Text)>,
}

impl Handover {
    /// That of this process, whose command follows.
    pub(super) fn new(key: &Key, age: Duration, cwd: PathBuf, script: Option<&OsString>, command: &[OsString]) -> Self {
        Self {
            key: key.text().to_vec(),
            age,
            cwd: cwd.into(),
            script: script.map(Text::from),
            command: texts(command),
            env: std::env::vars_os()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }

    /// Whether it is for a process of this key.
    pub(super) fn is_for(&self, key: &Key) -> bool {
        self.key == key.text()
    }

    /// Where the run was started.
    pub fn cwd(&self) -> PathBuf {
        self.cwd.as_path().to_owned()
    }

    /// The shell's script, if it is for a shell.
    pub fn script(&self) -> Option<OsString> {
        self.script.as_ref().map(|script| script.as_os_str().to_owned())
    }

    /// Program and arguments, or the script's parameters.
    pub fn command(&self) -> Vec<OsString> {
        words(&self.command)
    }

    /// The whole environment.
    pub fn env(&self) -> Environment {
        environment(&self.env)
    }
}

/// What a process is told at its start that is to hold a sandbox for a later run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmedOrder {
    arguments: Vec<Text>,
    /// Whether the command is a script for the shell.
    pub has_script: bool,
    cwd: Text,
    /// The key of whoever started it. One that is not like that process is of no use to its like.
    #[serde(with = "offleash_protocol::bytes")]
    key: Vec<u8>,
    env: Vec<(Text, Text)>,
}

impl Dialogue for PrewarmedOrder {
    const MAX_FRAME: usize = 16 * 1024 * 1024;
}

impl PrewarmedOrder {
    /// The order for runs with these arguments, from a process of this key.
    pub fn new(arguments: &[OsString], has_script: bool, cwd: PathBuf, key: &Key) -> Self {
        Self {
            arguments: texts(arguments),
            has_script,
            cwd: cwd.into(),
            key: key.text().to_vec(),
            env: Vec::new(),
        }
    }

    /// The same, with variables for what is started before a run asks.
    #[must_use]
    pub fn with_variables(self, env: &Environment) -> Self {
        Self {
            env: text_pairs(env),
            ..self
        }
    }

    /// The arguments of the run that it is for, without the command.
    pub fn arguments(&self) -> Vec<OsString> {
        words(&self.arguments)
    }

    /// Where the run is started.
    pub fn cwd(&self) -> PathBuf {
        self.cwd.as_path().to_owned()
    }

    /// The variables that a command of the run before had from its caller, for what is started before a run asks.
    pub fn env(&self) -> Environment {
        environment(&self.env)
    }

    /// Whether this process is what the order's author was.
    pub fn is_for(&self, key: &Key) -> bool {
        self.key == key.text()
    }
}

/// The messages that come over one connection.
#[derive(Debug)]
pub(super) struct Conversation<M> {
    decoder: MessageDecoder<M>,
    /// What came with them.
    pub(super) descriptors: Vec<OwnedFd>,
}

impl<M: Dialogue> Default for Conversation<M> {
    fn default() -> Self {
        Self {
            decoder: MessageDecoder::new(),
            descriptors: Vec::new(),
        }
    }
}

impl<M: Dialogue> Conversation<M> {
    /// The next message, for which it waits as the socket does.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other side has hung up, `InvalidData` when it cannot be understood; otherwise as the socket.
    pub(super) fn next(&mut self, stream: &UnixStream) -> io::Result<M> {
        loop {
            let next = self.decoder.next();
            if let Some(message) = next.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                return Ok(message);
            }
            let mut buffer = [0; AT_ONCE];
            let (length, descriptors) = socket::receive(stream.as_fd(), &mut buffer)?;
            self.descriptors.extend(descriptors);
            match buffer.get(..length) {
                None | Some([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(bytes) => self.decoder.push(bytes),
            }
        }
    }

    /// Whether something has come that was not taken yet.
    pub(super) fn has_more(&self) -> bool {
        self.decoder.pending() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{frame, only};

    #[test]
    fn what_is_handed_over_arrives_with_what_is_open() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let handover = Handover {
            key: b"key".to_vec(),
            age: Duration::from_micros(1234),
            cwd: "/w".into(),
            script: Some("echo $1".into()),
            command: vec!["a".into(), "".into(), Text(b"\xff".to_vec())],
            env: vec![("A".into(), "x".repeat(100 * AT_ONCE).into()), ("B".into(), "".into())],
        };
        let sent = PrewarmedRequest::Run(Box::new(handover));
        let said = frame(&sent).unwrap();
        let heard = std::thread::scope(|scope| {
            scope.spawn(|| socket::send_all(ours.as_fd(), &said, &[ours.as_fd()]).unwrap());
            let mut conversation = Conversation::default();
            (conversation.next(&theirs).unwrap(), conversation.descriptors.len())
        });
        assert_eq!(heard, (sent, 1));
    }

    #[test]
    fn an_order_arrives() {
        let order = PrewarmedOrder {
            arguments: vec!["--warm".into(), "".into()],
            has_script: true,
            cwd: "/w".into(),
            key: b"key".to_vec(),
            env: vec![("A".into(), "".into())],
        };
        assert_eq!(only::<PrewarmedOrder>(&frame(&order).unwrap()).unwrap(), order);
    }

    #[test]
    fn who_hangs_up_or_says_something_else_is_not_understood() {
        let kind = |bytes: &[u8]| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            socket::send(ours.as_fd(), bytes, &[]).unwrap();
            drop(ours);
            Conversation::<PrewarmedRequest>::default()
                .next(&theirs)
                .unwrap_err()
                .kind()
        };
        assert_eq!(
            kind(&frame(&PrewarmedRequest::Stop).unwrap()[..3]),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(kind(b"\x01\x00\x00\x00\xff"), io::ErrorKind::InvalidData);
        assert_eq!(kind(&[0xff; 8]), io::ErrorKind::InvalidData);
    }
}
