//! The value of a secret: shown to nobody, and wiped when it is no longer needed.

use core::fmt;

use zeroize::Zeroizing;

use crate::error::{ErrorKind, Explained};
use crate::network::confidential;

/// The shortest value: one that is shorter occurs by chance in what servers answer, where it could not be told apart.
pub const MIN_VALUE: usize = 8;

/// The longest value: servers take heads of not much more.
pub const MAX_VALUE: usize = 8 * 1024;

/// The value of a secret. Neither `Debug` nor `Display` show it, and serde writes it in no form that people read.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SecretValue(#[serde(with = "confidential")] Zeroizing<Vec<u8>>);

/// Bytes that are no value of a secret; what they are is not said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// There are none.
    #[error("its value is empty")]
    Empty,
    /// There are fewer than [`MIN_VALUE`].
    #[error("its value has fewer than {MIN_VALUE} bytes")]
    Short,
    /// There are more than [`MAX_VALUE`].
    #[error("its value has more than {MAX_VALUE} bytes")]
    Long,
    /// One ends a line.
    #[error("its value has more than one line")]
    LineEnd,
    /// One is NUL or another control character.
    #[error("its value contains NUL or another control character")]
    Control,
}

impl SecretValue {
    /// Takes bytes of a variable or a file, of which one line end at the end is no part.
    ///
    /// # Errors
    /// [`ValueError`] for what a header cannot hold or what is of no plausible length.
    pub fn new(bytes: Vec<u8>) -> Result<Self, ValueError> {
        let mut bytes = Zeroizing::new(bytes);
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.is_empty() {
            Err(ValueError::Empty)
        } else if bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            Err(ValueError::LineEnd)
        } else if bytes.iter().any(u8::is_ascii_control) {
            Err(ValueError::Control)
        } else if bytes.len() < MIN_VALUE {
            Err(ValueError::Short)
        } else if bytes.len() > MAX_VALUE {
            Err(ValueError::Long)
        } else {
            Ok(Self(bytes))
        }
    }

    /// The bytes, for whoever puts them into a request or looks for them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl fmt::Display for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl Explained for ValueError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Empty => "set the variable, or fill the file, before offleash is started",
            Self::Short => "what is so short cannot be kept out of answers; use a longer secret",
            Self::Long | Self::LineEnd | Self::Control => "a secret is one line that fits into a header",
        };
        Some(hint.to_owned())
    }
}
