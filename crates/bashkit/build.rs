//! Lays bashkit's sources down as this build has them: those that the lock file pins, changed as `patches.rs` says.
//!
//! A change names the text that it is about. Text that is not there, or not as often as it says, ends the build: another version
//! would have to be looked at anew.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script has nothing to close or clear, and `sys` is not built yet"
)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod patches;

/// The version that the changes were written for.
const MANIFEST: &str = "/bashkit-0.20.2/Cargo.toml\"";

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["build.rs", "patches.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rustc-check-cfg=cfg(feature, values(any()))");
    let sources = upstream()?;
    let copy = PathBuf::from(std::env::var("OUT_DIR")?).join("bashkit");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    for part in ["src", "docs"] {
        copy_tree(&sources.join(part), &copy.join(part))?;
    }
    let root = copy.join("src/lib.rs");
    fs::write(&root, without_inner(&fs::read_to_string(&root)?))?;
    for patch in patches::PATCHES {
        let path = copy.join("src").join(patch.file);
        let text = fs::read_to_string(&path)?;
        let found = text.matches(patch.old).count();
        if found != patch.times {
            return Err(format!(
                "`{}` is {found} times in {}, expected {}: {}",
                patch.old, patch.file, patch.times, patch.why
            )
            .into());
        }
        fs::write(&path, text.replace(patch.old, patch.new))?;
    }
    Ok(())
}

/// Where Cargo keeps bashkit's sources; it fetches them, as the lock file pins them, if they are not there.
fn upstream() -> Result<PathBuf, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--features",
            "upstream",
        ])
        .current_dir(std::env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    let told = String::from_utf8(asked.stdout)?;
    let end = told.find(MANIFEST).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&asked.stderr);
        format!("Cargo does not say where bashkit 0.20.2 is: {complaint}")
    })?;
    let end = end + MANIFEST.len() - "/Cargo.toml\"".len();
    let start = told[..end].rfind('"').ok_or("no path of bashkit")? + 1;
    Ok(PathBuf::from(&told[start..end]))
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &to)?;
        } else {
            fs::write(&to, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

/// A root of a crate without what only stands at the head of one, since it is included into ours.
fn without_inner(root: &str) -> String {
    let is_inner = |line: &&str| line.starts_with("//!") || line.starts_with("#![");
    root.lines()
        .filter(|line| !is_inner(line))
        .flat_map(|line| [line, "\n"])
        .collect()
}
