//! Files of interpreters, as this build has them.

/// What QuickJS is told that it is.
pub(crate) const JAVASCRIPT_VERSION: &str = "quickjs-wasi 3.7.0";
/// Python's library, and where the interpreter looks for it: its memory has the archive's list, and that path.
pub(crate) static PYTHON_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/python-library.zip"));
pub(crate) const PYTHON_LIBRARY_PATH: &[u8] = b"/usr/local/lib/python314.zip";
/// Packed with xz.
pub(crate) static PYTHON: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/python.wasm.xz"));
pub(crate) static JAVASCRIPT: &[u8] = include_bytes!("../vendor/quickjs-wasi/quickjs.wasm");
/// Digests of the two.
pub(crate) const PYTHON_DIGEST: &str = env!("PYTHON_DIGEST");
pub(crate) const JAVASCRIPT_DIGEST: &str = env!("JAVASCRIPT_DIGEST");
