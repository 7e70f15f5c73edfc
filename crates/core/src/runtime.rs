//! OCI runtimes of the level `container`: which there are, and which one a sandbox is made by.

use std::path::PathBuf;

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
}

impl RuntimeKind {
    /// All, the strongest first.
    pub const ALL: [RuntimeKind; 3] = [RuntimeKind::Runsc, RuntimeKind::Crun, RuntimeKind::Runc];

    /// The name of its program.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Runsc => "runsc",
            RuntimeKind::Crun => "crun",
            RuntimeKind::Runc => "runc",
        }
    }

    /// Whether code in the sandbox speaks to another kernel than the host's.
    pub fn has_own_kernel(self) -> bool {
        self == RuntimeKind::Runsc
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
            ("runcible", None),
            ("", None),
            ("/usr/bin/", None),
        ] {
            assert_eq!(RuntimeKind::of_program(name), kind, "{name}");
        }
    }
}
