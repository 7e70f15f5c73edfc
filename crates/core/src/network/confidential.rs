//! How what nobody may read passes between our own processes: in the compact form that they speak, and in no other.
//!
//! A form that people read ends up in a record, a log or an answer, so that it is refused there. Used by
//! `#[serde(with = "confidential")]`.

use core::fmt;

use serde::de::{Error as _, Visitor};
use serde::ser::Error as _;
use serde::{Deserializer, Serializer};
use zeroize::Zeroizing;

const REFUSED: &str = "what is confidential is written in no form that people read";

/// Bytes that are wiped when they are dropped.
pub(crate) trait Confidential: Sized {
    /// What passes.
    fn bytes(&self) -> &[u8];

    /// The same on the other side; `None` for what is none.
    fn from_bytes(bytes: Zeroizing<Vec<u8>>) -> Option<Self>;
}

impl Confidential for Zeroizing<Vec<u8>> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn from_bytes(bytes: Zeroizing<Vec<u8>>) -> Option<Self> {
        Some(bytes)
    }
}

impl Confidential for Zeroizing<String> {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn from_bytes(bytes: Zeroizing<Vec<u8>>) -> Option<Self> {
        core::str::from_utf8(&bytes)
            .ok()
            .map(|text| Zeroizing::new(text.to_owned()))
    }
}

pub(crate) fn serialize<T: Confidential, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    match serializer.is_human_readable() {
        true => Err(S::Error::custom(REFUSED)),
        false => serializer.serialize_bytes(value.bytes()),
    }
}

pub(crate) fn deserialize<'de, T: Confidential, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    if deserializer.is_human_readable() {
        return Err(D::Error::custom(REFUSED));
    }
    let bytes = deserializer.deserialize_bytes(BytesVisitor)?;
    T::from_bytes(bytes).ok_or_else(|| D::Error::custom("it is not what it should be"))
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Zeroizing<Vec<u8>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Zeroizing::new(bytes.to_vec()))
    }
}
