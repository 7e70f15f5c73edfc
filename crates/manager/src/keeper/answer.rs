//! What a keeper says of its order: one JSON document on its standard output, which it then closes.
//!
//! Nothing was made, and nothing is left, unless it says [`Answer::Made`]. Before its whole order was read a keeper makes
//! nothing; one that cannot give its answer, because who asked has died, takes back what it made and ends.

use offleash_core::error::ErrorKind;
use offleash_core::spec::Descent;
use serde::{Deserialize, Serialize};

use super::error::KeeperError;
use super::message::Hello;

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The sandbox is there, and its socket listens.
    Made(Made),
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
pub struct Made {
    /// Who holds it.
    pub hello: Hello,
    /// Where it lies: below no zygote if that which was meant is gone or cannot be entered.
    pub descent: Descent,
}

impl Answer {
    /// The sandbox, or why there is none.
    ///
    /// # Errors
    /// [`KeeperError::NotMade`].
    pub fn into_result(self) -> Result<Made, KeeperError> {
        match self {
            Self::Made(made) => Ok(made),
            Self::NotMade { kind, message, hint } => Err(KeeperError::NotMade { kind, message, hint }),
        }
    }
}
