//! The bill of materials of the program: CycloneDX 1.6 (<https://cyclonedx.org/docs/1.6/json/>), without a time or a number, so
//! that the same program has the same one.
//!
//! Crates are those that cargo links for the program; what is embedded beside crates (interpreters, SQLite, scripts of
//! the dashboard) is in a table here or read from its source. The compiler's version is read from the program.

use std::collections::{BTreeMap, BTreeSet};

use data_encoding::{BASE64, HEXLOWER};
use memchr::memmem;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::binary::ReleaseBinary;
use super::sources;
use crate::error::TaskError;
use crate::program::{cargo, workspace_root};
use crate::vendored;

/// Crates whose contents are in the program without being linked: sources and files of theirs are laid down by build scripts.
const LAID_DOWN: [&str; 2] = ["bashkit", "bashkit-cpython-wasm"];
/// The crate that brings SQLite as a source, and where that says its version.
const SQLITE_CRATE: &str = "libsqlite3-sys";
const SQLITE_VERSION: &str = "#define SQLITE_VERSION ";

/// A crate as `Cargo.lock` pins it.
#[derive(Debug, Deserialize)]
struct LockedCrate {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<LockedCrate>,
}

/// Crates and which of them use which, as `cargo tree` prints them.
#[derive(Debug, Default, PartialEq, Eq)]
struct CrateGraph {
    /// Licences, by name and version.
    crates: BTreeMap<(String, String), String>,
    /// What each uses directly.
    uses: BTreeMap<(String, String), BTreeSet<(String, String)>>,
}

/// The document for a program.
///
/// # Errors
/// `Start`, `Ended` and `Answer` when cargo does not say what is linked, `File` when the lock file cannot be read.
pub(crate) fn build(binary: &ReleaseBinary, version: &str) -> Result<String, TaskError> {
    let target = format!("{}-unknown-linux-gnu", binary.processor.name());
    let graph = CrateGraph::parse(&tree(&target)?)?;
    let lock = lock()?;
    let root = json!({
        "type": "application",
        "bom-ref": format!("offleash@{version}"),
        "name": "offleash",
        "version": version,
        "licenses": [{ "expression": "Apache-2.0" }],
        "hashes": [{ "alg": "SHA-256", "content": HEXLOWER.encode(&Sha256::digest(&binary.bytes)) }],
    });
    let mut components: Vec<Value> = graph
        .crates
        .iter()
        .filter(|((name, _), _)| name != "offleash")
        .map(|(id, licence)| crate_component(id, licence, &lock))
        .collect();
    let embedded = embedded(binary, &lock)?;
    let embedded_refs: Vec<Value> = embedded.iter().map(|one| one["bom-ref"].clone()).collect();
    components.extend(embedded);
    let dependencies: Vec<Value> = graph
        .uses
        .iter()
        .map(|(id, used)| {
            let mut used: Vec<Value> = used.iter().map(|used| json!(reference(used, &lock))).collect();
            if id.0 == "offleash" {
                used.extend(embedded_refs.iter().cloned());
            }
            json!({ "ref": reference(id, &lock), "dependsOn": used })
        })
        .collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": root },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{document:#}\n"))
}

fn tree(target: &str) -> Result<String, TaskError> {
    let mut command = cargo();
    command.args(["tree", "--locked", "--package", "offleash", "--edges"]);
    command.args(["normal,no-proc-macro", "--prefix", "depth", "--format", "{p}|{l}"]);
    command.args(["--target", target]).current_dir(workspace_root());
    let output = command.output().map_err(TaskError::start("cargo"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(TaskError::Ended {
        command: crate::program::command_line(&command),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn lock() -> Result<Vec<LockedCrate>, TaskError> {
    let lock: Lock = toml::from_str(&sources::text("Cargo.lock")?).map_err(|error| TaskError::Answer {
        from: "Cargo.lock",
        why: error.to_string(),
    })?;
    Ok(lock.package)
}

impl CrateGraph {
    /// Reads lines such as `2memchr v2.8.3|Unlicense OR MIT (*)`: depth, crate and licence; `(*)` marks what was printed before.
    fn parse(lines: &str) -> Result<Self, TaskError> {
        let mut graph = Self::default();
        let mut above: Vec<(String, String)> = Vec::new();
        for line in lines.lines() {
            let answer = || TaskError::Answer {
                from: "cargo tree",
                why: format!("the line `{line}`"),
            };
            let (package, licence) = line.split_once('|').ok_or_else(answer)?;
            let name_at = package
                .find(|character: char| !character.is_ascii_digit())
                .ok_or_else(answer)?;
            let depth: usize = package[..name_at].parse().map_err(|_| answer())?;
            let mut words = package[name_at..].split(' ');
            let name = words.next().ok_or_else(answer)?;
            let version = words
                .next()
                .and_then(|word| word.strip_prefix('v'))
                .ok_or_else(answer)?;
            let id = (name.to_owned(), version.to_owned());
            above.truncate(depth);
            if let Some(parent) = above.last() {
                graph.uses.entry(parent.clone()).or_default().insert(id.clone());
            }
            let licence = licence.trim_end_matches(" (*)").to_owned();
            graph.crates.entry(id.clone()).or_insert(licence);
            graph.uses.entry(id.clone()).or_default();
            above.push(id);
        }
        Ok(graph)
    }
}

fn locked<'a>((name, version): &(String, String), lock: &'a [LockedCrate]) -> Option<&'a LockedCrate> {
    lock.iter().find(|one| one.name == *name && one.version == *version)
}

/// How other parts of the document name a crate: by where it is published, if it is.
fn reference(id: &(String, String), lock: &[LockedCrate]) -> String {
    let (name, version) = id;
    let is_published = locked(id, lock).is_some_and(|one| one.checksum.is_some());
    match is_published {
        true => format!("pkg:cargo/{name}@{version}"),
        false => format!("{name}@{version}"),
    }
}

fn crate_component(id: &(String, String), licence: &str, lock: &[LockedCrate]) -> Value {
    let (name, version) = id;
    let reference = reference(id, lock);
    let mut component = json!({ "type": "library", "bom-ref": reference, "name": name, "version": version });
    if !licence.is_empty() {
        component["licenses"] = json!([{ "expression": expression(licence) }]);
    }
    if let Some(checksum) = locked(id, lock).and_then(|one| one.checksum.as_ref()) {
        component["purl"] = json!(reference);
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// Some manifests write `MIT/Apache-2.0`, as Cargo had it once.
fn expression(licence: &str) -> String {
    let parts: Vec<&str> = licence.split('/').map(str::trim).collect();
    parts.join(" OR ")
}

/// What is in the program beside the crates that cargo links.
fn embedded(binary: &ReleaseBinary, lock: &[LockedCrate]) -> Result<Vec<Value>, TaskError> {
    let mut found = Vec::new();
    for name in LAID_DOWN {
        let one = lock
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| TaskError::Answer {
                from: "Cargo.lock",
                why: format!("no crate `{name}`"),
            })?;
        let id = (one.name.clone(), one.version.clone());
        // `cargo tree` names no licence of what it does not link.
        found.push(crate_component(&id, "", lock));
    }
    for release in &vendored::RELEASES {
        found.push(npm_component(release)?);
    }
    let library = |name: &str, version: String| json!({ "type": "library", "bom-ref": format!("{name}@{version}"), "name": name, "version": version });
    found.push(library("sqlite", sqlite_version(lock)?));
    found.extend(version_after(&binary.bytes, "rustc version ").map(|version| library("rust-std", version)));
    // A static program does not say which one it was linked with.
    found.push(json!({ "type": "library", "bom-ref": "glibc", "name": "glibc" }));
    Ok(found)
}

fn npm_component(release: &vendored::Release) -> Result<Value, TaskError> {
    let answer = |why: &str| TaskError::Answer {
        from: "the table of vendored releases",
        why: format!("`{}` {why}", release.package),
    };
    let (name, version) = release
        .package
        .rsplit_once('@')
        .ok_or_else(|| answer("has no version"))?;
    let digest = release.integrity.strip_prefix("sha512-").map(str::as_bytes);
    let digest = digest.and_then(|digest| BASE64.decode(digest).ok());
    let digest = digest.ok_or_else(|| answer("has no digest of SHA-512"))?;
    let reference = format!("pkg:npm/{}@{version}", name.replace('@', "%40"));
    Ok(json!({
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "hashes": [{ "alg": "SHA-512", "content": HEXLOWER.encode(&digest) }],
    }))
}

/// The version of SQLite, from the source that its crate brings.
fn sqlite_version(lock: &[LockedCrate]) -> Result<String, TaskError> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: std::path::PathBuf,
    }
    let answer = |why: String| TaskError::Answer {
        from: "cargo metadata",
        why,
    };
    let mut command = cargo();
    command.args(["metadata", "--locked", "--format-version=1"]);
    let output = command.current_dir(workspace_root()).output();
    let output = output.map_err(TaskError::start("cargo"))?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout).map_err(|error| answer(error.to_string()))?;
    let versions = lock.iter().filter(|one| one.name == SQLITE_CRATE).count();
    let mut packages = metadata.packages.into_iter().filter(|one| one.name == SQLITE_CRATE);
    let (Some(package), 1) = (packages.next(), versions) else {
        return Err(answer(format!("{versions} crates `{SQLITE_CRATE}`")));
    };
    let header = package.manifest_path.with_file_name("sqlite3").join("sqlite3.h");
    let text = std::fs::read_to_string(&header).map_err(TaskError::file("reading", &header))?;
    let line = text.lines().find_map(|line| line.strip_prefix(SQLITE_VERSION));
    let version = line.map(|rest| rest.trim().trim_matches('"').to_owned());
    version.ok_or_else(|| answer(format!("`{}` says no version", header.display())))
}

/// The first number with dots that stands behind these words in the program.
fn version_after(bytes: &[u8], words: &str) -> Option<String> {
    let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let mut rest = bytes;
    loop {
        let at = memmem::find(rest, words.as_bytes())?;
        rest = &rest[at + words.len()..];
        let version: Vec<u8> = rest.iter().copied().take_while(is_part).take(32).collect();
        let version = String::from_utf8_lossy(&version).trim_end_matches('.').to_owned();
        if version.contains('.') && version.starts_with(|character: char| character.is_ascii_digit()) {
            return Some(version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_cargo_is_read_with_what_was_printed_before() {
        let lines = "0offleash v0.1.0 (/w/cli)|Apache-2.0\n1clap v4.6.7|MIT OR Apache-2.0\n2memchr v2.8.3|Unlicense/MIT\n\
                     1toml v1.2.0|MIT\n2memchr v2.8.3|Unlicense/MIT (*)\n";
        let graph = CrateGraph::parse(lines).unwrap();
        let id = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let memchr = id("memchr", "2.8.3");
        assert_eq!(graph.crates.len(), 4);
        assert_eq!(expression(&graph.crates[&memchr]), "Unlicense OR MIT");
        assert_eq!(graph.uses[&id("toml", "1.2.0")], BTreeSet::from([memchr.clone()]));
        assert_eq!(graph.uses[&id("clap", "4.6.7")], BTreeSet::from([memchr]));
        assert!(CrateGraph::parse("error: no such package\n").is_err());
    }

    #[test]
    fn versions_are_found_in_a_program() {
        let bytes = b"\0rustc version that\0rustc version 1.95.0 (abc)";
        assert_eq!(version_after(bytes, "rustc version ").as_deref(), Some("1.95.0"));
        assert_eq!(version_after(bytes, "musl "), None);
    }

    #[test]
    fn packages_of_npm_are_named_as_their_address() {
        for release in &vendored::RELEASES {
            let component = npm_component(release).unwrap();
            assert!(
                component["purl"].as_str().unwrap().starts_with("pkg:npm/"),
                "{component}"
            );
            assert_eq!(component["hashes"][0]["content"].as_str().unwrap().len(), 128);
        }
    }
}
