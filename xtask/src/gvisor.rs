//! gVisor's `runsc`, from the package of Debian 13: that of Debian 12 is years older and has no systrap.
//!
//! Its package is a static program without dependencies, so it is unpacked beside the SDKs and not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::TaskError;
use crate::program;
use crate::sdks;

/// The release whose package it is.
const RELEASE: &str = "trixie";
const PACKAGE: &str = "runsc";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where it is.
pub(crate) fn program() -> PathBuf {
    sdks::directory().join("gvisor/usr/bin/runsc")
}

/// Unpacks it, unless it is there.
///
/// # Errors
/// What was missing or failed, in words.
pub(crate) fn install() -> Result<(), String> {
    if program().exists() {
        return Ok(());
    }
    for tool in ["apt-get", "dpkg-deb"] {
        if program::find(tool).is_none() {
            return Err(format!("this machine has no {tool}"));
        }
    }
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    unpack(place.path()).map_err(|error| error.to_string())
}

/// Asks for the lists of that release and fetches the package, with directories of its own: nothing of the machine's apt changes.
fn unpack(place: &Path) -> Result<(), TaskError> {
    for directory in ["state/lists/partial", "cache/archives/partial", "fetched"] {
        let path = place.join(directory);
        fs::create_dir_all(&path).map_err(TaskError::file("creating", &path))?;
    }
    let list = place.join("sources.list");
    let archive = archive()?;
    fs::write(&list, format!("deb [signed-by={KEYRING}] {archive} {RELEASE} main\n"))
        .map_err(TaskError::file("writing", &list))?;
    let setting = |name: &str, value: &Path| format!("{name}={}", value.display());
    let settings = [
        setting("Dir::State", &place.join("state")),
        setting("Dir::Cache", &place.join("cache")),
        setting("Dir::Etc::sourcelist", &list),
        setting("Dir::Etc::sourceparts", Path::new("-")),
        "APT::Sandbox::User=root".to_owned(),
    ];
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        for setting in &settings {
            command.arg("-o").arg(setting);
        }
        command.args(words).current_dir(place.join("fetched"));
        command.stdin(Stdio::null()).stdout(std::io::stderr());
        program::run(&mut command)
    };
    apt(&["--quiet", "update"])?;
    apt(&["--quiet", "download", PACKAGE])?;
    let fetched = place.join("fetched");
    let mut packages = fs::read_dir(&fetched).map_err(TaskError::file("reading", &fetched))?;
    let Some(Ok(package)) = packages.next() else {
        return Err(TaskError::Answer {
            from: "apt-get",
            why: format!("no package `{PACKAGE}`"),
        });
    };
    let target = sdks::directory().join("gvisor");
    fs::create_dir_all(&target).map_err(TaskError::file("creating", &target))?;
    program::run(Command::new("dpkg-deb").arg("-x").arg(package.path()).arg(&target))
}

/// Where this machine has Debian's packages from: the first of its archives that is none of updates for security alone.
fn archive() -> Result<String, TaskError> {
    let mut command = Command::new("apt-get");
    command
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .stdin(Stdio::null());
    let output = command.output().map_err(TaskError::start("apt-get"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let archive = text.lines().find(|uri| !uri.contains("security"));
    archive.map(str::to_owned).ok_or_else(|| TaskError::Answer {
        from: "apt-get",
        why: "this machine has no archive of Debian's".to_owned(),
    })
}
