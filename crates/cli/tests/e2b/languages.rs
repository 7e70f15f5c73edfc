//! The cases of each SDK, one server for all cases of a test.

use std::process::{Command, Output};

use crate::kits::Kit;
use crate::server::{Server, WITH_POOL};
use crate::support::skip;

/// Modules of cases, in Python the halves of the SDK that wait and those that do not.
const PYTHON: [&str; 6] = ["lifecycle", "commands", "files", "others", "reach", "volumes"];
const ASYNCHRONOUS: [&str; 5] = [
    "async_lifecycle",
    "async_commands",
    "async_files",
    "async_others",
    "async_volumes",
];
const JAVASCRIPT: [&str; 6] = PYTHON;

/// The newest release of each, module by module.
macro_rules! newest {
    ($($name:ident: $sdk:literal, $modules:ident[$module:literal];)*) => {$(
        #[test]
        fn $name() {
            assert_works($sdk, &$modules[$module..=$module]);
        }
    )*};
}

newest! {
    the_newest_python_sdk_lives_with_sandboxes: "python", PYTHON[0];
    the_newest_python_sdk_runs_commands: "python", PYTHON[1];
    the_newest_python_sdk_moves_files: "python", PYTHON[2];
    the_newest_python_sdk_does_the_rest: "python", PYTHON[3];
    the_newest_python_sdk_reaches_ports: "python", PYTHON[4];
    the_newest_python_sdk_has_volumes: "python", PYTHON[5];
    the_newest_asynchronous_python_sdk_lives_with_sandboxes: "python", ASYNCHRONOUS[0];
    the_newest_asynchronous_python_sdk_runs_commands: "python", ASYNCHRONOUS[1];
    the_newest_asynchronous_python_sdk_moves_files: "python", ASYNCHRONOUS[2];
    the_newest_asynchronous_python_sdk_does_the_rest: "python", ASYNCHRONOUS[3];
    the_newest_asynchronous_python_sdk_has_volumes: "python", ASYNCHRONOUS[4];
    the_newest_javascript_sdk_lives_with_sandboxes: "javascript", JAVASCRIPT[0];
    the_newest_javascript_sdk_runs_commands: "javascript", JAVASCRIPT[1];
    the_newest_javascript_sdk_moves_files: "javascript", JAVASCRIPT[2];
    the_newest_javascript_sdk_does_the_rest: "javascript", JAVASCRIPT[3];
    the_newest_javascript_sdk_reaches_ports: "javascript", JAVASCRIPT[4];
    the_newest_javascript_sdk_has_volumes: "javascript", JAVASCRIPT[5];
}

// Older ones make and find sandboxes by calls that newer ones do not know any more.

#[test]
fn an_older_python_sdk_works_unchanged() {
    assert_works("python-2.45.1", &PYTHON);
}

#[test]
fn an_older_asynchronous_python_sdk_works_unchanged() {
    assert_works("python-2.45.1", &ASYNCHRONOUS);
}

#[test]
fn an_older_javascript_sdk_works_unchanged() {
    assert_works("javascript-2.45.0", &JAVASCRIPT);
}

/// Contexts of code, through the halves of the SDK for them that wait and that do not.
#[test]
fn the_code_interpreter_sdk_runs_cells() {
    assert_works("python_code_interpreter", &["code"]);
}

/// What cells do to their drivers.
#[test]
fn the_code_interpreter_sdk_meets_cells_that_mean_no_good() {
    assert_works("python_code_interpreter", &["hostile"]);
}

/// A server whose sandboxes are virtual machines is one like any other.
#[test]
fn an_sdk_works_with_virtual_machines() {
    let Some(flags) = crate::support::levels::microvm_flags() else {
        return;
    };
    let kernel = flags.last().map(String::as_str).unwrap_or_default();
    let config = format!("{WITH_POOL}level = \"microvm\"\nvm_kernel = {kernel:?}\n");
    assert_works_at(&config, "python", &PYTHON[1..=1]);
}

/// And so is one whose sandboxes have a simulated shell, for what that has.
#[test]
fn an_sdk_works_with_simulated_shells() {
    let config = format!("{WITH_POOL}level = \"simulated\"\n");
    assert_works_at(&config, "python", &["simulated"]);
}

fn assert_works(sdk: &str, modules: &[&str]) {
    assert_works_at(WITH_POOL, sdk, modules);
}

fn assert_works_at(config: &str, sdk: &str, modules: &[&str]) {
    let Some(kit) = Kit::find(sdk) else {
        return;
    };
    let server = Server::start(config);
    run(&server, kit.program(server.site.root(), modules));
    server.end();
}

/// Runs a program that knows the server by nothing but the variables that its users set, and passes on what it says.
pub(crate) fn run(server: &Server, mut program: Command) {
    let output = started(server, &mut program);
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines()
        .filter_map(|line| line.strip_prefix("SKIP: "))
        .for_each(skip);
    let errors = String::from_utf8_lossy(&output.stderr);
    let log = std::fs::read_to_string(server.site.root().join("serve.log")).unwrap();
    let status = output.status;
    assert!(status.success(), "{status}: {said}\n{errors}\nthe server said: {log}");
}

/// Runs a program to its end.
pub(crate) fn started(server: &Server, program: &mut Command) -> Output {
    let url = server.url();
    program
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_VOLUME_API_URL", &url)
        .env("E2B_API_KEY", &server.key)
        .env("HOME", server.site.root());
    program.output().unwrap()
}
