//! What every test of the command line needs: the binary, a workspace and a state directory of its own.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "each test file uses its own part of this; a test that cannot go on has failed, and starts programs itself"
)]

pub mod disks;
pub mod levels;
pub mod listing;
pub mod openssl;
pub mod processes;
pub mod sdks;
pub mod terminal;
pub mod tools;
pub mod workspace;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A workspace and a state directory that nobody else uses, removed with everything in them at the end.
pub struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    /// A new, empty one.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("offleash-test-").tempdir().unwrap();
        for name in ["workspace", "state"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(directory.path().join("state"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let site = Self { directory };
        levels::share_machines(&site.state());
        site
    }

    /// Another, which has the templates of a root of a sandbox's own in common with others, if that was asked for:
    /// `OFFLEASH_TEMPLATES` names the directory. For an ordinary user one takes seconds to make.
    pub fn sharing_templates() -> Self {
        let site = Self::new();
        if let Some(shared) = std::env::var_os("OFFLEASH_TEMPLATES") {
            match std::fs::create_dir(&shared) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
                _ => std::os::unix::fs::symlink(shared, site.state().join("base")).unwrap(),
            }
        }
        site
    }

    /// The directory around both.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// The workspace.
    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Writes a file into the workspace.
    pub fn write(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.workspace().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// The binary, in the workspace, with this state directory and a short environment.
    pub fn offleash<I, S>(&self, arguments: I) -> Command
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new(binary());
        command.args(levels::with_flags(arguments));
        command.current_dir(self.workspace()).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.root())
            .env("OFFLEASH_STATE", self.state());
        command.stdin(Stdio::null());
        command
    }

    /// Runs `offleash run FLAGS -- sh -c SCRIPT`.
    pub fn run_shell(&self, flags: &[&str], script: &str) -> Output {
        let mut arguments = vec!["run", "--quiet"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", "/bin/sh", "-c", script]);
        self.offleash(arguments).output().unwrap()
    }

    /// Runs `offleash run --json FLAGS -- sh -c SCRIPT` and answers the record.
    pub fn record(&self, flags: &[&str], script: &str) -> serde_json::Value {
        let mut arguments = vec!["run", "--json"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", "/bin/sh", "-c", script]);
        let output = self.offleash(arguments).output().unwrap();
        record_of(&output)
    }

    /// Runs `offleash COMMAND` and answers its output; it must succeed.
    pub fn succeed<I, S>(&self, arguments: I) -> String
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let output = self.offleash(arguments).output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
        stdout(&output)
    }

    /// Runs `offleash COMMAND`, which must be a failure of offleash's own that says what to do; answers what it says.
    pub fn refuse<I, S>(&self, arguments: I) -> String
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.refuse_with(125, arguments)
    }

    /// Applies a run, which must be refused because of what the host did meanwhile; answers what offleash says.
    pub fn conflict(&self, run: &str) -> String {
        self.refuse_with(1, ["apply", run])
    }

    fn refuse_with<I, S>(&self, code: i32, arguments: I) -> String
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let output = self.offleash(arguments).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{}{said}", stdout(&output));
        assert!(said.starts_with("error: "), "{said}");
        assert!(said.contains("\nhint: "), "{said}");
        said
    }
}

/// The record that `offleash run --json` printed.
pub fn record_of(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no record ({error}): {}", String::from_utf8_lossy(&output.stderr)))
}

/// The id in a record.
pub fn id_of(record: &serde_json::Value) -> String {
    record["id"].as_str().unwrap().to_owned()
}

impl Drop for Site {
    /// A supervisor that was killed left groups, which the next start removes. What a sandbox made may be closed even
    /// to its owner, and lie deeper than any path reaches.
    fn drop(&mut self) {
        if self.state().join("warm").exists() {
            let _ended = self.offleash(["warm", "stop"]).stderr(Stdio::null()).status();
        }
        let unfinished = std::fs::read_dir(self.state().join("live")).is_ok_and(|mut live| live.next().is_some());
        if unfinished {
            let _ended = self
                .offleash(["runs"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
        for (program, flags) in [("chmod", "-Rf"), ("rm", "-rf")] {
            let mut command = Command::new(program);
            command
                .arg(flags)
                .args((program == "chmod").then_some("u+rwX"))
                .arg(self.root());
            // The temporary directory itself complains of nothing either.
            let _ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// The binary under test: the one that the test runner names, or the one that cargo built.
pub fn binary() -> PathBuf {
    std::env::var_os("OFFLEASH_BINARY").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_offleash")), PathBuf::from)
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Says that a test cannot run here; the caller returns.
pub fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

/// Whether this test runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
