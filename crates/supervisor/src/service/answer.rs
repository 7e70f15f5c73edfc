//! What a supervisor says of its order: one frame on its standard output, which it then closes.
//!
//! Nothing was made, and nothing is left, unless it says [`LaunchAnswer::Made`]. Before its whole order was read a supervisor makes
//! nothing; one that cannot give its answer, because who asked has died, takes back what it made and ends.

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::spec::ZygoteRole;
use offleash_core::text::Text;
use offleash_protocol::Dialogue;
use serde::{Deserialize, Serialize};

use super::error::SupervisorError;
use super::message::Hello;
use offleash_core::error::with_causes;

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchAnswer {
    /// The sandbox is there, and its socket listens.
    Made(Box<MadeSandbox>),
    /// It cannot be made.
    NotMade {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed, with its causes; it may name paths of the host.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

/// A sandbox that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeSandbox {
    /// Who holds it.
    pub hello: Hello,
    /// Where it lies: below no zygote if that which was meant is gone or cannot be entered.
    pub descent: ZygoteRole,
    /// Where commands start inside that are not told where.
    pub cwd: Text,
    /// What its owner should know now, a line each.
    pub notes: Vec<String>,
}

impl Dialogue for LaunchAnswer {
    const MAX_FRAME: usize = 64 * 1024;
}

impl LaunchAnswer {
    /// That it cannot be made, because of `error`.
    pub(super) fn not_made(error: &impl Explained) -> Self {
        Self::NotMade {
            kind: error.kind(),
            message: with_causes(error),
            hint: error.hint(),
        }
    }

    /// The sandbox, or why there is none.
    ///
    /// # Errors
    /// [`SupervisorError::NotMade`].
    pub fn into_result(self) -> Result<MadeSandbox, SupervisorError> {
        match self {
            Self::Made(made) => Ok(*made),
            Self::NotMade { kind, message, hint } => Err(SupervisorError::NotMade { kind, message, hint }),
        }
    }
}
