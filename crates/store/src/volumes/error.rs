//! Why a volume cannot be made, used or removed, and why something in it cannot be read or written.

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_core::volume::{VolumeIdError, VolumeNameError};

use crate::failure::FileError;
use crate::state::StateError;

/// An error of volumes.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A name that no volume has.
    #[error(transparent)]
    Name(#[from] VolumeNameError),
    /// An id that no volume has.
    #[error(transparent)]
    Id(#[from] VolumeIdError),
    /// There is none, or it is somebody else's.
    #[error("there is no volume `{which}`")]
    Missing {
        /// As asked for.
        which: String,
    },
    /// Only volumes of keys have the name.
    #[error("no volume of yours is called `{name}`, but of keys: {}", .ids.join(", "))]
    OfKeys {
        /// The name.
        name: String,
        /// Their ids.
        ids: Vec<String>,
    },
    /// There is one of this name.
    #[error("there is a volume `{name}` already")]
    Exists {
        /// Its name.
        name: String,
    },
    /// It is used.
    #[error("volume `{name}` is in use{}", by(.sandboxes))]
    InUse {
        /// Its name.
        name: String,
        /// Sandboxes that have it, as far as that is known.
        sandboxes: Vec<String>,
    },
    /// Somebody else writes to it.
    #[error("volume `{name}` is written to by another sandbox{}", by(.sandboxes))]
    HasWriter {
        /// Its name.
        name: String,
        /// Which, as far as that is known.
        sandboxes: Vec<String>,
    },
    /// One sandbox asks for it twice.
    #[error("volume `{name}` is mounted twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// One sandbox asks for too many.
    #[error("a sandbox can have {most} volumes")]
    TooManyMounts {
        /// The bound.
        most: usize,
    },
    /// There are too many.
    #[error("there are {most} volumes, as many as there can be")]
    TooMany {
        /// The bound.
        most: usize,
    },
    /// One key has too many.
    #[error("a key can have {most} volumes, and this one has as many")]
    TooManyOfKey {
        /// The bound.
        most: usize,
    },
    /// A quota that nothing can hold.
    #[error("{what} of a volume: {why}")]
    Quota {
        /// `the size` or `the number of inodes`.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// It holds more than it may.
    #[error("volume `{name}` holds {used} and may hold {quota}")]
    OverQuota {
        /// Its name.
        name: String,
        /// What is in it.
        used: String,
        /// Its quota.
        quota: String,
    },
    /// What is to be written has no room.
    #[error("volume `{name}` has no room for this: its quota is {quota}")]
    Full {
        /// Its name.
        name: String,
        /// Its quota.
        quota: String,
    },
    /// A path that cannot be one in a volume.
    #[error("`{path}` is no path in a volume: {why}")]
    Path {
        /// As asked for.
        path: Text,
        /// What is wrong.
        why: &'static str,
    },
    /// Nothing is there.
    #[error("path `{path}` does not exist in the volume")]
    NoEntry {
        /// The path.
        path: Text,
    },
    /// Something is there.
    #[error("path `{path}` exists in the volume already")]
    EntryExists {
        /// The path.
        path: Text,
    },
    /// Something else is there than is meant.
    #[error("path `{path}` is {found}")]
    OtherKind {
        /// The path.
        path: Text,
        /// What is there.
        found: &'static str,
    },
    /// There is more than is answered or copied at once.
    #[error("there are more than {most} {what} below `{path}`")]
    TooLarge {
        /// The path.
        path: Text,
        /// `entries` or `directories in one another`.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// It was changed by somebody else at the same time.
    #[error("`{path}` was changed meanwhile, or leads through a symbolic link")]
    Changed {
        /// The path.
        path: Text,
    },
    /// It is being synchronised.
    #[error("volume `{name}` is being synchronised with its bucket")]
    Synchronising {
        /// Its name.
        name: String,
    },
    /// Files of a volume have one owner here.
    #[error("files of this volume belong to uid 1000, and to nobody else: offleash does not run as root")]
    OneOwner,
    /// An id that no file in a volume has.
    #[error("{id} is no id of a sandbox: they are 0 to 65535")]
    NoId {
        /// As asked for.
        id: u32,
    },
    /// What is in it cannot be looked at or removed.
    #[error("cannot look at all of volume `{name}`, or remove it")]
    Measuring {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A call failed.
    #[error(transparent)]
    File(#[from] FileError),
}

fn by(sandboxes: &[String]) -> String {
    match sandboxes {
        [] => String::new(),
        sandboxes => format!(": {}", sandboxes.join(", ")),
    }
}

impl VolumeError {
    /// The same with the sandboxes that have the volume, where that is what is wrong.
    #[must_use]
    pub fn with_sandboxes(mut self, holders: Vec<String>) -> Self {
        if let Self::InUse { sandboxes, .. } | Self::HasWriter { sandboxes, .. } = &mut self {
            *sandboxes = holders;
        }
        self
    }

    /// That a volume holds more than it may.
    pub fn over_quota(name: &str, (bytes, inodes): (u64, u64), quota: &super::VolumeRecord) -> Self {
        let written = |bytes: Bytes, inodes: u64| format!("{bytes} in {inodes} files and directories");
        Self::OverQuota {
            name: name.to_owned(),
            used: written(Bytes(bytes), inodes),
            quota: written(quota.quota.bytes, quota.quota.inodes),
        }
    }
}

impl Explained for VolumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Name(_)
            | Self::Id(_)
            | Self::Twice { .. }
            | Self::TooManyMounts { .. }
            | Self::Quota { .. }
            | Self::Path { .. }
            | Self::OtherKind { .. }
            | Self::TooLarge { .. }
            | Self::NoId { .. } => ErrorKind::Invalid,
            Self::Missing { .. } | Self::OfKeys { .. } | Self::NoEntry { .. } => ErrorKind::NotFound,
            Self::Exists { .. }
            | Self::InUse { .. }
            | Self::HasWriter { .. }
            | Self::Synchronising { .. }
            | Self::EntryExists { .. }
            | Self::Changed { .. } => ErrorKind::Conflict,
            Self::TooMany { .. } | Self::TooManyOfKey { .. } | Self::OverQuota { .. } | Self::Full { .. } => {
                ErrorKind::Exhausted
            }
            Self::OneOwner => ErrorKind::Unsupported,
            Self::Measuring { .. } => ErrorKind::Internal,
            Self::State(error) => error.kind(),
            Self::File(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Missing { which } => format!(
                "`offleash volume create {which}` makes one, `offleash volume ls` lists those that there are; a directory of the \
                 host is written as a path, such as `./{which}`"
            ),
            Self::OfKeys { .. } => "if one of these is meant, say its id".to_owned(),
            Self::Exists { .. } => "choose another name, or use the one that is there".to_owned(),
            Self::InUse { .. } => "end the sandboxes that use it first".to_owned(),
            Self::TooMany { .. } | Self::TooManyOfKey { .. } => "remove volumes that nobody needs".to_owned(),
            Self::Synchronising { .. } => "try again when that is done".to_owned(),
            Self::HasWriter { .. } => {
                "mount it with `:ro`, or make a volume for many writers with `offleash volume create --shared`"
                    .to_owned()
            }
            Self::OverQuota { name, .. } => format!(
                "mount it with `:ro`, or remove something from it first, as in `offleash volume rm {name}:/PATH`"
            ),
            Self::Twice { .. } => "leave one of the two out".to_owned(),
            Self::Full { name, .. } => {
                format!("remove something from it, as in `offleash volume rm {name}:/PATH`, or make a larger one")
            }
            Self::NoEntry { .. } => "name a path that is there".to_owned(),
            Self::Path { .. } => "write the path from the top of the volume, without `..`".to_owned(),
            Self::Quota { .. } => "sizes are such as 512M or 2G".to_owned(),
            Self::Changed { .. } => "try again; no link in a volume is followed".to_owned(),
            Self::OtherKind { .. } => "choose another path".to_owned(),
            Self::State(error) => return error.hint(),
            Self::File(error) => return error.hint(),
            _ => return None,
        })
    }
}
