//! Ids that code inside a sandbox cannot guess.

use std::fmt;
use std::io;
use std::str::FromStr;

/// 128 bits, written as 32 digits of `[0-9a-f]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HexId(u128);

/// What was given is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 32 digits of [0-9a-f]")]
pub struct IdError;

impl HexId {
    /// Digits of an id.
    pub const DIGITS: usize = 32;

    /// The id of nothing.
    pub const ZERO: Self = Self(0);

    /// An id that nobody can guess.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = bytes.get_mut(filled..).unwrap_or_default();
            filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for HexId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl fmt::Debug for HexId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl FromStr for HexId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != Self::DIGITS || !text.bytes().all(is_digit) {
            return Err(IdError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| IdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is_one() {
        let id = HexId::random().unwrap();
        assert_ne!(id, HexId::random().unwrap());
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(HexId::ZERO.to_string(), "0".repeat(32));
        for text in [
            "",
            "0",
            &"0".repeat(33),
            &"G".repeat(32),
            &"A".repeat(32),
            &format!("+{}", "0".repeat(31)),
        ] {
            assert_eq!(text.parse::<HexId>(), Err(IdError), "{text}");
        }
    }
}
