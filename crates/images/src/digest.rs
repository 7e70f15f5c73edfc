//! The SHA-256 digests by which an image names its parts.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// What a digest begins with; no other algorithm is known.
const PREFIX: &str = "sha256:";

/// The SHA-256 digest of a manifest, configuration or layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageDigest([u8; 32]);

/// A text that is no digest that we know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no SHA-256 digest (`sha256:` and 64 digits of a-f, 0-9)", text.escape_debug())]
pub struct DigestError {
    /// What was found.
    pub text: String,
}

impl ImageDigest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Its 64 digits.
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// The digest of these 64 digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }
}

impl FromStr for ImageDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits = text.strip_prefix(PREFIX).and_then(Self::from_hex);
        digits.ok_or_else(|| DigestError {
            text: text.chars().take(100).collect(),
        })
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for ImageDigest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ImageDigest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Takes bytes one after another, and answers their digest.
#[derive(Debug, Default, Clone)]
pub(crate) struct DigestHasher(Sha256);

impl DigestHasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> ImageDigest {
        ImageDigest(self.0.finalize().into())
    }
}

/// The name of a layer together with all below it (OCI image specification, "Layer ChainID").
pub(crate) fn chain_ids(diff_ids: &[ImageDigest]) -> Vec<ImageDigest> {
    let mut chain = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let next = match chain.last() {
            None => *diff_id,
            Some(below) => ImageDigest::of(format!("{below} {diff_id}").as_bytes()),
        };
        chain.push(next);
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sha_256_digests_are_known() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(empty.parse(), Ok(ImageDigest::of(b"")));
        assert_eq!(ImageDigest::of(b"").to_string(), empty);
        for wrong in [
            "",
            "sha256:",
            &empty[..70],
            &empty.to_uppercase(),
            &format!("{empty}0"),
            "sha512:00",
            "sha256:../../../../../../../../../../../../../../../../../../../../../../xx",
        ] {
            assert!(wrong.parse::<ImageDigest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_chain_names_a_layer_with_all_below_it() {
        let [a, b] = [ImageDigest::of(b"a"), ImageDigest::of(b"b")];
        let chain = chain_ids(&[a, b]);
        assert_eq!(chain[0], a);
        assert_eq!(chain[1], ImageDigest::of(format!("{a} {b}").as_bytes()));
        assert_ne!(chain_ids(&[b, a])[1], chain[1]);
    }
}
