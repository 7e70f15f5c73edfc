//! Instructions of E2B's template builder, as its SDKs send them: a kind, and texts in an order that the kind says.
//!
//! | kind | texts |
//! |---|---|
//! | `RUN` | a command for a shell; who runs it, if not the present user; beside them secrets, variables of that command |
//! | `COPY` | source, destination, owner or nothing, permission bits in octal or nothing; the archive is named by its hash |
//! | `ENV` | names and values in turn |
//! | `WORKDIR`, `USER` | a directory; a user |

use serde::{Deserialize, Serialize};

use super::secrets::StepSecrets;

/// How many digits of a hash name an archive that was uploaded.
const HASH_DIGITS: usize = 64;

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum InstructionKind {
    /// Runs a command.
    Run,
    /// Copies files of an archive that was uploaded.
    Copy,
    /// Sets variables.
    Env,
    /// Changes the directory.
    Workdir,
    /// Changes the user.
    User,
}

impl InstructionKind {
    /// As in `RUN`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "RUN",
            Self::Copy => "COPY",
            Self::Env => "ENV",
            Self::Workdir => "WORKDIR",
            Self::User => "USER",
        }
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildInstruction {
    /// What it does.
    #[serde(rename = "type")]
    pub kind: InstructionKind,
    /// Its texts.
    #[serde(default)]
    pub args: Vec<String>,
    /// The archive that a copy is of.
    #[serde(default, rename = "filesHash")]
    pub files: Option<UploadHash>,
    /// Whether it, and each after it, is carried out whatever is known of it.
    #[serde(default)]
    pub force: bool,
    /// Variables of a command that its texts do not have, so that nothing which is kept of them does.
    #[serde(default, skip_serializing_if = "StepSecrets::is_empty")]
    pub secrets: StepSecrets,
}

/// What an archive that was uploaded is called: 64 digits of `[0-9a-f]`. It is the client's word for it, and nobody can check
/// it: the hash is not of the archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UploadHash(String);

/// What is no such hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hash of files has {HASH_DIGITS} digits of 0-9 and a-f")]
pub struct BadUploadHash;

impl UploadHash {
    /// As text, which any file can be called.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for UploadHash {
    type Err = BadUploadHash;

    fn from_str(text: &str) -> Result<Self, BadUploadHash> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.len() == HASH_DIGITS && text.bytes().all(is_digit) {
            true => Ok(Self(text.to_owned())),
            false => Err(BadUploadHash),
        }
    }
}

impl TryFrom<String> for UploadHash {
    type Error = BadUploadHash;

    fn try_from(text: String) -> Result<Self, BadUploadHash> {
        text.parse()
    }
}

impl From<UploadHash> for String {
    fn from(hash: UploadHash) -> Self {
        hash.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_read_as_sdks_write_them() {
        let hash = "0".repeat(64);
        let text = format!(
            r#"{{"type":"COPY","args":["a","/b","",""],"force":false,"filesHash":"{hash}","forceUpload":true}}"#
        );
        let read: BuildInstruction = serde_json::from_str(&text).unwrap();
        assert_eq!(read.kind, InstructionKind::Copy);
        assert_eq!(read.files.as_ref().map(UploadHash::as_str), Some(hash.as_str()));
        let read: BuildInstruction = serde_json::from_str(r#"{"type":"RUN"}"#).unwrap();
        assert_eq!((read.args.len(), read.force), (0, false));
        let text = r#"{"type":"RUN","args":["x"],"secrets":{"TOKEN":"hunter2"}}"#;
        let read: BuildInstruction = serde_json::from_str(text).unwrap();
        assert_eq!(read.secrets.iter().next(), Some(("TOKEN", "hunter2")));
        assert!(!format!("{read:?}").contains("hunter2"));
        for bad in [
            r#"{"type":"run"}"#,
            r#"{"type":"COPY","filesHash":"../../x"}"#,
            r#"{"type":"COPY","filesHash":"ABC"}"#,
        ] {
            assert!(serde_json::from_str::<BuildInstruction>(bad).is_err(), "{bad}");
        }
    }
}
