//! OCI runtimes of the level `container`: which there are, and which one a sandbox is made by.

mod advisories;

use std::path::PathBuf;

pub use self::advisories::RuntimeAdvisory;

/// An OCI runtime by the command line that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeKind {
    /// gVisor: a kernel of its own in user space.
    Runsc,
    /// Namespaces of the host's kernel, in C.
    Crun,
    /// The reference implementation, likewise.
    Runc,
    /// Likewise, in Rust.
    Youki,
    /// A virtual machine with a kernel of its own.
    Kata,
}

/// By which means gVisor's kernel has the code of a sandbox run and learns of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimePlatform {
    /// Signals of a filter of the kernel's.
    Systrap,
    /// The kernel's means of debuggers: slower, and there where signals are not enough.
    Ptrace,
}

impl RuntimePlatform {
    /// All, the best first. Not KVM's: its device would be in the sandbox that holds the runtime.
    pub const ALL: [RuntimePlatform; 2] = [RuntimePlatform::Systrap, RuntimePlatform::Ptrace];

    /// Its name in gVisor's command line.
    pub fn name(self) -> &'static str {
        match self {
            RuntimePlatform::Systrap => "systrap",
            RuntimePlatform::Ptrace => "ptrace",
        }
    }
}

impl RuntimeKind {
    /// All; those that are looked for come first.
    pub const ALL: [RuntimeKind; 5] = [
        RuntimeKind::Runsc,
        RuntimeKind::Crun,
        RuntimeKind::Runc,
        RuntimeKind::Youki,
        RuntimeKind::Kata,
    ];
    /// Those that are looked for where none is named, the strongest first: those that are tested.
    pub const LOOKED_FOR: [RuntimeKind; 3] = [RuntimeKind::Runsc, RuntimeKind::Crun, RuntimeKind::Runc];

    /// The name of its program.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Runsc => "runsc",
            RuntimeKind::Crun => "crun",
            RuntimeKind::Runc => "runc",
            RuntimeKind::Youki => "youki",
            RuntimeKind::Kata => "kata-runtime",
        }
    }

    /// Whether code in the sandbox speaks to another kernel than the host's.
    pub fn has_own_kernel(self) -> bool {
        matches!(self, RuntimeKind::Runsc | RuntimeKind::Kata)
    }

    /// The kind of a program called so: `runsc`, `/opt/bin/runsc-20250101`.
    pub fn of_program(name: &str) -> Option<Self> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let is_it = |kind: &RuntimeKind| {
            let rest = name.strip_prefix(kind.name());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
        };
        Self::ALL.into_iter().find(is_it)
    }
}

impl std::fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The runtime that makes a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RuntimePlan {
    /// How it is spoken to.
    pub kind: RuntimeKind,
    /// The host's file, resolved.
    #[serde(with = "crate::text::path_bytes")]
    pub program: PathBuf,
    /// What it says of itself, and can here.
    pub facts: RuntimeFacts,
}

/// What is found out about a runtime by starting it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RuntimeFacts {
    /// Its version, in its own words; absent when it does not tell.
    pub version: Option<String>,
    /// The best of gVisor's platforms that works here; absent of other runtimes, and when none does.
    pub platform: Option<RuntimePlatform>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_kind_is_in_its_name() {
        for (name, kind) in [
            ("runsc", Some(RuntimeKind::Runsc)),
            ("/opt/gvisor/runsc-20250101", Some(RuntimeKind::Runsc)),
            ("/usr/bin/crun", Some(RuntimeKind::Crun)),
            ("runc.real", Some(RuntimeKind::Runc)),
            ("/opt/kata/bin/kata-runtime", Some(RuntimeKind::Kata)),
            ("youki", Some(RuntimeKind::Youki)),
            ("runcible", None),
            ("", None),
            ("/usr/bin/", None),
        ] {
            assert_eq!(RuntimeKind::of_program(name), kind, "{name}");
        }
    }
}
