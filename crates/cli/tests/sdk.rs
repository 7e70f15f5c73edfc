//! The server as E2B's own SDKs see it, unmodified, as they are released.
//!
//! `cargo xtask test` installs them; where they are missing, so are these tests, which say so.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[allow(dead_code, reason = "the SDKs are clients enough")]
#[path = "api/client.rs"]
mod client;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "api/server.rs"]
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use server::Server;
use support::{skip, stderr, stdout};

const PYTHON: &str = include_str!("sdk/services.py");
const JAVASCRIPT: &str = include_str!("sdk/services.mjs");

/// The SDK that is installed under that name.
fn sdk(name: &str, inside: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("OFFLEASH_SDKS").map(|sdks| PathBuf::from(sdks).join(name));
    let found = directory.filter(|directory| directory.join(inside).exists());
    if found.is_none() {
        skip(&format!(
            "E2B's SDK `{name}` is not installed, which `cargo xtask test` does"
        ));
    }
    found
}

/// Runs a program that speaks to the server through an SDK.
fn assert_succeeds(server: &Server, command: &mut Command) {
    let url = format!("http://{}", server.address);
    command
        .current_dir(server.site.root())
        .env_remove("PYTHONHOME")
        .env("HOME", server.site.root())
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", server.key(&[]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

fn assert_python_works(name: &str) {
    let Some(directory) = sdk(name, "e2b") else {
        return;
    };
    let server = Server::start();
    let script = server.site.root().join("services.py");
    std::fs::write(&script, PYTHON).unwrap();
    // The one that the SDK was installed with.
    let system = Path::new("/usr/bin/python3");
    let mut command = Command::new(if system.exists() { system } else { Path::new("python3") });
    assert_succeeds(&server, command.arg("-B").arg(script).env("PYTHONPATH", directory));
}

#[test]
fn the_newest_sdk_for_python_works() {
    assert_python_works("python");
}

#[test]
fn an_older_sdk_for_python_works() {
    assert_python_works("python-2.45.1");
}

#[test]
fn the_newest_sdk_for_javascript_works() {
    let Some(directory) = sdk("javascript", "node_modules/e2b") else {
        return;
    };
    let server = Server::start();
    let script = server.site.root().join("services.mjs");
    std::fs::write(&script, JAVASCRIPT).unwrap();
    std::os::unix::fs::symlink(directory.join("node_modules"), server.site.root().join("node_modules")).unwrap();
    assert_succeeds(&server, Command::new("node").arg(script));
}
