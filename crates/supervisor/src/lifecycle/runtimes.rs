//! What is known of the runtimes of level `container`, kept in the state directory: finding it out takes longer than a start.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use offleash_core::runtime::{RuntimeFacts, RuntimeKind};
use offleash_isolation::runtime_facts as facts;

/// The file.
const KNOWN: &str = "runtimes.json";
/// How many runtimes are known at once.
const MAX_KNOWN: usize = 16;
/// The largest file that is read, bytes.
const MAX_FILE: u64 = 64 * 1024;

/// A program file with what was found out about it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct KnownRuntime {
    /// What it is known by: the file as it was, and the kernel that it ran on.
    file: String,
    facts: RuntimeFacts,
}

/// What is known of a runtime, or is found out now. What did not work is asked anew the next time.
pub(super) fn facts(state: &Path, kind: RuntimeKind, program: &Path) -> RuntimeFacts {
    let Ok(file) = identity(program) else {
        return RuntimeFacts::default();
    };
    let mut known = read(&state.join(KNOWN));
    if let Some(one) = known.iter().find(|one| one.file == file) {
        return one.facts.clone();
    }
    let scratch = state.join(format!("runtimes.{}", std::process::id()));
    let facts = facts::find_out(kind, program, &scratch);
    let is_whole = facts.version.is_some() && (facts.platform.is_some() || kind != RuntimeKind::Runsc);
    if is_whole {
        known.insert(
            0,
            KnownRuntime {
                file,
                facts: facts.clone(),
            },
        );
        known.truncate(MAX_KNOWN);
        // The next run asks it again.
        let _kept = write(state, &known);
    }
    facts
}

/// What another program at that path, the same one changed, or another kernel differs in.
fn identity(program: &Path) -> io::Result<String> {
    let file = fs::metadata(program)?;
    let kernel = rustix::system::uname();
    Ok(format!(
        "{} {}:{} {} {}.{} {}.{} {}",
        program.display(),
        file.dev(),
        file.ino(),
        file.size(),
        file.mtime(),
        file.mtime_nsec(),
        file.ctime(),
        file.ctime_nsec(),
        kernel.release().to_string_lossy(),
    ))
}

/// Nothing where there is no such file, or none of ours.
fn read(path: &Path) -> Vec<KnownRuntime> {
    let is_small = fs::metadata(path).is_ok_and(|file| file.len() <= MAX_FILE);
    let bytes = is_small.then(|| fs::read(path).ok()).flatten();
    bytes
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

fn write(state: &Path, known: &[KnownRuntime]) -> io::Result<()> {
    let new = state.join(format!("{KNOWN}.{}", std::process::id()));
    fs::write(&new, serde_json::to_vec(known)?)?;
    fs::rename(&new, state.join(KNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_file_is_not_asked_again_and_is_forgotten_with_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let (path, program) = (place.path().join("state"), place.path().join("crun"));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let asked = place.path().join("asked");
        let place_program = |version: &str| {
            let text = format!("#!/bin/sh\necho >> {}\necho crun version {version}\n", asked.display());
            fs::write(&program, text).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let version = || facts(&path, RuntimeKind::Crun, &program).version;
        place_program("1.0");
        assert_eq!((version().as_deref(), version().as_deref()), (Some("1.0"), Some("1.0")));
        assert_eq!(fs::read_to_string(&asked).unwrap(), "\n");
        place_program("1.20");
        assert_eq!(version().as_deref(), Some("1.20"));
        assert_eq!(fs::read_to_string(&asked).unwrap(), "\n\n");
        fs::write(path.join(KNOWN), "nothing of ours").unwrap();
        assert_eq!(version().as_deref(), Some("1.20"));
        for number in 0..MAX_KNOWN + 3 {
            place_program(&format!("1.20.{number}"));
            version();
        }
        assert_eq!(read(&path.join(KNOWN)).len(), MAX_KNOWN);
    }
}
