//! The cases of each SDK, one server for all cases of a test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kits::Kit;
use crate::server::{Server, WITH_POOL};
use crate::support::skip;

/// The modules of cases in Python, the asynchronous ones last.
const SYNCHRONOUS: [&str; 4] = ["lifecycle", "commands", "files", "others"];

#[test]
fn the_newest_python_sdk_works_unchanged() {
    if let Some(kit) = Kit::python(None) {
        python(&kit, &SYNCHRONOUS);
    }
}

#[test]
fn the_newest_asynchronous_python_sdk_works_unchanged() {
    if let Some(kit) = Kit::python(None) {
        python(&kit, &["asynchronous"]);
    }
}

/// It makes and finds sandboxes by calls that newer ones do not know any more.
#[test]
fn an_older_python_sdk_works_unchanged() {
    if let Some(kit) = Kit::python(Some("2.45.1")) {
        python(&kit, &[&SYNCHRONOUS[..], &["asynchronous"]].concat());
    }
}

#[test]
fn the_newest_javascript_sdk_works_unchanged() {
    if let Some(kit) = Kit::javascript() {
        let server = Server::start(WITH_POOL);
        run(&server, kit.node_program(&sources().join("javascript/cases.mjs")));
        server.end();
    }
}

fn python(kit: &Kit, modules: &[&str]) {
    let server = Server::start(WITH_POOL);
    let mut program = kit.python_program(&sources().join("python/cases.py"));
    program.args(modules);
    run(&server, program);
    server.end();
}

/// Runs a program that knows the server by nothing but the variables that its users set, and passes on what it says.
fn run(server: &Server, mut program: Command) {
    let url = format!("http://{}", server.address);
    program
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", &server.key)
        .env("HOME", server.site.root());
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines()
        .filter_map(|line| line.strip_prefix("SKIP: "))
        .for_each(skip);
    let errors = String::from_utf8_lossy(&output.stderr);
    let log = std::fs::read_to_string(server.site.root().join("serve.log")).unwrap();
    assert!(output.status.success(), "{said}\n{errors}\nthe server said: {log}");
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2b")
}
