//! What a run and the holder of its sandbox say to each other: lists of byte strings, and single bytes.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use offleash_core::plan::Environment;

/// The most bytes of one message: arguments and environment together have at most 6 MiB (execve(2)).
const LONGEST: usize = 16 * 1024 * 1024;

/// The answer to [`Request::Run`]: the sandbox is the caller's, and its command is about to be started.
pub(super) const TAKEN: u8 = b'T';

/// How many bytes say how long a message is.
const LENGTH: usize = size_of::<u64>();

/// What somebody wants of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Run,
    Describe,
    Stop,
}

impl Request {
    const ALL: [(Self, u8); 3] = [(Self::Run, b'R'), (Self::Describe, b'D'), (Self::Stop, b'S')];

    pub(super) fn byte(self) -> u8 {
        let found = Self::ALL.into_iter().find(|(request, _)| *request == self);
        found.map_or(0, |(_, byte)| byte)
    }

    pub(super) fn of(byte: u8) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(_, known)| *known == byte);
        found.map(|(request, _)| request)
    }
}

/// What a run hands over, besides what is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// How long ago the run started.
    pub age: Duration,
    /// Where it was started.
    pub cwd: PathBuf,
    /// The shell's script, if it is for a shell.
    pub script: Option<OsString>,
    /// Program and arguments, or the script's parameters.
    pub command: Vec<OsString>,
    /// The whole environment.
    pub env: Environment,
}

impl Handover {
    /// All that a run says: what it wants, and behind its length the rest.
    pub(super) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(8192);
        text.push(Request::Run.byte());
        let start = text.len();
        text.extend_from_slice(&[0; LENGTH]);
        add(&mut text, key);
        let age = u64::try_from(self.age.as_nanos()).unwrap_or(u64::MAX);
        add(&mut text, &age.to_le_bytes());
        add(&mut text, self.cwd.as_os_str().as_encoded_bytes());
        add_list(&mut text, self.script.as_slice());
        add_list(&mut text, &self.command);
        add_variables(&mut text, &self.env);
        let length = (text.len() - start - LENGTH) as u64;
        text[start..start + LENGTH].copy_from_slice(&length.to_le_bytes());
        text
    }

    /// With its key. `None` if it is nothing that was encoded.
    pub(super) fn decode(text: &[u8]) -> Option<(Vec<u8>, Self)> {
        let mut parts = Parts(text);
        let key = parts.next()?.to_vec();
        let age = Duration::from_nanos(parts.number()?);
        let cwd = parts.word()?.into();
        let script = parts.list()?;
        let command = parts.list()?;
        let env = parts.variables()?;
        let script = script.into_iter().next();
        let handover = Self {
            age,
            cwd,
            script,
            command,
            env,
        };
        Some((key, handover))
    }
}

/// Adds a byte string with its length.
pub(super) fn add(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(&(part.len() as u64).to_le_bytes());
    text.extend_from_slice(part);
}

/// Adds byte strings with their number.
pub(super) fn add_list<'a>(
    text: &mut Vec<u8>,
    list: impl IntoIterator<Item = &'a OsString, IntoIter: ExactSizeIterator>,
) {
    let list = list.into_iter();
    add(text, &list.len().to_le_bytes());
    list.for_each(|word| add(text, word.as_encoded_bytes()));
}

/// Adds variables; nothing follows them.
pub(super) fn add_variables(text: &mut Vec<u8>, env: &Environment) {
    for (name, value) in env {
        add(text, name.as_encoded_bytes());
        add(text, value.as_encoded_bytes());
    }
}

/// The byte strings of a message, one after another.
pub(super) struct Parts<'a>(pub(super) &'a [u8]);

impl<'a> Parts<'a> {
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (part, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }

    pub(super) fn word(&mut self) -> Option<OsString> {
        Some(OsString::from_vec(self.next()?.to_vec()))
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.next()?.try_into().ok()?))
    }

    pub(super) fn list(&mut self) -> Option<Vec<OsString>> {
        let length = self.number()?;
        (0..length).map(|_| self.word()).collect()
    }

    /// All that follows.
    pub(super) fn variables(&mut self) -> Option<Environment> {
        let mut env = Environment::new();
        while !self.0.is_empty() {
            env.push((self.word()?, self.word()?));
        }
        Some(env)
    }
}

/// Receives a message.
pub(super) fn read(mut stream: impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover() -> Handover {
        Handover {
            age: Duration::from_micros(1234),
            cwd: "/w".into(),
            script: Some("echo $1".into()),
            command: vec!["a".into(), "".into()],
            env: vec![("A".into(), "1".into()), ("B".into(), "".into())],
        }
    }

    /// What follows the byte for what is wanted.
    fn said(handover: &Handover) -> Vec<u8> {
        let mut text = handover.encode(b"key");
        assert_eq!(Request::of(text.remove(0)), Some(Request::Run));
        text
    }

    #[test]
    fn what_is_handed_over_arrives() {
        for script in [None, Some("echo".into())] {
            let sent = Handover { script, ..handover() };
            let arrived = Handover::decode(&read(&*said(&sent)).unwrap());
            assert_eq!(arrived, Some((b"key".to_vec(), sent)));
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_nothing() {
        let message = said(&handover());
        let text = read(&*message).unwrap();
        let whole = Handover::decode(&text).unwrap();
        for length in 0..text.len() {
            assert_ne!(Handover::decode(&text[..length]), Some(whole.clone()), "{length}");
        }
        let mut long = text.clone();
        long[..8].fill(0xff);
        assert_eq!(Handover::decode(&long), None);
        assert!(read(&message[..message.len() - 1]).is_err());
        assert!(read(&u64::MAX.to_le_bytes()[..]).is_err());
    }
}
