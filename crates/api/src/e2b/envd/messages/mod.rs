//! The messages of a sandbox's services, in both forms: made of `proto/` by a test, which holds that they are the same.
//!
//! A choice between fields ("oneof") is a field for each, of which one is set: that is the same on the wire. Whoever reads
//! one says what it means if several are.

#[rustfmt::skip]
pub(super) mod filesystem;
#[rustfmt::skip]
pub(super) mod process;
