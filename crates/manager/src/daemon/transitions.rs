//! What can be done with a sandbox that is there: other times, pause, resume, other rules for its network.

use std::sync::Arc;
use std::time::Duration;

use offleash_store::registry::{EventKind, LogLevel, Quota, SandboxState, Scope};
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use super::creating::network_order;
use super::error::DaemonError;
use super::history::{Cause, Happened, who};
use super::inner::Inner;
use super::request::NetworkSettings;
use super::specification::{Specification, time_left, timeout as timeout_of};
use super::table::Entry;
use super::view::{Access, Caller, SandboxView, State};
use super::{Daemon, ending, secrets};
use crate::clock::{after, from_ms, now_ms};
use crate::keeper::client::Keeper;
use crate::keeper::error::KeeperError;

/// How long somebody who can wait does so while something else is being done with a sandbox.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a guest may take to answer before it is said not to.
const GUEST: Duration = Duration::from_secs(10);

impl Daemon {
    /// Sets when the time of a running sandbox is up, counted from now: sooner or later than before, or now.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict` for a paused one, `Store`.
    pub async fn set_timeout(&self, caller: &Caller, id: &str, seconds: u64) -> Result<(), DaemonError> {
        let time = time_left(Some(seconds), &self.inner.config)?;
        self.set_end(caller, id, move |_| after(now_ms(), time)).await
    }

    /// As [`Self::set_timeout`], but never sooner than it was; the default time if `None`.
    ///
    /// # Errors
    /// As [`Self::set_timeout`].
    pub async fn refresh(&self, caller: &Caller, id: &str, seconds: Option<u64>) -> Result<(), DaemonError> {
        let time = time_left(seconds, &self.inner.config)?;
        self.set_end(caller, id, move |end| after(now_ms(), time).max(end))
            .await
    }

    async fn set_end(
        &self,
        caller: &Caller,
        id: &str,
        end: impl FnOnce(i64) -> i64 + Send + 'static,
    ) -> Result<(), DaemonError> {
        let (entry, inner) = (self.owned(caller, id)?, Arc::clone(&self.inner));
        let by = who(caller);
        let work = async move {
            if entry.lock().visible_state() == Some(State::Paused) {
                return Err(DaemonError::conflict(entry.id.as_str(), "is paused"));
            }
            let before = entry.lock().row.end_ms;
            let end = end(before);
            let line = format!("{by} had it end at {}", offleash_store::rfc3339(from_ms(end)));
            let updated = Happened::new(EventKind::Updated, line);
            inner.write(&entry, Some(updated), |row| row.end_ms = end).await?;
            inner.end_changed.notify_one();
            Ok(())
        };
        self.inner.detached(work).await
    }

    /// Makes sure that a sandbox runs: a paused one is resumed, with a new time; the time of a running one is only ever
    /// extended. Says whether it was resumed.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict` while something else is being done with it for long, `Keeper`; for
    /// a paused one `QuotaExceeded` and `Overloaded`, as for one that is made.
    pub async fn connect(
        &self,
        caller: &Caller,
        id: &str,
        seconds: Option<u64>,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let time = timeout_of(seconds, &self.inner.config)?;
        self.run_for(caller, id, Some(time)).await
    }

    /// As [`Self::connect`], but without a time: a paused sandbox has left what it had when it was paused, or the default
    /// time if that was nothing, and the time of a running one stays as it is.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn go_on(
        &self,
        caller: &Caller,
        id: &str,
        seconds: Option<u64>,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let time = seconds.map(|seconds| timeout_of(Some(seconds), &self.inner.config));
        self.run_for(caller, id, time.transpose()?).await
    }

    async fn run_for(
        &self,
        caller: &Caller,
        id: &str,
        time: Option<Duration>,
    ) -> Result<(SandboxView, bool), DaemonError> {
        let (entry, inner) = (self.owned(caller, id)?, Arc::clone(&self.inner));
        let caller = caller.clone();
        let work = async move {
            let turn = patiently(&entry).await?;
            let resumed = match entry.state() {
                SandboxState::Paused => {
                    let left = || entry.lock().specification.left();
                    let time = time.or_else(left).unwrap_or(inner.config.default_timeout);
                    let quota = quota_of(&inner, &entry, Some(&caller))?;
                    resume(&inner, &entry, time, &quota, &who(&caller), &turn).await?;
                    true
                }
                SandboxState::Running => {
                    if let Some(time) = time {
                        let extend = |end: i64| after(now_ms(), time).max(end);
                        inner.write(&entry, None, |row| row.end_ms = extend(row.end_ms)).await?;
                        inner.end_changed.notify_one();
                    }
                    false
                }
                _ => return Err(DaemonError::not_found(entry.id.as_str())),
            };
            drop(turn);
            let view = entry.view().ok_or_else(|| DaemonError::not_found(entry.id.as_str()))?;
            Ok((view, resumed))
        };
        self.inner.detached(work).await
    }

    /// Freezes a sandbox with all that is in it; its time does not run any more.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Conflict` if it is paused or something else is being done with it, `Unsupported`.
    pub async fn pause(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        self.pause_if(caller, id, Health::Any).await
    }

    /// As [`Self::pause`], if the guest in it answers.
    ///
    /// # Errors
    /// As [`Self::pause`]; `GuestUnresponsive`, and the sandbox runs on.
    pub async fn pause_healthy(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        self.pause_if(caller, id, Health::GuestAnswers).await
    }

    async fn pause_if(&self, caller: &Caller, id: &str, health: Health) -> Result<(), DaemonError> {
        let (entry, inner) = (self.owned(caller, id)?, Arc::clone(&self.inner));
        let by = format!("by {}", who(caller));
        let work = async move {
            let turn = at_once(&entry)?;
            match entry.state() {
                SandboxState::Running => {
                    if health == Health::GuestAnswers {
                        check_guest(&inner, &entry).await?;
                    }
                    pause(&inner, &entry, &by, &turn).await
                }
                SandboxState::Paused => Err(DaemonError::conflict(entry.id.as_str(), "is already paused")),
                _ => Err(DaemonError::not_found(entry.id.as_str())),
            }
        };
        self.inner.detached(work).await
    }

    /// Lets a paused sandbox go on, for so many seconds.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Conflict` if it runs or something else is being done with it; `QuotaExceeded`
    /// and `Overloaded` as for one that is made: it stays paused then.
    pub async fn resume(&self, caller: &Caller, id: &str, seconds: Option<u64>) -> Result<SandboxView, DaemonError> {
        let time = timeout_of(seconds, &self.inner.config)?;
        let (entry, inner) = (self.owned(caller, id)?, Arc::clone(&self.inner));
        let caller = caller.clone();
        let work = async move {
            let turn = at_once(&entry)?;
            match entry.state() {
                SandboxState::Paused => {
                    let quota = quota_of(&inner, &entry, Some(&caller))?;
                    resume(&inner, &entry, time, &quota, &who(&caller), &turn).await?;
                }
                SandboxState::Running => return Err(DaemonError::conflict(entry.id.as_str(), "is running already")),
                _ => return Err(DaemonError::not_found(entry.id.as_str())),
            }
            entry.view().ok_or_else(|| DaemonError::not_found(entry.id.as_str()))
        };
        self.inner.detached(work).await
    }

    /// Replaces what a running sandbox may reach. Who may reach it stays as it was.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Invalid`, `Unsupported`, `Conflict` if it is paused, something else is being done
    /// with it, or its trust stores cannot be extended.
    pub async fn set_network(&self, caller: &Caller, id: &str, network: NetworkSettings) -> Result<(), DaemonError> {
        let network = NetworkSettings {
            named_by_owner: caller.is_owner(),
            ..network
        };
        super::network::check(&network)?;
        let (entry, inner) = (self.owned(caller, id)?, Arc::clone(&self.inner));
        // Secrets are those of whoever has the sandbox, whoever asks.
        let key = entry.lock().row.key_id.clone();
        let (order, told) = network_order(&inner, key.as_deref(), &network)?;
        let by = who(caller);
        let work = async move {
            let _turn = at_once(&entry)?;
            if entry.state() != SandboxState::Running {
                return Err(DaemonError::conflict(entry.id.as_str(), "is not running"));
            }
            let before = Arc::clone(&entry.lock().specification);
            let changed = Specification {
                network: NetworkSettings {
                    allow_public_traffic: before.network.allow_public_traffic,
                    https_ports: before.network.https_ports.clone(),
                    mask_request_host: network
                        .mask_request_host
                        .clone()
                        .or_else(|| before.network.mask_request_host.clone()),
                    ..network
                },
                ..Specification::clone(&before)
            };
            let pending = Specification {
                network_pending: true,
                ..changed.clone()
            };
            specify(&inner, &entry, pending, None).await?;
            match inner.keeper(&entry).set_network(order).await {
                Ok(()) => {
                    entry.lock().told = Some(told);
                    let line = format!("{by} changed what it may reach");
                    let updated = Happened::new(EventKind::Updated, line);
                    specify(&inner, &entry, changed, Some(updated)).await
                }
                Err(error) => {
                    specify(&inner, &entry, Specification::clone(&before), None).await?;
                    Err(from_keeper("change what a sandbox may reach", &entry, error))
                }
            }
        };
        self.inner.detached(work).await
    }

    /// The keeper of a running sandbox, for the data plane, which has checked who asks. One that is paused is resumed
    /// if traffic resumes it.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Keeper`; `QuotaExceeded` and `Overloaded` where it cannot be resumed now.
    pub async fn keeper(&self, id: &str) -> Result<Keeper, DaemonError> {
        self.keeper_when(id, Paused::IsResumed).await
    }

    /// As [`Self::keeper`], for what no sandbox is resumed for.
    ///
    /// # Errors
    /// As [`Self::keeper`].
    pub async fn keeper_unless_paused(&self, id: &str) -> Result<Keeper, DaemonError> {
        self.keeper_when(id, Paused::Stays).await
    }

    async fn keeper_when(&self, id: &str, paused: Paused) -> Result<Keeper, DaemonError> {
        let known = |entry: &Arc<Entry>| entry.lock().visible_state().is_some();
        let entry = self
            .inner
            .table
            .get(id)
            .filter(known)
            .ok_or_else(|| DaemonError::not_found(id))?;
        if entry.state() == SandboxState::Running {
            return Ok(self.inner.keeper(&entry));
        }
        let inner = Arc::clone(&self.inner);
        let work = async move {
            let turn = patiently(&entry).await?;
            match entry.state() {
                SandboxState::Running => {}
                SandboxState::Paused if paused == Paused::IsResumed && entry.lock().row.auto_resume => {
                    let quota = quota_of(&inner, &entry, None)?;
                    resume(&inner, &entry, inner.config.default_timeout, &quota, "traffic", &turn).await?;
                }
                SandboxState::Paused => return Err(DaemonError::conflict(entry.id.as_str(), "is paused")),
                _ => return Err(DaemonError::not_found(entry.id.as_str())),
            }
            Ok(inner.keeper(&entry))
        };
        self.inner.detached(work).await
    }

    /// What the data plane must know of a sandbox before it lets anybody in.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn access(&self, id: &str) -> Result<Access, DaemonError> {
        let entry = self.inner.table.get(id);
        entry
            .and_then(|entry| entry.lock().access())
            .ok_or_else(|| DaemonError::not_found(id))
    }

    /// The sandbox `id`, for a caller who may change it.
    pub(super) fn owned(&self, caller: &Caller, id: &str) -> Result<Arc<Entry>, DaemonError> {
        caller.require(Scope::Create)?;
        self.inner.table.find(caller, id)
    }
}

/// What becomes of a paused sandbox that traffic may resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paused {
    IsResumed,
    Stays,
}

/// What a sandbox must be to be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Any,
    GuestAnswers,
}

/// Fails unless the guest of `entry` does something that only it can do: start a process that serves files.
async fn check_guest(inner: &Inner, entry: &Entry) -> Result<(), DaemonError> {
    let keeper = inner.keeper(entry);
    let asked = async { keeper.files(None).await?.stat(b"/").await };
    match timeout(GUEST, asked).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(KeeperError::Gone)) => Err(DaemonError::not_found(entry.id.as_str())),
        Ok(Err(_)) | Err(_) => Err(DaemonError::GuestUnresponsive {
            id: entry.id.as_str().to_owned(),
        }),
    }
}

fn at_once(entry: &Entry) -> Result<MutexGuard<'_, ()>, DaemonError> {
    entry
        .transition
        .try_lock()
        .map_err(|_| DaemonError::conflict(entry.id.as_str(), "is being changed at this moment"))
}

pub(super) async fn patiently(entry: &Entry) -> Result<MutexGuard<'_, ()>, DaemonError> {
    timeout(PATIENCE, entry.transition.lock())
        .await
        .map_err(|_| DaemonError::conflict(entry.id.as_str(), "is being changed at this moment"))
}

/// Pauses a running sandbox; `why` is `by somebody` or `because of something`.
pub(super) async fn pause(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    why: &str,
    _turn: &MutexGuard<'_, ()>,
) -> Result<(), DaemonError> {
    let specification = {
        let facts = entry.lock();
        Specification {
            left_ms: Some(facts.row.end_ms.saturating_sub(now_ms())),
            ..Specification::clone(&facts.specification)
        }
    };
    let text = specification.to_json();
    let pausing = |row: &mut offleash_store::registry::SandboxRow| {
        row.state = SandboxState::Pausing;
        row.spec = text;
    };
    inner.write(entry, None, pausing).await?;
    entry.lock().specification = Arc::new(specification);
    match inner.keeper(entry).pause().await {
        Ok(()) => {
            let paused = |row: &mut offleash_store::registry::SandboxRow| row.state = SandboxState::Paused;
            let happened = Happened::new(EventKind::Paused, format!("paused {why}"));
            Ok(inner.write(entry, Some(happened), paused).await?)
        }
        Err(error) => {
            settle(inner, entry).await;
            Err(from_keeper("pause a sandbox", entry, error))
        }
    }
}

/// What the owner of `entry` may have. Whoever asks, it is the owner's that is used.
fn quota_of(inner: &Inner, entry: &Entry, caller: Option<&Caller>) -> Result<Quota, DaemonError> {
    let owner = entry.lock().owner.clone();
    let Some(owner) = owner else {
        return Ok(Quota::default());
    };
    if let Some(caller) = caller.filter(|caller| caller.key_id == owner) {
        return Ok(caller.quota);
    }
    // The owner of the daemon has no key, and no quota.
    Ok(inner.registry.key(&owner)?.map_or_else(Quota::default, |key| key.quota))
}

/// Resumes a paused sandbox, for so long, if the machine and its owner's quota have what it needs to run.
async fn resume(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    time: Duration,
    quota: &Quota,
    by: &str,
    _turn: &MutexGuard<'_, ()>,
) -> Result<(), DaemonError> {
    inner.admission.check()?;
    let _reserved = inner.table.reserve_resume(entry, quota)?;
    inner
        .write(entry, None, |row| row.state = SandboxState::Resuming)
        .await?;
    match inner.keeper(entry).resume().await {
        Ok(()) => {
            let resumed = |row: &mut offleash_store::registry::SandboxRow| {
                row.state = SandboxState::Running;
                row.end_ms = after(now_ms(), time);
            };
            let happened = Happened::new(EventKind::Resumed, format!("resumed by {by}"));
            inner.write(entry, Some(happened), resumed).await?;
            inner.end_changed.notify_one();
            // They may be others since it was paused; where it cannot be told, it is told later.
            let _told = secrets::renew_one(inner, entry).await;
            Ok(())
        }
        Err(error) => {
            settle(inner, entry).await;
            Err(from_keeper("resume a sandbox", entry, error))
        }
    }
}

/// Sets the state of a sandbox to what its keeper says it is; ends one whose keeper cannot say.
async fn settle(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let state = match inner.keeper(entry).hello().await {
        Ok(hello) if hello.paused => SandboxState::Paused,
        Ok(_) => SandboxState::Running,
        Err(error) => {
            inner.log(
                entry.id.as_str(),
                LogLevel::Error,
                format!("its keeper does not answer: {error}"),
            );
            ending::end_in_background(inner, entry, Cause::died("its keeper did not answer"));
            return;
        }
    };
    if inner.write(entry, None, |row| row.state = state).await.is_err() {
        entry.lock().row.state = state;
    }
}

async fn specify(
    inner: &Inner,
    entry: &Entry,
    specification: Specification,
    happened: Option<Happened>,
) -> Result<(), DaemonError> {
    let text = specification.to_json();
    inner.write(entry, happened, |row| row.spec = text).await?;
    entry.lock().specification = Arc::new(specification);
    Ok(())
}

/// What a keeper's refusal is to whoever asked the daemon.
pub(super) fn from_keeper(tried: &'static str, entry: &Entry, error: KeeperError) -> DaemonError {
    match error {
        KeeperError::Gone => DaemonError::not_found(entry.id.as_str()),
        KeeperError::Unsupported { operation } => DaemonError::Unsupported {
            what: tried.to_owned(),
            why: format!("this machine cannot {operation}"),
        },
        KeeperError::TrustStores(why) => {
            let why = format!("keeps its trust stores from being extended, which headers in `rules` need: {why}");
            DaemonError::conflict(entry.id.as_str(), why)
        }
        other => DaemonError::keeper(tried, other),
    }
}
