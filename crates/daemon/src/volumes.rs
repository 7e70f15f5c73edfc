//! Volumes of callers: each belongs to a key, and no other key knows of it.
//!
//! What is known of a volume lies beside its data (`store`), and nowhere else, so that a daemon that is killed leaves none
//! that is half there. Deliberately not here: locks, which the supervisors of sandboxes hold.

use std::sync::Arc;

use offleash_core::spec::MountAccess;
use offleash_core::volume::{MAX_VOLUME_MOUNTS, VolumeId, VolumeKey, VolumeQuota};
use offleash_store::{HeldVolume, NewVolume, StateDirectory, VolumeError};
use offleash_supervisor::volumes;
use tokio::sync::Mutex;

use crate::admission::AdmissionControl;
use crate::caller::{Caller, LOCAL_KEY};
use crate::config::VolumesConfig;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::jobs::blocking;
use crate::registry::Scope;
use crate::secrets::SecretStore;
use crate::volume_mounts::{SandboxVolume, VolumeMountRequest, VolumeRequest, VolumeView};

/// The volumes of the state directory.
#[derive(Debug)]
pub(crate) struct VolumeService {
    pub(crate) core: DaemonCore,
    admission: Arc<AdmissionControl>,
    pub(crate) secrets: Arc<SecretStore>,
    pub(crate) config: VolumesConfig,
    /// Held from counting what a key has to giving it more.
    creating: Mutex<()>,
}

impl VolumeService {
    pub(crate) fn new(
        core: DaemonCore,
        admission: Arc<AdmissionControl>,
        secrets: Arc<SecretStore>,
        config: VolumesConfig,
    ) -> Self {
        Self {
            core,
            admission,
            secrets,
            config,
            creating: Mutex::default(),
        }
    }

    pub(crate) async fn with_state<T: Send + 'static>(
        &self,
        tried: &'static str,
        work: impl FnOnce(StateDirectory) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let state = self.core.host.state().clone();
        Ok(blocking(tried, move || work(state)).await??)
    }

    /// Removes what daemons left that were killed while they made or removed one.
    pub(crate) async fn clean_up(&self) -> Result<(), DaemonError> {
        self.with_state("remove what is left of volumes", |state| volumes::clean_up(&state))
            .await
    }

    /// Makes a volume of the caller's.
    ///
    /// # Errors
    /// `QuotaExceeded`: its quota counts as the disks of sandboxes do; `Overloaded`, `Volume`.
    pub(crate) async fn create(&self, caller: &Caller, request: VolumeRequest) -> Result<VolumeView, DaemonError> {
        let usual = VolumeQuota::default();
        let size = request.size_mib.map(|mib| {
            let bytes = mib
                .checked_mul(1 << 20)
                .filter(|bytes| *bytes <= i64::MAX.unsigned_abs());
            bytes.ok_or_else(|| DaemonError::invalid("size_mib", format!("{mib} MiB is more than any disk has")))
        });
        let quota = VolumeQuota {
            bytes: size.transpose()?.map_or(usual.bytes, offleash_core::units::Bytes),
            inodes: request.inodes.unwrap_or(usual.inodes),
        };
        let bucket = request.bucket.as_ref().map(|bucket| self.bucket(caller, bucket));
        let new = NewVolume {
            name: request.name.parse().map_err(VolumeError::from)?,
            owner: caller.key_id.clone(),
            quota,
            shared: request.shared,
            bucket: bucket.transpose()?,
        };
        self.admission.check()?;
        let _counted = self.creating.lock().await;
        let volumes_mib = self.size_of(caller).await?;
        let asked = mebibytes(&quota);
        self.core
            .sandboxes
            .check_disk(&caller.key_id, &caller.quota, volumes_mib, asked)?;
        let record = self
            .with_state("make a volume", move |state| volumes::create(&state, new))
            .await?;
        Ok(VolumeView { record, in_use: false })
    }

    /// The caller's volumes, by name.
    pub(crate) async fn list(&self, caller: &Caller) -> Result<Vec<VolumeView>, DaemonError> {
        let owner = caller.key_id.clone();
        let listed = self.with_state("list volumes", move |state| state.volumes()?.list(Some(&owner)));
        let view = |listing: offleash_store::VolumeListing| VolumeView {
            record: listing.record,
            in_use: listing.in_use,
        };
        Ok(listed.await?.into_iter().map(view).collect())
    }

    /// One of the caller's volumes, by its id or its name; to who may do everything, also another's by its id.
    pub(crate) async fn get(&self, caller: &Caller, which: &str) -> Result<VolumeView, DaemonError> {
        let (owner, which) = (owner_of(caller, which), which.to_owned());
        self.with_state("look for a volume", move |state| {
            let store = state.volumes()?;
            let record = store.find(owner.as_deref(), &which)?;
            let listed = store.list(Some(&record.owner))?;
            let in_use = listed
                .into_iter()
                .any(|listing| listing.in_use && listing.record.id == record.id);
            Ok(VolumeView { record, in_use })
        })
        .await
    }

    /// Removes one of the caller's volumes that nobody uses.
    pub(crate) async fn remove(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        let (owner, which) = (owner_of(caller, which), which.to_owned());
        let removed = self.with_state("remove a volume", move |state| {
            let record = state.volumes()?.find(owner.as_deref(), &which)?;
            Ok((volumes::remove(&state, owner.as_deref(), &which), record.id))
        });
        let (removed, id) = removed.await?;
        removed.map_err(|error| error.with_sandboxes(self.sandboxes_with(&id, |_| true)).into())
    }

    /// Sandboxes that have a volume in such a way, by their ids. Whose a volume is knows all that can have it.
    fn sandboxes_with(&self, id: &VolumeId, is_such: impl Fn(MountAccess) -> bool) -> Vec<String> {
        let all = self.core.sandboxes.all();
        let has_it =
            |volumes: &[SandboxVolume]| volumes.iter().any(|volume| volume.id == *id && is_such(volume.access));
        let holders = all.iter().filter(|entry| has_it(&entry.specification().volumes));
        holders.map(|entry| entry.name().to_owned()).collect()
    }

    /// What a sandbox of the caller's asks for; looked at now, so that what stands against it is told at once.
    ///
    /// # Errors
    /// `Invalid`, `Volume`.
    pub(crate) async fn mounts(
        &self,
        caller: &Caller,
        asked: Vec<VolumeMountRequest>,
    ) -> Result<Vec<SandboxVolume>, DaemonError> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        if asked.len() > MAX_VOLUME_MOUNTS {
            return Err(VolumeError::TooManyMounts {
                most: MAX_VOLUME_MOUNTS,
            }
            .into());
        }
        for mount in &asked {
            check_path(&mount.path)?;
        }
        let owner = caller.key_id.clone();
        let found = self.with_state("look for volumes", move |state| {
            let store = state.volumes()?;
            let mut found: Vec<SandboxVolume> = Vec::new();
            for mount in asked {
                let record = store.find(Some(&owner), &mount.volume)?;
                let access = match mount.read_only {
                    true => MountAccess::Ro,
                    false => MountAccess::Rw,
                };
                if found.iter().any(|other| other.id == record.id) {
                    return Err(VolumeError::Twice {
                        name: record.name.to_string(),
                    });
                }
                let held = match store.hold(&VolumeKey::Id(record.id.clone()), access) {
                    Err(error @ VolumeError::HasWriter { .. }) => return Ok(Err((error, record.id))),
                    held => held?,
                };
                if access == MountAccess::Rw {
                    volumes::check_room(&held)?;
                }
                found.push(SandboxVolume {
                    id: record.id,
                    name: record.name,
                    path: mount.path,
                    access,
                });
            }
            Ok(Ok(found))
        });
        found.await?.map_err(|(error, id)| {
            let writers = self.sandboxes_with(&id, |access| access == MountAccess::Rw);
            error.with_sandboxes(writers).into()
        })
    }

    /// What a fork has of the volumes of its source: one that a single sandbox may write to is the source's to write to,
    /// and the fork only reads it.
    pub(crate) async fn of_fork(&self, volumes: Vec<SandboxVolume>) -> Result<Vec<SandboxVolume>, DaemonError> {
        if volumes.is_empty() {
            return Ok(volumes);
        }
        self.with_state("look for volumes", move |state| {
            let store = state.volumes()?;
            let for_fork = |volume: SandboxVolume| {
                let record = store.find(None, volume.id.as_str())?;
                let access = match record.shared {
                    true => volume.access,
                    false => MountAccess::Ro,
                };
                Ok(SandboxVolume { access, ..volume })
            };
            volumes.into_iter().map(for_fork).collect()
        })
        .await
    }

    /// The volume `id` for whoever shows its token.
    ///
    /// # Errors
    /// `Unauthorized`, also for one that is not there.
    pub(crate) async fn open(&self, id: &str, token: &str) -> Result<HeldVolume, DaemonError> {
        let Ok(id) = id.parse::<VolumeId>() else {
            return Err(DaemonError::Unauthorized);
        };
        let token = token.to_owned();
        let opened = self.with_state("open a volume", move |state| {
            match state.volumes()?.hold(&VolumeKey::Id(id), MountAccess::Ro) {
                Ok(held) => Ok(held.record().token.is(&token).then_some(held)),
                Err(VolumeError::Missing { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let opened = opened.await?.ok_or(DaemonError::Unauthorized)?;
        match self.is_owner_there(&opened.record().owner)? {
            true => Ok(opened),
            false => Err(DaemonError::Unauthorized),
        }
    }

    /// Whether the key of a volume may still be used, or it is the owner's.
    fn is_owner_there(&self, owner: &str) -> Result<bool, DaemonError> {
        let is_owner = owner == LOCAL_KEY;
        let key = self.core.registry.look_up(|registry| registry.key(owner))?;
        Ok(is_owner || key.is_some_and(|key| key.revoked_ms.is_none()))
    }

    /// What the quotas of the caller's volumes come to, MiB.
    pub(crate) async fn size_of(&self, caller: &Caller) -> Result<u64, DaemonError> {
        if caller.quota.disk_mib.is_none() {
            return Ok(0);
        }
        let listed = self.list(caller).await?;
        let sizes = listed.iter().map(|volume| mebibytes(&volume.record.quota));
        Ok(sizes.fold(0, u64::saturating_add))
    }
}

/// Whose volumes are looked through.
pub(crate) fn owner_of(caller: &Caller, which: &str) -> Option<String> {
    let is_id = which.parse::<VolumeId>().is_ok();
    let sees_all = is_id && caller.scopes.allow(Scope::Admin);
    (!sees_all).then(|| caller.key_id.clone())
}

fn mebibytes(quota: &VolumeQuota) -> u64 {
    quota.bytes.0.div_ceil(1 << 20)
}

/// What every place for a volume has to be; the rest depends on what the sandbox is made of.
fn check_path(path: &str) -> Result<(), DaemonError> {
    const MAX_PATH: usize = 1024;
    let refuse = |why: &str| {
        Err(DaemonError::invalid(
            "volumeMounts",
            format!("`{}` {why}", path.escape_debug()),
        ))
    };
    let mut names = path.split('/').skip(1).peekable();
    match path {
        _ if path.len() > MAX_PATH => refuse("is too long"),
        _ if !path.starts_with('/') => refuse("is not absolute"),
        _ if path.trim_end_matches('/').is_empty() => refuse("is the root directory"),
        _ if path.contains('\0') => refuse("contains a NUL byte"),
        _ if names.any(|name| name == "." || name == "..") => refuse("contains `.` or `..`"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_none_are_refused_before_anything_is_made() {
        for path in ["/data", "/mnt/data", "/home/user/x", "/data/"] {
            check_path(path).unwrap();
        }
        for path in [
            "",
            "data",
            "/",
            "//",
            "/a/../b",
            "/a/.",
            "/a\0b",
            &format!("/{}", "x".repeat(1024)),
        ] {
            assert!(matches!(check_path(path), Err(DaemonError::Invalid { .. })), "{path:?}");
        }
    }
}
