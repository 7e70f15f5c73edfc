//! Scratch state directories and trees for tests.
