//! What the other side can make us hold, at most.

/// Most bytes of file that one message carries, and most that one answer does.
pub const MAX_WRITE: usize = 1024 * 1024;
/// Longest message: the largest write and what stands before it.
pub const MAX_MESSAGE: usize = MAX_WRITE + 4096;
/// Most files and directories that are known at once; beyond, looking up further ones answers `ENOMEM`.
pub const MAX_NODES: usize = 1 << 20;
/// Most files and directories that are open at once; beyond, `ENFILE`.
pub const MAX_HANDLES: usize = 16 * 1024;
/// Most descriptors that are kept for files that are not open.
pub const MAX_DESCRIPTORS: usize = 4096;
/// Longest name of a file (limits.h).
pub(crate) const MAX_NAME: usize = 255;
/// Longest target of a symbolic link.
pub(crate) const MAX_TARGET: usize = 4095;
/// Longest value of an extended attribute, and longest list of their names (limits.h).
pub(crate) const MAX_ATTRIBUTE: usize = 65_536;
/// Longest name of an extended attribute (limits.h).
pub(crate) const MAX_ATTRIBUTE_NAME: usize = 255;
/// How deep a directory may lie below the root to be found again when its descriptor was closed.
pub(crate) const MAX_DEPTH: usize = 4096;
/// Most bytes that one request copies from file to file; the other side asks again for the rest.
pub(crate) const MAX_COPY: usize = 64 * 1024 * 1024;
/// Most threads that answer, and with that most messages that are held; further ones wait in the socket.
pub const MAX_WORKERS: usize = 16;
/// Most file systems below the root whose inode numbers are kept apart exactly.
pub(crate) const MAX_FILE_SYSTEMS: usize = 4096;
