//! Why a spec cannot become a plan, and what to do about it.

use std::io;
use std::path::PathBuf;

use offleash_core::env::EnvError;
use offleash_core::error::{ErrorKind, Explained};
use offleash_core::level::Level;
use offleash_core::network::PortGivenError;
use offleash_core::spec::NetworkSpecError;
use offleash_core::text::Text;

/// A spec that cannot become a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A root of its own was asked for, and nobody has made what it consists of.
    #[error("the base template was not made ready")]
    NoTemplate,
    /// A volume was asked for, and nobody has found it.
    #[error("volume `{name}`, which is to be at `{target}`, was not found")]
    UnknownVolume {
        /// Its name or id.
        name: String,
        /// Where it is to be.
        target: Text,
    },
    /// There is no program to run.
    #[error("no command was given")]
    NoCommand,
    /// An argument cannot be passed to any program.
    #[error("argument {position} of the command contains a NUL byte")]
    NulInArgument {
        /// Its position; the program is 0.
        position: usize,
    },
    /// A rule refuses the command.
    #[error("command `{command}` is refused by the rule `{rule}`")]
    CommandDenied {
        /// The command as given.
        command: Text,
        /// The rule.
        rule: String,
    },
    /// The level asked for is below the floor.
    #[error("level `{level}` is weaker than the minimum `{min_level}`")]
    BelowMinimum {
        /// Asked for.
        level: Level,
        /// The floor.
        min_level: Level,
    },
    /// Ports that cannot be given together.
    #[error(transparent)]
    Ports(#[from] PortGivenError),
    /// A path cannot be looked at.
    #[error("cannot open {role} `{path}`")]
    Unreachable {
        /// `workspace`, `mount source` …
        role: &'static str,
        /// The path as given.
        path: Text,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A path is of a kind that cannot be used.
    #[error("{role} `{path}` is {found}")]
    WrongKind {
        /// `workspace`, `mount source` …
        role: &'static str,
        /// The path as given.
        path: Text,
        /// `not a directory`, `a socket` …
        found: &'static str,
    },
    /// A host path that no sandbox may have.
    #[error("{role} `{path}` is {reason}")]
    Reserved {
        /// `workspace`, `mount source` …
        role: &'static str,
        /// The path, resolved.
        path: Text,
        /// What it is.
        reason: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// A path inside that cannot be mounted upon.
    #[error("{role} `{path}` {reason}")]
    Target {
        /// `mount target`, `tmpfs target` …
        role: &'static str,
        /// The path inside.
        path: Text,
        /// Why not.
        reason: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// The workspace is hidden by a rule.
    #[error("the workspace `{path}` is hidden by the rule `{rule}`")]
    WorkspaceDenied {
        /// The workspace.
        path: Text,
        /// The rule.
        rule: String,
    },
    /// Something asked of the network has no effect, or contradicts the rest.
    #[error(transparent)]
    Network(#[from] NetworkSpecError),
    /// A variable cannot exist.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// Nothing is known by this name.
    #[error("`{name}` is not a toolchain")]
    UnknownToolchain {
        /// As given.
        name: Text,
    },
    /// The toolchain is not installed where it usually is.
    #[error("toolchain `{name}` is not installed: looked at {}", list(looked))]
    ToolchainMissing {
        /// Its name.
        name: &'static str,
        /// Where it would be.
        looked: Vec<PathBuf>,
    },
    /// There is no such graphics card.
    #[error("there is no graphics card{}: the machine has {count}", .number.map_or_else(String::new, |number| format!(" {number}")))]
    NoGpu {
        /// The one that was asked for, if one was.
        number: Option<u8>,
        /// How many there are.
        count: usize,
    },
    /// A node of a graphics card that no sandbox could open.
    #[error(
        "the graphics card `{path}` is not open to everybody, and whoever works in a sandbox is in no group of the machine"
    )]
    GpuClosed {
        /// The node.
        path: Text,
    },
    /// A part of a graphics card's driver that is not there.
    #[error("the driver of the graphics card has no `{what}`")]
    NoGpuDriver {
        /// A file.
        what: String,
    },
    /// A pattern means too many paths to look at.
    #[error("the rule `{rule}` looks at more than {most} paths")]
    TooManyPaths {
        /// The rule.
        rule: String,
        /// How many are looked at.
        most: usize,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| format!("`{}`", Text::from(path))).collect();
    if shown.is_empty() {
        "no place, because the home directory is not known".to_owned()
    } else {
        shown.join(", ")
    }
}

impl Explained for PlanError {
    fn kind(&self) -> ErrorKind {
        match self {
            PlanError::CommandDenied { .. } | PlanError::WorkspaceDenied { .. } | PlanError::GpuClosed { .. } => {
                ErrorKind::Denied
            }
            PlanError::ToolchainMissing { .. } | PlanError::NoGpu { .. } | PlanError::NoGpuDriver { .. } => {
                ErrorKind::NotFound
            }
            PlanError::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Invalid,
            },
            PlanError::BelowMinimum { .. } => ErrorKind::Unsupported,
            PlanError::TooManyPaths { .. } => ErrorKind::Exhausted,
            PlanError::NoTemplate => ErrorKind::Internal,
            PlanError::UnknownVolume { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            PlanError::NoCommand => "give a program after `--`, or a shell command with `-c`",
            PlanError::UnknownVolume { name, .. } => return Some(format!("`offleash volume create {name}` makes it")),
            PlanError::NoTemplate | PlanError::NulInArgument { .. } | PlanError::Environment(_) => return None,
            PlanError::Network(error) => return error.hint(),
            PlanError::CommandDenied { .. } => "change `commands` in the policy if it should run",
            PlanError::BelowMinimum { .. } => "ask for a stronger `--level`, or lower `--min-level`",
            PlanError::Unreachable { source, role, .. } => match source.kind() {
                io::ErrorKind::NotFound => "check the spelling; nothing is created on the host",
                io::ErrorKind::PermissionDenied if *role == "workspace" => {
                    "run offleash as a user who may read it, or name another directory with `--workspace DIR`"
                }
                io::ErrorKind::PermissionDenied => "run offleash as a user who may read it",
                _ => return None,
            },
            PlanError::WrongKind { role: "workspace", .. } => "name a directory with `--workspace DIR`",
            PlanError::WrongKind { .. } => "name a file or a directory",
            PlanError::Reserved { hint, .. } | PlanError::Target { hint, .. } => hint,
            PlanError::WorkspaceDenied { .. } => "remove the rule, or work in another directory",
            PlanError::UnknownToolchain { .. } => {
                return Some(format!(
                    "known toolchains are {}; anything else is given as a path with a slash",
                    super::toolchain_names::TOOLCHAIN_NAMES.join(", ")
                ));
            }
            PlanError::ToolchainMissing { .. } => "give the path of the installation: `--toolchain PATH`",
            PlanError::NoGpu { count: 0, .. } => {
                "leave `--gpu` out; a card is found by `/dev/nvidia0` or `/dev/dri/renderD128`, which its driver makes"
            }
            PlanError::NoGpu { .. } => "cards are counted from 0; name one that is there, or `all`",
            PlanError::GpuClosed { .. } => "have udev give the node the mode 0666, if every user may have the card",
            PlanError::NoGpuDriver { .. } => {
                "install the driver's libraries for computing, of the kernel module's version"
            }
            PlanError::Ports(_) => "`offleash help run` says what `--publish` and `--host-port` take",
            PlanError::TooManyPaths { .. } => "begin the pattern with a directory that holds less",
        };
        Some(hint.to_owned())
    }
}
