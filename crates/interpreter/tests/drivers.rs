//! The drivers' own tests, each in the language that it drives, run by an interpreter of this machine.
//!
//! `cargo xtask sdks` installs the libraries that some of them need; where those are missing, so are these tests.

#![cfg(target_os = "linux")]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test starts programs itself, and says why it is skipped"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where IPython and the libraries are that charts and data come from.
fn libraries() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).ancestors();
    let named = std::env::var_os("OFFLEASH_SDKS").map(PathBuf::from);
    let mut places = named.into_iter().chain(built.map(|directory| directory.join("sdks")));
    places.find_map(|place| Some(place.join("interpreter")).filter(|libraries| libraries.join("IPython").exists()))
}

fn python() -> &'static Path {
    // The one that the libraries were installed with.
    let system = Path::new("/usr/bin/python3");
    if system.exists() { system } else { Path::new("python3") }
}

fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

#[test]
fn the_driver_of_python_passes_its_tests() {
    python_passes("drivers/test_python.py");
}

#[test]
fn the_state_of_python_passes_its_tests() {
    python_passes("drivers/test_state.py");
}

#[test]
fn the_zygote_of_python_passes_its_tests() {
    python_passes("drivers/test_zygote.py");
}

#[test]
fn the_python_of_a_run_that_waits_passes_its_tests() {
    python_passes("drivers/test_ahead.py");
}

/// Runs tests with Python's libraries, where those are.
fn python_passes(tests: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join(tests);
    let mut command = Command::new(python());
    command
        .arg("-B")
        .arg(tests)
        .env_remove("PYTHONHOME")
        .env_remove("PYTHONPATH");
    match libraries() {
        Some(libraries) => {
            command.env("PYTHONPATH", libraries).env("OFFLEASH_LIBRARIES", "1");
        }
        None => skip("IPython and libraries for Python are not installed, which `cargo xtask sdks` does"),
    }
    let Ok(output) = command.output() else {
        return skip("there is no `python3`");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_driver_of_javascript_passes_its_tests() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers/test_javascript.js");
    let mut command = Command::new("node");
    command.arg("--test").arg(tests).env_remove("NODE_OPTIONS");
    let Ok(output) = command.output() else {
        return skip("there is no `node`");
    };
    // The runner of these tests writes all of it there.
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_driver_of_java_passes_its_tests() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers/test_java.py");
    if Command::new("javac").arg("-version").output().is_err() {
        return skip("there is no `javac`");
    }
    let Ok(output) = Command::new(python()).arg("-B").arg(tests).output() else {
        return skip("there is no `python3`");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_driver_of_r_passes_its_tests() {
    r_passes("drivers/test_r.py");
}

#[test]
fn the_state_of_r_passes_its_tests() {
    r_passes("drivers/test_r_state.py");
}

fn r_passes(tests: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join(tests);
    if Command::new("Rscript").arg("--version").output().is_err() {
        return skip("there is no `Rscript`");
    }
    let Ok(output) = Command::new(python()).arg("-B").arg(tests).output() else {
        return skip("there is no `python3`");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_driver_of_bash_passes_its_tests() {
    bash_passes("drivers/test_bash.py");
}

#[test]
fn the_state_of_bash_passes_its_tests() {
    bash_passes("drivers/test_bash_state.py");
}

fn bash_passes(tests: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join(tests);
    if Command::new("bash").arg("--version").output().is_err() {
        return skip("there is no `bash`");
    }
    let Ok(output) = Command::new(python()).arg("-B").arg(tests).output() else {
        return skip("there is no `python3`");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
