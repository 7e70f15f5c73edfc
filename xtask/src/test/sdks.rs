//! E2B's SDKs as they are released, installed by name from their registries for the tests that speak through them.
//!
//! Each is a directory that an interpreter can be pointed at, so that it can be copied to where an ordinary user reads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::summary::Skip;
use crate::program;

/// Releases of the SDK for Python: the directory, and what pip is asked for. Servers have been broken by what changed
/// between releases, so an old one is tried as well.
const PYTHON: [(&str, &str); 2] = [("python", "e2b"), ("python-2.45.1", "e2b==2.45.1")];

/// The SDK for JavaScript.
const JAVASCRIPT: (&str, &str) = ("javascript", "e2b@latest");

/// Where they are.
pub(super) fn directory() -> PathBuf {
    program::target_directory().join("sdks")
}

/// Installs or renews them; what is not there in the end is returned as skips.
pub(super) fn install() -> Vec<Skip> {
    let mut skips = Vec::new();
    for (name, package) in PYTHON {
        let target = directory().join(name);
        // A release never changes; the newest does.
        if !package.contains("==") || !target.exists() {
            pip(package, &target);
        }
        skips.extend(missing(name, &target.join("e2b"), "pip"));
    }
    let (name, package) = JAVASCRIPT;
    let target = directory().join(name);
    npm(package, &target);
    skips.extend(missing(name, &target.join("node_modules/e2b"), "npm"));
    skips
}

fn missing(name: &str, installed: &Path, installer: &str) -> Option<Skip> {
    (!installed.exists()).then(|| Skip {
        what: format!("E2B's SDK `{name}` against our server"),
        reason: format!("`{installer}` is missing or did not bring the SDK"),
    })
}

fn pip(package: &str, target: &Path) {
    // The one that an ordinary user has, too, where there is one.
    let python = Path::new("/usr/bin/python3");
    let python = if python.exists() { python } else { Path::new("python3") };
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]);
    try_to_run(command.arg(target).arg(package));
}

fn npm(package: &str, target: &Path) {
    let mut command = Command::new("npm");
    command.args([
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
    ]);
    try_to_run(command.arg(target).arg(package));
}

/// What comes of it is seen by looking at what is there.
fn try_to_run(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
}
