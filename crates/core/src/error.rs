//! The kinds that every error of every room belongs to; status and exit code are fixed here, once.

/// What kind of failure an error is, whichever room it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request itself is wrong: a bad flag, policy, size or name.
    Invalid,
    /// What the request names does not exist.
    NotFound,
    /// The request contradicts the present state: already applied, changed meanwhile.
    Conflict,
    /// A rule, or the kernel's permission check, refused it.
    Denied,
    /// A limit, a quota or the disk is used up.
    Exhausted,
    /// It took longer than it was allowed to.
    Timeout,
    /// This machine or this level cannot do it.
    Unsupported,
    /// It cannot be done now and may be later.
    Unavailable,
    /// A defect or an unexpected answer of the kernel.
    Internal,
}

/// An error that says which kind it is and what the user can do.
pub trait Explained: std::error::Error {
    /// The kind, from which exit code and (in `api`) status follow.
    fn kind(&self) -> ErrorKind;

    /// What to do about it, as one sentence without a full stop.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// An error and what caused it, in one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
