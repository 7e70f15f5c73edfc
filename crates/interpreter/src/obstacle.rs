//! What keeps a state from being carried, or from being saved at all.

use std::fmt;

use offleash_core::error::ErrorKind;
use offleash_core::text::one_line;
use serde::{Deserialize, Serialize};

use crate::language::Language;

/// Something that cannot be carried, in the words of the sandbox, which are bounded and not to be believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarryObstacle {
    /// The variable, or what else it is, in parentheses.
    pub name: String,
    /// Its type.
    pub type_name: String,
    /// Why it cannot be carried.
    pub reason: String,
}

impl CarryObstacle {
    /// Characters of each of the texts.
    const MAX_COUNT: usize = 300;

    /// All that a context has.
    pub(crate) fn whole_context(language: Language, reason: &str) -> Self {
        Self {
            name: "(all variables)".to_owned(),
            type_name: language.name().to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// As a driver says it: three lines.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(payload);
        let mut lines = text
            .split('\n')
            .map(|line| line.chars().take(Self::MAX_COUNT).collect());
        let (name, type_name, reason) = (lines.next()?, lines.next()?, lines.next()?);
        lines.next().is_none().then_some(Self {
            name,
            type_name,
            reason,
        })
    }
}

impl fmt::Display for CarryObstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [name, type_name, reason] =
            [&self.name, &self.type_name, &self.reason].map(|text| one_line(text.as_bytes()));
        write!(formatter, "`{name}` ({type_name}): {reason}")
    }
}

/// Why a state was not saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSaved {
    /// It is larger than it may be.
    TooLarge,
    /// There is no place for it in the sandbox.
    DiskFull,
    /// It took longer than it may.
    Time,
    /// The sandbox could not, in its own words.
    Other,
}

impl NotSaved {
    /// As a driver says it.
    pub(crate) fn parse(word: &str) -> Self {
        match word {
            "large" => Self::TooLarge,
            "full" => Self::DiskFull,
            "time" => Self::Time,
            _ => Self::Other,
        }
    }

    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::TooLarge | Self::DiskFull => ErrorKind::Exhausted,
            Self::Time => ErrorKind::Timeout,
            Self::Other => ErrorKind::Unavailable,
        }
    }
}

impl fmt::Display for NotSaved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::TooLarge => "it is too large",
            Self::DiskFull => "the disk of the sandbox is full",
            Self::Time => "it took too long",
            Self::Other => "the sandbox could not do it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_reads_as_it_is_called_and_drives_no_terminal() {
        let shown = |payload: &[u8]| CarryObstacle::parse(payload).unwrap().to_string();
        assert_eq!(
            shown("m[\"it's\"]\n_io.TextIOWrapper\ncannot pickle 'größe' \\ objects".as_bytes()),
            "`m[\"it's\"]` (_io.TextIOWrapper): cannot pickle 'größe' \\ objects"
        );
        let hostile = shown(b"a\x1b]52;c;eA\x07\n\xe2\x80\xaegpj\nx\ry");
        assert!(hostile.chars().all(offleash_core::text::is_visible), "{hostile:?}");
        assert!(hostile.contains("$'a\\x1b]52;c;eA\\x07'"), "{hostile}");
    }
}
