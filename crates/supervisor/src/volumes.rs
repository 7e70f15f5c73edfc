//! Volumes for sandboxes: found, locked and measured before a sandbox has them, and held as long as it lives.

use std::collections::BTreeSet;
use std::io;

use offleash_core::spec::{MountAccess, VolumeMount};
pub use offleash_core::volume::VolumeUsage;
use offleash_core::volume::{MAX_VOLUME_MOUNTS, VolumeKey};
use offleash_isolation::limits::LayerMeter;
use offleash_planner::FoundVolume;
use offleash_planner::base::{BaseError, remove_layer};
pub use offleash_store::{EntryOwner, HeldVolume, NodeKind, VolumeEntry, VolumeError, VolumePath};
use offleash_store::{NewVolume, RemovedVolume, StateDirectory, TransferBudget, VolumeRecord};

/// The volumes of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct HeldVolumes(Vec<MountedVolume>);

/// A volume of a sandbox.
#[derive(Debug)]
struct MountedVolume {
    mount: VolumeMount,
    volume: HeldVolume,
    /// Measured where it is to be written to.
    used: VolumeUsage,
}

impl HeldVolumes {
    /// Finds and locks what a sandbox asks for.
    ///
    /// # Errors
    /// `Missing`, `HasWriter`, `Twice`, `TooManyMounts`; `OverQuota` for one that is to be written to and holds more than it
    /// may.
    pub(crate) fn hold(state: &StateDirectory, mounts: &[VolumeMount]) -> Result<Self, VolumeError> {
        if mounts.is_empty() {
            return Ok(Self::default());
        }
        if mounts.len() > MAX_VOLUME_MOUNTS {
            return Err(VolumeError::TooManyMounts {
                most: MAX_VOLUME_MOUNTS,
            });
        }
        let store = state.volumes()?;
        let (mut held, mut ids) = (Vec::new(), BTreeSet::new());
        for mount in mounts {
            let volume = match store.hold(&mount.volume, mount.access) {
                // It is this sandbox that writes to it.
                Err(VolumeError::HasWriter { name, .. }) if is_mounted(&held, &mount.volume) => {
                    return Err(VolumeError::Twice { name });
                }
                volume => volume?,
            };
            if !ids.insert(volume.record().id.clone()) {
                return Err(VolumeError::Twice {
                    name: volume.record().name.to_string(),
                });
            }
            let used = match mount.access {
                MountAccess::Rw => check_room(&volume)?,
                MountAccess::Ro => VolumeUsage::default(),
            };
            held.push(MountedVolume {
                mount: mount.clone(),
                volume,
                used,
            });
        }
        Ok(Self(held))
    }

    /// Makes everything in those that are written to the one user's of a sandbox that has no other.
    ///
    /// # Errors
    /// When something cannot be given away.
    pub(crate) fn give_to_worker(&self) -> Result<(), VolumeError> {
        let mut written = self.0.iter().filter(|mounted| mounted.mount.access == MountAccess::Rw);
        written.try_for_each(|mounted| mounted.volume.content()?.give_all_to_worker())
    }

    /// What planning has to know of them.
    pub(crate) fn found(&self) -> Vec<FoundVolume> {
        let found = |mounted: &MountedVolume| FoundVolume {
            key: mounted.mount.volume.clone(),
            name: mounted.volume.record().name.clone(),
            data: mounted.volume.data(),
            quota: mounted.volume.record().quota,
            used: mounted.used,
        };
        self.0.iter().map(found).collect()
    }
}

fn is_mounted(held: &[MountedVolume], which: &VolumeKey) -> bool {
    held.iter().any(|mounted| mounted.mount.volume == *which)
}

/// That a volume holds no more than it may; what is in it.
///
/// # Errors
/// `OverQuota`; as [`usage`].
pub fn check_room(volume: &HeldVolume) -> Result<VolumeUsage, VolumeError> {
    let used = usage(volume)?;
    let quota = volume.record().quota;
    if used.bytes > quota.bytes.0 || used.inodes > quota.inodes {
        let name = volume.record().name.as_str();
        return Err(VolumeError::over_quota(
            name,
            (used.bytes, used.inodes),
            volume.record(),
        ));
    }
    Ok(used)
}

/// Measures a volume.
///
/// # Errors
/// When it cannot be read.
pub fn usage(volume: &HeldVolume) -> Result<VolumeUsage, VolumeError> {
    let data = volume.data();
    let failed = |source: io::Error| VolumeError::Measuring {
        name: volume.record().name.to_string(),
        source,
    };
    let found = LayerMeter::of_directory(&data).map_err(failed)?.measure();
    Ok(VolumeUsage {
        bytes: found.bytes,
        inodes: found.inodes,
    })
}

/// How much more there may be in a volume.
///
/// # Errors
/// As [`usage`].
pub fn room(volume: &HeldVolume) -> Result<TransferBudget, VolumeError> {
    let (used, quota) = (usage(volume)?, volume.record().quota);
    Ok(TransferBudget {
        bytes: quota.bytes.0.saturating_sub(used.bytes),
        entries: quota.inodes.saturating_sub(used.inodes),
    })
}

/// That a volume has no room for what is to be written.
pub fn full(volume: &VolumeRecord) -> VolumeError {
    VolumeError::Full {
        name: volume.name.to_string(),
        quota: format!(
            "{} in {} files and directories",
            volume.quota.bytes, volume.quota.inodes
        ),
    }
}

/// Makes a volume, and removes what makers and removers left that died.
///
/// # Errors
/// As [`offleash_store::VolumeStore::create`].
pub fn create(state: &StateDirectory, new: NewVolume) -> Result<VolumeRecord, VolumeError> {
    clean_up(state)?;
    state.volumes()?.create(new)
}

/// Removes a volume with all that is in it.
///
/// # Errors
/// `Missing`, `InUse`; when files cannot be removed, which is tried again with the next one.
pub fn remove(state: &StateDirectory, owner: Option<&str>, which: &str) -> Result<(), VolumeError> {
    clean_up(state)?;
    discard(&state.volumes()?.take(owner, which)?)
}

/// Removes what makers, removers and writers left that died.
///
/// # Errors
/// When the state directory cannot be read.
pub fn clean_up(state: &StateDirectory) -> Result<(), VolumeError> {
    let store = state.volumes()?;
    clean(&store.abandoned()?);
    store.clear_incoming()
}

/// What cannot be removed now stays until the next time.
fn clean(abandoned: &[RemovedVolume]) {
    for removed in abandoned {
        let _removed = discard(removed);
    }
}

fn discard(removed: &RemovedVolume) -> Result<(), VolumeError> {
    match remove_layer(removed.path()) {
        Ok(()) => Ok(()),
        Err(BaseError::Removing(error)) => Err((*error).into()),
        Err(error) => Err(VolumeError::Measuring {
            name: removed.path().display().to_string(),
            source: io::Error::other(error),
        }),
    }
}
