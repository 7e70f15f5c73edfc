//! The compiled tests and programs of the workspace, as cargo reports them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::TaskError;
use crate::program::{self, cargo, workspace_root};

/// What was built.
#[derive(Debug, Default)]
pub(super) struct Compiled {
    /// The test executables.
    pub(super) tests: Vec<TestBinary>,
    /// The programs, by name.
    pub(super) programs: Vec<(String, PathBuf)>,
}

/// One test executable.
#[derive(Debug, Clone)]
pub(super) struct TestBinary {
    /// The folder of its crate, as `core`.
    pub(super) room: String,
    /// The crate's directory, in which its tests run.
    pub(super) directory: PathBuf,
    /// The name of the target.
    pub(super) target: String,
    /// Whether it is one of the crate's `tests/`, not the tests inside its sources.
    pub(super) integration: bool,
    /// Where it is.
    pub(super) path: PathBuf,
}

impl TestBinary {
    /// How it is named in messages.
    pub(super) fn label(&self) -> String {
        let target = if self.integration { self.target.as_str() } else { "src" };
        format!("{}/{target}", self.room)
    }
}

/// The fields that we use of cargo's JSON messages
/// (<https://doc.rust-lang.org/cargo/reference/external-tools.html>, "Artifact messages").
#[derive(Debug, Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// Has Clippy's driver compile the workspace, and `rustdoc` judge its documents beside (`compiler.sh`). `cargo clippy` and `cargo
/// doc` would each go through all sources, and through those of all dependencies, once more. A warning is an error.
///
/// Nothing is kept for an incremental build: that takes longer where there was none, and as much room again.
pub(super) fn judged(command: &mut Command) -> &mut Command {
    command
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            workspace_root().join("xtask/src/test/compiler.sh"),
        )
        .env("OFFLEASH_DOCUMENTS", program::target_directory().join("doc"))
        // As `cargo clippy --no-deps -- --deny warnings` says it to the driver.
        .env(
            "CLIPPY_ARGS",
            ["--no-deps", "--deny", "warnings", ""].join("__CLIPPY_HACKERY__"),
        )
        .env("CARGO_INCREMENTAL", "0")
        // A panic says where it was without them; what is compiled and linked is smaller by a third.
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
}

/// Builds all programs and all tests, and has their sources judged.
///
/// # Errors
/// `Ended` when something does not compile or is not as it should be; the compiler has then said what, on standard error.
pub(super) fn build() -> Result<Compiled, TaskError> {
    let mut compiled = Compiled::default();
    for subcommand in [
        &["build", "--workspace", "--bins"][..],
        &["test", "--workspace", "--no-run"][..],
    ] {
        for artifact in artifacts(subcommand)? {
            compiled.add(artifact);
        }
    }
    Ok(compiled)
}

fn artifacts(subcommand: &[&str]) -> Result<Vec<Artifact>, TaskError> {
    let mut command = cargo();
    judged(&mut command)
        .args(subcommand)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace_root());
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(TaskError::start("cargo"))?;
    if !output.status.success() {
        let command = program::command_line(&command);
        return Err(TaskError::Ended {
            command,
            status: output.status.to_string(),
            stderr: String::new(),
        });
    }
    parse_messages(&String::from_utf8_lossy(&output.stdout))
}

fn parse_messages(messages: &str) -> Result<Vec<Artifact>, TaskError> {
    messages
        .lines()
        .filter(|line| line.contains(r#""reason":"compiler-artifact""#))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(|error| TaskError::Answer {
            from: "cargo",
            why: error.to_string(),
        })
}

impl Compiled {
    fn add(&mut self, artifact: Artifact) {
        let Artifact {
            manifest_path,
            target,
            profile,
            executable,
        } = artifact;
        let (Some(path), Some(directory)) = (executable, manifest_path.parent()) else {
            return;
        };
        if !profile.test {
            if target.kind.iter().any(|kind| kind == "bin")
                && !self.programs.iter().any(|(name, _)| *name == target.name)
            {
                self.programs.push((target.name, path));
            }
            return;
        }
        self.tests.push(TestBinary {
            room: directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            directory: directory.to_path_buf(),
            integration: target.kind.iter().any(|kind| kind == "test"),
            target: target.name,
            path,
        });
    }

    /// The program `offleash`, which end-to-end tests drive.
    pub(super) fn offleash(&self) -> Option<&PathBuf> {
        self.programs
            .iter()
            .find(|(name, _)| name == "offleash")
            .map(|(_, path)| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_programs_are_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-message","message":{}}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/cli/Cargo.toml","target":{"name":"offleash","kind":["bin"]},"profile":{"test":false},"executable":"/w/target/offleash"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/cli/Cargo.toml","target":{"name":"escape","kind":["test"]},"profile":{"test":true},"executable":"/w/target/escape-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/core/Cargo.toml","target":{"name":"offleash_core","kind":["lib"]},"profile":{"test":false},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/core/Cargo.toml","target":{"name":"offleash_core","kind":["lib"]},"profile":{"test":true},"executable":"/w/target/core-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let mut compiled = Compiled::default();
        for artifact in parse_messages(messages).unwrap() {
            compiled.add(artifact);
        }
        let labels: Vec<_> = compiled.tests.iter().map(TestBinary::label).collect();
        assert_eq!(labels, ["cli/escape", "core/src"]);
        assert_eq!(compiled.offleash(), Some(&PathBuf::from("/w/target/offleash")));
    }
}
