//! Sandboxes of which files are copied: each stands still while that is done, whether it runs, is frozen or put away.

use std::sync::Arc;

use offleash_interpreter::state::{HeldContexts, SavedContext};
use offleash_supervisor::service::client::StillHeld;
use offleash_supervisor::service::error::SupervisorError;

use crate::carrying::{CarriedContexts, ContextCarrier, SavePatience};
use crate::contexts::is_driver_tag;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::registry::{SandboxRow, SandboxState};
use crate::sandboxes::{SandboxEntry, SandboxTurn};

/// Holds sources of copies still.
#[derive(Debug)]
pub(crate) struct StillSources {
    core: DaemonCore,
    carrier: Arc<ContextCarrier>,
}

/// A source that stands still, until this is released.
#[derive(Debug)]
pub(crate) enum StillSource {
    /// It ran, and its supervisor holds it.
    Held(StillHeld),
    /// It is paused, and whoever has this has its turn.
    Paused,
}

/// What contexts of code of a source have saved into its files.
#[derive(Debug, Default)]
pub(crate) struct SourceContexts {
    saved: Vec<SavedContext>,
    /// They wait, and the files stay, until this is dropped.
    _held: Option<HeldContexts>,
}

impl SourceContexts {
    /// What was saved.
    pub(crate) fn saved(&self) -> &[SavedContext] {
        &self.saved
    }
}

impl StillSource {
    /// Lets it go on, if nothing has moved in it up to now.
    ///
    /// # Errors
    /// `Gone` when it was let go on before, or has ended.
    pub(crate) async fn release(self) -> Result<(), SupervisorError> {
        match self {
            Self::Held(held) => held.release().await,
            Self::Paused => Ok(()),
        }
    }
}

impl StillSources {
    pub(crate) fn new(core: DaemonCore, carrier: Arc<ContextCarrier>) -> Self {
        Self { core, carrier }
    }

    /// Fails if nothing can be copied of a sandbox as it is.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` while it is put back.
    pub(crate) fn check(&self, source: &SandboxEntry) -> Result<(), DaemonError> {
        match source.state() {
            SandboxState::Running | SandboxState::Paused | SandboxState::PutAway => Ok(()),
            SandboxState::Restoring => Err(DaemonError::conflict(source.name(), "is being put back")),
            _ => Err(DaemonError::not_found(source.name())),
        }
    }

    /// Has contexts of code of a source save what their cells left into its files. One that is frozen moves for that, and is
    /// frozen again; one that is put away has saved it before.
    ///
    /// # Errors
    /// As [`ContextCarrier::save`]; `Supervisor`.
    pub(crate) async fn save(
        &self,
        source: &Arc<SandboxEntry>,
        carried: CarriedContexts,
    ) -> Result<SourceContexts, DaemonError> {
        if carried == CarriedContexts::Nothing {
            return Ok(SourceContexts::default());
        }
        match source.state() {
            SandboxState::Paused => {}
            SandboxState::PutAway => {
                return Ok(SourceContexts {
                    saved: source.specification().saved.clone(),
                    _held: None,
                });
            }
            _ => return Ok(SourceContexts::of(self.carrier.save(source, carried).await?)),
        }
        let turn = source.turn_soon().await?;
        match source.state() {
            SandboxState::Paused if self.has_contexts(source).await? => self.save_frozen(source, carried, &turn).await,
            SandboxState::Paused => Ok(SourceContexts::default()),
            _ => Err(DaemonError::conflict(source.name(), "was resumed meanwhile")),
        }
    }

    async fn has_contexts(&self, source: &SandboxEntry) -> Result<bool, DaemonError> {
        let processes = self.core.host.supervisor(source.id()).processes().await;
        let processes = processes.map_err(|error| of_supervisor(source, error))?;
        Ok(processes.iter().any(|process| is_driver_tag(process.tag.as_deref())))
    }

    async fn save_frozen(
        &self,
        source: &SandboxEntry,
        carried: CarriedContexts,
        _turn: &SandboxTurn<'_>,
    ) -> Result<SourceContexts, DaemonError> {
        let (core, supervisor) = (&self.core, self.core.host.supervisor(source.id()));
        // A daemon that dies meanwhile leaves one that is found as it is.
        let moving = |row: &mut SandboxRow| row.state = SandboxState::Pausing;
        core.registry.write(source, None, moving).await?;
        let saved = match supervisor.resume().await {
            Ok(()) => self.carrier.save_within(source, carried, SavePatience::SHORT).await,
            Err(error) => Err(of_supervisor(source, error)),
        };
        let frozen = supervisor.pause().await;
        let paused = |row: &mut SandboxRow| row.state = SandboxState::Paused;
        if core.registry.write(source, None, paused).await.is_err() {
            source.set_state(SandboxState::Paused);
        }
        frozen.map_err(|error| of_supervisor(source, error))?;
        Ok(SourceContexts::of(saved?))
    }

    /// Bytes that a source has on disk, where somebody knows.
    ///
    /// # Errors
    /// `NotFound`, `Supervisor`.
    pub(crate) async fn disk_bytes(&self, source: &SandboxEntry) -> Result<u64, DaemonError> {
        if source.state() == SandboxState::PutAway {
            return Ok(0);
        }
        let usage = self.core.host.supervisor(source.id()).usage().await;
        Ok(usage.map_err(|error| of_supervisor(source, error))?.disk_bytes)
    }

    /// Has a source stand still.
    ///
    /// # Errors
    /// `NotFound`, `Conflict`, `Unsupported`, `Supervisor`.
    pub(crate) async fn hold(
        &self,
        source: &SandboxEntry,
        _turn: &SandboxTurn<'_>,
    ) -> Result<StillSource, DaemonError> {
        self.check(source)?;
        if source.state() != SandboxState::Running {
            return Ok(StillSource::Paused);
        }
        let held = self.core.host.supervisor(source.id()).hold_still().await;
        held.map(StillSource::Held)
            .map_err(|error| of_supervisor(source, error))
    }
}

impl SourceContexts {
    fn of(held: Option<HeldContexts>) -> Self {
        Self {
            saved: held.as_ref().map(|held| held.contexts().to_vec()).unwrap_or_default(),
            _held: held,
        }
    }
}

fn of_supervisor(source: &SandboxEntry, error: SupervisorError) -> DaemonError {
    DaemonError::of_supervisor("copy the files of a sandbox", source.name(), error)
}
