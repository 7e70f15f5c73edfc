//! The second pass: the tests that touch the kernel, as a user without any privilege.
//!
//! That user may not be able to read the workspace (a checkout below `/root`), so the compiled executables are copied
//! to where everyone can run them. Tests that compare documents or sources need the workspace and have run already.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::compiled::{Compiled, TestBinary};
use super::runner::Launch;
use crate::error::TaskError;
use crate::program;
use crate::sdks;

/// A user and group id that no account has, so no subordinate ids either.
const ID: u32 = 4242;

/// The rooms whose tests inside the sources depend on who runs them.
const ROOMS_THAT_TOUCH_THE_KERNEL: [&str; 10] = [
    "buckets",
    "simulated",
    "sys",
    "isolation",
    "guest",
    "store",
    "images",
    "supervisor",
    "daemon",
    "tree",
];

/// Tests that read the workspace, by the name of their file. The drivers of languages are programs as any other, whoever runs
/// them; what moves a copy into a sandbox is tested through supervisors, too.
const TESTS_OF_THE_WORKSPACE: [&str; 4] = ["dist", "documents", "drivers", "invariants"];

/// Tests of what is said over HTTP, whoever runs the server: other releases and languages of SDKs, other doors, other amounts. The
/// newest SDK of Python does all that it can for this user too. A shell that is simulated reads scripts alike for everybody.
const TESTS_OF_WORDS: [&str; 35] = [
    "buckets/src::",
    "cli/api::browsers::what_a_hostile_browser_",
    "cli/api::chromium::puppeteer_",
    "cli/api::chromium_harm::",
    "cli/api::controller::",
    "cli/api::dashboard::browser_",
    "cli/api::front::",
    "cli/api::keys::",
    "cli/daemon::approvals::",
    "cli/e2b::agents::",
    "cli/e2b::build_owners::",
    "cli/e2b::builds::an_older_",
    "cli/e2b::builds::the_newest_asynchronous_",
    "cli/e2b::builds::the_newest_javascript_",
    "cli/e2b::cells::",
    "cli/e2b::desktops::",
    "cli/e2b::doors::",
    "cli/e2b::encrypted::",
    "cli/e2b::gateways::",
    "cli/e2b::languages::an_older_",
    "cli/e2b::languages::the_code_interpreter_sdk_",
    "cli/e2b::languages::the_newest_asynchronous_",
    "cli/e2b::languages::the_newest_javascript_",
    "cli/e2b::libraries::the_",
    "cli/e2b::loads::",
    "cli/e2b::packages::",
    "cli/envd::input::",
    "cli/network::git::",
    "cli/network::upstream_proxy::",
    "cli/scripts::",
    "cli/telemetry::",
    "interpreter/contexts::hostile::cells_of_java_harm_",
    "kubernetes/controller::",
    "simulated/src::worker::conformance::",
    "sys/src::seccomp::tests::program::every_condition_",
];

/// The directory of the SDKs that the ordinary user reads.
const SDKS: &str = "sdks";

/// Names the certificates of authorities, where they are not where TLS looks by itself.
const AUTHORITIES: &str = "SSL_CERT_FILE";

/// Why there is no second pass, if there is none.
pub(super) fn why_not(quick: bool) -> Option<String> {
    if quick {
        Some("left out by --quick".to_owned())
    } else if !program::is_root() {
        Some("only root can become another user; all tests ran as an ordinary user already, none as root".to_owned())
    } else if program::find("setpriv").is_none() {
        Some("`setpriv` is missing".to_owned())
    } else {
        None
    }
}

/// As that user.
#[derive(Debug)]
pub(super) struct AsOrdinaryUser {
    /// Removed at the end of the pass.
    directory: TempDir,
    home: PathBuf,
    tests: Vec<TestBinary>,
    offleash: Option<PathBuf>,
}

impl AsOrdinaryUser {
    /// Puts everything where that user can run and read it.
    ///
    /// # Errors
    /// `File` when the executables cannot be copied.
    pub(super) fn prepare(compiled: &Compiled) -> Result<Self, TaskError> {
        // The name is short because tests make unix sockets below it, whose paths end at 108 bytes.
        let directory = tempfile::Builder::new().prefix("xtask-").tempdir();
        let directory = directory.map_err(TaskError::file("creating a directory in", std::env::temp_dir()))?;
        set_mode(directory.path(), 0o755)?;
        let home = directory.path().join("home");
        fs::create_dir(&home).map_err(TaskError::file("creating", &home))?;

        let mut tests = Vec::new();
        for test in compiled.tests.iter().filter(|test| depends_on_user(test)) {
            tests.push(TestBinary {
                path: copy(&test.path, directory.path())?,
                directory: home.clone(),
                ..test.clone()
            });
        }
        let offleash = compiled
            .offleash()
            .map(|path| copy(path, directory.path()))
            .transpose()?;
        copy_sdks(directory.path())?;
        Ok(Self {
            directory,
            home,
            tests,
            offleash,
        })
    }

    /// Where all that they write is.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// Gives them their home; to be called when what is to be mounted there is.
    ///
    /// # Errors
    /// `File` when the owner cannot be changed.
    pub(super) fn hand_over(&self) -> Result<(), TaskError> {
        chown(&self.home, Some(ID), Some(ID)).map_err(TaskError::file("changing the owner of", &self.home))
    }
}

impl Launch for AsOrdinaryUser {
    fn tests(&self) -> Vec<TestBinary> {
        self.tests.clone()
    }

    fn concerns(&self, label: &str) -> bool {
        !TESTS_OF_WORDS.iter().any(|words| label.starts_with(words))
    }

    fn command(&self, binary: &TestBinary) -> Command {
        let home = &self.home;
        let mut command = Command::new("setpriv");
        command.args([
            format!("--reuid={ID}"),
            format!("--regid={ID}"),
            "--clear-groups".to_owned(),
        ]);
        command.arg("--").arg(&binary.path).current_dir(home).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("INSTA_UPDATE", "no")
            .env("OFFLEASH_TEMPLATES", home.join("templates"))
            .env("OFFLEASH_SDKS", self.directory.path().join(SDKS));
        if let Some(offleash) = &self.offleash {
            command.env("OFFLEASH_BINARY", offleash);
        }
        // Which authorities this machine trusts is no secret; templates are built from registries by any user.
        if let Some(authorities) = std::env::var_os(AUTHORITIES) {
            command.env(AUTHORITIES, authorities);
        }
        command
    }
}

fn depends_on_user(test: &TestBinary) -> bool {
    if test.integration {
        return !TESTS_OF_THE_WORKSPACE.contains(&test.target.as_str());
    }
    ROOMS_THAT_TOUCH_THE_KERNEL.contains(&test.room.as_str())
}

/// Copies the SDKs for everyone to read, whatever umask and archives made of them. That user installs none: what reaches
/// a registry from here, proxies, authorities and settings, is root's. Tests that miss an SDK say so.
fn copy_sdks(directory: &Path) -> Result<(), TaskError> {
    let (from, to) = (sdks::directory(), directory.join(SDKS));
    if !from.exists() {
        return Ok(());
    }
    program::run(Command::new("cp").arg("-R").arg(&from).arg(&to))?;
    program::run(Command::new("chmod").args(["-R", "a+rX"]).arg(&to))
}

/// Gives an executable a name in `directory`, for everyone to run; where that is another disk, as a copy.
fn copy(executable: &Path, directory: &Path) -> Result<PathBuf, TaskError> {
    let target = directory.join(executable.file_name().unwrap_or_default());
    if fs::hard_link(executable, &target).is_ok() {
        return set_mode(&target, 0o755).map(|()| target);
    }
    fs::copy(executable, &target).map_err(TaskError::file("copying", executable))?;
    set_mode(&target, 0o755)?;
    Ok(target)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), TaskError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(TaskError::file("changing the mode of", path))
}
