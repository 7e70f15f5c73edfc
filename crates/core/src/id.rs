//! Identifiers of sandboxes and runs.

use std::fmt;
use std::str::FromStr;

/// The id of one run: 1 to 32 characters of `[a-z0-9]`, starting with a letter, safe as a file, cgroup and host name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

/// A string that is not a [`RunId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a run id: expected 1 to 32 characters a-z and 0-9, the first a letter", .0.escape_debug())]
pub struct RunIdError(pub String);

impl RunId {
    /// Builds an id that sorts by time: `r`, nine base-36 digits of `unix_ms`, seven of `random`.
    pub fn from_parts(unix_ms: u64, random: u64) -> Self {
        let mut id = String::with_capacity(17);
        id.push('r');
        push_base36(&mut id, unix_ms, 9);
        push_base36(&mut id, random, 7);
        Self(id)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The digits of a sandbox's id in a daemon, behind its `i`: 98 bits.
pub const SANDBOX_ID_DIGITS: usize = 19;

/// What the owner of a sandbox calls it: 1 to 63 characters of `[a-z0-9._-]`, the first a letter or digit, and never what
/// could be the id of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SandboxName(String);

/// A string that is not a [`SandboxName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxNameError {
    /// Characters that no name has, none, or too many.
    #[error("`{}` is not a name: expected 1 to 63 characters a-z, 0-9, `.`, `_` and `-`, the first a letter or digit", .0.escape_debug())]
    Malformed(String),
    /// It could be the id of another sandbox.
    #[error("`{0}` looks like the id of a sandbox")]
    IsId(String),
}

impl SandboxName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxName {
    type Err = SandboxNameError;

    fn from_str(text: &str) -> Result<Self, SandboxNameError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let starts_well = text.bytes().next().is_some_and(plain);
        if !starts_well || text.len() > 63 || !text.bytes().all(|byte| plain(byte) || b"._-".contains(&byte)) {
            return Err(SandboxNameError::Malformed(text.to_owned()));
        }
        if text.len() == SANDBOX_ID_DIGITS + 1 && text.starts_with('i') && text.bytes().all(plain) {
            return Err(SandboxNameError::IsId(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

fn push_base36(text: &mut String, value: u64, digits: u32) {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    for position in (0..digits).rev() {
        let digit = (value / 36_u64.pow(position)) % 36;
        text.push(char::from(DIGITS[usize::try_from(digit).unwrap_or(0)]));
    }
}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for RunId {
    type Error = RunIdError;

    fn try_from(text: String) -> Result<Self, RunIdError> {
        let starts_well = text.starts_with(|first: char| first.is_ascii_lowercase());
        let rest_well = text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if starts_well && rest_well && text.len() <= 32 {
            Ok(Self(text))
        } else {
            Err(RunIdError(text))
        }
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time() {
        assert!(RunId::from_parts(1_700_000_000_000, u64::MAX) < RunId::from_parts(1_700_000_000_001, 0));
    }

    #[test]
    fn built_ids_parse() {
        let id = RunId::from_parts(u64::MAX, u64::MAX);
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
    }

    #[test]
    fn a_name_is_no_id_and_no_path() {
        for good in ["a", "0", "my-box_2.x", "iabc", "i123456789012345678-", &"a".repeat(63)] {
            assert_eq!(good.parse::<SandboxName>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "-a",
            ".",
            "..",
            "A",
            "a/b",
            "a:b",
            "a b",
            "é",
            &"a".repeat(64),
            "i1234567890123456789",
        ] {
            assert!(bad.parse::<SandboxName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_and_upper_case_are_refused() {
        for bad in [
            "",
            "..",
            "a/b",
            "R1",
            "1a",
            "a\n",
            "é",
            "abcdefghijklmnopqrstuvwxyzabcdefg",
        ] {
            assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
        }
    }
}
