//! How much a browser, whose bytes are hostile, may have us keep.

/// The longest message of a browser, bytes.
pub const MAX_MESSAGE: usize = 8 << 20;
/// The longest message that is looked into for what is recorded, bytes: what is in it takes many times as much memory.
pub(crate) const MAX_LOOKED_INTO: usize = 512 << 10;
/// How many bytes of a browser are read for what is recorded, in a second.
pub const MAX_READ_PER_SECOND: usize = 4 << 20;
/// The longest answer of a browser to a request of HTTP, bytes.
pub(crate) const MAX_ANSWER: usize = 1 << 20;
/// Pages that are told of.
pub const MAX_PAGES: usize = 100;
/// Pages, frames and workers that are observed at a time.
pub(crate) const MAX_TARGETS: usize = 256;
/// The longest text in a log or a list, characters.
pub(crate) const MAX_TEXT: usize = 2048;
/// What is logged of one second; what is beyond is counted.
pub const MAX_ENTRIES_PER_SECOND: u32 = 500;
/// Pictures that are kept of one second.
pub const MAX_FRAMES_PER_SECOND: u32 = 4;
/// The log of a session, bytes: what is older goes.
pub const MAX_LOG: u64 = 4 << 20;
/// The recording of a session, bytes: what is newer is not kept.
pub const MAX_RECORDING: u64 = 16 << 20;
/// What is kept of a profile, bytes.
pub const MAX_PROFILE: usize = 64 << 20;
/// Contexts of a key.
pub const MAX_CONTEXTS: usize = 50;
