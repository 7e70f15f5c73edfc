//! Checkpoints of one sandbox, and putting it back to one: it is made anew in its place, with the files of the checkpoint.
//!
//! That it is being put back is on record with the checkpoint before anything of it is ended, so that the next daemon goes on
//! with it. Checkpoints go with their sandbox.

use std::sync::Arc;
use std::time::Instant;

use offleash_core::id::SandboxName;
use offleash_core::log_level::LogLevel;

use super::{CopyRequest, SnapshotStore, SnapshotView};
use crate::caller::Caller;
use crate::carrying::CarriedContexts;
use crate::contexts::ContextTable;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::{EventNote, who};
use crate::making::{RemakeBasis, SandboxMaker};
use crate::origins::OriginFinder;
use crate::registry::{EventKind, SandboxState, SnapshotKind, SnapshotRow, SnapshotState};
use crate::sandboxes::{SandboxEntry, SandboxTurn};
use crate::specification::Specification;
use crate::view::SandboxView;

/// Makes checkpoints, and puts sandboxes back.
#[derive(Debug)]
pub(crate) struct CheckpointStore {
    core: DaemonCore,
    snapshots: Arc<SnapshotStore>,
    origins: Arc<OriginFinder>,
    contexts: Arc<ContextTable>,
    maker: Arc<SandboxMaker>,
    ender: Arc<SandboxEnder>,
}

impl CheckpointStore {
    pub(crate) fn new(
        core: DaemonCore,
        snapshots: Arc<SnapshotStore>,
        origins: Arc<OriginFinder>,
        contexts: Arc<ContextTable>,
        maker: Arc<SandboxMaker>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            snapshots,
            origins,
            contexts,
            maker,
            ender,
        }
    }

    /// Makes a checkpoint of a sandbox, running or paused.
    ///
    /// # Errors
    /// As [`SnapshotStore::create`].
    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        name: Option<SandboxName>,
    ) -> Result<SnapshotView, DaemonError> {
        let source = self.core.sandboxes.find(caller, id)?;
        let (store, caller) = (Arc::clone(self), caller.clone());
        let work = async move {
            let parent = source.specification().checkpoint.clone();
            let asked = CopyRequest {
                kind: SnapshotKind::Checkpoint,
                name: name.map(|name| name.as_str().to_owned()),
                parent,
                contexts: CarriedContexts::Nothing,
                automatic: None,
            };
            let row = store.snapshots.copy(&source, &caller, asked).await?;
            store.note_at(&source, &row.id).await?;
            let line = format!("{} made checkpoint `{}` of it", who(&caller), row.id);
            store.core.registry.log(source.name(), LogLevel::Info, line);
            Ok(SnapshotView::of(&row))
        };
        self.core.jobs.detached(work).await
    }

    /// Makes a checkpoint that nobody asked for now; `why` is as in `every 600 s`.
    ///
    /// # Errors
    /// As [`SnapshotStore::create`].
    pub(crate) async fn create_automatic(
        self: &Arc<Self>,
        source: &Arc<SandboxEntry>,
        why: String,
    ) -> Result<(), DaemonError> {
        let (store, source) = (Arc::clone(self), Arc::clone(source));
        let work = async move {
            let line = format!("made a checkpoint of it {why}");
            let asked = CopyRequest {
                kind: SnapshotKind::Checkpoint,
                name: None,
                parent: source.specification().checkpoint.clone(),
                contexts: CarriedContexts::Nothing,
                automatic: Some(why),
            };
            let began = Instant::now();
            // It is its owner's, whoever makes it.
            let row = store.snapshots.copy(&source, &Caller::local(), asked).await?;
            store.note_at(&source, &row.id).await?;
            // Not the end: what is touched while files are copied may not be among them.
            source.note_checkpointed_at(began);
            store
                .core
                .registry
                .log(source.name(), LogLevel::Info, format!("{line}: `{}`", row.id));
            Ok(())
        };
        self.core.jobs.detached(work).await
    }

    /// Removes one of a sandbox's.
    ///
    /// # Errors
    /// `Store`.
    pub(super) async fn release(&self, id: &str) -> Result<(), DaemonError> {
        self.snapshots.release(id).await
    }

    /// The next checkpoint comes after this one.
    async fn note_at(&self, entry: &SandboxEntry, checkpoint: &str) -> Result<(), DaemonError> {
        let _turn = entry.turn().await;
        if entry.state() == SandboxState::Killing {
            return Ok(());
        }
        let specification = Specification {
            checkpoint: Some(checkpoint.to_owned()),
            ..Specification::clone(&entry.specification())
        };
        Ok(self.core.registry.specify(entry, specification, None).await?)
    }

    /// The checkpoints of a sandbox, the oldest first, and the one that it is at.
    ///
    /// # Errors
    /// `NotFound`, `Store`.
    pub(crate) fn list(&self, caller: &Caller, id: &str) -> Result<(Vec<SnapshotView>, Option<String>), DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let rows = self.of(&entry)?;
        let at = entry.specification().checkpoint.clone();
        Ok((rows.iter().map(SnapshotView::of).collect(), at))
    }

    /// The checkpoints of a sandbox, the oldest first.
    ///
    /// # Errors
    /// `Store`.
    pub(super) fn of(&self, entry: &SandboxEntry) -> Result<Vec<SnapshotRow>, DaemonError> {
        let rows = self
            .core
            .registry
            .look_up(|registry| registry.snapshots_of_sandbox(entry.name()))?;
        let is_one = |row: &SnapshotRow| row.kind == SnapshotKind::Checkpoint && row.state == SnapshotState::Ready;
        Ok(rows.into_iter().filter(is_one).collect())
    }

    fn find(&self, entry: &SandboxEntry, which: &str) -> Result<SnapshotRow, DaemonError> {
        let mut rows = self.of(entry)?.into_iter();
        let found = rows.find(|row| row.id == which || row.name.as_deref() == Some(which));
        found.ok_or_else(|| DaemonError::UnknownCheckpoint {
            id: entry.name().to_owned(),
            name: which.to_owned(),
        })
    }

    /// Removes a checkpoint. Its files go when the sandbox is at another one.
    ///
    /// # Errors
    /// `NotFound`, `UnknownCheckpoint`, `Store`.
    pub(crate) async fn remove(&self, caller: &Caller, id: &str, which: &str) -> Result<(), DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let row = self.find(&entry, which)?;
        self.snapshots.release(&row.id).await
    }

    /// Puts a sandbox back to one of its checkpoints: its processes end, and its files are those of the checkpoint.
    ///
    /// # Errors
    /// `NotFound`, `UnknownCheckpoint`, `ApprovalDenied`, `Conflict`, `Overloaded`, `Supervisor`; when it could not be made, it waits to be restored
    /// again.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        which: &str,
    ) -> Result<SandboxView, DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let asked = self.find(&entry, which)?;
        let core = &self.core;
        core.questions.before_restore(&entry, &core.registry, &asked.id).await?;
        let (store, caller, which) = (Arc::clone(self), caller.clone(), asked.id);
        let work = async move {
            let turn = entry.turn_soon().await?;
            match entry.state() {
                SandboxState::Running | SandboxState::Paused | SandboxState::PutAway | SandboxState::Restoring => {}
                _ => return Err(DaemonError::not_found(entry.name())),
            }
            // What a paused one does not use is its owner's again.
            let quota = store.core.quota_of(&entry, Some(&caller))?;
            let _reserved = store.core.sandboxes.reserve_if_paused(&entry, &quota)?;
            let checkpoint = store.find(&entry, &which)?;
            // It stays in place until the sandbox itself holds it.
            let _held = store.core.host.hold_snapshot(Some(&checkpoint.id)).await?;
            let _base = store.origins.same(&entry).await?;
            let specification = Specification {
                snapshot: Some(checkpoint.id.clone()),
                checkpoint: Some(checkpoint.id.clone()),
                asleep: false,
                saved: Vec::new(),
                ..Specification::clone(&entry.specification())
            };
            let text = specification.to_json();
            let restoring = |row: &mut crate::registry::SandboxRow| {
                row.state = SandboxState::Restoring;
                row.spec = text;
            };
            let line = format!("{} put it back to checkpoint `{}`", who(&caller), checkpoint.id);
            let updated = EventNote::new(EventKind::Updated, line);
            store.core.registry.write(&entry, Some(updated), restoring).await?;
            entry.set_specification(specification);
            store.core.host.stop_keeping_files(entry.id());
            entry.hold_below(None);
            let aside = store.core.host.set_layer_aside(entry.id());
            store.ender.end_supervisor(&entry).await;
            let made = store.make_again(&entry, &turn).await;
            if let Some(aside) = aside {
                let host = Arc::clone(&store.core.host);
                store.core.jobs.spawn(async move { host.remove_layer(aside).await });
            }
            made?;
            drop(turn);
            entry.view().ok_or_else(|| DaemonError::not_found(entry.name()))
        };
        self.core.jobs.detached(work).await
    }

    /// Makes a sandbox that is being put back, whose supervisor has ended or is about to.
    ///
    /// # Errors
    /// Why it is not there; it is still being put back then, and can be again.
    pub(crate) async fn make_again(
        &self,
        entry: &Arc<SandboxEntry>,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        let _base = self.origins.same(entry).await?;
        self.contexts.forget(entry.name());
        self.maker.remake(entry, RemakeBasis::Checkpoint, turn).await?;
        self.core.sandboxes.note_end_changed();
        Ok(())
    }
}
