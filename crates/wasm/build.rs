//! Puts the interpreters where the sources include them: CPython of the crate that the lock file pins, and QuickJS of `vendor`.
//!
//! That crate has its interpreter as a file; its own code, which compiles it for another engine, is not built.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script has nothing to close or clear, and `sys` is not built yet"
)]

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use sha2::{Digest as _, Sha256};

/// The crate with CPython, as its manifest's path ends.
const MANIFEST: &str = "/bashkit-cpython-wasm-0.20.2/Cargo.toml\"";
const JAVASCRIPT: &str = "vendor/quickjs-wasi/quickjs.wasm";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={JAVASCRIPT}");
    if std::env::var_os("CARGO_FEATURE_ENGINE").is_none() {
        return Ok(());
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let artifacts = upstream()?.join("artifacts");
    let python = fs::read(artifacts.join("python.wasm.xz"))?;
    fs::write(out.join("python.wasm.xz"), &python)?;
    fs::copy(artifacts.join("python314.zip"), out.join("python-library.zip"))?;
    println!("cargo::rustc-env=PYTHON_DIGEST={}", digest(&python));
    println!("cargo::rustc-env=JAVASCRIPT_DIGEST={}", digest(&fs::read(JAVASCRIPT)?));
    Ok(())
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where Cargo keeps the crate's files; it fetches them, as the lock file pins them, if they are not there.
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
        format!("Cargo does not say where CPython is: {complaint}")
    })?;
    let end = end + MANIFEST.len() - "/Cargo.toml\"".len();
    let start = told[..end].rfind('"').ok_or("no path of CPython")? + 1;
    Ok(PathBuf::from(&told[start..end]))
}
