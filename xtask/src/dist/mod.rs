//! `cargo xtask dist`: packages of the program for those who have no Rust.
//!
//! All are made of one static program, which is built, or named with `--binary`, and of this workspace's texts; nothing is fetched.
//! The same program and texts give the same bytes. Deliberately not here: publishing.

mod archive;
mod binary;
mod compiler;
mod debian;
mod npm;
mod references;
mod sbom;
mod sources;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::error::TaskError;
use crate::program::target_directory;
use archive::{Effort, PackagedFile, tar_gz};
use binary::{Processor, ReleaseBinary};
use references::References;
use sources::Release;

/// The file with the digests of all others.
const CHECKSUMS: &str = "SHA256SUMS";

/// Options of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct DistOptions {
    /// Package this static program for Linux, instead of building one
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Build the program for this processor [default: that of this machine]
    #[arg(long, value_enum, value_name = "TARGET", conflicts_with = "binary")]
    target: Option<Processor>,
    /// Where the packages go, a directory of their own [default: target/dist]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Make this kind of package alone; may be repeated
    #[arg(long, value_enum)]
    only: Vec<PackageKind>,
    /// Have this program of the same version write manual pages and completions, where the packaged one is for another processor
    #[arg(long, value_name = "PATH")]
    references_from: Option<PathBuf>,
    /// Do not compress, which takes most of the time
    #[arg(long)]
    stored: bool,
}

/// A kind of package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PackageKind {
    /// For `pip`: library and program
    Wheel,
    /// For `npm`: library, and the program in a package of its own
    Npm,
    /// A tar archive: program, manual pages, completions, units
    Archive,
    /// For `dpkg` and `apt`
    Deb,
}

/// Makes the packages and prints their names, sizes and digests.
///
/// # Errors
/// What was missing or failed.
pub(crate) fn run(options: &DistOptions) -> Result<(), TaskError> {
    let binary = ReleaseBinary::read(&match &options.binary {
        Some(path) => path.clone(),
        None => build(options)?,
    })?;
    let workspace = sources::workspace()?;
    let release = Release {
        sbom: sbom::build(&binary, &workspace.version)?,
        version: workspace.version,
        repository: workspace.repository,
    };
    let references = References::of(&speaker(options, &binary)?, &release.version)?;
    let output = options
        .output
        .clone()
        .unwrap_or_else(|| target_directory().join("dist"));
    fs::create_dir_all(&output).map_err(TaskError::file("creating", &output))?;
    let mut written = vec![write(
        &output,
        format!(
            "offleash-{}-linux-{}.cdx.json",
            release.version,
            binary.processor.name()
        ),
        release.sbom.as_bytes(),
    )?];
    for (name, bytes) in packages(options, &binary, &release, &references)? {
        written.push(write(&output, name, &bytes)?);
    }
    written.sort();
    let sums: String = written
        .iter()
        .map(|(name, digest)| format!("{digest}  {name}\n"))
        .collect();
    let path = output.join(CHECKSUMS);
    fs::write(&path, sums).map_err(TaskError::file("writing", &path))
}

/// Builds the program, unless it could not be packaged then.
fn build(options: &DistOptions) -> Result<PathBuf, TaskError> {
    let processor = options.target.unwrap_or_else(Processor::ours);
    match &options.references_from {
        Some(path) => fs::metadata(path)
            .map(drop)
            .map_err(TaskError::file("examining", path))?,
        None if processor.is_ours() => {}
        None => return Err(speechless(processor)),
    }
    compiler::build(processor)
}

/// The program that writes manual pages and completions.
fn speaker(options: &DistOptions, binary: &ReleaseBinary) -> Result<PathBuf, TaskError> {
    match &options.references_from {
        Some(path) => Ok(path.clone()),
        None if binary.processor.is_ours() => Ok(binary.path.clone()),
        None => Err(speechless(binary.processor)),
    }
}

fn speechless(processor: Processor) -> TaskError {
    TaskError::Answer {
        from: "the program to be packaged",
        why: format!(
            "it is for {}, which this machine is not: name one of the same version with `--references-from`",
            processor.name()
        ),
    }
}

fn packages(
    options: &DistOptions,
    binary: &ReleaseBinary,
    release: &Release,
    references: &References,
) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let effort = match options.stored {
        true => Effort::Stored,
        false => Effort::Smallest,
    };
    let wants = |kind| options.only.is_empty() || options.only.contains(&kind);
    let mut packages = Vec::new();
    if wants(PackageKind::Wheel) {
        packages.push(wheel::build(binary, release, effort)?);
    }
    if wants(PackageKind::Npm) {
        packages.extend(npm::build(binary, release, effort)?);
    }
    if wants(PackageKind::Archive) {
        packages.push(release_archive(binary, release, references, effort)?);
    }
    if wants(PackageKind::Deb) {
        packages.push(debian::build(binary, release, references, effort)?);
    }
    Ok(packages)
}

/// All that an administrator puts in place by hand, in one directory.
fn release_archive(
    binary: &ReleaseBinary,
    release: &Release,
    references: &References,
    effort: Effort,
) -> Result<(String, Vec<u8>), TaskError> {
    let stem = format!("offleash-{}-linux-{}", release.version, binary.processor.name());
    let mut files = vec![
        PackagedFile::program("offleash", binary.bytes.as_slice()),
        PackagedFile::data("sbom.cdx.json", release.sbom.as_bytes()),
        PackagedFile::data("completions/offleash.bash", references.bash.as_slice()),
        PackagedFile::data("completions/_offleash", references.zsh.as_slice()),
        PackagedFile::data("completions/offleash.fish", references.fish.as_slice()),
    ];
    for (name, page) in &references.pages {
        files.push(PackagedFile::data(format!("man/man1/{name}"), page.as_slice()));
    }
    for (from, to) in [
        ("LICENSE", "LICENSE"),
        ("README.md", "README.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("packaging/Containerfile", "Containerfile"),
        ("packaging/README.md", "service/README.md"),
        ("packaging/apparmor", "service/apparmor"),
        ("packaging/grafana-dashboard.json", "service/grafana-dashboard.json"),
        ("packaging/offleash-serve.toml", "service/offleash-serve.toml"),
        ("packaging/offleash.service", "service/offleash.service"),
        ("packaging/offleash.socket", "service/offleash.socket"),
        ("packaging/sysusers.conf", "service/sysusers.conf"),
    ] {
        files.push(PackagedFile::data(to, sources::text(from)?.into_bytes()));
    }
    for file in &mut files {
        file.path = format!("{stem}/{}", file.path);
    }
    let name = format!("{stem}.tar.gz");
    let bytes = tar_gz(&files, effort).map_err(TaskError::file("writing", &name))?;
    Ok((name, bytes))
}

/// Writes a package and answers its name and digest.
fn write(output: &Path, name: String, bytes: &[u8]) -> Result<(String, String), TaskError> {
    let path = output.join(&name);
    fs::write(&path, bytes).map_err(TaskError::file("writing", &path))?;
    let digest = HEXLOWER.encode(&Sha256::digest(bytes));
    println!("{:>12}  {digest}  {}", bytes.len(), path.display());
    Ok((name, digest))
}
