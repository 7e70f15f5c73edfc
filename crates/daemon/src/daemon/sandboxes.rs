//! What callers ask of sandboxes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use offleash_core::id::SandboxName;
use offleash_supervisor::clock::{after, now_ms};

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::event_listener::EventListener;
use crate::forking::{ForkRequest, ForkResults};
use crate::lifecycle::PauseMode;
use crate::listing::{self, ListFilter};
use crate::overview::{self, DrainState, SandboxOverview};
use crate::records::{EventsRequest, LogsRequest};
use crate::registry::Scope;
use crate::request::{CreateRequest, NetworkSettings};
use crate::specification::{time_left, timeout};
use crate::transitions::{PauseCondition, ResumeMode};
use crate::view::{LogLine, NameMatches, SandboxEvent, SandboxPage, SandboxView, UsageSample};

impl Daemon {
    /// Makes a sandbox, or hands out one that was made ahead.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `UnknownTemplate`, `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `Supervisor`.
    pub async fn create(&self, caller: &Caller, request: CreateRequest) -> Result<SandboxView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.creator.create(caller, request).await
    }

    /// Makes forks of a running sandbox. Each is made or not: the answer has an entry for each that was asked for.
    ///
    /// # Errors
    /// When no fork can be: `NotFound`, `Forbidden`, `Invalid`, `Conflict` for one that is paused or whose template was built
    /// again since, `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `Contexts` where they cannot be carried,
    /// `NotCopied`, `Supervisor`.
    pub async fn fork(&self, caller: &Caller, id: &str, request: ForkRequest) -> Result<ForkResults, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.forker.fork(caller, id, request).await
    }

    /// The caller's sandboxes in few words, everybody's for one with the scope `admin`.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn overview(&self, caller: &Caller) -> Result<SandboxOverview, DaemonError> {
        caller.require(Scope::Read)?;
        Ok(overview::overview_of(&self.services.core.sandboxes, caller))
    }

    /// The ids of all sandboxes, whosever they are: what a front asks for.
    ///
    /// # Errors
    /// `Forbidden` without the scope `overview` or `admin`.
    pub fn sandbox_ids(&self, caller: &Caller) -> Result<Vec<String>, DaemonError> {
        caller.require(Scope::Overview)?;
        Ok(overview::ids_of(&self.services.core.sandboxes))
    }

    /// Whether new sandboxes are taken, and how many there are.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`.
    pub fn drain_state(&self, caller: &Caller) -> Result<DrainState, DaemonError> {
        caller.require(Scope::Admin)?;
        let core = &self.services.core;
        Ok(DrainState {
            is_drained: core.jobs.is_drained(),
            sandboxes: overview::ids_of(&core.sandboxes).len(),
        })
    }

    /// From now on takes no new sandboxes, or takes them again. What is there lives on; what was made ahead ends. The next
    /// daemon takes sandboxes.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`.
    pub fn set_drained(&self, caller: &Caller, is_drained: bool) -> Result<DrainState, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.core.jobs.set_drained(is_drained);
        self.drain_state(caller)
    }

    /// Whether no new sandboxes are taken.
    pub fn is_drained(&self) -> bool {
        self.services.core.jobs.is_drained()
    }

    /// A sandbox.
    ///
    /// # Errors
    /// `NotFound`, also for another key's; `Forbidden`.
    pub fn get(&self, caller: &Caller, id: &str) -> Result<SandboxView, DaemonError> {
        caller.require(Scope::Read)?;
        let entry = self.services.core.sandboxes.find(caller, id)?;
        entry.view().ok_or_else(|| DaemonError::not_found(id))
    }

    /// The caller's sandboxes, everybody's for one with the scope `admin`, page by page. A page ends before its limit where
    /// sandboxes with much to tell of them would make it large.
    ///
    /// # Errors
    /// `Forbidden`; `Invalid` for a limit that is not between 1 and 100, and for a place that no page ended at.
    pub fn list(&self, caller: &Caller, filter: &ListFilter) -> Result<SandboxPage, DaemonError> {
        caller.require(Scope::Read)?;
        listing::page_of(&self.services.core.sandboxes, caller, filter)
    }

    /// What `name` stands for: the caller's own living one or, if `ended`, the last of its own that had it.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub async fn called(&self, caller: &Caller, name: &SandboxName, ended: bool) -> Result<NameMatches, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.records.called(caller, name, ended).await
    }

    /// Sets when the time of a running sandbox is up, counted from now: sooner or later than before, or now.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict` for a paused one, `Store`.
    pub async fn set_timeout(&self, caller: &Caller, id: &str, seconds: u64) -> Result<(), DaemonError> {
        let time = time_left(Some(seconds), self.config())?;
        caller.require(Scope::Create)?;
        let changer = &self.services.changer;
        changer.set_end(caller, id, move |_| after(now_ms(), time)).await
    }

    /// As [`Self::set_timeout`], but never sooner than it was; the default time if `None`.
    ///
    /// # Errors
    /// As [`Self::set_timeout`].
    pub async fn refresh(&self, caller: &Caller, id: &str, seconds: Option<u64>) -> Result<(), DaemonError> {
        let time = time_left(seconds, self.config())?;
        caller.require(Scope::Create)?;
        let changer = &self.services.changer;
        changer
            .set_end(caller, id, move |end| after(now_ms(), time).max(end))
            .await
    }

    /// Makes sure that a sandbox runs: a paused one is resumed, with a new time; the time of a running one is only ever
    /// extended. Says whether it was resumed.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict` while something else is being done with it for long, `Supervisor`; for
    /// a paused one `QuotaExceeded` and `Overloaded`, as for one that is made.
    pub async fn connect(
        &self,
        caller: &Caller,
        id: &str,
        seconds: Option<u64>,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let time = timeout(seconds, self.config())?;
        self.run_for(caller, id, Some(time), ResumeMode::Restore).await
    }

    /// As [`Self::connect`], but a paused sandbox goes on with its files alone, also if its memory was kept.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_rebooted(
        &self,
        caller: &Caller,
        id: &str,
        seconds: Option<u64>,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let time = timeout(seconds, self.config())?;
        self.run_for(caller, id, Some(time), ResumeMode::Reboot).await
    }

    /// As [`Self::connect`], but without a time: a paused sandbox has left what it had when it was paused, or the default
    /// time if that was nothing, and the time of a running one stays as it is. `mode` says with what it goes on, as far as that was
    /// kept.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn go_on(
        &self,
        caller: &Caller,
        id: &str,
        seconds: Option<u64>,
        mode: PauseMode,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let mode = match mode {
            PauseMode::Full => ResumeMode::Restore,
            PauseMode::Filesystem => ResumeMode::Reboot,
        };
        let time = seconds.map(|seconds| timeout(Some(seconds), self.config()));
        self.run_for(caller, id, time.transpose()?, mode).await
    }

    async fn run_for(
        &self,
        caller: &Caller,
        id: &str,
        time: Option<Duration>,
        mode: ResumeMode,
    ) -> Result<(SandboxView, bool), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.changer.run_for(caller, id, time, mode).await
    }

    /// Freezes a sandbox with all that is in it; its time does not run any more.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Conflict` if it is paused or something else is being done with it, `Unsupported`.
    pub async fn pause(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        self.pause_if(caller, id, PauseCondition::Always, PauseMode::Full).await
    }

    /// As [`Self::pause`], if the guest in it answers.
    ///
    /// # Errors
    /// As [`Self::pause`]; `GuestUnresponsive`, and the sandbox runs on.
    pub async fn pause_healthy(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        self.pause_if(caller, id, PauseCondition::GuestAnswers, PauseMode::Full)
            .await
    }

    /// Ends the processes of a sandbox and keeps its files, with what contexts of code could save; its time does not run any
    /// more.
    ///
    /// # Errors
    /// As [`Self::pause`]; `QuotaExceeded`, and `Conflict` where its template was built again since it was made.
    pub async fn put_away(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        self.pause_if(caller, id, PauseCondition::Always, PauseMode::Filesystem)
            .await
    }

    async fn pause_if(
        &self,
        caller: &Caller,
        id: &str,
        condition: PauseCondition,
        mode: PauseMode,
    ) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.changer.pause_if(caller, id, condition, mode).await
    }

    /// Lets a paused sandbox go on, for so many seconds.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict` if it runs or something else is being done with it; `QuotaExceeded`
    /// and `Overloaded` as for one that is made: it stays paused then.
    pub async fn resume(&self, caller: &Caller, id: &str, seconds: Option<u64>) -> Result<SandboxView, DaemonError> {
        let time = timeout(seconds, self.config())?;
        caller.require(Scope::Create)?;
        self.services
            .changer
            .resume(caller, id, time, ResumeMode::Restore)
            .await
    }

    /// As [`Self::resume`], with its files alone, also if its memory was kept.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub async fn resume_rebooted(
        &self,
        caller: &Caller,
        id: &str,
        seconds: Option<u64>,
    ) -> Result<SandboxView, DaemonError> {
        let time = timeout(seconds, self.config())?;
        caller.require(Scope::Create)?;
        self.services.changer.resume(caller, id, time, ResumeMode::Reboot).await
    }

    /// Replaces the labels of a sandbox; those that begin with `offleash.` stay as they are.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`.
    pub async fn set_labels(
        &self,
        caller: &Caller,
        id: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.changer.set_labels(caller, id, labels).await
    }

    /// Sets after how long a sandbox sleeps while nobody uses it; never, if that is zero.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Conflict` while something else is being done with it.
    pub async fn set_idle(&self, caller: &Caller, id: &str, idle: Duration) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.changer.set_idle(caller, id, idle).await
    }

    /// Replaces what a running sandbox may reach. Who may reach it stays as it was.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Unsupported`, `Conflict` if it is paused, something else is being done
    /// with it, or its trust stores cannot be extended.
    pub async fn set_network(&self, caller: &Caller, id: &str, network: NetworkSettings) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.changer.set_network(caller, id, network).await
    }

    /// Ends a sandbox, running or paused. When this returns no process of it is left, and its log is whole; its files are
    /// being removed.
    ///
    /// # Errors
    /// `NotFound`, also when it ended meanwhile; `Forbidden`; `Conflict` if it cannot be had for a minute.
    pub async fn kill(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.ender.kill(caller, id).await
    }

    /// Samples of what a sandbox used, the oldest first. One that runs and was not sampled yet is asked.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Store`.
    pub async fn metrics(
        &self,
        caller: &Caller,
        id: &str,
        from: Option<SystemTime>,
        to: Option<SystemTime>,
    ) -> Result<Vec<UsageSample>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.records.metrics(caller, id, from, to).await
    }

    /// Lines about a sandbox, which may have ended a while ago ([`crate::DaemonConfig::keep_logs`]): what happened to it,
    /// what was run and refused in it, and how it ended.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Store`.
    pub async fn logs(&self, caller: &Caller, id: &str, request: LogsRequest) -> Result<Vec<LogLine>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.records.logs(caller, id, &request).await
    }

    /// What happens to sandboxes from now on, of whomever: for the owner's own collector.
    pub fn listen(&self) -> EventListener {
        EventListener::new(self.services.core.registry.feed().listen())
    }

    /// What happened to the caller's sandboxes, or to one of them, which may be gone: events with a number above
    /// `after`, the oldest first, or the latest first.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub async fn events(
        &self,
        caller: &Caller,
        sandbox: Option<&str>,
        after: i64,
        descending: bool,
        limit: u32,
    ) -> Result<Vec<SandboxEvent>, DaemonError> {
        caller.require(Scope::Read)?;
        let request = EventsRequest {
            sandbox: sandbox.map(str::to_owned),
            after,
            descending,
            limit,
        };
        self.services.records.events(caller, request).await
    }
}
