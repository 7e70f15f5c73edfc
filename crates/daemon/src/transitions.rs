//! What can be done with a sandbox that is there: other times, pause, resume, other rules for its network.
//!
//! What is going to be done is on record before the supervisor is asked, what came of it afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::log_level::LogLevel;
use offleash_supervisor::clock::{after, from_ms, now_ms};
use offleash_supervisor::service::error::SupervisorError;
use tokio::time::timeout;

use crate::admission::AdmissionControl;
use crate::caller::Caller;
use crate::config::DaemonConfig;
use crate::daemon_core::DaemonCore;
use crate::egress_route;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::{EndCause, EventNote, who};
use crate::lifecycle::PauseMode;
use crate::network;
use crate::putting_away::{PauseReason, SandboxKeeper};
use crate::registry::{EventKind, Quota, SandboxRow, SandboxState};
use crate::request::{NetworkSettings, OWN_LABELS};
use crate::sandboxes::{SandboxEntry, SandboxTurn, SandboxUseGuard};
use crate::secrets::SecretStore;
use crate::specification::{Specification, check_map};
use crate::view::{SandboxView, VisibleState};

/// How long a guest may take to answer before it is said not to.
const GUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Changes sandboxes that are there.
#[derive(Debug)]
pub(crate) struct SandboxChanger {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    secrets: Arc<SecretStore>,
    ender: Arc<SandboxEnder>,
    keeper: Arc<SandboxKeeper>,
}

/// What becomes of a paused sandbox that traffic may resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenPaused {
    Resume,
    Leave,
}

/// What a sandbox must be to be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseCondition {
    Always,
    GuestAnswers,
}

/// How a paused sandbox goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResumeMode {
    /// With its memory, if that was kept.
    Restore,
    /// With its files alone.
    Reboot,
}

impl SandboxChanger {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        secrets: Arc<SecretStore>,
        ender: Arc<SandboxEnder>,
        keeper: Arc<SandboxKeeper>,
    ) -> Self {
        Self {
            core,
            config,
            admission,
            secrets,
            ender,
            keeper,
        }
    }

    /// Sets when the time of a running sandbox is up: what `end` makes of the time that it was.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` for a paused one, `Store`.
    pub(crate) async fn set_end(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        end: impl FnOnce(i64) -> i64 + Send + 'static,
    ) -> Result<(), DaemonError> {
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        let by = who(caller);
        let work = async move {
            if entry.visible_state() == Some(VisibleState::Paused) {
                return Err(DaemonError::conflict(entry.name(), "is paused"));
            }
            let end = end(entry.end_ms());
            let line = format!("{by} had it end at {}", offleash_store::rfc3339(from_ms(end)));
            let updated = EventNote::new(EventKind::Updated, line);
            let core = &changer.core;
            core.registry
                .write(&entry, Some(updated), |row| row.end_ms = end)
                .await?;
            core.sandboxes.note_end_changed();
            Ok(())
        };
        self.core.jobs.detached(work).await
    }

    /// Replaces the labels of a sandbox. Those of ours stay: they say what it is.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for labels of ours and for ones that are too large, `Store`.
    pub(crate) async fn set_labels(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<(), DaemonError> {
        check_map("metadata", &labels)?;
        if let Some(ours) = labels.keys().find(|label| label.starts_with(OWN_LABELS)) {
            let why = format!("label `{}` is set when a sandbox is made", ours.escape_debug());
            return Err(DaemonError::invalid("metadata", why));
        }
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        let updated = EventNote::new(EventKind::Updated, format!("{} changed its labels", who(caller)));
        let work = async move {
            let set = move |row: &mut SandboxRow| {
                row.metadata.retain(|label, _| label.starts_with(OWN_LABELS));
                row.metadata.extend(labels);
            };
            changer.core.registry.write(&entry, Some(updated), set).await?;
            Ok(())
        };
        self.core.jobs.detached(work).await
    }

    /// Sets after how long a sandbox sleeps while nobody uses it; it never does if that is zero.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` while something else is being done with it, `Store`.
    pub(crate) async fn set_idle(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        idle: Duration,
    ) -> Result<(), DaemonError> {
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        let line = format!("{} changed when it sleeps", who(caller));
        let work = async move {
            let _turn = entry.turn_at_once()?;
            let mut changed = Specification::clone(&entry.specification());
            changed.lifecycle.idle = Some(idle).filter(|idle| !idle.is_zero());
            let updated = EventNote::new(EventKind::Updated, line);
            let core = &changer.core;
            core.registry.specify(&entry, changed, Some(updated)).await?;
            core.sandboxes.note_end_changed();
            Ok(())
        };
        self.core.jobs.detached(work).await
    }

    /// Makes sure that a sandbox runs: a paused one is resumed, for `time`, or what it had left; the time of a running one is
    /// only ever extended. Says whether it was resumed.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` while something else is being done with it for long, `Supervisor`; for a paused one
    /// `QuotaExceeded` and `Overloaded`, as for one that is made.
    pub(crate) async fn run_for(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        time: Option<Duration>,
        mode: ResumeMode,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        let caller = caller.clone();
        let work = async move {
            let turn = entry.turn_soon().await?;
            let resumed = match entry.state() {
                SandboxState::Paused | SandboxState::PutAway => {
                    let left = || entry.specification().left();
                    let time = time.or_else(left).unwrap_or(changer.config.default_timeout);
                    changer.resume_for(&entry, &caller, time, mode, &turn).await?;
                    entry.activity().note();
                    true
                }
                SandboxState::Running => {
                    entry.activity().note();
                    if let Some(time) = time {
                        changer.extend(&entry, time).await?;
                    }
                    false
                }
                _ => return Err(DaemonError::not_found(entry.name())),
            };
            drop(turn);
            let view = entry.view().ok_or_else(|| DaemonError::not_found(entry.name()))?;
            Ok((view, resumed))
        };
        self.core.jobs.detached(work).await
    }

    async fn extend(&self, entry: &SandboxEntry, time: Duration) -> Result<(), DaemonError> {
        let extend = |row: &mut SandboxRow| row.end_ms = after(now_ms(), time).max(row.end_ms);
        self.core.registry.write(entry, None, extend).await?;
        self.core.sandboxes.note_end_changed();
        Ok(())
    }

    /// Pauses a sandbox, if it is such: it is frozen with all that is in it, or put away without its memory. Its time does not
    /// run any more.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused or something else is being done with it, `Unsupported`, `GuestUnresponsive`;
    /// without memory those of [`SandboxKeeper::put_away`].
    pub(crate) async fn pause_if(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        condition: PauseCondition,
        mode: PauseMode,
    ) -> Result<(), DaemonError> {
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        let reason = PauseReason::new(format!("by {}", who(caller)));
        let work = async move {
            let turn = entry.turn_at_once()?;
            match entry.state() {
                SandboxState::Running => {
                    if condition == PauseCondition::GuestAnswers {
                        changer.check_guest(&entry).await?;
                    }
                    changer.pause(&entry, mode, &reason, &turn).await
                }
                SandboxState::Paused | SandboxState::PutAway => {
                    Err(DaemonError::conflict(entry.name(), "is already paused"))
                }
                _ => Err(DaemonError::not_found(entry.name())),
            }
        };
        self.core.jobs.detached(work).await
    }

    /// Lets a paused sandbox go on, for so long.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it runs or something else is being done with it; `QuotaExceeded` and `Overloaded` as for one
    /// that is made: it stays paused then.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        time: Duration,
        mode: ResumeMode,
    ) -> Result<SandboxView, DaemonError> {
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        let caller = caller.clone();
        let work = async move {
            let turn = entry.turn_at_once()?;
            match entry.state() {
                SandboxState::Paused | SandboxState::PutAway => {
                    changer.resume_for(&entry, &caller, time, mode, &turn).await?;
                }
                SandboxState::Running => return Err(DaemonError::conflict(entry.name(), "is running already")),
                _ => return Err(DaemonError::not_found(entry.name())),
            }
            entry.view().ok_or_else(|| DaemonError::not_found(entry.name()))
        };
        self.core.jobs.detached(work).await
    }

    /// Replaces what a running sandbox may reach. Who may reach it stays as it was.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `Unsupported`, `Conflict` if it is paused, something else is being done with it, or its trust
    /// stores cannot be extended.
    pub(crate) async fn set_network(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        network: NetworkSettings,
    ) -> Result<(), DaemonError> {
        let network = NetworkSettings {
            named_by_owner: caller.is_owner(),
            ..network
        };
        network::check(&network)?;
        egress_route::check_named(&network, self.config.egress_proxies.as_deref())?;
        let (entry, changer) = (self.core.sandboxes.find(caller, id)?, Arc::clone(self));
        // Secrets are those of whoever has the sandbox, whoever asks.
        let (order, told) = self
            .secrets
            .network_order(entry.key_id().as_deref(), &entry.template(), &network)?;
        let by = who(caller);
        let work = async move {
            let _turn = entry.turn_at_once()?;
            if entry.state() != SandboxState::Running {
                return Err(DaemonError::conflict(entry.name(), "is not running"));
            }
            let before = entry.specification();
            let changed = with_network(&before, network);
            let pending = Specification {
                network_pending: true,
                ..changed.clone()
            };
            let core = &changer.core;
            core.registry.specify(&entry, pending, None).await?;
            match core.host.supervisor(entry.id()).set_network(order).await {
                Ok(()) => {
                    entry.set_told(Some(told));
                    let line = format!("{by} changed what it may reach");
                    let updated = EventNote::new(EventKind::Updated, line);
                    Ok(core.registry.specify(&entry, changed, Some(updated)).await?)
                }
                Err(error) => {
                    let before = Specification::clone(&before);
                    core.registry.specify(&entry, before, None).await?;
                    Err(DaemonError::of_supervisor(
                        "change what a sandbox may reach",
                        entry.name(),
                        error,
                    ))
                }
            }
        };
        self.core.jobs.detached(work).await
    }

    /// A sandbox that runs, and that it is used, for whom somebody has checked who asks. One that is paused is resumed if
    /// traffic resumes it or it sleeps, and that is wanted.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Supervisor`; `QuotaExceeded` and `Overloaded` where it cannot be resumed now.
    pub(crate) async fn running(
        self: &Arc<Self>,
        id: &str,
        when_paused: WhenPaused,
    ) -> Result<SandboxUseGuard, DaemonError> {
        let known = |entry: &Arc<SandboxEntry>| entry.visible_state().is_some();
        let found = self.core.sandboxes.get(id).filter(known);
        let entry = found.ok_or_else(|| DaemonError::not_found(id))?;
        // Before its state is looked at.
        let guard = match when_paused {
            WhenPaused::Resume => SandboxUseGuard::begin(&entry),
            WhenPaused::Leave => SandboxUseGuard::look(&entry),
        };
        if entry.state() == SandboxState::Running {
            return Ok(guard);
        }
        let changer = Arc::clone(self);
        let work = async move {
            let turn = entry.turn_soon().await?;
            match entry.state() {
                SandboxState::Running => {}
                SandboxState::Paused | SandboxState::PutAway
                    if when_paused == WhenPaused::Resume && entry.is_resumed_by_traffic() =>
                {
                    let quota = changer.core.quota_of(&entry, None)?;
                    let time = changer.time_of(&entry);
                    let mode = ResumeMode::Restore;
                    changer
                        .resume_within(&entry, time, mode, &quota, "traffic", &turn)
                        .await?;
                }
                SandboxState::Paused | SandboxState::PutAway => {
                    return Err(DaemonError::conflict(entry.name(), "is paused"));
                }
                _ => return Err(DaemonError::not_found(entry.name())),
            }
            drop(turn);
            Ok(guard)
        };
        self.core.jobs.detached(work).await
    }

    /// Fails unless the guest of `entry` does something that only it can do: start a process that serves files.
    async fn check_guest(&self, entry: &SandboxEntry) -> Result<(), DaemonError> {
        let supervisor = self.core.host.supervisor(entry.id());
        let asked = async { supervisor.files(None).await?.stat(b"/").await };
        match timeout(GUEST_TIMEOUT, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(SupervisorError::Gone)) => Err(DaemonError::not_found(entry.name())),
            Ok(Err(_)) | Err(_) => Err(DaemonError::GuestUnresponsive {
                id: entry.name().to_owned(),
            }),
        }
    }

    /// For how long traffic has a sandbox go on: one that slept for what it had left.
    fn time_of(&self, entry: &SandboxEntry) -> Duration {
        let specification = entry.specification();
        let left = specification.left().filter(|_| specification.asleep);
        left.unwrap_or(self.config.default_timeout)
    }

    /// Pauses a running sandbox.
    ///
    /// # Errors
    /// `NotFound`, `Unsupported`, `Supervisor`, `Store`, `Conflict` if it was to sleep and is used; without memory those of
    /// [`SandboxKeeper::put_away`].
    pub(crate) async fn pause(
        &self,
        entry: &Arc<SandboxEntry>,
        mode: PauseMode,
        reason: &PauseReason,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        match mode {
            PauseMode::Full => self.freeze(entry, reason).await,
            PauseMode::Filesystem => self.keeper.put_away(entry, reason, turn).await,
        }
    }

    async fn freeze(&self, entry: &Arc<SandboxEntry>, reason: &PauseReason) -> Result<(), DaemonError> {
        let registry = &self.core.registry;
        let specification = Specification {
            left_ms: Some(entry.end_ms().saturating_sub(now_ms())),
            asleep: reason.is_sleep,
            ..Specification::clone(&entry.specification())
        };
        let text = specification.to_json();
        let pausing = |row: &mut SandboxRow| {
            row.state = SandboxState::Pausing;
            row.spec = text;
        };
        registry.write(entry, None, pausing).await?;
        entry.set_specification(specification);
        if reason.is_sleep && entry.activity().is_used() {
            self.settle(entry).await;
            return Err(DaemonError::conflict(entry.name(), "is used"));
        }
        match self.core.host.supervisor(entry.id()).pause().await {
            Ok(()) => {
                let paused = |row: &mut SandboxRow| row.state = SandboxState::Paused;
                let happened = EventNote::new(EventKind::Paused, format!("paused {}", reason.why));
                Ok(registry.write(entry, Some(happened), paused).await?)
            }
            Err(error) => {
                self.settle(entry).await;
                Err(DaemonError::of_supervisor("pause a sandbox", entry.name(), error))
            }
        }
    }

    async fn resume_for(
        &self,
        entry: &Arc<SandboxEntry>,
        caller: &Caller,
        time: Duration,
        mode: ResumeMode,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        let quota = self.core.quota_of(entry, Some(caller))?;
        self.resume_within(entry, time, mode, &quota, &who(caller), turn).await
    }

    /// Resumes a paused sandbox, for so long, if the machine and its owner's quota have what it needs to run.
    async fn resume_within(
        &self,
        entry: &Arc<SandboxEntry>,
        time: Duration,
        mode: ResumeMode,
        quota: &Quota,
        by: &str,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        if entry.state() == SandboxState::Paused && mode == ResumeMode::Reboot {
            let reason = PauseReason::new(format!("to be made again by {by}"));
            self.keeper.put_away(entry, &reason, turn).await?;
        }
        if entry.state() == SandboxState::PutAway {
            return self.keeper.wake(entry, time, quota, by, turn).await;
        }
        let core = &self.core;
        self.admission.check()?;
        let _reserved = core.sandboxes.reserve_resume(entry, quota)?;
        let resuming = |row: &mut SandboxRow| row.state = SandboxState::Resuming;
        core.registry.write(entry, None, resuming).await?;
        match core.host.supervisor(entry.id()).resume().await {
            Ok(()) => {
                let slept = entry.specification().asleep;
                let specification = Specification {
                    asleep: false,
                    ..Specification::clone(&entry.specification())
                };
                let text = specification.to_json();
                let resumed = |row: &mut SandboxRow| {
                    row.state = SandboxState::Running;
                    row.end_ms = after(now_ms(), time);
                    row.spec = text;
                };
                let word = if slept { "woken" } else { "resumed" };
                let happened = EventNote::new(EventKind::Resumed, format!("{word} by {by}"));
                core.registry.write(entry, Some(happened), resumed).await?;
                entry.set_specification(specification);
                entry.activity().note();
                core.sandboxes.note_end_changed();
                // They may be others since it was paused; where it cannot be told, it is told later.
                let _told = self.secrets.renew_one(entry, turn).await;
                Ok(())
            }
            Err(error) => {
                self.settle(entry).await;
                Err(DaemonError::of_supervisor("resume a sandbox", entry.name(), error))
            }
        }
    }

    /// Sets the state of a sandbox to what its supervisor says it is; ends one whose supervisor cannot say.
    async fn settle(&self, entry: &Arc<SandboxEntry>) {
        let core = &self.core;
        let state = match core.host.supervisor(entry.id()).hello().await {
            Ok(hello) if hello.paused => SandboxState::Paused,
            Ok(_) => SandboxState::Running,
            Err(error) => {
                let line = format!("its supervisor does not answer: {error}");
                core.registry.log(entry.name(), LogLevel::Error, line);
                self.ender
                    .end_in_background(entry, EndCause::died("its supervisor did not answer"));
                return;
            }
        };
        let written = core.registry.write(entry, None, |row| row.state = state).await;
        if written.is_err() {
            entry.set_state(state);
        }
    }
}

/// A sandbox with other rules; who may reach it is as it was.
fn with_network(before: &Specification, network: NetworkSettings) -> Specification {
    let of_before = &before.network;
    Specification {
        network: NetworkSettings {
            allow_public_traffic: of_before.allow_public_traffic,
            https_ports: of_before.https_ports.clone(),
            mask_request_host: network
                .mask_request_host
                .clone()
                .or_else(|| of_before.mask_request_host.clone()),
            ..network
        },
        ..before.clone()
    }
}
