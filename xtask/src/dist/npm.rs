//! Packages of npm: the library with a command, and one for each platform with the program.
//!
//! The library names the others as optional dependencies, of which `npm` installs the one whose `os` and `cpu` fit. No
//! script runs at installation, so that `--ignore-scripts` changes nothing.

use serde_json::{Value, json};

use super::archive::{Effort, PackagedFile, tar_gz};
use super::binary::{Processor, ReleaseBinary};
use super::sources::{self, Release};
use crate::error::TaskError;

/// All platforms that there are packages for; the library names each of them.
const PROCESSORS: [Processor; 2] = [Processor::X86_64, Processor::Aarch64];

/// The package of a platform, and that of the library: their names and bytes.
///
/// # Errors
/// `File` when the library cannot be read, `Answer` when its version is not that of the release.
pub(crate) fn build(
    binary: &ReleaseBinary,
    release: &Release,
    effort: Effort,
) -> Result<[(String, Vec<u8>); 2], TaskError> {
    Ok([platform(binary, release, effort)?, library(release, effort)?])
}

/// The name of the package with the program for a processor.
fn platform_name(processor: Processor) -> String {
    format!("offleash-linux-{}", processor.node())
}

fn platform(binary: &ReleaseBinary, release: &Release, effort: Effort) -> Result<(String, Vec<u8>), TaskError> {
    let name = platform_name(binary.processor);
    let manifest = json!({
        "name": name,
        "version": release.version,
        "description": format!("The program of offleash for Linux on {}", binary.processor.node()),
        "license": "Apache-2.0",
        "repository": repository(release),
        "os": ["linux"],
        "cpu": [binary.processor.node()],
        // Yarn would keep it in an archive, where nothing can be executed.
        "preferUnplugged": true,
        "files": ["bin", "LICENSE", "sbom.cdx.json"],
    });
    let files = [
        PackagedFile::data("package/package.json", document(&manifest)),
        PackagedFile::program("package/bin/offleash", binary.bytes.as_slice()),
        PackagedFile::data("package/LICENSE", sources::text("LICENSE")?.into_bytes()),
        PackagedFile::data("package/sbom.cdx.json", release.sbom.as_bytes()),
    ];
    packed(&name, release, &files, effort)
}

fn library(release: &Release, effort: Effort) -> Result<(String, Vec<u8>), TaskError> {
    let text = sources::text("clients/javascript/package.json")?;
    let answer = |why: String| TaskError::Answer {
        from: "clients/javascript/package.json",
        why,
    };
    let mut manifest: Value = serde_json::from_str(&text).map_err(|error| answer(error.to_string()))?;
    let version = manifest["version"].as_str().unwrap_or_default().to_owned();
    release.expect("clients/javascript/package.json", &version)?;
    let platforms = PROCESSORS.map(|processor| (platform_name(processor), json!(version)));
    manifest["optionalDependencies"] = Value::Object(platforms.into_iter().collect());
    manifest["repository"] = repository(release);
    let mut files = vec![
        PackagedFile::data("package/package.json", document(&manifest)),
        PackagedFile::data("package/LICENSE", sources::text("LICENSE")?.into_bytes()),
        PackagedFile::data(
            "package/README.md",
            sources::text("clients/javascript/README.md")?.into_bytes(),
        ),
        PackagedFile::program(
            "package/bin/offleash.sh",
            sources::text("clients/javascript/bin/offleash.sh")?.into_bytes(),
        ),
    ];
    let library = sources::tree("clients/javascript", "src", |name| {
        name.ends_with(".js") || name.ends_with(".d.ts")
    })?;
    files.extend(library.into_iter().map(|file| PackagedFile {
        path: format!("package/{}", file.path),
        ..file
    }));
    packed("offleash", release, &files, effort)
}

fn repository(release: &Release) -> Value {
    json!({ "type": "git", "url": format!("git+{}.git", release.repository) })
}

fn document(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// As `npm pack` names and packs it.
fn packed(
    name: &str,
    release: &Release,
    files: &[PackagedFile<'_>],
    effort: Effort,
) -> Result<(String, Vec<u8>), TaskError> {
    let name = format!("{name}-{}.tgz", release.version);
    let bytes = tar_gz(files, effort).map_err(TaskError::file("writing", &name))?;
    Ok((name, bytes))
}
