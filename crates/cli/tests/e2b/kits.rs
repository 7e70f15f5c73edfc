//! The SDKs, installed from their registries once a day and shared by all tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use crate::support::{skip, stderr, stdout};

/// In seconds.
const DAY: u64 = 24 * 3600;

/// An SDK that is installed.
pub(crate) struct Kit {
    directory: PathBuf,
}

impl Kit {
    /// The Python SDK of that version, or its newest; says why not, if it cannot be had.
    pub(crate) fn python(version: Option<&str>) -> Option<Self> {
        let interpreter = "import sys; print(sys.implementation.cache_tag)";
        let output = Command::new("python3").args(["-c", interpreter]).output();
        let Some(tag) = output.ok().filter(|output| output.status.success()) else {
            skip("no python3");
            return None;
        };
        let name = format!("{}-e2b-{}", stdout(&tag).trim(), version.unwrap_or("newest"));
        Self::install(&name, |directory| {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-compile"])
                .args(["--disable-pip-version-check", "--no-input", "--target"])
                .arg(directory)
                .arg(version.map_or_else(|| "e2b".to_owned(), |version| format!("e2b=={version}")));
            pip
        })
    }

    /// The newest JavaScript SDK; says why not, if it cannot be had.
    pub(crate) fn javascript() -> Option<Self> {
        if !Command::new("node")
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
        {
            skip("no node");
            return None;
        }
        Self::install("node-e2b-newest", |directory| {
            let mut npm = Command::new("npm");
            npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
                .arg(directory)
                .arg("e2b");
            npm
        })
    }

    /// Runs `command` unless somebody has, today.
    fn install(name: &str, command: impl FnOnce(&Path) -> Command) -> Option<Self> {
        let Some(home) = home() else {
            skip("no directory for the SDKs can be written to");
            return None;
        };
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / DAY;
        let lock = File::create(home.join(format!("{name}.lock"))).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        // Tests that began yesterday may use that of yesterday.
        remove_older_than(&home, name, today - 1);
        let (directory, stamp) = (
            home.join(format!("{name}@{today}")),
            home.join(format!("{name}@{today}.done")),
        );
        if stamp.exists() {
            return Some(Self { directory });
        }
        // Of an installation that was cut.
        let _gone = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let output = command(&directory).stdin(Stdio::null()).output();
        let said = match &output {
            Ok(output) if output.status.success() => {
                File::create(stamp).unwrap();
                return Some(Self { directory });
            }
            Ok(output) => stderr(output),
            Err(error) => error.to_string(),
        };
        let reason = said.trim().lines().last().unwrap_or_default().to_owned();
        skip(&format!("{name} cannot be installed: {reason}"));
        None
    }

    /// Runs a script of Python's that has the SDK.
    pub(crate) fn python_program(&self, script: &Path) -> Command {
        let mut command = Command::new("python3");
        command.arg("-s").arg(script);
        command
            .env("PYTHONPATH", &self.directory)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Runs a script of Node's that has the SDK: from its standard input, because what a file imports is looked for from
    /// where the file is.
    pub(crate) fn node_program(&self, script: &Path) -> Command {
        let mut command = Command::new("node");
        command.args(["--input-type=module", "-"]).current_dir(&self.directory);
        command.stdin(File::open(script).unwrap());
        command
    }
}

fn remove_older_than(home: &Path, name: &str, day: u64) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let of_day = |entry: &fs::DirEntry| {
            let file = entry.file_name().into_string().ok()?;
            file.strip_prefix(name)?
                .strip_prefix('@')?
                .split('.')
                .next()?
                .parse()
                .ok()
        };
        if of_day(&entry).is_some_and(|made: u64| made < day) {
            // Whoever made it may be somebody else.
            let _gone = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
}

/// Where they are installed: with what is built, or in the cache of a user who cannot write there.
fn home() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk");
    let cache = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/offleash-tests/sdk"));
    std::iter::once(built).chain(cache).find(|directory| {
        let made = fs::create_dir_all(directory);
        made.is_ok() && tempfile::tempfile_in(directory).is_ok()
    })
}
