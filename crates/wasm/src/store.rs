//! What modules were compiled to, kept from one run to the next in the owner's state directory.
//!
//! Whoever writes such a file says what a later worker executes, so three things hold. Only this user has the directory, and
//! nothing of a tenant is ever taken as compiled. The name of a file is the digest of the module's bytes, which the supervisor
//! read itself: what a worker answers is kept for the module that it was given, so that a module which subverts its compiler
//! speaks for itself alone. And a file begins with the digest of the rest, so that one that was cut or changed is not used.
//! What is loaded runs in a locked worker all the same.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use offleash_simulated::engine::{CompiledStore, MAX_COMPILED};
use sha2::{Digest as _, Sha256};

/// Where, in the state directory.
const DIRECTORY: &str = "wasm-modules";
/// What changes with what compiles: other versions look for other files. wasmtime itself compares the settings and the processor's
/// features as well.
const COMPILER: &str = "wasmtime-48.0.8-1";
/// How many modules are kept, and how much of them.
pub(crate) const MAX_MODULES: usize = 64;
const MAX_KEPT: u64 = 1024 * 1024 * 1024;
const DIGEST: usize = 32;

/// The directory of compiled modules.
#[derive(Debug)]
pub(crate) struct ModuleStore {
    directory: PathBuf,
    /// The name of the module that was looked for last.
    wanted: Option<String>,
}

impl ModuleStore {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            directory: state.join(DIRECTORY),
            wanted: None,
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let path = self.directory.join(name);
        let flags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK);
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let facts = file.metadata()?;
        let is_ours = facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o022 == 0;
        let is_bounded = usize::try_from(facts.len()).is_ok_and(|size| size <= MAX_COMPILED + DIGEST);
        if !facts.is_file() || !is_ours || !is_bounded {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut digest = [0; DIGEST];
        file.read_exact(&mut digest)?;
        let mut compiled = Vec::new();
        file.read_to_end(&mut compiled)?;
        if digest.as_slice() != Sha256::digest(&compiled).as_slice() {
            // It is made anew.
            fs::remove_file(&path)?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        // What was used last goes last.
        let _touched = file.set_modified(SystemTime::now());
        Ok(compiled)
    }

    fn write(&self, name: &str, compiled: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.make_room()?;
        let temporary = self.directory.join(format!("{name}.{}", std::process::id()));
        let written =
            Self::write_whole(&temporary, compiled).and_then(|()| fs::rename(&temporary, self.directory.join(name)));
        if written.is_err() {
            let _not_left = fs::remove_file(&temporary);
        }
        written
    }

    fn write_whole(path: &Path, compiled: &[u8]) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(Sha256::digest(compiled).as_slice())?;
        file.write_all(compiled)?;
        file.sync_all()
    }

    /// Removes what was not used for longest, until one more has room.
    fn make_room(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if let Ok(facts) = entry.metadata() {
                kept.push((facts.modified()?, facts.len(), entry.path()));
            }
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, size, _)| *size).sum();
        let mut count = kept.len();
        for (_, size, path) in kept {
            if count < MAX_MODULES && bytes < MAX_KEPT {
                break;
            }
            // Another run may have removed it.
            let _removed = fs::remove_file(path);
            count -= 1;
            bytes -= size;
        }
        Ok(())
    }
}

impl CompiledStore for ModuleStore {
    fn find(&mut self, source: &[u8]) -> Option<Vec<u8>> {
        let mut digest = Sha256::new();
        digest.update(COMPILER);
        digest.update(source);
        let name: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let found = self.read(&name).ok();
        self.wanted = Some(name);
        found
    }

    fn keep(&mut self, compiled: &[u8]) {
        if let Some(name) = self.wanted.take() {
            // Without room it is compiled again the next time.
            let _kept = self.write(&name, compiled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(store: &ModuleStore) -> Vec<PathBuf> {
        let entries = fs::read_dir(&store.directory).expect("it is there");
        entries.map(|entry| entry.expect("it is read").path()).collect()
    }

    #[test]
    fn what_was_made_of_a_module_is_found_for_it_alone() {
        let state = tempfile::tempdir().expect("a directory");
        let mut store = ModuleStore::new(state.path());
        assert_eq!(store.find(b"one"), None);
        store.keep(b"made of one");
        // Whatever else is said belongs to nothing.
        store.keep(b"made of nothing");
        assert_eq!(store.find(b"one").as_deref(), Some(&b"made of one"[..]));
        assert_eq!(store.find(b"two"), None);
        assert_eq!(names(&store).len(), 1);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&store.directory), 0o700);
        assert_eq!(mode(&names(&store)[0]), 0o600);
    }

    #[test]
    fn what_was_changed_cut_or_is_open_to_others_is_not_used() {
        let state = tempfile::tempdir().expect("a directory");
        let mut store = ModuleStore::new(state.path());
        let keep = |store: &mut ModuleStore| {
            store.find(b"one");
            store.keep(b"made of one");
            names(store)[0].clone()
        };
        let path = keep(&mut store);
        let mut bytes = fs::read(&path).expect("it is read");
        *bytes.last_mut().expect("it is not empty") ^= 1;
        fs::write(&path, &bytes).expect("it is written");
        assert_eq!(store.find(b"one"), None);
        let path = keep(&mut store);
        fs::write(&path, b"short").expect("it is written");
        assert_eq!(store.find(b"one"), None);
        fs::remove_file(&path).expect("it is there");
        let path = keep(&mut store);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
        assert_eq!(store.find(b"one"), None);
    }

    #[test]
    fn no_more_are_kept_than_the_bound() {
        let state = tempfile::tempdir().expect("a directory");
        let mut store = ModuleStore::new(state.path());
        for number in 0..MAX_MODULES + 3 {
            store.find(&number.to_le_bytes());
            store.keep(b"x");
        }
        assert_eq!(names(&store).len(), MAX_MODULES);
    }
}
