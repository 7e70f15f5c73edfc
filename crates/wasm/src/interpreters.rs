//! Interpreters that this build has, as WebAssembly of others, and what they were compiled to for this machine.
//!
//! CPython is of the crate `bashkit-cpython-wasm`, QuickJS of the npm package `quickjs-wasi`; what is here of each is its file,
//! and nothing of its code. Compiled files are in the owner's state directory, under the digest of what they were made of. A process
//! of ours makes one that reads nothing but this program, and no worker writes there: one file serves all sandboxes.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use offleash_simulated::engine::{InterpreterStore, ScriptLanguage};

use crate::artifacts::{JAVASCRIPT, JAVASCRIPT_DIGEST, PYTHON, PYTHON_DIGEST};
use crate::roles::COMPILER_ROLE;

/// Where, in the state directory.
const DIRECTORY: &str = "interpreters";
/// What changes with what compiles.
const COMPILER: &str = "wasmtime-48.0.8-1";
/// How many files are kept: those of other versions go when others come.
const MAX_FILES: usize = 8;
/// How the names of files begin that are held by who compiles, each for its language.
const LOCK: &str = "lock-";

/// The directory of compiled interpreters.
#[derive(Debug)]
struct InterpreterFiles {
    directory: PathBuf,
}

/// What keeps compiled interpreters in this state directory.
pub(crate) fn interpreters(state: &Path) -> Box<dyn InterpreterStore> {
    let directory = state.join(DIRECTORY);
    Box::new(InterpreterFiles { directory })
}

/// Whether an interpreter was compiled for this state directory.
pub(crate) fn is_compiled(state: &Path, language: ScriptLanguage) -> bool {
    let directory = state.join(DIRECTORY);
    InterpreterFiles { directory }.open(language).is_ok()
}

fn file_name(language: ScriptLanguage) -> String {
    let digest = match language {
        ScriptLanguage::Python => PYTHON_DIGEST,
        ScriptLanguage::JavaScript => JAVASCRIPT_DIGEST,
    };
    format!("{}-{digest}-{COMPILER}", language.word())
}

impl InterpreterFiles {
    /// Opens one, unless somebody else may write to it.
    fn open(&self, language: ScriptLanguage) -> io::Result<File> {
        let flags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK);
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let path = self.directory.join(file_name(language));
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let facts = file.metadata()?;
        let is_ours = facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o022 == 0;
        match facts.is_file() && is_ours {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Removes what was used least recently, until another file has room.
    fn make_room(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if !entry.file_name().as_bytes().starts_with(LOCK.as_bytes()) {
                kept.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        kept.sort();
        let excess = (kept.len() + 1).saturating_sub(MAX_FILES);
        for (_, path) in kept.into_iter().take(excess) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

impl InterpreterStore for InterpreterFiles {
    fn find(&mut self, language: ScriptLanguage) -> Option<OwnedFd> {
        let file = self.open(language).ok()?;
        // What was used last goes last.
        let _touched = file.set_modified(SystemTime::now());
        Some(file.into())
    }

    fn maker(&self, language: ScriptLanguage) -> Vec<Vec<u8>> {
        vec![
            COMPILER_ROLE.into(),
            language.word().into(),
            self.directory.as_os_str().as_bytes().to_vec(),
        ]
    }
}

/// Compiles the interpreter of the language of this word, unless it is there or another process has done so meanwhile.
///
/// # Errors
/// For another word, and when the directory is not to be written to.
pub(crate) fn compile_interpreter(word: &OsStr, directory: &Path) -> io::Result<()> {
    let language = ScriptLanguage::ALL.into_iter().find(|language| language.word() == word);
    let language = language.ok_or(io::ErrorKind::InvalidInput)?;
    let files = InterpreterFiles {
        directory: directory.to_owned(),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.join(format!("{LOCK}{}", language.word())))?;
    lock.lock()?;
    if files.open(language).is_ok() {
        return Ok(());
    }
    files.make_room()?;
    let compiled = compile(language).map_err(|error| io::Error::other(format!("{error:#}")))?;
    let path = directory.join(file_name(language));
    let temporary = path.with_extension("new");
    let written = write(&temporary, &compiled).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _not_left = fs::remove_file(&temporary);
    }
    written
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn compile(language: ScriptLanguage) -> wasmtime::Result<Vec<u8>> {
    let mut code = Vec::new();
    let code = match language {
        ScriptLanguage::Python => {
            let unpacked = lzma_rs::xz_decompress(&mut { PYTHON }, &mut code);
            unpacked.map_err(|error| wasmtime::Error::msg(error.to_string()))?;
            code.as_slice()
        }
        ScriptLanguage::JavaScript => JAVASCRIPT,
    };
    crate::engine::scripts::interpreter_engine()?.precompile_module(code)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_that_others_may_write_to_or_that_is_a_link_is_not_taken() {
        let state = tempfile::tempdir().expect("a directory");
        let mut store = interpreters(state.path());
        assert!(store.find(ScriptLanguage::JavaScript).is_none());
        let directory = state.path().join(DIRECTORY);
        fs::create_dir(&directory).expect("it is ours");
        let path = directory.join(file_name(ScriptLanguage::JavaScript));
        write(&path, b"compiled").expect("it is written");
        assert!(store.find(ScriptLanguage::JavaScript).is_some());
        assert!(
            is_compiled(state.path(), ScriptLanguage::JavaScript) && !is_compiled(state.path(), ScriptLanguage::Python)
        );
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).expect("it is ours");
        assert!(store.find(ScriptLanguage::JavaScript).is_none());
        fs::rename(&path, directory.join("elsewhere")).expect("it is ours");
        std::os::unix::fs::symlink("elsewhere", &path).expect("it is ours");
        assert!(store.find(ScriptLanguage::JavaScript).is_none());
        assert!(compile_interpreter(OsStr::new("perl"), &directory).is_err());
    }

    #[test]
    fn no_more_files_are_kept_than_the_bound() {
        let state = tempfile::tempdir().expect("a directory");
        let directory = state.path().to_owned();
        for number in 0..MAX_FILES + 3 {
            fs::write(directory.join(number.to_string()), "").expect("it is written");
        }
        let files = InterpreterFiles { directory };
        files.make_room().expect("it is ours");
        assert_eq!(fs::read_dir(state.path()).expect("it is there").count(), MAX_FILES - 1);
    }
}
