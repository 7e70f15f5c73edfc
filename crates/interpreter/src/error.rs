//! Why there is no context, or no cell in it.

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::one_line;

use crate::language::Language;
use crate::obstacle::{CarryObstacle, NotSaved};
use crate::process::ProcessError;

/// An error of contexts. What happens to a cell that began is told by its events instead.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// No context of the sandbox has this id.
    #[error("the sandbox has no context `{}`", id.escape_debug())]
    NotFound {
        /// The id, cut where it is very long.
        id: String,
    },
    /// There is no driver for that language.
    #[error("there is no language `{}`; there are: {}", name.escape_debug(), Language::names())]
    Language {
        /// The name, cut where it is very long.
        name: String,
    },
    /// The sandbox lacks what the language needs.
    #[error("{language} is not installed in the sandbox{}; {}", words(found), language.recipe())]
    NotInstalled {
        /// The language.
        language: Language,
        /// What its driver said of what is there; empty where nothing is.
        found: String,
    },
    /// The request itself is wrong.
    #[error("{reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// Its driver cannot be started where it is to work.
    #[error("the working directory `{}` cannot be entered: {reason}", cwd.escape_debug())]
    Directory {
        /// The directory, cut where it is very long.
        cwd: String,
        /// What the kernel said.
        reason: String,
    },
    /// There is too much of it.
    #[error("{what}")]
    Exhausted {
        /// What there is too much of, and how much there may be.
        what: String,
    },
    /// The driver did not start.
    #[error("the context did not start: {reason}")]
    NotStarted {
        /// How, with what it wrote.
        reason: String,
    },
    /// A context has what cannot be carried to another.
    #[error("context `{id}` ({language}) cannot be copied: {}", listed(obstacles))]
    Unsavable {
        /// The context.
        id: String,
        /// Its language.
        language: Language,
        /// What, and why.
        obstacles: Vec<CarryObstacle>,
    },
    /// What the cells of a context left was not written down.
    #[error("the state of context `{id}` was not saved: {why}{}", words(reason))]
    NotSaved {
        /// The context.
        id: String,
        /// Of which kind the reason is.
        why: NotSaved,
        /// What there is to say of it.
        reason: String,
    },
    /// What the cells of a context left was not read again.
    #[error("the state of context `{id}` was not loaded: {}", one_line(reason.as_bytes()))]
    NotLoaded {
        /// The context.
        id: String,
        /// Why.
        reason: String,
    },
    /// The sandbox did not do what is needed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl Explained for ContextError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Language { .. } | Self::Invalid { .. } | Self::Directory { .. } => ErrorKind::Invalid,
            Self::NotInstalled { .. } => ErrorKind::Unsupported,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::NotStarted { .. } | Self::NotLoaded { .. } => ErrorKind::Unavailable,
            Self::Unsavable { .. } => ErrorKind::Conflict,
            Self::NotSaved { why, .. } => why.kind(),
            Self::Process(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unsavable { language, .. } => Some(format!("{} first, or leave it out", remedy(*language))),
            Self::NotSaved { .. } => Some("leave out what contexts have".to_owned()),
            Self::NotFound { .. } => {
                Some("list the sandbox's contexts (GET /contexts), or make one (POST /contexts)".to_owned())
            }
            Self::Directory { .. } => Some("make the directory first, or name another".to_owned()),
            _ => None,
        }
    }
}

impl Explained for ProcessError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone => ErrorKind::NotFound,
            Self::Paused | Self::Ended => ErrorKind::Conflict,
            Self::NotFound => ErrorKind::Unsupported,
            Self::Directory { .. } => ErrorKind::Invalid,
            Self::Other { kind, .. } => *kind,
        }
    }
}

/// How many obstacles a message names.
const NAMED: usize = 5;

fn listed(obstacles: &[CarryObstacle]) -> String {
    let named: Vec<String> = obstacles.iter().take(NAMED).map(CarryObstacle::to_string).collect();
    match obstacles.len().saturating_sub(NAMED) {
        0 => named.join("; "),
        more => format!("{}; and {more} more", named.join("; ")),
    }
}

/// What there is to be done about obstacles.
fn remedy(language: Language) -> &'static str {
    match language.cannot_be_saved() {
        // No variable of it is in the way, but each of them.
        Some(_) => "delete that context",
        None => "delete that",
    }
}

fn words(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {}", one_line(reason.as_bytes())),
    }
}

/// The beginning of what a caller gave, to be shown.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
