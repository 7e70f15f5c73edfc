//! The Debian package, which `dpkg-deb` builds: program, manual pages, completions, units of systemd, a profile for AppArmor.
//!
//! It depends on nothing. Nothing of it runs when it is installed, and no user is made.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::archive::{Effort, FILE_TIME, PackagedFile, gz};
use super::binary::ReleaseBinary;
use super::references::References;
use super::sources::{self, Release};
use crate::error::TaskError;
use crate::program;

/// Where units and documents of this repository say that the program is, and where the package has it.
const BY_HAND: &str = "/usr/local/bin/offleash";
const PACKAGED: &str = "/usr/bin/offleash";
const DOCUMENTS: &str = "usr/share/doc/offleash";
/// What its owner changes, which an upgrade leaves alone.
const SETTINGS: &str = "etc/offleash/offleash-serve.toml";

/// The package's name and bytes.
///
/// # Errors
/// `File`, `Answer` when a text is not what it is packaged for, `Start` and `Ended` when `dpkg-deb` does not do it.
pub(crate) fn build(
    binary: &ReleaseBinary,
    release: &Release,
    references: &References,
    effort: Effort,
) -> Result<(String, Vec<u8>), TaskError> {
    if program::find("dpkg-deb").is_none() {
        return Err(TaskError::Answer {
            from: "this machine",
            why: "it has no `dpkg-deb`, which builds Debian packages: install `dpkg`, or name other packages with `--only`"
                .to_owned(),
        });
    }
    let files = files(binary, release, references)?;
    let place = tempfile::tempdir().map_err(TaskError::file("creating a directory in", std::env::temp_dir()))?;
    let root = place.path().join("root");
    for file in &files {
        write(&root, file)?;
    }
    let installed_kib = files.iter().map(|file| file.contents.len().div_ceil(1024)).sum();
    for file in control(binary, release, installed_kib)? {
        write(&root.join("DEBIAN"), &file)?;
    }
    let name = format!("offleash_{}_{}.deb", release.version, binary.processor.debian());
    let path = place.path().join(&name);
    pack(&root, &path, effort)?;
    let bytes = fs::read(&path).map_err(TaskError::file("reading", &path))?;
    Ok((name, bytes))
}

fn files<'a>(
    binary: &'a ReleaseBinary,
    release: &'a Release,
    references: &References,
) -> Result<Vec<PackagedFile<'a>>, TaskError> {
    let pressed = |bytes: &[u8]| gz(bytes).map_err(TaskError::file("writing", "a compressed file"));
    let mut files = vec![PackagedFile::program(inside(PACKAGED), binary.bytes.as_slice())];
    for (name, page) in &references.pages {
        files.push(PackagedFile::data(
            format!("usr/share/man/man1/{name}.gz"),
            pressed(page)?,
        ));
    }
    for (place, script) in [
        ("bash-completion/completions/offleash", &references.bash),
        ("zsh/vendor-completions/_offleash", &references.zsh),
        ("fish/vendor_completions.d/offleash.fish", &references.fish),
    ] {
        files.push(PackagedFile::data(format!("usr/share/{place}"), script.clone()));
    }
    let changelog = pressed(sources::text("CHANGELOG.md")?.as_bytes())?;
    files.push(PackagedFile::data(format!("{DOCUMENTS}/changelog.gz"), changelog));
    files.push(PackagedFile::data(
        format!("{DOCUMENTS}/sbom.cdx.json"),
        release.sbom.as_bytes(),
    ));
    for (from, to) in [
        ("packaging/debian/copyright", format!("{DOCUMENTS}/copyright")),
        ("README.md", format!("{DOCUMENTS}/README.md")),
        ("packaging/apparmor", "usr/share/offleash/apparmor".to_owned()),
        ("packaging/sysusers.conf", "usr/lib/sysusers.d/offleash.conf".to_owned()),
        (
            "packaging/offleash.socket",
            "usr/lib/systemd/system/offleash.socket".to_owned(),
        ),
        ("packaging/offleash-serve.toml", SETTINGS.to_owned()),
    ] {
        files.push(PackagedFile::data(to, sources::text(from)?.into_bytes()));
    }
    files.push(PackagedFile::data(
        "usr/lib/systemd/system/offleash.service",
        unit()?.into_bytes(),
    ));
    Ok(files)
}

/// The unit of the server, with the program where the package has it.
fn unit() -> Result<String, TaskError> {
    const FROM: &str = "packaging/offleash.service";
    let text = sources::text(FROM)?;
    if !text.contains(BY_HAND) {
        return Err(TaskError::Answer {
            from: FROM,
            why: format!("it does not start `{BY_HAND}`"),
        });
    }
    Ok(text.replace(BY_HAND, PACKAGED))
}

fn control(
    binary: &ReleaseBinary,
    release: &Release,
    installed_kib: usize,
) -> Result<Vec<PackagedFile<'static>>, TaskError> {
    let control = format!(
        "Package: offleash\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The authors of offleash <offleash@localhost>\n\
         Installed-Size: {installed_kib}\n\
         Recommends: uidmap\n\
         Suggests: qemu-system, runsc | crun\n\
         Section: utils\n\
         Priority: optional\n\
         Homepage: {}\n\
         Description: sandboxes for code that an AI wrote\n\
         \x20Runs code so that nothing outside its sandbox is harmed, read or reached unless\n\
         \x20that was allowed. One static program: no Docker, no KVM, no root.\n\
         \x20.\n\
         \x20The server is not started; offleash-serve.toml and offleash.service are there\n\
         \x20for who wants it.\n",
        release.version,
        binary.processor.debian(),
        release.repository,
    );
    let mut files = vec![
        PackagedFile::data("control", control.into_bytes()),
        PackagedFile::data("conffiles", format!("/{SETTINGS}\n").into_bytes()),
    ];
    for name in ["postinst", "prerm"] {
        let script = sources::text(&format!("packaging/debian/{name}"))?;
        files.push(PackagedFile::program(name, script.into_bytes()));
    }
    Ok(files)
}

fn inside(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn write(root: &Path, file: &PackagedFile<'_>) -> Result<(), TaskError> {
    let path = root.join(&file.path);
    let directory = path.parent().unwrap_or(root);
    fs::create_dir_all(directory).map_err(TaskError::file("creating", directory))?;
    // Whatever the umask: modes are those of the package.
    for above in directory.ancestors().take_while(|above| above.starts_with(root)) {
        set_mode(above, 0o755)?;
    }
    fs::write(&path, &file.contents).map_err(TaskError::file("writing", &path))?;
    set_mode(&path, file.mode())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), TaskError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(TaskError::file("changing the mode of", path))
}

fn pack(root: &Path, path: &Path, effort: Effort) -> Result<(), TaskError> {
    let compression = match effort {
        Effort::Smallest => "-Zxz",
        Effort::Stored => "-Znone",
    };
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", compression, "--build"]);
    command.arg(root).arg(path).stdout(Stdio::null());
    command.env("SOURCE_DATE_EPOCH", FILE_TIME.to_string());
    program::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_starts_the_packaged_program() {
        let unit = unit().unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/offleash serve "), "{unit}");
        assert!(!unit.contains("/usr/local"), "{unit}");
    }

    #[test]
    fn the_profile_names_the_packaged_program() {
        let profile = sources::text("packaging/apparmor").unwrap();
        assert!(profile.contains(&format!("profile offleash \"{PACKAGED}\" flags=(unconfined)")));
    }
}
