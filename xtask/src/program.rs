//! Programs of this machine: where they are, and running them to their end.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::error::TaskError;

/// Directories in which root's tools are, and which an ordinary user's `PATH` often lacks.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where the executable `name` is: in `PATH` or among the system's directories.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search_path)
        .chain(SYSTEM_DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `cargo`, the one that runs this task when there is one.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The workspace's directory.
pub(crate) fn workspace_root() -> PathBuf {
    let manifest_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_directory.parent().unwrap_or(manifest_directory).to_path_buf()
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// The command line as a person would type it.
pub(crate) fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs `command` with this process's terminal.
///
/// # Errors
/// `Start` when it cannot be started, `Ended` when it ends with anything but success.
pub(crate) fn run(command: &mut Command) -> Result<(), TaskError> {
    let status = command.status().map_err(TaskError::start(command_line(command)))?;
    succeeded(command, status)
}

/// Runs `command` with this process's terminal, but prints of its standard output, when it has ended, what `edit` makes
/// of it.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_and_print(command: &mut Command, edit: impl FnOnce(&str) -> String) -> Result<(), TaskError> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(TaskError::start(command_line(command)))?;
    print!("{}", edit(&String::from_utf8_lossy(&output.stdout)));
    succeeded(command, output.status)
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<(), TaskError> {
    if status.success() {
        return Ok(());
    }
    Err(TaskError::Ended {
        command: command_line(command),
        status: status.to_string(),
        stderr: String::new(),
    })
}
