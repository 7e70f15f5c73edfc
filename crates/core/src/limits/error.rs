//! Why a limit is refused.

use super::LimitName;
use crate::text::Text;
use crate::units::UnitError;

/// A limit that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The value is no size, time or CPU count.
    #[error("limit `{limit}`: {cause}")]
    Unit {
        /// The limit.
        limit: LimitName,
        /// What is wrong with the value.
        cause: UnitError,
    },
    /// The value is no whole number.
    #[error("limit `{limit}`: `{given}` is not a whole number: expected a count such as 512, or `unlimited`")]
    NotACount {
        /// The limit.
        limit: LimitName,
        /// What was given.
        given: Text,
    },
    /// The value is too small to be meant.
    #[error("limit `{limit}`: `{given}` is less than {least}: {why}")]
    TooSmall {
        /// The limit.
        limit: LimitName,
        /// What was given.
        given: Text,
        /// The smallest that is accepted.
        least: String,
        /// Why.
        why: &'static str,
    },
    /// It is a volume's.
    #[error("limit `{limit}` is a volume's and no sandbox's: `{flag}` sets it", flag = limit.flag())]
    OfVolume {
        /// The limit.
        limit: LimitName,
    },
    /// The value is larger than can be held.
    #[error("limit `{limit}`: `{given}` is more than {most}, the most that can be held; `unlimited` lifts the limit")]
    TooLarge {
        /// The limit.
        limit: LimitName,
        /// What was given.
        given: Text,
        /// The largest that is accepted.
        most: String,
    },
}

/// A word that names no limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a limit: expected one of {names}", names = LimitName::ALL.map(LimitName::name).join(", "))]
pub struct LimitNameError(pub Text);
