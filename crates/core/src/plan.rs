//! What a spec resolved to: nothing optional is left open, and a backend only carries it out.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::error::{ErrorKind, Explained};
use crate::exec::UserIds;
use crate::id::RunId;
use crate::level::{DegradeMode, Level};
use crate::limits::Limits;
use crate::runtime::RuntimePlan;
use crate::spec::{IdChoice, MemoryEnd, MountAccess, ZygoteRole};
use crate::units::Bytes;
use crate::vm::VmPlan;
use crate::volume::{VolumeName, VolumeQuota, VolumeUsage};

/// Everything a backend needs to make one sandbox. It can be sent to the process that makes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// The run that the sandbox belongs to.
    pub id: RunId,
    /// The level it is made at.
    pub level: Level,
    /// What makes it at level `container`.
    pub runtime: Option<RuntimePlan>,
    /// The machine that it is at level `microvm`.
    pub vm: Option<VmPlan>,
    /// Whether weaker enforcement is acceptable.
    pub degrade: DegradeMode,
    /// The file system, in the order in which it is assembled: a later entry covers an earlier one.
    pub entries: Vec<PlanEntry>,
    /// The user that the first process is, and commands for which no other is asked.
    pub user: SandboxUser,
    /// Every user that commands may be asked for by name, the usual one first.
    pub users: Vec<SandboxUser>,
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
    /// Whether it may be paused.
    pub pausable: bool,
    /// What ends when it has no memory left.
    pub memory_end: MemoryEnd,
    /// Whose copies its processes may be.
    pub descent: ZygoteRole,
    /// When not empty: the only files, as paths inside, that may be executed.
    #[serde(with = "crate::text::paths_bytes")]
    pub executables: Vec<PathBuf>,
    /// A file of the host with the guest's program, as this build of ours has it, from which every sandbox may execute it;
    /// without, each has a copy.
    #[serde(with = "crate::text::option_path_bytes")]
    pub guest: Option<PathBuf>,
    /// The directory of this run in the state directory, where a backend may keep what the run leaves.
    #[serde(with = "crate::text::path_bytes")]
    pub run_directory: PathBuf,
}

/// The most ports with listeners of their own; each takes two descriptors of the message that hands them over.
pub const MAX_LISTENERS: usize = 12;

/// Ports of a sandbox's network besides those of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NetworkDoors {
    /// Ports on loopback that lead to services of the host.
    pub services: Vec<u16>,
    /// Whether there is a way in from outside.
    pub entrance: bool,
}

/// A volume that a sandbox writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenVolume {
    /// The host's directory.
    pub directory: PathBuf,
    /// How much it may hold.
    pub quota: VolumeQuota,
    /// What is in it before the sandbox is.
    pub used: VolumeUsage,
}

impl Plan {
    /// The directories of the writable layers of all overlays.
    pub fn layers(&self) -> Vec<PathBuf> {
        let layer = |entry: &PlanEntry| match &entry.node {
            PlanNode::Overlay { layer, .. } | PlanNode::Base { layer, .. } => Some(layer.clone()),
            _ => None,
        };
        self.entries.iter().filter_map(layer).collect()
    }

    /// The volumes that it writes to.
    pub fn written_volumes(&self) -> Vec<WrittenVolume> {
        let written = |entry: &PlanEntry| match &entry.node {
            PlanNode::Volume {
                source,
                access: MountAccess::Rw,
                quota,
                used,
                ..
            } => Some(WrittenVolume {
                directory: source.clone(),
                quota: *quota,
                used: *used,
            }),
            _ => None,
        };
        self.entries.iter().filter_map(written).collect()
    }

    /// The nodes of the graphics cards that it has, and of what drives them; as paths inside.
    pub fn gpu_nodes(&self) -> Vec<&std::path::Path> {
        let is_device = |entry: &&PlanEntry| matches!(entry.node, PlanNode::Device { .. });
        let devices = self.entries.iter().filter(is_device);
        devices.map(|entry| entry.target.as_path()).collect()
    }

    /// Whether the sandbox has a root directory of its own that can be written to.
    pub fn has_own_root(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| matches!(entry.node, PlanNode::Base { .. }))
    }

    /// Whether there are overlays, which give no other name to a directory that was there before the sandbox.
    pub fn has_overlay(&self) -> bool {
        let is_overlay = |entry: &PlanEntry| matches!(entry.node, PlanNode::Overlay { .. } | PlanNode::Base { .. });
        self.entries.iter().any(is_overlay)
    }

    /// Whether the sandbox has a superuser of its own: its first process is uid 0 of a range of ids.
    pub fn has_superuser(&self) -> bool {
        self.user.uid == 0 && self.ids == IdChoice::Range
    }

    /// Whether files can be written that somebody outside may come to run: on the host itself, or by applying changes.
    pub fn writes_for_others(&self) -> bool {
        let is_shared = |entry: &PlanEntry| match &entry.node {
            PlanNode::Overlay { .. } => true,
            PlanNode::Bind { access, .. } => *access == MountAccess::Rw,
            PlanNode::Volume { access, .. } => *access == MountAccess::Rw,
            _ => false,
        };
        self.entries.iter().any(is_shared)
    }

    /// The user of this name.
    ///
    /// # Errors
    /// [`UnknownUser`] with the names that there are.
    pub fn user_named(&self, name: &str) -> Result<&SandboxUser, UnknownUser> {
        user_named(&self.users, name)
    }
}

/// The user called `name` among `users`, or that of these ids: `1000`, `1000:1000`.
///
/// # Errors
/// [`UnknownUser`] with the names that there are.
pub fn user_named<'u>(users: &'u [SandboxUser], name: &str) -> Result<&'u SandboxUser, UnknownUser> {
    let is_it = |user: &&SandboxUser| {
        let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
        user.name == name
            || name
                .split_once(':')
                .map_or(name == uid, |ids| ids == (uid.as_str(), gid.as_str()))
    };
    users.iter().find(is_it).ok_or_else(|| UnknownUser {
        name: name.to_owned(),
        known: users.iter().map(|user| user.name.clone()).collect(),
    })
}

/// A user that a sandbox does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox has no user `{}`: it has {}", name.escape_debug(), known.join(", "))]
pub struct UnknownUser {
    /// As asked for.
    pub name: String,
    /// Those that it has.
    pub known: Vec<String>,
}

impl Explained for UnknownUser {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let is_root = matches!(self.name.as_str(), "root" | "0" | "0:0");
        let others = if is_root && !self.known.iter().any(|user| user == "root") {
            ", or use `--root base`, whose sandboxes have `root`"
        } else {
            ""
        };
        Some(match self.known.as_slice() {
            [one] => format!("leave it out, or name `{one}`{others}"),
            several => format!("name one of {}{others}", several.join(", ")),
        })
    }
}

/// A user of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SandboxUser {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Login name.
    pub name: String,
    /// Home directory inside.
    #[serde(with = "crate::text::path_bytes")]
    pub home: PathBuf,
    /// Login shell inside.
    #[serde(with = "crate::text::path_bytes")]
    pub shell: PathBuf,
}

impl SandboxUser {
    /// Its ids, as an execution is asked for.
    pub fn ids(&self) -> UserIds {
        UserIds {
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// What a login sets: `HOME`, `LOGNAME`, `SHELL`, `USER`, and `PATH` with the directories in `search_path`.
    pub fn environment(&self, search_path: &[PathBuf]) -> Environment {
        let path: Vec<&OsStr> = search_path.iter().map(|directory| directory.as_os_str()).collect();
        let pairs: [(&str, OsString); 5] = [
            ("HOME", self.home.clone().into()),
            ("LOGNAME", self.name.clone().into()),
            ("PATH", path.join(OsStr::new(":"))),
            ("SHELL", self.shell.clone().into()),
            ("USER", self.name.clone().into()),
        ];
        pairs.map(|(name, value)| (name.into(), value)).into()
    }
}

/// One piece of the sandbox's file system.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PlanEntry {
    /// Absolute path inside, free of `.`, `..` and symbolic links.
    #[serde(with = "crate::text::path_bytes")]
    pub target: PathBuf,
    /// What is there.
    pub node: PlanNode,
    /// Which rule put it there, for `explain` and for denials.
    pub rule: String,
}

/// What is at a path inside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PlanNode {
    /// A host file or directory.
    Bind {
        /// The host's path, resolved.
        #[serde(with = "crate::text::path_bytes")]
        source: PathBuf,
        /// Read-only or read-write.
        access: MountAccess,
    },
    /// The directory of a volume, whose files belong to whoever works in the sandbox that has it.
    Volume {
        /// What its owner calls it.
        name: VolumeName,
        /// The host's directory.
        #[serde(with = "crate::text::path_bytes")]
        source: PathBuf,
        /// Read-only or read-write.
        access: MountAccess,
        /// How much it may hold.
        quota: VolumeQuota,
        /// What is in it before the sandbox is, where that writes to it.
        used: VolumeUsage,
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
    /// A part of a root directory of its own: a host directory below a writable layer that belongs to the sandbox alone,
    /// from one start to the next.
    Base {
        /// The host's directory, resolved.
        #[serde(with = "crate::text::path_bytes")]
        lower: PathBuf,
        /// Directories in `lower` that are meant instead of all of it, the topmost first; none for `lower` itself.
        #[serde(with = "crate::text::paths_bytes")]
        stack: Vec<PathBuf>,
        /// What a template holds of it, to be put above all of `lower`; read only.
        #[serde(with = "crate::text::option_path_bytes")]
        template: Option<PathBuf>,
        /// What a snapshot holds of it, to be put above that; read only.
        #[serde(with = "crate::text::option_path_bytes")]
        snapshot: Option<PathBuf>,
        /// The same directories and nothing else, belonging to the sandbox's superuser, to be put above `lower` where
        /// the owners of its files cannot be mapped.
        #[serde(with = "crate::text::option_path_bytes")]
        skeleton: Option<PathBuf>,
        /// The writable layer's directory, in which `upper` and `work` are made if they are not there.
        #[serde(with = "crate::text::path_bytes")]
        layer: PathBuf,
    },
    /// A user's home directory, made with what is in `/etc/skel` when it is not there.
    Home {
        /// Whose.
        owner: UserIds,
        /// Permission bits.
        mode: u32,
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
    /// One more device of the host, below `/dev`.
    Device {
        /// The host's node.
        #[serde(with = "crate::text::path_bytes")]
        source: PathBuf,
    },
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
    /// The guest's own program as a file, under another name.
    Guest,
    /// Something that a rule hides: an empty file or directory nobody can read or replace.
    Hidden {
        /// Whether a directory is hidden.
        directory: bool,
    },
}

/// The environment of a command.
pub type Environment = Vec<(OsString, OsString)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_by_name_or_by_ids() {
        let user = SandboxUser {
            uid: 1000,
            gid: 1001,
            name: "user".to_owned(),
            home: "/home/user".into(),
            shell: "/bin/sh".into(),
        };
        let users = [user];
        for name in ["user", "1000", "1000:1001"] {
            assert!(user_named(&users, name).is_ok(), "{name}");
        }
        for name in ["", "root", "0", "01000", "1000:", "1000:1000", ":1001", "user:user"] {
            let error = user_named(&users, name).unwrap_err();
            let hint = error.hint().unwrap();
            assert!(hint.contains("`user`"), "{hint}");
            assert_eq!(hint.contains("--root base"), matches!(name, "root" | "0"), "{hint}");
        }
    }
}
