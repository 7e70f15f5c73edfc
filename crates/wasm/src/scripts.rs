//! Interpreters of scripts, whether this build has them or not.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use offleash_simulated::engine::{InterpreterStoreMaker, ScriptLanguage};

/// Whether this build has interpreters.
pub fn has_interpreters() -> bool {
    cfg!(feature = "engine")
}

/// What makes the store of interpreters in a state directory.
pub fn interpreter_store() -> Option<InterpreterStoreMaker> {
    #[cfg(feature = "engine")]
    return Some(crate::interpreters::interpreters);
    #[cfg(not(feature = "engine"))]
    None
}

/// Whether an interpreter was compiled for this state directory.
pub fn is_compiled(state: &Path, language: ScriptLanguage) -> bool {
    #[cfg(feature = "engine")]
    return crate::interpreters::is_compiled(state, language);
    #[cfg(not(feature = "engine"))]
    {
        let _without_interpreters = (state, language);
        false
    }
}

/// Compiles the interpreter of the language of this word into a directory, unless it is there.
///
/// # Errors
/// For another word, when the directory is not to be written to, and in a build without interpreters.
pub fn compile_interpreter(word: &OsStr, directory: &Path) -> io::Result<()> {
    #[cfg(feature = "engine")]
    return crate::interpreters::compile_interpreter(word, directory);
    #[cfg(not(feature = "engine"))]
    {
        let _without_interpreters = (word, directory);
        Err(io::ErrorKind::Unsupported.into())
    }
}
