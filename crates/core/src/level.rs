//! Isolation levels, weakest first.

/// What holds the code. The order is the order of strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// A shell that is simulated, without an operating system: it runs no program.
    Simulated,
    /// WebAssembly, compiled and run in a locked worker: it runs no program of the machine.
    Wasm,
    /// Landlock, seccomp and rlimits, in the host's own namespaces: where user namespaces are forbidden.
    ProcessLandlock,
    /// Namespaces, a built root file system, seccomp, Landlock, cgroups and rlimits.
    Process,
    /// An OCI runtime such as gVisor.
    Container,
    /// A virtual machine with its own kernel.
    Microvm,
}

impl Level {
    /// All levels of real processes, weakest first.
    pub const ALL: [Level; 4] = [Level::ProcessLandlock, Level::Process, Level::Container, Level::Microvm];

    /// Whether it runs programs.
    pub fn has_processes(self) -> bool {
        !matches!(self, Level::Simulated | Level::Wasm)
    }

    /// The level's name as written in flags, policies and records.
    pub fn name(self) -> &'static str {
        match self {
            Level::Simulated => "simulated",
            Level::Wasm => "wasm",
            Level::ProcessLandlock => "process-landlock",
            Level::Process => "process",
            Level::Container => "container",
            Level::Microvm => "microvm",
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a level: expected auto, simulated, wasm, process-landlock, process, container or microvm", .0.escape_debug())]
pub struct LevelError(pub String);

impl std::str::FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        [Level::Simulated, Level::Wasm]
            .into_iter()
            .chain(Level::ALL)
            .find(|level| level.name() == text)
            .ok_or_else(|| LevelError(text.to_owned()))
    }
}

/// Which level was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LevelChoice {
    /// The strongest that the machine offers, among those that do not need an image.
    #[default]
    Auto,
    /// Simulated; programs that it does not have run at level `process`, on the same files.
    Escalating,
    /// This one or an error.
    Exactly(Level),
}

/// The word for [`LevelChoice::Escalating`].
pub const ESCALATING: &str = "auto:simulated";

/// What to do when something that was asked for cannot be enforced here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DegradeMode {
    /// Refuse to run, with the reason and the mend.
    #[default]
    Refuse,
    /// Run, and list in the record what was not enforced.
    Allow,
}
