//! A password or a token: shown to nobody, and wiped when it is no longer needed.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroizing;

/// A password or a token.
#[derive(Clone, Default)]
pub(super) struct SecretText(Zeroizing<String>);

impl SecretText {
    pub(super) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl Deref for SecretText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl<'de> serde::Deserialize<'de> for SecretText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}
