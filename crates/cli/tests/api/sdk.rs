//! E2B's own SDK for Python, unmodified, as its users have it; `cargo xtask test` installs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::Server;
use crate::support::processes::{finish, start};
use crate::support::skip;

const SCRIPT: &str = include_str!("sdk.py");

/// A Python that has the SDK: that of xtask, or the machine's own.
fn python() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR")).ancestors();
    let installed = ours
        .map(|directory| directory.join("e2b-sdk/bin/python3"))
        .filter(|python| python.exists());
    let has_sdk = |python: &PathBuf| {
        let imported = Command::new(python).args(["-c", "import e2b"]).output();
        imported.is_ok_and(|output| output.status.success())
    };
    installed.chain([PathBuf::from("python3")]).find(has_sdk)
}

#[test]
fn the_sdk_for_python_works_unchanged() {
    let Some(python) = python() else {
        return skip("E2B's SDK for Python is not installed");
    };
    let server = Server::start();
    let key = server.key(&[]);
    let url = format!("http://{}", server.address);
    let mut command = Command::new(python);
    command
        .args(["-c", SCRIPT])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", server.site.root())
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", &key);
    let output = finish(start(&mut command));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && out.ends_with("all of it\n"), "{out}{err}");
}
