//! The SDKs as they are released, which `cargo xtask sdks` installs and `cargo xtask test` too.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::sdks;

/// Python's, as it is laid out beside one another so that modules import each other.
const PYTHON: [(&str, &str); 23] = [
    ("cases.py", include_str!("python/cases.py")),
    ("network.py", include_str!("python/network.py")),
    ("lifecycle.py", include_str!("python/lifecycle.py")),
    ("commands.py", include_str!("python/commands.py")),
    ("files.py", include_str!("python/files.py")),
    ("others.py", include_str!("python/others.py")),
    ("git_remotes.py", include_str!("python/git_remotes.py")),
    ("async_git_remotes.py", include_str!("python/async_git_remotes.py")),
    ("gateway.py", include_str!("python/gateway.py")),
    ("volumes.py", include_str!("python/volumes.py")),
    ("reach.py", include_str!("python/reach.py")),
    ("code.py", include_str!("python/code.py")),
    ("hostile.py", include_str!("python/hostile.py")),
    ("simulated.py", include_str!("python/simulated.py")),
    ("desktop.py", include_str!("python/desktop.py")),
    ("packages.py", include_str!("python/packages.py")),
    ("async_lifecycle.py", include_str!("python/async_lifecycle.py")),
    ("async_commands.py", include_str!("python/async_commands.py")),
    ("async_files.py", include_str!("python/async_files.py")),
    ("async_volumes.py", include_str!("python/async_volumes.py")),
    ("async_others.py", include_str!("python/async_others.py")),
    ("builds.py", include_str!("python/builds.py")),
    ("async_builds.py", include_str!("python/async_builds.py")),
];

const JAVASCRIPT: [(&str, &str); 11] = [
    ("cases.mjs", include_str!("javascript/cases.mjs")),
    ("lifecycle.mjs", include_str!("javascript/lifecycle.mjs")),
    ("commands.mjs", include_str!("javascript/commands.mjs")),
    ("files.mjs", include_str!("javascript/files.mjs")),
    ("git_remotes.mjs", include_str!("javascript/git_remotes.mjs")),
    ("others.mjs", include_str!("javascript/others.mjs")),
    ("volumes.mjs", include_str!("javascript/volumes.mjs")),
    ("reach.mjs", include_str!("javascript/reach.mjs")),
    ("desktop.mjs", include_str!("javascript/desktop.mjs")),
    ("packages.mjs", include_str!("javascript/packages.mjs")),
    ("builds.mjs", include_str!("javascript/builds.mjs")),
];

/// An SDK that is installed, and the cases in its language.
pub(crate) struct Kit {
    directory: PathBuf,
    python: bool,
}

impl Kit {
    /// That of this name; says why not, if it is not there.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let python = name.starts_with("python");
        let inside = match name {
            "python_mcp" => "mcp",
            "python_daytona" => "daytona",
            "python_judge0" => "judge0",
            "python_piston" => "piston_rspy",
            "javascript_daytona" => "node_modules/@daytona/sdk",
            _ if python => "e2b",
            _ => "node_modules/e2b",
        };
        let directory = sdks::find(name, inside);
        directory.map(|directory| Self { directory, python })
    }

    /// What runs the cases of `modules`, all sources written into `place`: where tests were built is not for everyone
    /// to read.
    pub(crate) fn program(&self, place: &Path, modules: &[&str]) -> Command {
        let sources = if self.python { &PYTHON[..] } else { &JAVASCRIPT };
        for (name, text) in sources {
            std::fs::write(place.join(name), text).unwrap();
        }
        let mut command = if self.python {
            self.python(&place.join(PYTHON[0].0))
        } else {
            self.node(place, &place.join(JAVASCRIPT[0].0))
        };
        command.args(modules).current_dir(place);
        command
    }

    /// Where Python finds both.
    #[allow(dead_code, reason = "not every program of tests has SDKs beside one another")]
    pub(crate) fn beside(&self, other: &Self) -> std::ffi::OsString {
        std::env::join_paths([&self.directory, &other.directory]).unwrap()
    }

    /// Runs a script of Python's that has the SDK.
    pub(crate) fn python(&self, script: &Path) -> Command {
        let mut command = Command::new(system_python());
        command.arg("-s").arg(script);
        command
            .env_remove("PYTHONHOME")
            .env("PYTHONPATH", &self.directory)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Runs a script of JavaScript's in `place`: what a file imports is looked for from where the file is.
    pub(crate) fn node(&self, place: &Path, script: &Path) -> Command {
        let link = place.join("node_modules");
        if !link.exists() {
            std::os::unix::fs::symlink(self.directory.join("node_modules"), link).unwrap();
        }
        let mut command = Command::new("node");
        command.arg(script);
        command
    }
}

/// The interpreter that Python's were installed with.
pub(crate) fn system_python() -> &'static Path {
    let system = Path::new("/usr/bin/python3");
    if system.exists() { system } else { Path::new("python3") }
}
