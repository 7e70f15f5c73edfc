//! Builds the guest agent, so that it can be embedded (`src/guest_image.rs`).
//!
//! A Cargo inside Cargo, because the guest is another program with another profile: small, without the standard
//! library, for a fixed address. It has a target directory of its own beside the profiles of the outer build, whose
//! lock the outer Cargo never takes.

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the outer Cargo, or the one who called it, says for the outer build only.
const OUTER: [&str; 14] = [
    "CLIPPY_ARGS",
    "DEBUG",
    "HOST",
    "NUM_JOBS",
    "OPT_LEVEL",
    "OUT_DIR",
    "PROFILE",
    "RUSTC_LINKER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "TARGET",
    "CARGO",
];

/// The same by prefix; what says how to reach a registry or how to link is kept.
const OUTER_PREFIXES: [&str; 10] = [
    "CARGO_BUILD_",
    "CARGO_CFG_",
    "CARGO_CRATE_",
    "CARGO_ENCODED_",
    "CARGO_FEATURE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PRIMARY_",
    "CARGO_PROFILE_",
    "DEP_",
];

/// What of the processor the guest is compiled for, elsewhere and on aarch64: there the compiler asks for functions that find out
/// how this processor counts in memory, before `main` and by the C library.
const FEATURES: &str = "-Ctarget-feature=+crt-static";
const FEATURES_OF_AARCH64: &str = "-Ctarget-feature=+crt-static,-outline-atomics";

/// How the guest is compiled and linked otherwise.
const FLAGS: [&str; 3] = [
    // A fixed address: nothing to relocate, so no page is copied for it.
    "-Crelocation-model=static",
    // It brings its own entry point, `sys::bare`.
    "-Clink-arg=-nostartfiles",
    // Without a C library that could satisfy them, a missing function is an error here and not a crash later.
    "-Clink-arg=-nostdlib",
];

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = manifest
        .ancestors()
        .nth(2)
        .ok_or("this crate is not in the folder `crates` of a workspace")?;
    watch(workspace);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let target = variable("TARGET")?;
    let directory = guest_directory(&out, &target)?;
    std::fs::create_dir_all(&directory)?;
    // Two outer builds, such as debug and release, share the directory: the file must not change while it is copied.
    let lock = File::create(directory.join("embed.lock"))?;
    lock.lock()?;
    build(workspace, &target, &directory)?;
    let guest = out.join("guest.bin");
    std::fs::copy(directory.join(&target).join("guest/offleash-guest"), &guest)?;
    println!(
        "cargo::rustc-env=OFFLEASH_GUEST_DIGEST={}",
        digest(&std::fs::read(guest)?)
    );
    Ok(())
}

/// Tells builds of the guest apart; nobody who could forge it could not as well replace the file that it names.
fn digest(program: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(program);
    format!("{:016x}", hasher.finish())
}

fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    std::env::var(name).map_err(|error| format!("the variable {name}: {error}").into())
}

fn watch(workspace: &Path) {
    for path in [
        "guest/src",
        "guest/Cargo.toml",
        "protocol/src",
        "protocol/Cargo.toml",
        "sys/src",
        "sys/Cargo.toml",
    ] {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join("crates").join(path).display()
        );
    }
    for path in ["Cargo.toml", "Cargo.lock", "crates/isolation/build.rs"] {
        println!("cargo::rerun-if-changed={}", workspace.join(path).display());
    }
}

/// `guest` in the outer target directory, which is two or, with a named target, three levels above `build`.
fn guest_directory(out: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    let build = out
        .ancestors()
        .find(|path| path.file_name() == Some(OsStr::new("build")));
    let profile = build
        .and_then(Path::parent)
        .ok_or("OUT_DIR is not below a folder `build`")?;
    let parent = profile.parent().ok_or("OUT_DIR is not in a target directory")?;
    let named = parent.file_name() == Some(OsStr::new(target));
    let root = if named {
        parent.parent().ok_or("OUT_DIR is not in a target directory")?
    } else {
        parent
    };
    Ok(root.join("guest"))
}

fn build(workspace: &Path, target: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a build script starts Cargo as Cargo started it"
    )]
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        // What the outer build resolved and fetched is all that the guest needs.
        .args([
            "build",
            "--locked",
            "--offline",
            "--package",
            "offleash-guest",
            "--bin",
            "offleash-guest",
        ])
        .args(["--profile", "guest", "--target", target, "--target-dir"])
        .arg(directory)
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OUTER.contains(&&*text) || OUTER_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    let features = match target.starts_with("aarch64-") {
        true => FEATURES_OF_AARCH64,
        false => FEATURES,
    };
    cargo.env(
        "CARGO_ENCODED_RUSTFLAGS",
        format!("{features}\x1f{}", FLAGS.join("\x1f")),
    );
    let output = cargo.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "building the guest failed ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    )
    .into())
}
