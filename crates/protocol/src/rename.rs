//! What the host and a rename worker say to each other.
//!
//! A worker is a process of the guest's that acts as one user and carries out one renaming ([`crate::ToGuest::Rename`]).
//! The request comes over its socket, and with its first byte the two directories from which the paths lead, which are
//! those of whoever asked for it. The answer is four bytes: 0, or the number of an error (errno(3)), in the machine's
//! order. A socket that closes without an answer is that of a worker which was ended in the middle.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::message::Dialogue;

/// How names begin that are in the file system only while a directory is renamed; then follow the token's sixteen
/// hexadecimal digits. A directory of that name is the copy that is to get the new name.
pub const COPY: &str = ".offleash-rename-";

/// As [`COPY`]: a symbolic link that leads to the old name, from before the copy has the new name until the old one is gone.
///
/// Where it is there without the copy, what it leads to is no more, whatever may be left of it.
pub const GONE: &str = ".offleash-renamed-";

/// A directory is to get another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameOrder {
    /// Its path, from the first directory that comes with this.
    #[serde(with = "crate::bytes")]
    pub old: Vec<u8>,
    /// The path that it is to have, from the second.
    #[serde(with = "crate::bytes")]
    pub new: Vec<u8>,
    /// Whether what is there may be replaced, as rename(2) does it.
    pub replaces: bool,
    /// A number that nobody knows before, for the names that are needed on the way.
    pub token: u64,
    /// What to do.
    pub how: RenameWay,
}

/// What is to be done about a renaming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameWay {
    /// What the kernel does by itself, and no more: `EXDEV` for what it does not.
    ByKernel,
    /// If the kernel does not do it, a copy of the directory gets the new name.
    ByCopy,
    /// To finish what a worker with the same request began, or to undo it: `EXDEV` when it was undone.
    Settle,
}

impl Dialogue for RenameOrder {
    // Two paths (`PATH_MAX`), and what surrounds them.
    const MAX_FRAME: usize = 2 * 4096 + 64;
}

/// One of the names that are needed on the way, with its `prefix`.
pub fn name(prefix: &str, token: u64) -> Vec<u8> {
    let digit = |place: u32| b"0123456789abcdef"[usize::try_from(token >> (4 * place) & 0xf).unwrap_or(0)];
    prefix.bytes().chain((0..16).rev().map(digit)).collect()
}

/// The token of a name that [`name`] made with this prefix.
pub fn token(prefix: &str, name: &[u8]) -> Option<u64> {
    let digits = name.strip_prefix(prefix.as_bytes())?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 16 || !digits.iter().all(is_digit) {
        return None;
    }
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_token_it_was_made_with_and_no_other_has_one() {
        for number in [0, 7, u64::MAX] {
            assert_eq!(token(COPY, &name(COPY, number)), Some(number));
            assert_eq!(token(GONE, &name(COPY, number)), None);
        }
        for other in [
            &b".offleash-rename-"[..],
            b".offleash-rename-000000000000000",
            b".offleash-rename-00000000000000000",
            b".offleash-rename-000000000000000G",
            b".offleash-rename-000000000000000A",
            b".offleash-rename-+00000000000000a",
        ] {
            assert_eq!(token(COPY, other), None);
        }
    }
}
