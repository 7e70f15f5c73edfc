//! What bytes come to.

use data_encoding::{BASE64, HEXLOWER};
use md5::Md5;
use sha2::{Digest as _, Sha256};

/// The digests of bytes that come one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digester {
    md5: Md5,
    sha256: Sha256,
    length: u64,
}

/// The digests of a file or an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digests {
    md5: Vec<u8>,
    /// SHA-256, in hexadecimal digits.
    pub(crate) sha256: String,
    /// How many bytes there were.
    pub(crate) length: u64,
}

impl Digester {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.sha256.update(bytes);
        self.length += bytes.len() as u64;
    }

    pub(crate) fn finish(self) -> Digests {
        Digests {
            md5: self.md5.finalize().to_vec(),
            sha256: HEXLOWER.encode(&self.sha256.finalize()),
            length: self.length,
        }
    }
}

impl Digests {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut digester = Digester::default();
        digester.update(bytes);
        digester.finish()
    }

    /// As `Content-MD5` has it (RFC 1864).
    pub(crate) fn content_md5(&self) -> String {
        BASE64.encode(&self.md5)
    }

    /// Whether an `ETag` says that these bytes are the object; `None` when it says nothing of bytes: it is that of an object made
    /// of parts, or of one encrypted with a key of its owner.
    pub(crate) fn are_of_tag(&self, tag: &str) -> Option<bool> {
        let bare = tag.trim_matches('"');
        let is_digest = bare.len() == 32 && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| HEXLOWER.encode(&self.md5).eq_ignore_ascii_case(bare))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_one_piece_is_its_digest_and_others_say_nothing() {
        let digests = Digests::of(b"hello");
        assert_eq!(digests.content_md5(), "XUFAKrxLKna5cZ2REBfFkg==");
        assert_eq!(digests.are_of_tag("\"5d41402abc4b2a76b9719d911017c592\""), Some(true));
        assert_eq!(digests.are_of_tag("5D41402ABC4B2A76B9719D911017C592"), Some(true));
        assert_eq!(digests.are_of_tag("\"5d41402abc4b2a76b9719d911017c593\""), Some(false));
        assert_eq!(digests.are_of_tag("\"5d41402abc4b2a76b9719d911017c592-2\""), None);
        assert_eq!(digests.are_of_tag("\"anything\""), None);
    }
}
