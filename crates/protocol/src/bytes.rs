//! How byte strings are laid down: as a length and the bytes, in one copy, where serde would go byte by byte.
//!
//! For `#[serde(with = "…")]`. Lists of byte strings are bounded in number too, because one byte on the wire becomes a whole `Vec` in memory.

use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use crate::message::MAX_STRINGS;

/// A byte string that is laid down in one piece.
struct BytePiece(Vec<u8>);

/// The same, borrowed, for writing.
struct PieceRef<'a>(&'a [u8]);

struct PieceVisitor;

impl Visitor<'_> for PieceVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

impl<'de> Deserialize<'de> for BytePiece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer).map(BytePiece)
    }
}

impl Serialize for PieceRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Lays down one byte string.
///
/// # Errors
/// Those of `serializer`.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Takes up one byte string.
///
/// # Errors
/// Those of `deserializer`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_bytes(PieceVisitor)
}

/// A list that refuses to grow beyond `MAX_COUNT`; `Wire` is one entry as read, `Kept` as kept.
struct ListVisitor<Wire, Kept, const MAX_COUNT: usize>(fn(Wire) -> Kept);

impl<'de, Wire: Deserialize<'de>, Kept, const MAX_COUNT: usize> Visitor<'de> for ListVisitor<Wire, Kept, MAX_COUNT> {
    type Value = Vec<Kept>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Kept>, A::Error> {
        // The announced length is not used to allocate: it is the sender's claim, and the entries may not follow.
        let mut kept = Vec::new();
        while let Some(entry) = list.next_element::<Wire>()? {
            if kept.len() == MAX_COUNT {
                return Err(A::Error::custom("too many entries"));
            }
            kept.push(self.0(entry));
        }
        Ok(kept)
    }
}

fn serialize_list<'a, S, T: 'a, Wire: Serialize>(
    list: &'a [T],
    most: usize,
    wire: fn(&'a T) -> Wire,
    serializer: S,
) -> Result<S::Ok, S::Error>
where
    S: Serializer,
{
    if list.len() > most {
        return Err(S::Error::custom("too many entries"));
    }
    let mut sequence = serializer.serialize_seq(Some(list.len()))?;
    for entry in list {
        sequence.serialize_element(&wire(entry))?;
    }
    sequence.end()
}

/// `Vec<Vec<u8>>`.
pub mod list {
    use super::{BytePiece, Deserializer, ListVisitor, MAX_STRINGS, PieceRef, Serializer, Vec, serialize_list};

    /// Lays them down.
    ///
    /// # Errors
    /// When there are more than [`crate::MAX_STRINGS`].
    pub fn serialize<S: Serializer>(list: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        serialize_list(list, MAX_STRINGS, |entry| PieceRef(entry), serializer)
    }

    /// Takes them up.
    ///
    /// # Errors
    /// When there are more than [`crate::MAX_STRINGS`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<_, _, MAX_STRINGS>(|piece: BytePiece| piece.0))
    }
}

type BytePair = (Vec<u8>, Vec<u8>);

fn serialize_pairs<S: Serializer>(list: &[BytePair], most: usize, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_list(
        list,
        most,
        |(name, value)| (PieceRef(name), PieceRef(value)),
        serializer,
    )
}

fn deserialize_pairs<'de, const MAX_COUNT: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<BytePair>, D::Error> {
    deserializer.deserialize_seq(ListVisitor::<_, _, MAX_COUNT>(
        |(name, value): (BytePiece, BytePiece)| (name.0, value.0),
    ))
}

/// `Vec<(Vec<u8>, Vec<u8>)>`.
pub mod pairs {
    use super::{BytePair, Deserializer, MAX_STRINGS, Serializer, Vec, deserialize_pairs, serialize_pairs};

    /// Lays them down.
    ///
    /// # Errors
    /// When there are more than [`crate::MAX_STRINGS`].
    pub fn serialize<S: Serializer>(list: &[BytePair], serializer: S) -> Result<S::Ok, S::Error> {
        serialize_pairs(list, MAX_STRINGS, serializer)
    }

    /// Takes them up.
    ///
    /// # Errors
    /// When there are more than [`crate::MAX_STRINGS`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BytePair>, D::Error> {
        deserialize_pairs::<MAX_STRINGS, D>(deserializer)
    }
}

/// `Vec<(Vec<u8>, Vec<u8>)>` of what a file is annotated with.
pub(crate) mod metadata {
    use super::{BytePair, Deserializer, Serializer, Vec, deserialize_pairs, serialize_pairs};
    use crate::files::MAX_METADATA;

    pub(crate) fn serialize<S: Serializer>(list: &[BytePair], serializer: S) -> Result<S::Ok, S::Error> {
        serialize_pairs(list, MAX_METADATA, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BytePair>, D::Error> {
        deserialize_pairs::<MAX_METADATA, D>(deserializer)
    }
}

/// A list of at most [`crate::files::ENTRIES_CHUNK`].
pub(crate) mod chunk {
    use super::{Deserialize, Deserializer, ListVisitor, Serialize, Serializer, Vec};
    use crate::files::ENTRIES_CHUNK;

    pub(crate) fn serialize<S: Serializer, T: Serialize>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize_list(list, usize::MAX, |entry| entry, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<T, T, ENTRIES_CHUNK>(|entry| entry))
    }
}
