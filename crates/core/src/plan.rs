//! What a spec resolved to: nothing optional is left open, and a backend only carries it out.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::id::RunId;
use crate::level::{Degrade, Level};
use crate::limits::Limits;
use crate::spec::{Access, IdChoice};
use crate::units::Bytes;

/// Everything a backend needs to make one sandbox. It can be sent to the process that makes it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// The run that the sandbox belongs to.
    pub id: RunId,
    /// The level it is made at.
    pub level: Level,
    /// Whether weaker enforcement is acceptable.
    pub degrade: Degrade,
    /// The file system, in the order in which it is assembled: a later entry covers an earlier one.
    pub entries: Vec<Entry>,
    /// User and group inside.
    pub user: User,
    /// How ids are mapped.
    pub ids: IdChoice,
    /// Host name inside.
    pub hostname: String,
    /// Resource limits.
    pub limits: Limits,
    /// Whether it has a network of which every connection leads to a gateway; without, it reaches nothing but itself.
    pub network: bool,
    /// The ports at which that may be where the kernel has no filters that lead all of them to the gateway; none when the
    /// rules name more than can be listened on.
    pub network_ports: Vec<u16>,
    /// The ports of its network that are more than a way to the gateway.
    pub network_doors: NetworkDoors,
    /// Whether processes inside may trace each other.
    pub allow_ptrace: bool,
    /// When not empty: the only files, as paths inside, that may be executed.
    #[serde(with = "crate::text::paths_bytes")]
    pub executables: Vec<PathBuf>,
    /// The directory of this run in the state directory, where a backend may keep what the run leaves.
    #[serde(with = "crate::text::path_bytes")]
    pub run_directory: PathBuf,
}

/// The most ports with listeners of their own; each takes two descriptors of the message that hands them over.
pub const MOST_LISTENERS: usize = 12;

/// Ports of a sandbox's network besides those of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NetworkDoors {
    /// Ports on loopback that lead to services of the host.
    pub services: Vec<u16>,
    /// Whether there is a way in from outside.
    pub entrance: bool,
}

impl Plan {
    /// The directories of the writable layers of all overlays.
    pub fn layers(&self) -> Vec<PathBuf> {
        let layer = |entry: &Entry| match &entry.node {
            Node::Overlay { layer, .. } => Some(layer.clone()),
            _ => None,
        };
        self.entries.iter().filter_map(layer).collect()
    }
}

/// The user that commands run as.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct User {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Login name.
    pub name: String,
    /// Home directory inside.
    #[serde(with = "crate::text::path_bytes")]
    pub home: PathBuf,
}

/// One piece of the sandbox's file system.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entry {
    /// Absolute path inside, free of `.`, `..` and symbolic links.
    #[serde(with = "crate::text::path_bytes")]
    pub target: PathBuf,
    /// What is there.
    pub node: Node,
    /// Which rule put it there, for `explain` and for denials.
    pub rule: String,
}

/// What is at a path inside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Node {
    /// A host file or directory.
    Bind {
        /// The host's path, resolved.
        #[serde(with = "crate::text::path_bytes")]
        source: PathBuf,
        /// Read-only or read-write.
        access: Access,
    },
    /// A host directory below a writable layer.
    Overlay {
        /// The host's directory, resolved.
        #[serde(with = "crate::text::path_bytes")]
        lower: PathBuf,
        /// The writable layer's directory, which exists and holds `upper` and `work`.
        #[serde(with = "crate::text::path_bytes")]
        layer: PathBuf,
    },
    /// An empty directory in memory.
    Tmpfs {
        /// Size limit.
        size: Option<Bytes>,
        /// Inode limit.
        inodes: Option<u64>,
        /// Permission bits.
        mode: u32,
    },
    /// A fresh `/proc`.
    Proc,
    /// A minimal `/dev`.
    Dev,
    /// A directory of the root.
    Directory,
    /// A symbolic link.
    Symlink {
        /// What it says.
        #[serde(with = "crate::text::path_bytes")]
        to: PathBuf,
    },
    /// A small file that we write.
    File {
        /// Its contents.
        #[serde(with = "crate::text::bytes")]
        contents: Vec<u8>,
    },
    /// Something that a rule hides: an empty file or directory nobody can read or replace.
    Hidden {
        /// Whether a directory is hidden.
        directory: bool,
    },
}

/// The environment of a command.
pub type Environment = Vec<(OsString, OsString)>;
