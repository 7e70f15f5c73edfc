//! Volumes: directories that outlive sandboxes. Their names and ids, how much they may hold, and where a sandbox has them.

use std::fmt;
use std::str::FromStr;

use crate::units::Bytes;

/// What the owner of a volume calls it: 1 to 63 characters of `[A-Za-z0-9._-]`, the first a letter or digit, and never what
/// is the id of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

/// The id of a volume, which no other has: `v` and 32 digits of 0-9 and a-f.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

/// A string that is not a [`VolumeName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeNameError {
    /// Characters that no name has, none, or too many.
    #[error("`{}` is not the name of a volume: expected 1 to 63 characters a-z, A-Z, 0-9, `.`, `_` and `-`, the first a letter or digit", .0.escape_debug())]
    Malformed(String),
    /// It is the id of a volume.
    #[error("`{0}` looks like the id of a volume")]
    IsId(String),
}

/// A string that is not a [`VolumeId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not the id of a volume", .0.escape_debug())]
pub struct VolumeIdError(String);

/// How many hexadecimal digits an id has.
const ID_DIGITS: usize = 32;
const MAX_NAME: usize = 63;

impl VolumeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl VolumeId {
    /// The id of these random bits.
    pub fn from_random(bits: u128) -> Self {
        Self(format!("v{bits:032x}"))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = VolumeNameError;

    fn from_str(text: &str) -> Result<Self, VolumeNameError> {
        let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !starts_well || text.len() > MAX_NAME || !text.bytes().all(is_plain) {
            return Err(VolumeNameError::Malformed(text.to_owned()));
        }
        match text.parse::<VolumeId>() {
            Ok(_) => Err(VolumeNameError::IsId(text.to_owned())),
            Err(_) => Ok(Self(text.to_owned())),
        }
    }
}

impl FromStr for VolumeId {
    type Err = VolumeIdError;

    fn from_str(text: &str) -> Result<Self, VolumeIdError> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.strip_prefix('v') {
            Some(digits) if digits.len() == ID_DIGITS && digits.bytes().all(is_digit) => Ok(Self(text.to_owned())),
            _ => Err(VolumeIdError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for VolumeName {
    type Error = VolumeNameError;

    fn try_from(text: String) -> Result<Self, VolumeNameError> {
        text.parse()
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> String {
        name.0
    }
}

impl TryFrom<String> for VolumeId {
    type Error = VolumeIdError;

    fn try_from(text: String) -> Result<Self, VolumeIdError> {
        text.parse()
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> String {
        id.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much a volume may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeQuota {
    /// Bytes on disk.
    pub bytes: Bytes,
    /// Files, directories and links.
    pub inodes: u64,
}

/// What is in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct VolumeUsage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl VolumeQuota {
    /// The least that can be asked for: the empty directory takes some.
    pub const LEAST: Self = Self {
        bytes: Bytes(64 << 10),
        inodes: 16,
    };
    /// The most inodes: all of them are looked at when the volume is mounted.
    pub const MAX_INODES: u64 = 10_000_000;
}

impl Default for VolumeQuota {
    fn default() -> Self {
        Self {
            bytes: Bytes::mib(1024),
            inodes: 500_000,
        }
    }
}

/// Which volume is meant.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKey {
    /// That of the owner of the machine with this name.
    Name(VolumeName),
    /// That with this id, whoever has it. Only who has checked whose it is asks so.
    Id(VolumeId),
}

impl fmt::Display for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Id(id) => id.fmt(f),
        }
    }
}

/// How many volumes one sandbox can have.
pub const MAX_VOLUME_MOUNTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_told_apart() {
        let id = VolumeId::from_random(7);
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_eq!(
            id.as_str().parse::<VolumeName>(),
            Err(VolumeNameError::IsId(id.to_string()))
        );
        for name in ["a", "A.b_c-9", "0", "v1", &"x".repeat(63)] {
            assert_eq!(name.parse::<VolumeName>().unwrap().as_str(), name);
            assert!(name.parse::<VolumeId>().is_err());
        }
    }

    #[test]
    fn what_could_be_a_path_is_no_name() {
        for text in [
            "",
            ".",
            "..",
            ".a",
            "-a",
            "_a",
            "a/b",
            "/a",
            "a b",
            "a\0",
            "a\n",
            "é",
            "a:b",
            &"x".repeat(64),
        ] {
            assert!(
                matches!(text.parse::<VolumeName>(), Err(VolumeNameError::Malformed(_))),
                "{text:?}"
            );
        }
    }
}
