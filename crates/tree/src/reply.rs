//! Answers: bytes that grow behind room for their header.

use rustix::io::Errno;

/// Length of an answer's header.
const HEADER: usize = 16;

/// An answer that is being written. It is used again for the next one.
#[derive(Debug)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
}

impl ReplyBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; HEADER] }
    }

    /// Forgets what was written.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(HEADER);
    }

    /// How many bytes follow the header.
    pub(crate) fn body_len(&self) -> usize {
        self.bytes.len().saturating_sub(HEADER)
    }

    /// Cuts what follows the header to `length` bytes.
    pub(crate) fn truncate_body(&mut self, length: usize) {
        self.bytes.truncate(HEADER + length);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// All of it, as it was finished.
    pub(crate) fn written(&self) -> &[u8] {
        &self.bytes
    }

    /// `count` zero bytes, to be written over.
    pub(crate) fn room(&mut self, count: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + count, 0);
        self.bytes.get_mut(start..).unwrap_or_default()
    }

    /// The whole answer to message `unique`. An error has nothing but a header.
    pub(crate) fn finish(&mut self, unique: u64, outcome: Result<(), Errno>) -> &[u8] {
        let error = match outcome {
            Ok(()) => 0,
            Err(errno) => {
                self.clear();
                -errno.raw_os_error()
            }
        };
        // An answer is bounded by what a message may ask for, far below this.
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        let header = length
            .to_ne_bytes()
            .into_iter()
            .chain(error.to_ne_bytes())
            .chain(unique.to_ne_bytes());
        for (place, byte) in self.bytes.iter_mut().zip(header) {
            *place = byte;
        }
        &self.bytes
    }
}
