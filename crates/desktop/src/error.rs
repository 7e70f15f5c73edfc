//! Why a desktop does not do what it is asked.

/// Why a screen is not shown.
#[derive(Debug, thiserror::Error)]
pub enum DesktopError {
    /// The connection to its server broke, or its server hung up.
    #[error("the server of the screen hung up")]
    Closed(#[from] std::io::Error),
    /// What it says is not what it must be.
    #[error("the server of the screen says what it must not: {what}")]
    Malformed {
        /// Where.
        what: &'static str,
    },
    /// It lets nobody in without a password.
    #[error("the server of the screen asks for a password")]
    Locked,
    /// It takes too long.
    #[error("the server of the screen does not answer in time")]
    Timeout,
}

/// A value that no desktop can be started with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not {expected}", .given.escape_debug())]
pub struct DesktopOptionsError {
    pub(crate) given: String,
    pub(crate) expected: &'static str,
}
