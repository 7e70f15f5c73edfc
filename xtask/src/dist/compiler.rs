//! The compiler of the program that is packaged. What it lacks for another processor is told before anything is compiled.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::binary::Processor;
use crate::error::TaskError;
use crate::program::{self, cargo, target_directory, workspace_root};

/// Builds the program as it is released, and answers where it is.
///
/// # Errors
/// `Missing` when the compiler cannot build for this processor, `Ended` when the build fails.
pub(super) fn build(processor: Processor) -> Result<PathBuf, TaskError> {
    look_for_parts(processor)?;
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "--package", "offleash", "--target"]);
    command.arg(processor.target());
    program::run(command.current_dir(workspace_root()))?;
    Ok(target_directory().join(processor.target()).join("release/offleash"))
}

/// What compiles and links for a processor.
#[derive(Debug)]
struct Compiler {
    rustc: OsString,
    /// The C compiler, which links as well, by its name.
    c: String,
    /// The linker that it is to start, by its name; its own if there is none.
    linker: Option<String>,
}

/// Looks whether everything is there that a build for `processor` takes.
///
/// # Errors
/// `Missing`, with all that is not.
fn look_for_parts(processor: Processor) -> Result<(), TaskError> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let c = match processor.is_ours() {
        true => "cc".to_owned(),
        false => format!("{}-linux-gnu-gcc", processor.name()),
    };
    // As `.cargo/static-pie-linker.sh` has it.
    let linker = (processor == Processor::Aarch64).then(|| "ld.mold".to_owned());
    let missing = Compiler { rustc, c, linker }.missing(processor)?;
    match missing.is_empty() {
        true => Ok(()),
        false => Err(TaskError::Missing {
            what: format!("a program for {}", processor.name()),
            parts: missing,
        }),
    }
}

impl Compiler {
    fn missing(&self, processor: Processor) -> Result<String, TaskError> {
        let mut parts = String::new();
        let libraries = self.libraries(processor)?;
        if !has_standard_library(&libraries) {
            // A `String` takes all that is written to it.
            let _ = write!(
                parts,
                "\n  Rust's standard library for {} in `{}`: `rustup target add {}`, or Debian's `rustc` with \
                 `libstd-rust-dev:{}` of the same version, named by `RUSTC`",
                processor.target(),
                libraries.display(),
                processor.target(),
                processor.debian()
            );
        }
        if program::find(&self.c).is_none() {
            let _ = write!(
                parts,
                "\n  the C compiler and linker `{}` in PATH: Debian's `{}`",
                self.c,
                match processor.is_ours() {
                    true => "gcc".to_owned(),
                    false => format!("gcc-{}-linux-gnu", processor.name().replace('_', "-")),
                }
            );
        }
        if let Some(linker) = &self.linker
            && program::find(linker).is_none()
        {
            let _ = write!(parts, "\n  the linker `{linker}` in PATH: Debian's `mold`");
        }
        Ok(parts)
    }

    /// Where the compiler has its libraries for that processor, if it has any.
    fn libraries(&self, processor: Processor) -> Result<PathBuf, TaskError> {
        let mut command = Command::new(&self.rustc);
        command.args(["--print", "target-libdir", "--target", processor.target()]);
        let output = command.output().map_err(TaskError::start("rustc"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(PathBuf::from(said.trim())),
            false => Err(TaskError::Ended {
                command: program::command_line(&command),
                status: output.status.to_string(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
        }
    }
}

fn has_standard_library(directory: &Path) -> bool {
    let is_standard = |name: &str| name.starts_with("libstd-") && name.ends_with(".rlib");
    let mut entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.any(|entry| is_standard(&entry.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn all_that_a_build_for_another_processor_lacks_is_named_at_once() {
        let scratch = tempfile::tempdir().unwrap();
        let rustc = scratch.path().join("rustc");
        let libraries = scratch.path().join("lib");
        std::fs::write(&rustc, format!("#!/bin/sh\necho {}\n", libraries.display())).unwrap();
        std::fs::set_permissions(&rustc, std::fs::Permissions::from_mode(0o755)).unwrap();
        let bare = Compiler {
            rustc: rustc.clone().into(),
            c: "no-such-compiler".to_owned(),
            linker: Some("no-such-linker".to_owned()),
        };
        let missing = bare.missing(Processor::Aarch64).unwrap();
        for part in [
            "aarch64-unknown-linux-gnu",
            "libstd-rust-dev:arm64",
            "`no-such-compiler`",
            "`no-such-linker`",
        ] {
            assert!(missing.contains(part), "{part}: {missing}");
        }
        std::fs::create_dir(&libraries).unwrap();
        std::fs::write(libraries.join("libstd-1.rlib"), "").unwrap();
        let whole = Compiler {
            rustc: rustc.into(),
            c: "sh".to_owned(),
            linker: Some("sh".to_owned()),
        };
        assert_eq!(whole.missing(Processor::Aarch64).unwrap(), "");
    }

    #[test]
    fn a_compiler_that_fails_is_told_with_what_it_said() {
        let compiler = Compiler {
            rustc: "false".into(),
            c: "sh".to_owned(),
            linker: None,
        };
        let error = compiler.missing(Processor::Aarch64).unwrap_err();
        assert!(matches!(error, TaskError::Ended { .. }), "{error}");
    }
}
