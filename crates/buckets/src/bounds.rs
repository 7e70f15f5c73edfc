//! How much is brought to the same.

/// How many objects, and how many files and directories, are brought to the same at once.
pub const MAX_OBJECTS: usize = 100_000;
