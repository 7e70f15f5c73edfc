//! How our own processes speak to each other: each message is one frame of `offleash_protocol`, whoever sends it.
//!
//! An order is one frame on standard input and an answer one on standard output, up to the end of the stream; over a socket
//! frames follow each other, and descriptors go with the first byte of theirs. Bytes are checked all the same: a frame that is
//! not exactly one message is refused.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use offleash_core::plan::Environment;
use offleash_core::text::Text;
pub use offleash_protocol::{Dialogue as Message, MessageDecoder as FrameDecoder};
use offleash_protocol::{MessageDecoder, encode};
use rustix::fs::MemfdFlags;

/// A message as one frame.
///
/// # Errors
/// `InvalidInput` when it is longer than one may be.
pub fn frame<M: Message>(message: &M) -> io::Result<Vec<u8>> {
    encode(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// The message of which `bytes` are the only frame.
///
/// # Errors
/// `InvalidData` when they are not one frame.
pub fn only<M: Message>(bytes: &[u8]) -> io::Result<M> {
    let mut decoder = MessageDecoder::new();
    decoder.push(bytes);
    let message = decoder
        .next()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    match message {
        Some(message) if decoder.pending() == 0 => Ok(message),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not one frame")),
    }
}

/// The message that is all there is to read.
///
/// # Errors
/// As [`only`], and when it cannot be read.
pub fn read<M: Message>(mut from: impl Read) -> io::Result<M> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    only(&bytes)
}

/// A file in memory with an order, for the standard input of a process.
///
/// # Errors
/// As [`frame`], and when the kernel makes no file.
pub fn order_file<M: Message>(order: &M) -> io::Result<OwnedFd> {
    let mut memory = File::from(rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC)?);
    memory.write_all(&frame(order)?)?;
    memory.rewind()?;
    Ok(memory.into())
}

/// Words as they are said.
pub fn texts(words: &[OsString]) -> Vec<Text> {
    words.iter().map(Text::from).collect()
}

/// What was said as words.
pub fn words(texts: &[Text]) -> Vec<OsString> {
    texts.iter().map(|text| text.as_os_str().to_owned()).collect()
}

/// Variables as they are said.
pub fn text_pairs(env: &Environment) -> Vec<(Text, Text)> {
    env.iter()
        .map(|(name, value)| (Text::from(name), Text::from(value)))
        .collect()
}

/// What was said as variables.
pub fn environment(pairs: &[(Text, Text)]) -> Environment {
    let word = |text: &Text| text.as_os_str().to_owned();
    pairs.iter().map(|(name, value)| (word(name), word(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use offleash_planner::base::{CopyAnswer, CopyOrder};

    fn order() -> CopyOrder {
        CopyOrder {
            state: Text(b"/s/\xff".to_vec()),
            from: "a".parse().unwrap(),
            is_copy: true,
            to: "b".parse().unwrap(),
            bytes: u64::MAX,
            entries: 0,
        }
    }

    #[test]
    fn an_order_arrives_through_a_file_in_memory() {
        let file = File::from(order_file(&order()).unwrap());
        assert_eq!(read::<CopyOrder>(file).unwrap(), order());
    }

    #[test]
    fn what_is_cut_or_followed_or_something_else_is_no_message() {
        let whole = frame(&order()).unwrap();
        for length in 0..whole.len() {
            assert!(only::<CopyOrder>(&whole[..length]).is_err(), "{length}");
        }
        assert!(only::<CopyOrder>(&[whole.as_slice(), b"x"].concat()).is_err());
        assert!(only::<CopyAnswer>(&whole).is_err());
        assert!(only::<CopyOrder>(&[0xff; 8]).is_err());
    }
}
