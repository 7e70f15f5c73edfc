//! What offleash keeps on disk: runs with their changes, and the audit log, in one state directory.
//!
//! [`StateDirectory`] finds and opens it; [`LiveRun`] is a run that is going on, [`StoredRun`] one that is over; a run's
//! changes are compared with the host ([`StoredRun::changes`]), shown ([`StoredRun::unified`]), written back ([`StoredRun::apply`]) or
//! dropped ([`StoredRun::discard`]); [`reap()`] finishes what a crash left; [`AuditLog`] is the log.
//!
//! Deliberately not here: making mounts, removing cgroups, printing. Bytes and names that a sandbox made are never
//! trusted: every path below a root is opened by directory descriptor without following a symbolic link.

mod apply;
mod audit;
mod change;
mod claim;
mod clock;
mod content;
mod copy;
mod failure;
mod identity;
mod layered;
mod leads_out;
mod live_run;
mod modes;
mod node;
mod overlay;
mod places;
mod program;
mod protection;
mod quote;
mod reap;
mod removal;
mod run;
mod run_error;
mod run_file;
mod runs;
mod sandboxes;
mod seen;
mod skeleton;
mod snapshots;
mod spares;
mod spread;
mod state;
mod templates;
mod tree;
mod trusted;
mod unified;
mod volumes;
mod warm;

#[cfg(test)]
mod testing;

pub use apply::{
    ApplyError, ApplyReport, ApplyRequest, ChangeSelection, ConflictAt, ConflictReason, RefusalReason, RefusedChange,
    leads_out_to,
};
pub use audit::{AuditError, AuditEvent, AuditLine, AuditLines, AuditLog, BadLine, LogRecovery, VerifyReport};
pub use change::{ChangeError, ChangeKind, LayerChange, summarize};
pub use clock::{rfc3339, rfc3339_now};
pub use copy::{
    CopyBudget, CopyError, CopyRound, LayerIndex, LayerRefresh, MAX_INDEX, OwnerShift, SharedLayer, copy_contents,
    copy_layer, link_layer,
};
pub use failure::FileError;
pub use identity::HostIdentity;
pub use layered::{LayerStack, LayeredChange, LayeredChanges, MAX_LAYER_CHANGES, layered_changes, layered_patch};
pub use leads_out::HostPath;
pub use live_run::{FinishedRun, LiveRun, NewRun};
pub use node::{NodeKind, TreeNode};
pub use reap::{LeftoverFate, LeftoverRun, erase, reap, reap_with};
pub use removal::remove_directory;
pub use run::StoredRun;
pub use run_error::RunError;
pub use runs::{KEPT_TOMBSTONES, RunListing, RunState, runs};
pub use sandboxes::{DaemonLock, DirectoryHold, SandboxDirectories};
pub use snapshots::{HeldSnapshot, SnapshotDirectories};
pub use spares::SpareMaintenance;
pub use spread::spread;
pub use state::{StateDirectory, StateError};
pub use templates::{
    AbandonedLayer, HeldTemplate, NewTemplate, TakeOutcome, TemplateImage, TemplateRecord, TemplateStore,
};
pub use trusted::led_to;
pub use unified::{ChangePatch, DiffForm, MAX_TEXT_BYTES};
pub use volumes::{
    EntryOwner, FileStamp, FoundFiles, HeldVolume, LOCAL_OWNER, MAX_VOLUMES, NewVolume, RemovedVolume, TransferBudget,
    TransferReport, VolumeContent, VolumeEntry, VolumeError, VolumeListing, VolumeOwners, VolumePath, VolumeRecord,
    VolumeStore, VolumeToken, VolumeWriter, copy_in, copy_out,
};
pub use warm::{WarmDirectory, WarmLock};
