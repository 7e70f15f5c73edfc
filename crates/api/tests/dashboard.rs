//! What the dashboard reads and writes, where no browser is needed for it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn modules_show_what_is_hidden_and_read_what_they_are_told() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("SKIP: `node` is missing");
        return;
    }
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    copy(&crate_directory.join("ui"), place.path());
    // Modules, as they are to browsers.
    fs::write(place.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    let cases = crate_directory.join("tests/dashboard.mjs");
    let output = Command::new("node").arg(cases).arg(place.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
