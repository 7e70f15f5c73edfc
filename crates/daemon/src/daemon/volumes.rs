//! What callers ask of their volumes.

use offleash_core::bucket::SyncChoice;
use offleash_store::HeldVolume;
use offleash_supervisor::buckets::SyncReport;

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::volume_mounts::{VolumeRequest, VolumeView};

impl Daemon {
    /// Makes a volume of the caller's.
    ///
    /// # Errors
    /// `Forbidden`, `QuotaExceeded`, `Overloaded`, `Volume`.
    pub async fn create_volume(&self, caller: &Caller, request: VolumeRequest) -> Result<VolumeView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.volumes.create(caller, request).await
    }

    /// The caller's volumes, by name.
    ///
    /// # Errors
    /// `Forbidden`, `Volume`.
    pub async fn list_volumes(&self, caller: &Caller) -> Result<Vec<VolumeView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.volumes.list(caller).await
    }

    /// One of the caller's volumes, by its id or its name. Its token opens it, so it is not for who may only look.
    ///
    /// # Errors
    /// `Forbidden`, `Volume`, also for another key's.
    pub async fn volume(&self, caller: &Caller, which: &str) -> Result<VolumeView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.volumes.get(caller, which).await
    }

    /// Removes one of the caller's volumes.
    ///
    /// # Errors
    /// `Forbidden`, `Volume`, also for one that sandboxes use.
    pub async fn remove_volume(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.volumes.remove(caller, which).await
    }

    /// Brings one of the caller's volumes and its bucket to the same.
    ///
    /// # Errors
    /// `Forbidden`, `Volume`, `UnknownSecret`, `NotAllowed`, `NotSynchronised`.
    pub async fn sync_volume(
        &self,
        caller: &Caller,
        which: &str,
        choice: SyncChoice,
    ) -> Result<SyncReport, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.volumes.sync(caller, which, choice).await
    }

    /// The files of a volume, for whoever shows its token.
    ///
    /// # Errors
    /// `Unauthorized`, `Volume`.
    pub async fn open_volume(&self, id: &str, token: &str) -> Result<HeldVolume, DaemonError> {
        self.services.volumes.open(id, token).await
    }
}
