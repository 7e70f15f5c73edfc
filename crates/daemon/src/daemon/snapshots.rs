//! What callers ask of snapshots and checkpoints.

use offleash_core::id::SandboxName;

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::snapshots::{SnapshotExport, SnapshotFilter, SnapshotImport, SnapshotPage, SnapshotRequest, SnapshotView};
use crate::view::SandboxView;

impl Daemon {
    /// Makes a snapshot of a running sandbox, of which others can be made; the sandbox stands still for a moment.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict`, `QuotaExceeded`, `Overloaded`, `Draining`, `Contexts`, `NotCopied`,
    /// `Short`, `Supervisor`.
    pub async fn create_snapshot(
        &self,
        caller: &Caller,
        id: &str,
        request: SnapshotRequest,
    ) -> Result<SnapshotView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.snapshots.create(caller, id, request).await
    }

    /// The caller's snapshots, everybody's for one with the scope `admin`, the newest first.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `Store`.
    pub fn list_snapshots(&self, caller: &Caller, filter: &SnapshotFilter) -> Result<SnapshotPage, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.snapshots.list(caller, filter)
    }

    /// One of the caller's snapshots, by its id or its name.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSnapshot`, also for another key's; `Store`.
    pub fn snapshot(&self, caller: &Caller, which: &str) -> Result<SnapshotView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.snapshots.get(caller, which)
    }

    /// Removes a snapshot. Sandboxes made of it go on; its files go with the last of them.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSnapshot`, `Store`.
    pub async fn remove_snapshot(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.snapshots.remove(caller, which).await
    }

    /// Begins to pack one of the caller's snapshots as an archive.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSnapshot`, `SnapshotUnusable`, `Overloaded`, `Host`.
    pub async fn export_snapshot(&self, caller: &Caller, which: &str) -> Result<SnapshotExport, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.snapshots.export(caller, which).await
    }

    /// Begins to take in a snapshot that comes as an archive, which need not be trusted, as the caller's.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `QuotaExceeded`, `Overloaded`, `Draining`, `Drained`, `Store`, `Host`.
    pub async fn import_snapshot(
        &self,
        caller: &Caller,
        name: Option<SandboxName>,
    ) -> Result<SnapshotImport, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.snapshots.import(caller, name).await
    }

    /// Makes a checkpoint of a running sandbox, to which it can be put back.
    ///
    /// # Errors
    /// As [`Self::create_snapshot`].
    pub async fn create_checkpoint(
        &self,
        caller: &Caller,
        id: &str,
        name: Option<SandboxName>,
    ) -> Result<SnapshotView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.checkpoints.create(caller, id, name).await
    }

    /// The checkpoints of a sandbox, the oldest first, and the one that it is at.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Store`.
    pub fn list_checkpoints(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(Vec<SnapshotView>, Option<String>), DaemonError> {
        caller.require(Scope::Read)?;
        self.services.checkpoints.list(caller, id)
    }

    /// Removes a checkpoint.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `UnknownSnapshot`, `Store`.
    pub async fn remove_checkpoint(&self, caller: &Caller, id: &str, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.checkpoints.remove(caller, id, which).await
    }

    /// Puts a sandbox back to one of its checkpoints, by its id or its name: its processes end, its files are those of the
    /// checkpoint, and its id, tokens, labels and rules stay.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `UnknownSnapshot`, `ApprovalDenied`, `Conflict`, `Overloaded`, `Supervisor`.
    pub async fn restore(&self, caller: &Caller, id: &str, which: &str) -> Result<SandboxView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.checkpoints.restore(caller, id, which).await
    }
}
