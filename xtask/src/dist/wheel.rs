//! The wheel: the library for Python, and the program as a script of the environment.
//!
//! One file serves glibc and musl, whichever age: the program is static, so it carries the tags of all
//! (<https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/>, "compressed tag sets").

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::archive::{Effort, PackagedFile, zip};
use super::binary::{Processor, ReleaseBinary};
use super::sources::{self, Release};
use crate::error::TaskError;

/// The oldest platforms with which the program runs, as installers name them: before musl had a tag, and before
/// tags named a version of glibc.
const PLATFORMS: [&str; 3] = ["manylinux_2_17", "manylinux2014", "musllinux_1_1"];

/// The parts of `pyproject.toml` that a wheel repeats.
#[derive(Debug, Deserialize)]
struct Pyproject {
    project: Project,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Project {
    name: String,
    version: String,
    description: String,
    requires_python: String,
    license: License,
    dependencies: Vec<String>,
    classifiers: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct License {
    text: String,
}

/// The wheel's name and bytes.
///
/// # Errors
/// `File` when the library cannot be read, `Answer` when its version is not that of the release.
pub(crate) fn build(binary: &ReleaseBinary, release: &Release, effort: Effort) -> Result<(String, Vec<u8>), TaskError> {
    let project = project()?;
    release.expect("clients/python/pyproject.toml", &project.version)?;
    let stem = format!("{}-{}", project.name, project.version);
    let tags = platform_tags(binary.processor);
    let about = format!("{stem}.dist-info");
    let mut files = sources::tree("clients/python/src", &project.name, |name| {
        name.ends_with(".py") || name.ends_with("py.typed")
    })?;
    files.push(PackagedFile::program(
        format!("{stem}.data/scripts/offleash"),
        binary.bytes.as_slice(),
    ));
    let readme = sources::text("clients/python/README.md")?;
    for (name, contents) in [
        ("METADATA", metadata(&project, &release.repository, &readme)),
        ("WHEEL", wheel(&tags)),
        ("licenses/LICENSE", sources::text("LICENSE")?),
        ("sboms/offleash.cdx.json", release.sbom.clone()),
    ] {
        files.push(PackagedFile::data(format!("{about}/{name}"), contents.into_bytes()));
    }
    let record = record(&files, &format!("{about}/RECORD"));
    files.push(PackagedFile::data(format!("{about}/RECORD"), record.into_bytes()));
    let name = format!("{stem}-py3-none-{}.whl", tags.join("."));
    let bytes = zip(&files, effort).map_err(TaskError::file("writing", &name))?;
    Ok((name, bytes))
}

fn project() -> Result<Project, TaskError> {
    let read: Pyproject =
        toml::from_str(&sources::text("clients/python/pyproject.toml")?).map_err(|error| TaskError::Answer {
            from: "clients/python/pyproject.toml",
            why: error.to_string(),
        })?;
    Ok(read.project)
}

fn platform_tags(processor: Processor) -> Vec<String> {
    PLATFORMS
        .iter()
        .map(|platform| format!("{platform}_{}", processor.name()))
        .collect()
}

/// <https://packaging.python.org/en/latest/specifications/core-metadata/>.
fn metadata(project: &Project, repository: &str, readme: &str) -> String {
    let mut lines = vec![
        "Metadata-Version: 2.1".to_owned(),
        format!("Name: {}", project.name),
        format!("Version: {}", project.version),
        format!("Summary: {}", project.description),
        format!("License: {}", project.license.text),
        "License-File: LICENSE".to_owned(),
        format!("Project-URL: Source, {repository}"),
        format!("Requires-Python: {}", project.requires_python),
        "Description-Content-Type: text/markdown".to_owned(),
    ];
    lines.extend(project.classifiers.iter().map(|one| format!("Classifier: {one}")));
    lines.extend(project.dependencies.iter().map(|one| format!("Requires-Dist: {one}")));
    format!("{}\n\n{readme}", lines.join("\n"))
}

fn wheel(tags: &[String]) -> String {
    let generator = format!("Generator: offleash-xtask {}\n", env!("CARGO_PKG_VERSION"));
    let tags: String = tags.iter().map(|tag| format!("Tag: py3-none-{tag}\n")).collect();
    format!("Wheel-Version: 1.0\n{generator}Root-Is-Purelib: false\n{tags}")
}

/// Each file with its digest and size, and the list itself without.
fn record(files: &[PackagedFile<'_>], itself: &str) -> String {
    let line = |file: &PackagedFile<'_>| {
        let digest = BASE64URL_NOPAD.encode(&Sha256::digest(&file.contents));
        format!("{},sha256={digest},{}\n", file.path, file.contents.len())
    };
    let lines: String = files.iter().map(line).collect();
    format!("{lines}{itself},,\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_is_that_of_the_project() {
        let text = metadata(&project().unwrap(), "https://example.com/offleash", "# Read me\n");
        for line in [
            "Name: offleash",
            "Requires-Dist: httpx>=0.24",
            "Requires-Python: >=3.9",
            "License: Apache-2.0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        }
        assert!(text.ends_with("\n\n# Read me\n"), "{text}");
    }

    #[test]
    fn one_file_has_the_tags_of_both_c_libraries() {
        let tags = platform_tags(Processor::Aarch64).join(".");
        assert_eq!(
            tags,
            "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"
        );
        assert!(wheel(&platform_tags(Processor::X86_64)).contains("\nTag: py3-none-musllinux_1_1_x86_64\n"));
    }

    #[test]
    fn the_record_has_the_digest_of_each_file() {
        let said = record(&[PackagedFile::data("a.py", &b""[..])], "x/RECORD");
        assert_eq!(
            said,
            "a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nx/RECORD,,\n"
        );
    }
}
