//! Sandboxes whose files alone are kept: they are put away, and made again in their place when they go on.
//!
//! What a sandbox has written stays where it is, marked so that nobody removes it, whoever dies: the supervisor that ends, the one
//! that is to make it again, the daemon. Contexts of code save what their cells left into those files before, as they do for
//! forks. That it is put away, or made again, is on record before anything of it is ended or made. Deliberately not here: who
//! may, and when.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::log_level::LogLevel;
use offleash_interpreter::state::HeldContexts;
use offleash_supervisor::clock::{after, now_ms};

use crate::admission::AdmissionControl;
use crate::carrying::{CarriedContexts, ContextCarrier, SavePatience};
use crate::config::DaemonConfig;
use crate::contexts::ContextTable;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::{DaemonError, PUT_AWAY_QUOTA};
use crate::history::EventNote;
use crate::jobs::blocking;
use crate::making::{RemakeBasis, SandboxMaker};
use crate::origin::image_name;
use crate::origins::OriginFinder;
use crate::registry::{EventKind, Quota, SandboxRow, SandboxState};
use crate::sandboxes::{LayersBelow, SandboxEntry, SandboxTurn};
use crate::specification::Specification;

/// Why a sandbox is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PauseReason {
    /// As in `by somebody`.
    pub(crate) why: String,
    /// Whether nobody uses it: then it is not paused if somebody does after all, and its next use wakes it.
    pub(crate) is_sleep: bool,
}

impl PauseReason {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_sleep: false,
        }
    }

    /// Nobody has used it for so long.
    pub(crate) fn idle(time: Duration) -> Self {
        Self {
            why: format!("as nobody used it for {} s", time.as_secs()),
            is_sleep: true,
        }
    }
}

/// Puts sandboxes away, and makes them again.
#[derive(Debug)]
pub(crate) struct SandboxKeeper {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    origins: Arc<OriginFinder>,
    contexts: Arc<ContextTable>,
    carrier: Arc<ContextCarrier>,
    maker: Arc<SandboxMaker>,
    ender: Arc<SandboxEnder>,
}

impl SandboxKeeper {
    #[expect(
        clippy::too_many_arguments,
        reason = "the services that it stands on, each by its type"
    )]
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        origins: Arc<OriginFinder>,
        contexts: Arc<ContextTable>,
        carrier: Arc<ContextCarrier>,
        maker: Arc<SandboxMaker>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            config,
            admission,
            origins,
            contexts,
            carrier,
            maker,
            ender,
        }
    }

    /// Ends the processes of a sandbox, running or frozen, and keeps its files.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Conflict` where it could not be made again or is used after all, `Unsupported`, `Store`; it is as it was
    /// then.
    pub(crate) async fn put_away(
        &self,
        entry: &Arc<SandboxEntry>,
        reason: &PauseReason,
        _turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        self.check_room(entry)?;
        let below = self.below(entry).await?;
        let before = (entry.state(), Specification::clone(&entry.specification()));
        let held = match before.0 {
            SandboxState::Running => self.save(entry).await,
            // Nothing moves in it that could save anything.
            _ => None,
        };
        let specification = Specification {
            left_ms: match before.0 {
                SandboxState::Running => Some(entry.end_ms().saturating_sub(now_ms())),
                _ => before.1.left_ms,
            },
            asleep: reason.is_sleep,
            saved: held.as_ref().map(|held| held.contexts().to_vec()).unwrap_or_default(),
            ..before.1.clone()
        };
        self.record(entry, SandboxState::PuttingAway, specification).await?;
        if reason.is_sleep && entry.activity().is_used() {
            self.undo(entry, before).await;
            return Err(DaemonError::conflict(entry.name(), "is used"));
        }
        let origin = entry.origin();
        // An image is named by its digest, whatever becomes of its name.
        let build = origin.build.filter(|_| image_name(&origin.template).is_none());
        match self.core.host.keep_files(entry.id(), build.as_deref()) {
            Ok(true) => {}
            kept => {
                self.undo(entry, before).await;
                return Err(kept.err().unwrap_or_else(|| DaemonError::Unsupported {
                    what: "pausing without memory".to_owned(),
                    why: "the sandbox has no files on disk".to_owned(),
                }));
            }
        }
        self.ender.end_supervisor(entry).await;
        // Their drivers are gone, so that nobody removes what they saved.
        drop(held);
        self.finish(entry, Some(below), &reason.why).await;
        Ok(())
    }

    /// The processes of a sandbox have ended, and its files are kept: it is put away.
    async fn finish(&self, entry: &Arc<SandboxEntry>, below: Option<LayersBelow>, why: &str) {
        let core = &self.core;
        self.contexts.forget(entry.name());
        entry.set_told(None);
        entry.hold_below(below);
        let (host, id) = (Arc::clone(&core.host), entry.id().clone());
        let remains = blocking("read a supervisor's account", move || host.supervisor_remains(&id)).await;
        let lines = remains.map(|remains| remains.lines(&entry.row())).unwrap_or_default();
        if !lines.is_empty() {
            let _kept = core.registry.apply(lines).await;
        }
        if let Err(why) = core.host.remove_but_files(entry.id()).await {
            // It is tried again before it is made again.
            let line = format!("what its supervisor left cannot be removed: {why}");
            core.registry.log(entry.name(), LogLevel::Warn, line);
        }
        // First the files, then the word that they are kept: who reads that after a failure of the machine finds them.
        if let Err(error) = core.host.write_out_files(entry.id()).await {
            let line = format!("its files may not outlive a failure of the machine: {error}");
            core.registry.log(entry.name(), LogLevel::Warn, line);
        }
        let put_away = |row: &mut SandboxRow| {
            row.state = SandboxState::PutAway;
            row.supervisor = None;
        };
        let happened = EventNote::new(EventKind::Paused, format!("paused without memory {why}"));
        // On a full disk the next daemon finds it halfway, with its files.
        if core.registry.write(entry, Some(happened), put_away).await.is_err() {
            entry.set_state(SandboxState::PutAway);
        }
    }

    /// Goes on where the daemon before was putting a sandbox away, or making it again: its supervisor has ended, and its files
    /// are there.
    pub(crate) async fn adopt(&self, entry: &Arc<SandboxEntry>) {
        let below = self.below(entry).await;
        if let Err(error) = &below {
            let line = format!("it cannot be made again as things are: {error}");
            self.core.registry.log(entry.name(), LogLevel::Warn, line);
        }
        match entry.state() {
            SandboxState::PutAway => entry.hold_below(below.ok()),
            _ => {
                self.finish(entry, below.ok(), "before the daemon was started again")
                    .await
            }
        }
    }

    /// Makes a sandbox again that was put away, with what it had on disk, for so long. `by` says who woke it.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`, `Conflict` if its template was built anew since, `NotMounted` where somebody else has its
    /// volumes, `UnknownSnapshot`, `Supervisor`, `Store`. Its files are kept then.
    pub(crate) async fn wake(
        &self,
        entry: &Arc<SandboxEntry>,
        time: Duration,
        quota: &Quota,
        by: &str,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        let core = &self.core;
        self.admission.check()?;
        let _reserved = core.sandboxes.reserve_resume(entry, quota)?;
        let below = self.below(entry).await?;
        let waking = |row: &mut SandboxRow| row.state = SandboxState::Waking;
        core.registry.write(entry, None, waking).await?;
        self.contexts.forget(entry.name());
        entry.set_told(None);
        let woken = async {
            self.maker.remake(entry, RemakeBasis::KeptFiles, turn).await?;
            self.load(entry).await;
            let asleep = entry.specification().asleep;
            let specification = Specification {
                asleep: false,
                saved: Vec::new(),
                ..Specification::clone(&entry.specification())
            };
            let text = specification.to_json();
            let running = |row: &mut SandboxRow| {
                row.state = SandboxState::Running;
                row.end_ms = after(now_ms(), time);
                row.spec = text;
            };
            let word = if asleep { "woken" } else { "resumed" };
            let happened = EventNote::new(EventKind::Resumed, format!("{word} by {by}, without memory"));
            core.registry.write(entry, Some(happened), running).await?;
            entry.set_specification(specification);
            Ok(())
        };
        let woken: Result<(), DaemonError> = woken.await;
        if let Err(error) = woken {
            self.put_back(entry, below, &error).await;
            return Err(error);
        }
        entry.activity().note();
        core.host.stop_keeping_files(entry.id());
        entry.hold_below(None);
        core.sandboxes.note_end_changed();
        Ok(())
    }

    /// A sandbox could not be made again: it is put away as it was.
    async fn put_back(&self, entry: &Arc<SandboxEntry>, below: LayersBelow, error: &DaemonError) {
        self.ender.end_supervisor(entry).await;
        self.contexts.forget(entry.name());
        entry.hold_below(Some(below));
        let put_away = |row: &mut SandboxRow| {
            row.state = SandboxState::PutAway;
            row.supervisor = None;
        };
        if self.core.registry.write(entry, None, put_away).await.is_err() {
            entry.set_state(SandboxState::PutAway);
        }
        let line = format!("it could not be made again, and its files are kept: {error}");
        self.core.registry.log(entry.name(), LogLevel::Error, line);
    }

    /// What contexts can save within a short time; what cannot be, is lost as memory is.
    async fn save(&self, entry: &SandboxEntry) -> Option<HeldContexts> {
        let saved = self
            .carrier
            .save_within(entry, CarriedContexts::Possible, SavePatience::SHORT);
        match saved.await {
            Ok(held) => held,
            Err(error) => {
                let line = format!("contexts of code are not kept: {error}");
                self.core.registry.log(entry.name(), LogLevel::Warn, line);
                None
            }
        }
    }

    async fn load(&self, entry: &SandboxEntry) {
        let saved = entry.specification().saved.clone();
        if let Err(error) = self.carrier.load(entry, &saved).await {
            // The next cell begins with nothing, as in a sandbox of which no context was kept.
            self.contexts.forget(entry.name());
            let line = format!("contexts of code have lost what they had: {error}");
            self.core.registry.log(entry.name(), LogLevel::Warn, line);
        }
    }

    fn check_room(&self, entry: &SandboxEntry) -> Result<(), DaemonError> {
        let owner = entry.owner().unwrap_or_default();
        let (quota, used) = (
            self.config.lifecycle.max_put_away,
            self.core.sandboxes.put_away_of(&owner, entry),
        );
        match used >= quota {
            true => Err(DaemonError::QuotaExceeded {
                what: PUT_AWAY_QUOTA,
                quota,
                used,
                asked: 1,
            }),
            false => Ok(()),
        }
    }

    /// What the files of a sandbox lie over, held in place.
    async fn below(&self, entry: &SandboxEntry) -> Result<LayersBelow, DaemonError> {
        let snapshot = entry.specification().snapshot.clone();
        let origin = self.origins.held(entry).await?;
        let snapshot = self.core.host.hold_snapshot(snapshot.as_deref()).await?;
        Ok(LayersBelow::new(origin, snapshot))
    }

    async fn record(
        &self,
        entry: &SandboxEntry,
        state: SandboxState,
        specification: Specification,
    ) -> Result<(), DaemonError> {
        let text = specification.to_json();
        let changed = |row: &mut SandboxRow| {
            row.state = state;
            row.spec = text;
        };
        self.core.registry.write(entry, None, changed).await?;
        entry.set_specification(specification);
        Ok(())
    }

    async fn undo(&self, entry: &SandboxEntry, (state, specification): (SandboxState, Specification)) {
        if self.record(entry, state, specification.clone()).await.is_err() {
            entry.set_state(state);
            entry.set_specification(specification);
        }
    }
}
