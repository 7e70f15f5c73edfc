//! Who is told how far something is.

use crate::digest::ImageDigest;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressStep {
    /// The manifest is asked for.
    Resolving,
    /// A blob is fetched, of so many bytes, of which so many were here.
    Fetching {
        /// Which.
        digest: ImageDigest,
        /// How many bytes it has.
        bytes: u64,
        /// How many of them were here.
        had: u64,
    },
    /// So many bytes more of a blob came.
    Fetched {
        /// Which.
        digest: ImageDigest,
        /// How many.
        bytes: u64,
    },
    /// A blob is whole.
    Complete {
        /// Which.
        digest: ImageDigest,
    },
    /// A blob broke off, and is asked for again from where it did.
    Resuming {
        /// Which.
        digest: ImageDigest,
    },
    /// Another process fetches a blob, and is waited for.
    Waiting {
        /// Which.
        digest: ImageDigest,
    },
    /// A layer is unpacked.
    Unpacking {
        /// The layer, counted from the lowest one.
        number: usize,
        /// How many there are.
        of: usize,
    },
}

/// Is told how far something is.
pub trait ImageProgress {
    /// Something was begun, went on, or was done.
    fn step(&self, step: ProgressStep);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl ImageProgress for NoProgress {
    fn step(&self, _step: ProgressStep) {}
}
