//! Python and JavaScript without an operating system: as commands of the simulated shell, and as code at level `wasm`. Each
//! reads and writes the files that the shell has, and ends where a limit is.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "scripts/javascript.rs"]
mod javascript;
#[path = "scripts/python.rs"]
mod python;
mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use support::{Site, record_of, skip, stderr, stdout};

const SHELL: [&str; 2] = ["--level", "simulated"];
const CODE: [&str; 2] = ["--level", "wasm"];

/// A site whose interpreters are shared with all tests of this user: the first of them compiles.
fn site() -> Site {
    let site = Site::new();
    let shared = shared_directory();
    std::fs::create_dir_all(&shared).unwrap();
    std::os::unix::fs::symlink(shared, site.state().join("interpreters")).unwrap();
    site
}

/// Beside the tests' own files where this user may write there.
fn shared_directory() -> PathBuf {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interpreters");
    match std::fs::create_dir_all(&own).and_then(|()| tempfile::tempfile_in(&own)) {
        Ok(_) => own,
        Err(_) => std::env::temp_dir().join("offleash-test-interpreters"),
    }
}

/// Whether this machine lets a process of this user have an empty root; says so if it does not.
fn has_empty_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let has = is_root || std::fs::metadata("/proc/self/ns/user").is_ok();
    if !has {
        skip("no user namespaces");
    }
    has
}

/// Whether CPython is compiled, or may be: it takes two minutes of a processor where the compiler is not optimised, and ten seconds
/// where it is. Says so otherwise.
fn has_python() -> bool {
    let is_python = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"python-"))
    };
    let is_there = std::fs::read_dir(shared_directory()).is_ok_and(|mut entries| entries.any(is_python));
    let may_be = is_there || std::env::var_os("OFFLEASH_TEST_PYTHON").is_some();
    if !may_be {
        skip("CPython is not compiled; `OFFLEASH_TEST_PYTHON=1` has it compiled");
    }
    may_be && has_empty_root()
}

fn run(site: &Site, arguments: &[&str], input: &str) -> Output {
    let mut child = site
        .offleash([&["run", "-q"], arguments].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who reads nothing of it may have ended.
    let _written = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// What a script of the shell prints; it must end well.
fn shell(site: &Site, script: &str) -> String {
    let output = run(site, &[&SHELL[..], &["-c", script]].concat(), "");
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    stdout(&output)
}

fn record(site: &Site, arguments: &[&str]) -> Value {
    let output = site
        .offleash([&["run", "--json"], arguments].concat())
        .output()
        .unwrap();
    assert!(!stdout(&output).is_empty(), "{}", stderr(&output));
    record_of(&output)
}

#[test]
fn one_file_is_compiled_for_all_sandboxes_and_only_its_owner_has_it() {
    use std::os::unix::fs::PermissionsExt as _;
    if !has_empty_root() {
        return;
    }
    let site = site();
    for _ in 0..2 {
        let output = run(&site, &[&CODE[..], &["--js", "-c", "console.log(1)"]].concat(), "");
        assert_eq!(stdout(&output), "1\n", "{}", stderr(&output));
    }
    let entries = std::fs::read_dir(shared_directory()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_of_javascript = |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"javascript-");
    let files: Vec<PathBuf> = paths.filter(is_of_javascript).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let mode = std::fs::metadata(&files[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
