//! The program that is packaged: what it is for, read from the file itself, so that no package lies about its platform.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::TaskError;

/// Bytes of the header of a 64-bit ELF file, and of each entry of its program header table (elf(5)).
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// `EM_X86_64` and `EM_AARCH64`.
const MACHINE_X86_64: u16 = 62;
const MACHINE_AARCH64: u16 = 183;
/// `PT_INTERP`: the file asks for a loader, so it is not static.
const INTERPRETER: u32 = 3;

/// A processor that packages are made for, in the words of each kind of package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Processor {
    /// 64-bit x86.
    #[value(name = "x86_64-unknown-linux-gnu", alias = "x86_64")]
    X86_64,
    /// 64-bit Arm.
    #[value(name = "aarch64-unknown-linux-gnu", alias = "aarch64")]
    Aarch64,
}

impl Processor {
    /// This machine's.
    pub(crate) fn ours() -> Self {
        match cfg!(target_arch = "aarch64") {
            true => Self::Aarch64,
            false => Self::X86_64,
        }
    }

    /// Whether it is this machine's.
    pub(crate) fn is_ours(self) -> bool {
        self == Self::ours()
    }

    /// As Rust calls what releases are built for.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// As Linux, Rust and Python call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian calls it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// As Node.js calls it.
    pub(crate) fn node(self) -> &'static str {
        match self {
            Self::X86_64 => "x64",
            Self::Aarch64 => "arm64",
        }
    }
}

/// A static program for Linux.
#[derive(Debug)]
pub(crate) struct ReleaseBinary {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What is in it.
    pub(crate) bytes: Vec<u8>,
    /// What it runs on.
    pub(crate) processor: Processor,
}

impl ReleaseBinary {
    /// Reads a program and looks whether it can be packaged.
    ///
    /// # Errors
    /// `File` when it cannot be read, `Answer` when it is no static ELF program for a known processor.
    pub(crate) fn read(path: &Path) -> Result<Self, TaskError> {
        let bytes = fs::read(path).map_err(TaskError::file("reading", path))?;
        let processor = processor_of(&bytes).map_err(|why| TaskError::Answer {
            from: "the program to be packaged",
            why: format!("`{}` {why}", path.display()),
        })?;
        let path = path.to_path_buf();
        Ok(Self { path, bytes, processor })
    }
}

/// Which processor a static ELF program is for; or why it cannot be packaged, as the end of a sentence.
fn processor_of(bytes: &[u8]) -> Result<Processor, String> {
    // 64-bit, little-endian.
    if bytes.len() < HEADER || !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Err("is no 64-bit ELF program".to_owned());
    }
    let processor = match u16_at(bytes, 18) {
        Some(MACHINE_X86_64) => Processor::X86_64,
        Some(MACHINE_AARCH64) => Processor::Aarch64,
        other => {
            return Err(format!(
                "is for ELF machine {}, which is not packaged",
                other.unwrap_or_default()
            ));
        }
    };
    if kinds_of_segments(bytes).ok_or("is cut")?.contains(&INTERPRETER) {
        return Err("is not static: it asks for a loader, which musl and old systems do not have".to_owned());
    }
    Ok(processor)
}

fn kinds_of_segments(bytes: &[u8]) -> Option<Vec<u32>> {
    let table = usize::try_from(u64_at(bytes, 32)?).ok()?;
    let count = usize::from(u16_at(bytes, 56)?);
    (0..count)
        .map(|number| {
            let at = table.checked_add(number * PROGRAM_HEADER)?;
            Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
        })
        .collect()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// What a program that runs here prints.
///
/// # Errors
/// `Start` when it cannot be started, `Ended` when it fails.
pub(crate) fn printed(program: &Path, arguments: &[&str]) -> Result<Vec<u8>, TaskError> {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("OFFLEASH_STATE");
    let output = command
        .output()
        .map_err(TaskError::start(program.display().to_string()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(TaskError::Ended {
        command: crate::program::command_line(&command),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with one segment.
    fn elf(machine: u16, segment: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + PROGRAM_HEADER];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&segment.to_le_bytes());
        bytes
    }

    #[test]
    fn only_static_programs_of_known_processors_are_packaged() {
        assert_eq!(processor_of(&elf(62, 1)), Ok(Processor::X86_64));
        assert_eq!(processor_of(&elf(183, 1)), Ok(Processor::Aarch64));
        for (bytes, word) in [
            (elf(62, 3), "not static"),
            (elf(243, 1), "machine 243"),
            (elf(62, 1)[..66].to_vec(), "is cut"),
            (b"#!/bin/sh\n".to_vec(), "no 64-bit ELF"),
            (Vec::new(), "no 64-bit ELF"),
        ] {
            let why = processor_of(&bytes).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        let mut far = elf(62, 1);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(processor_of(&far).unwrap_err(), "is cut");
    }
}
