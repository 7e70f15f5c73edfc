//! Calls of tools, on their way from code in a sandbox to where they are judged and made, outside.
//!
//! Two conversations. Inside, whoever wants to call a tool connects to a socket of the guest's ([`SOCKET`]), sends one
//! request, a length in four bytes (little-endian) and that many bytes, and is answered in the same form. Between guest and
//! host, each request and answer has its call's number before its length; a request of no bytes says that the caller left.
//! The guest looks into none of them. Outside they are JSON; the answer for a command is [`CommandAnswer`].

use alloc::vec::Vec;

/// The name of the guest's socket, in the abstract namespace of the sandbox's network.
pub const SOCKET: &[u8] = b"offleash-tools";

/// Where the commands are that call tools, each by its tool's name.
pub const COMMANDS: &str = "/run/offleash/tools/bin";

/// The longest request, bytes.
pub const MAX_REQUEST: usize = 256 * 1024;

/// The longest answer, bytes.
pub const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Calls at a time; further callers wait.
pub const MAX_CALLS: usize = 64;

/// Bytes before a request or an answer inside.
pub const LENGTH: usize = 4;

/// Bytes before a request or an answer between guest and host.
pub const NUMBERED: usize = 8;

/// What comes before `length` bytes of the call `call`.
pub fn header(call: u32, length: usize) -> [u8; NUMBERED] {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut header = [0; NUMBERED];
    header[..LENGTH].copy_from_slice(&call.to_le_bytes());
    header[LENGTH..].copy_from_slice(&length.to_le_bytes());
    header
}

/// Takes requests or answers apart, as they come in pieces.
#[derive(Debug, Default)]
pub struct NumberedFrames {
    held: Vec<u8>,
    start: usize,
}

/// A length beyond the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl NumberedFrames {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.drain(..self.start);
        self.start = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next that is whole: its call's number and its bytes.
    ///
    /// # Errors
    /// When it is longer than `most`; nothing that follows can be told from it.
    pub fn next(&mut self, most: usize) -> Result<Option<(u32, &[u8])>, TooLong> {
        let held = self.held.get(self.start..).unwrap_or_default();
        let Some((header, _)) = held.split_first_chunk::<NUMBERED>() else {
            return Ok(None);
        };
        let [a, b, c, d, e, f, g, h] = *header;
        let call = u32::from_le_bytes([a, b, c, d]);
        let length = usize::try_from(u32::from_le_bytes([e, f, g, h])).unwrap_or(usize::MAX);
        if length > most {
            return Err(TooLong);
        }
        let end = NUMBERED + length;
        if held.len() < end {
            return Ok(None);
        }
        let start = self.start;
        self.start += end;
        Ok(Some((
            call,
            self.held.get(start + NUMBERED..start + end).unwrap_or_default(),
        )))
    }
}

/// What a command that called a tool is to write and to end with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandAnswer<'a> {
    /// Its exit code.
    pub status: u8,
    /// What it writes to its standard output.
    pub stdout: &'a [u8],
    /// What it writes to its standard error.
    pub stderr: &'a [u8],
}

impl<'a> CommandAnswer<'a> {
    /// As bytes: the code, the length of the one output in four bytes, the one, the other.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.stdout.len()).unwrap_or(u32::MAX);
        [&[self.status], &length.to_le_bytes()[..], self.stdout, self.stderr].concat()
    }

    /// Of those bytes.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let (status, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk::<LENGTH>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (stdout, stderr) = rest.split_at_checked(length)?;
        Some(Self {
            status: *status,
            stdout,
            stderr,
        })
    }
}
