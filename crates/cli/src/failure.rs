//! The user's message of every error: what failed, why, and what to do.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::policy::PolicyError;
use offleash_core::text::{self, Text};

/// The exit code of offleash's own failures.
pub(crate) const EXIT_FAILURE: u8 = 125;

/// Something that ends the program, ready to be shown.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    code: u8,
    is_warning: bool,
}

impl Failure {
    /// A failure of the command line's own.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            code: EXIT_FAILURE,
            is_warning: false,
        }
    }

    /// Adds what to do.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what was tried, of which it is the cause.
    pub(crate) fn while_trying(mut self, tried: impl Into<String>) -> Self {
        let message = std::mem::replace(&mut self.message, tried.into());
        self.causes.insert(0, message);
        self
    }

    /// Adds why.
    pub(crate) fn with_cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// Ends the program with another code than that of offleash's own failures.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// What is wrong at a place of a file, as editors and compilers name it.
    pub(crate) fn at(file: &Path, error: &PolicyError) -> Self {
        let (line, column) = (error.line, error.column);
        Self::new(format!("{}:{line}:{column}: {}", Text::from(file), error.message))
    }

    /// A failure that an error of a room explains.
    pub(crate) fn explained(error: &dyn Explained) -> Self {
        let mut failure = Self::from_error(error);
        failure.hint = error.hint().or_else(|| hint_of(error.kind()));
        failure
    }

    /// A failure that any error says.
    pub(crate) fn from_error(error: &(impl std::error::Error + ?Sized)) -> Self {
        let mut causes = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        Self {
            message: error.to_string(),
            causes,
            hint: None,
            code: EXIT_FAILURE,
            is_warning: false,
        }
    }

    /// The same as a warning: nothing fails of it.
    pub(crate) fn into_warning(mut self) -> Self {
        self.is_warning = true;
        self
    }

    /// What failed, with its causes, and what to do.
    pub(crate) fn into_words(self) -> (String, Option<String>) {
        let message = std::iter::once(self.message).chain(self.causes);
        (message.collect::<Vec<_>>().join(": "), self.hint)
    }

    /// Prints to standard error.
    pub(crate) fn print(self) -> ExitCode {
        ExitCode::from(self.tell())
    }

    /// Prints to standard error, and answers the exit code.
    pub(crate) fn tell(self) -> u8 {
        crate::terminal::complain(&self.to_string());
        self.code
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Messages name paths and programs, which others may have chosen.
        let word = if self.is_warning { "warning" } else { "error" };
        write!(f, "{word}: {}", lines(&self.message))?;
        for cause in &self.causes {
            write!(f, "\n  caused by: {}", lines(cause))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n\nhint: {}", lines(hint))?;
        }
        Ok(())
    }
}

fn lines(message: &str) -> String {
    let mut shown = String::new();
    for (number, line) in message.lines().enumerate() {
        let separator = if number == 0 { "" } else { "\n  " };
        // Writing to a string cannot fail.
        let _written = write!(shown, "{separator}{}", text::one_line(line.as_bytes()));
    }
    shown
}

fn hint_of(kind: ErrorKind) -> Option<String> {
    match kind {
        ErrorKind::Exhausted => Some("free some space, or raise the limit that is named".to_owned()),
        _ => None,
    }
}

impl<E: Explained> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::explained(&error)
    }
}
