//! How serious a line about a sandbox is.

use std::fmt;
use std::str::FromStr;

/// How serious a line is. The order is that of seriousness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Of interest when something is looked for.
    Debug,
    /// The ordinary.
    Info,
    /// Unusual.
    Warn,
    /// Something failed.
    Error,
}

/// A word that names no level of a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a level (debug, info, warn, error)", .0.escape_debug())]
pub struct LogLevelError(pub String);

impl LogLevel {
    /// All of them, the least serious first.
    pub const ALL: [LogLevel; 4] = [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(word: &str) -> Result<Self, LogLevelError> {
        let found = LogLevel::ALL.into_iter().find(|level| level.as_str() == word);
        found.ok_or_else(|| LogLevelError(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_they_are_written_and_in_the_order_of_seriousness() {
        for level in LogLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!(LogLevel::ALL.is_sorted());
        assert_eq!("Warn".parse::<LogLevel>(), Err(LogLevelError("Warn".to_owned())));
    }
}
