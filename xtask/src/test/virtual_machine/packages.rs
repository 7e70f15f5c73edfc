//! The kernel and the programs of the virtual machine: Debian's packages, unpacked below `target` and not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program;

/// The package that stands for the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// A shell and its tools in one static program.
const BUSYBOX: &str = "busybox-static";

/// What the virtual machine is made of.
#[derive(Debug)]
pub(super) struct Packages {
    /// The kernel.
    pub(super) kernel: PathBuf,
    /// The directory of its modules.
    pub(super) modules: PathBuf,
    /// The program busybox.
    pub(super) busybox: PathBuf,
}

impl Packages {
    /// Unpacks what is not unpacked yet below `cache`.
    ///
    /// # Errors
    /// In words: what could not be had, and why.
    pub(super) fn obtain(cache: &Path) -> Result<Self, String> {
        let kernel = unpack(cache, KERNEL)?;
        let busybox = unpack(cache, BUSYBOX)?;
        let modules = find(&kernel.join("lib/modules"), |_| true)?;
        Ok(Self {
            kernel: find(&kernel.join("boot"), |name| name.starts_with("vmlinuz-"))?,
            modules: modules.join("kernel"),
            busybox: busybox.join("bin/busybox"),
        })
    }
}

/// Unpacks the kernel alone, for those who start virtual machines themselves: the directory with `boot` and `lib/modules`.
///
/// # Errors
/// As [`Packages::obtain`].
pub(super) fn obtain_kernel(cache: &Path) -> Result<PathBuf, String> {
    unpack(cache, KERNEL)
}

/// The directory into which `package` is unpacked, now or before.
fn unpack(cache: &Path, package: &str) -> Result<PathBuf, String> {
    let unpacked = cache.join(package);
    if unpacked.is_dir() {
        return Ok(unpacked);
    }
    // Unpacked beside it, and renamed when whole: a run that was interrupted leaves nothing that looks complete.
    let parts = cache.join(format!("{package}.partial"));
    let failed = |error: std::io::Error| format!("`{}`: {error}", parts.display());
    if parts.exists() {
        fs::remove_dir_all(&parts).map_err(failed)?;
    }
    fs::create_dir_all(parts.join("root")).map_err(failed)?;
    download(&parts, package)?;
    let archive = find(&parts, |name| name.ends_with(".deb"))?;
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(parts.join("root")))?;
    fs::rename(parts.join("root"), &unpacked).map_err(failed)?;
    fs::remove_dir_all(&parts).map_err(failed)?;
    Ok(unpacked)
}

fn download(directory: &Path, package: &str) -> Result<(), String> {
    let attempt = || {
        let package = real_name(package)?;
        run(Command::new("apt-get")
            .args(["download", "--quiet", &package])
            .current_dir(directory))
    };
    // The lists of packages may be missing or old, and only root can renew them.
    attempt().or_else(|error| {
        if !program::is_root() {
            return Err(error);
        }
        run(Command::new("apt-get").args(["update", "--quiet"]))?;
        attempt()
    })
}

/// The package behind `package`, which may only depend on the one of the current version.
fn real_name(package: &str) -> Result<String, String> {
    if package != KERNEL {
        return Ok(package.to_owned());
    }
    let output = Command::new("apt-cache").args(["depends", package]).output();
    let output = output.map_err(|error| format!("`apt-cache`: {error}"))?;
    dependency(&String::from_utf8_lossy(&output.stdout))
        .map(str::to_owned)
        .ok_or_else(|| format!("there is no package `{package}`"))
}

fn dependency(listing: &str) -> Option<&str> {
    let mut found = listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    found.find(|name| name.starts_with("linux-image-"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let line = program::command_line(command);
    let output = output.map_err(|error| format!("`{line}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{line}`: {}", said.lines().next().unwrap_or("failed")))
}

/// The entry of `directory` whose name is `wanted`.
fn find(directory: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("`{}`: {error}", directory.display()))?;
    entries
        .flatten()
        .find(|entry| wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .ok_or_else(|| format!("`{}` lacks what the package has there", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_the_current_version_is_what_its_package_depends_on() {
        let listing = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n  Recommends: x\n";
        assert_eq!(dependency(listing), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency(""), None);
    }
}
