//! Why serving a tree ended.

use std::io;

/// Why serving a tree ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A message says of itself that it is shorter than its header, or longer than any may be.
    #[error("a message of {length} bytes came, where 40 to {most} may")]
    MessageLength {
        /// What it says.
        length: u32,
        /// What is allowed, bytes.
        most: usize,
    },
    /// The channel ended within a message.
    #[error("the channel ended within a message, {have} bytes of it read")]
    Truncated {
        /// How many of its bytes came.
        have: usize,
    },
    /// The first message is not `FUSE_INIT`.
    #[error("the first message has the operation {operation}, where 26 (FUSE_INIT) must be")]
    NotInitialised {
        /// What it has.
        operation: u32,
    },
    /// The other side speaks another version.
    #[error("the other side speaks FUSE {major}.{minor}, where 7.31 or later must be")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// What is to be served is no directory, or the kernel refuses what serving it takes.
    #[error("cannot serve the tree: {step}")]
    Setup {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The channel broke.
    #[error("cannot {step} the channel")]
    Channel {
        /// `read` or `write to`.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A thread that answers ended by itself: an error of ours.
    #[error("a thread that serves the tree ended unexpectedly")]
    Worker,
}

/// Adds what was tried when serving began.
pub(crate) fn setup(step: &'static str) -> impl FnOnce(io::Error) -> TreeError {
    move |source| TreeError::Setup { step, source }
}
