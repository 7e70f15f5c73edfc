//! Why a connection ends before it was carried.

use std::io;
use std::time::Duration;

use crate::http_requests::RequestError;
use crate::limits::Reached;
use crate::upstream::Unreachable;

/// How long a client may take to say what it wants where that must be known.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection ends before it was carried.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Refused, and why.
    Refused(String),
    /// It could not be made, and why.
    Failed(String),
    /// A limit keeps it from being made, or from going on.
    Limited(Reached),
    /// It was allowed and is not any more, and why.
    Cut(String),
}

impl From<Reached> for Stopped {
    fn from(reached: Reached) -> Self {
        Self::Limited(reached)
    }
}

impl From<RequestError> for Stopped {
    fn from(error: RequestError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<Unreachable> for Stopped {
    fn from(unreachable: Unreachable) -> Self {
        match unreachable {
            Unreachable::Refused(reason) => Self::Refused(reason),
            Unreachable::Failed(reason) => Self::Failed(reason),
        }
    }
}

pub(crate) fn broken(error: io::Error) -> Stopped {
    Stopped::Failed(error.to_string())
}
