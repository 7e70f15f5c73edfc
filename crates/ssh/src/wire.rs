//! The data types of the protocol (RFC 4251, section 5), read and written.

use crate::error::SshError;

/// The numbers of messages (RFC 4250, section 4.1).
pub(crate) mod message {
    pub(crate) const DISCONNECT: u8 = 1;
    pub(crate) const IGNORE: u8 = 2;
    pub(crate) const UNIMPLEMENTED: u8 = 3;
    pub(crate) const DEBUG: u8 = 4;
    pub(crate) const SERVICE_REQUEST: u8 = 5;
    pub(crate) const SERVICE_ACCEPT: u8 = 6;
    pub(crate) const KEXINIT: u8 = 20;
    pub(crate) const NEWKEYS: u8 = 21;
    pub(crate) const KEX_ECDH_INIT: u8 = 30;
    pub(crate) const KEX_ECDH_REPLY: u8 = 31;
    pub(crate) const USERAUTH_REQUEST: u8 = 50;
    pub(crate) const USERAUTH_SUCCESS: u8 = 52;
    pub(crate) const GLOBAL_REQUEST: u8 = 80;
    pub(crate) const REQUEST_FAILURE: u8 = 82;
    pub(crate) const CHANNEL_OPEN: u8 = 90;
    pub(crate) const CHANNEL_OPEN_CONFIRMATION: u8 = 91;
    pub(crate) const CHANNEL_OPEN_FAILURE: u8 = 92;
    pub(crate) const CHANNEL_WINDOW_ADJUST: u8 = 93;
    pub(crate) const CHANNEL_DATA: u8 = 94;
    pub(crate) const CHANNEL_EXTENDED_DATA: u8 = 95;
    pub(crate) const CHANNEL_EOF: u8 = 96;
    pub(crate) const CHANNEL_CLOSE: u8 = 97;
    pub(crate) const CHANNEL_REQUEST: u8 = 98;
    pub(crate) const CHANNEL_SUCCESS: u8 = 99;
    pub(crate) const CHANNEL_FAILURE: u8 = 100;
}

const CUT: SshError = SshError::Protocol("a message ends in the middle");

/// Reads what others wrote; nothing beyond its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WireReader<'a>(&'a [u8]);

impl<'a> WireReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], SshError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, SshError> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn boolean(&mut self) -> Result<bool, SshError> {
        self.byte().map(|byte| byte != 0)
    }

    pub(crate) fn number(&mut self) -> Result<u32, SshError> {
        let bytes = self.0.first_chunk::<4>().ok_or(CUT)?;
        self.0 = &self.0[4..];
        Ok(u32::from_be_bytes(*bytes))
    }

    pub(crate) fn long(&mut self) -> Result<u64, SshError> {
        let bytes = self.0.first_chunk::<8>().ok_or(CUT)?;
        self.0 = &self.0[8..];
        Ok(u64::from_be_bytes(*bytes))
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], SshError> {
        let length = self.number()?;
        self.take(usize::try_from(length).map_err(|_| CUT)?)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, SshError> {
        std::str::from_utf8(self.string()?).map_err(|_| SshError::Protocol("a name is no text"))
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Writes a message.
#[derive(Debug, Default, Clone)]
pub(crate) struct WireWriter(pub(crate) Vec<u8>);

impl WireWriter {
    /// One that begins with the number of a message.
    pub(crate) fn message(number: u8) -> Self {
        Self(vec![number])
    }

    pub(crate) fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(crate) fn boolean(self, value: bool) -> Self {
        self.byte(u8::from(value))
    }

    pub(crate) fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn long(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn string(mut self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        // Nothing that is written here comes near it.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend(length.to_be_bytes());
        self.0.extend(bytes);
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// A positive number of many digits, the highest first.
    pub(crate) fn mpint(self, digits: &[u8]) -> Self {
        let first = digits.iter().position(|digit| *digit != 0).unwrap_or(digits.len());
        let digits = digits.get(first..).unwrap_or_default();
        match digits.first() {
            Some(highest) if highest & 0x80 != 0 => self.string([&[0], digits].concat()),
            _ => self.string(digits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let written = WireWriter::message(94)
            .number(7)
            .string("ab")
            .boolean(true)
            .long(1 << 40)
            .0;
        let mut reader = WireReader::new(&written);
        assert_eq!(reader.byte().unwrap(), 94);
        assert_eq!(reader.number().unwrap(), 7);
        assert_eq!(reader.text().unwrap(), "ab");
        assert!(reader.boolean().unwrap());
        assert_eq!(reader.long().unwrap(), 1 << 40);
        assert!(reader.byte().is_err());
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        for bytes in [&[][..], &[0, 0, 0], &[0, 0, 0, 2, 1], &[255, 255, 255, 255, 1]] {
            assert!(WireReader::new(bytes).string().is_err(), "{bytes:?}");
        }
        assert!(WireReader::new(&[0, 0, 0, 1, 0xff]).text().is_err());
    }

    #[test]
    fn numbers_of_many_digits_are_positive_and_short() {
        // The examples of RFC 4251, section 5.
        for (digits, written) in [
            (&[0, 0][..], &[0, 0, 0, 0][..]),
            (&[0x80], &[0, 0, 0, 2, 0, 0x80]),
            (&[0, 9, 0xa3], &[0, 0, 0, 2, 9, 0xa3]),
        ] {
            assert_eq!(WireWriter::default().mpint(digits).0, written);
        }
    }
}
