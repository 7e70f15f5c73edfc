//! One sandbox, in memory: what the registry says of it, and what goes on with it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_core::spec::ProcessRef;
use offleash_store::HeldSnapshot;
use offleash_supervisor::clock::{UnixMs, from_ms};
use tokio::sync::watch;
use tokio::time::timeout;

use super::activity::SandboxActivity;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::lifecycle::PauseMode;
use crate::origin::{HeldOrigin, TemplateOrigin, image_name};
use crate::registry::{SandboxRow, SandboxState, SupervisorProcess};
use crate::request::{NAME_LABEL, OnTimeout};
use crate::secret_use::SecretVersions;
use crate::specification::Specification;
use crate::template_names;
use crate::view::{AccessRules, ENVD_VERSION, InterpreterOrigin, SandboxView, UsageSample, VisibleState};

/// How long somebody who can wait does so while something else is being done with a sandbox.
const SOON: Duration = Duration::from_secs(15);

/// One sandbox.
#[derive(Debug)]
pub(crate) struct SandboxEntry {
    id: RunId,
    facts: Mutex<SandboxFacts>,
    /// Held by whoever pauses, resumes, hands out or ends it.
    transition: tokio::sync::Mutex<()>,
    /// Held while its row is written, so that writes come one after the other.
    writing: tokio::sync::Mutex<()>,
    /// Whether its time was found to be up.
    expiring: AtomicBool,
    /// Whether alerts of it are being heeded.
    heeding: AtomicBool,
    /// Whether its supervisor has ended.
    ended: watch::Sender<bool>,
    /// How it is used.
    activity: SandboxActivity,
    /// What its files lie over, which stays in place while no supervisor holds it.
    below: Mutex<Option<LayersBelow>>,
    /// When a checkpoint of it was made by itself, or it was looked at for that.
    checkpointed: Mutex<Instant>,
    /// What it used when it was sampled last.
    sampled: Mutex<Option<UsageSample>>,
    /// Whether an earlier daemon made it, and may have started what this one knows nothing of.
    is_adopted: bool,
}

/// What the files of a sandbox lie over; it stays in place as long as this lives.
#[derive(Debug)]
pub(crate) struct LayersBelow {
    _origin: HeldOrigin,
    _snapshot: Option<HeldSnapshot>,
}

impl LayersBelow {
    pub(crate) fn new(origin: HeldOrigin, snapshot: Option<HeldSnapshot>) -> Self {
        Self {
            _origin: origin,
            _snapshot: snapshot,
        }
    }
}

/// What is known of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxFacts {
    row: SandboxRow,
    specification: Arc<Specification>,
    /// Whose it is, or is about to be: counted for quotas before it is in the row.
    owner: Option<String>,
    /// Which secrets its gateway was told of; `None` where nobody knows.
    told: Option<SecretVersions>,
    /// Why it is being ended.
    cause: Option<EndCause>,
    /// Whether its CPUs are counted although it is paused: it is about to run again.
    resuming: bool,
}

/// The right to change a sandbox, as long as this lives.
#[derive(Debug)]
pub(crate) struct SandboxTurn<'a> {
    _held: tokio::sync::MutexGuard<'a, ()>,
}

/// The right to write the row of a sandbox, as long as this lives.
#[derive(Debug)]
pub(crate) struct RowWrite<'a> {
    entry: &'a SandboxEntry,
    _held: tokio::sync::MutexGuard<'a, ()>,
}

impl RowWrite<'_> {
    /// The row is in the registry.
    pub(crate) fn finish(self, row: SandboxRow) {
        self.entry.facts().row = row;
    }
}

impl SandboxEntry {
    /// One that is about to be made.
    pub(crate) fn new(id: RunId, row: SandboxRow, specification: Specification) -> Self {
        Self {
            id,
            facts: Mutex::new(SandboxFacts {
                owner: row.key_id.clone(),
                row,
                specification: Arc::new(specification),
                told: None,
                cause: None,
                resuming: false,
            }),
            transition: tokio::sync::Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            expiring: AtomicBool::new(false),
            heeding: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            activity: SandboxActivity::default(),
            below: Mutex::default(),
            checkpointed: Mutex::new(Instant::now()),
            sampled: Mutex::default(),
            is_adopted: false,
        }
    }

    /// One that an earlier daemon made.
    pub(crate) fn adopted(id: RunId, row: SandboxRow, specification: Specification) -> Self {
        Self {
            is_adopted: true,
            ..Self::new(id, row, specification)
        }
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, SandboxFacts> {
        // Whoever holds it only assigns; a panic in between is a defect that must not take the daemon down.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> &RunId {
        &self.id
    }

    /// Its id as text.
    pub(crate) fn name(&self) -> &str {
        self.id.as_str()
    }

    /// Whether an earlier daemon made it.
    pub(crate) fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Looks at all that is known of it at one moment.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&SandboxFacts) -> T) -> T {
        look(&self.facts())
    }

    /// How it is used.
    pub(crate) fn activity(&self) -> &SandboxActivity {
        &self.activity
    }

    /// Keeps what its files lie over in place while no supervisor does, or lets it go.
    pub(crate) fn hold_below(&self, below: Option<LayersBelow>) {
        *self.below.lock().unwrap_or_else(PoisonError::into_inner) = below;
    }

    /// When it was seen to last whether a checkpoint is due.
    pub(crate) fn checkpointed(&self) -> Instant {
        *self.checkpointed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was seen to whether a checkpoint is due.
    pub(crate) fn note_checkpointed(&self) {
        self.note_checkpointed_at(Instant::now());
    }

    /// The same, of what is as it was at that time: what was touched since is in no checkpoint.
    pub(crate) fn note_checkpointed_at(&self, at: Instant) {
        *self.checkpointed.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// What it used when it was sampled last; `None` before the first time.
    pub(crate) fn sampled(&self) -> Option<UsageSample> {
        *self.sampled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_sample(&self, sample: UsageSample) {
        *self.sampled.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample);
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.facts().row.state
    }

    /// Its state, where the registry could not be told.
    pub(crate) fn set_state(&self, state: SandboxState) {
        self.facts().row.state = state;
    }

    pub(crate) fn row(&self) -> SandboxRow {
        self.facts().row.clone()
    }

    pub(crate) fn key_id(&self) -> Option<String> {
        self.facts().row.key_id.clone()
    }

    pub(crate) fn owner(&self) -> Option<String> {
        self.facts().owner.clone()
    }

    pub(crate) fn template(&self) -> String {
        self.facts().row.template.clone()
    }

    pub(crate) fn end_ms(&self) -> UnixMs {
        self.facts().row.end_ms
    }

    /// Whether traffic resumes it when it is paused: if that was asked for, or it sleeps.
    pub(crate) fn is_resumed_by_traffic(&self) -> bool {
        self.facts().is_resumed_by_traffic()
    }

    pub(crate) fn specification(&self) -> Arc<Specification> {
        Arc::clone(&self.facts().specification)
    }

    pub(crate) fn set_specification(&self, specification: Specification) {
        self.facts().specification = Arc::new(specification);
    }

    /// What it is made from.
    pub(crate) fn origin(&self) -> TemplateOrigin {
        let facts = self.facts();
        TemplateOrigin {
            template: facts.row.template.clone(),
            build: facts.specification.build.clone(),
        }
    }

    /// The zygote below which it was made.
    pub(crate) fn zygote(&self) -> Option<ProcessRef> {
        self.facts().specification.zygote
    }

    pub(crate) fn set_told(&self, told: Option<SecretVersions>) {
        self.facts().told = told;
    }

    pub(crate) fn set_cause(&self, cause: EndCause) {
        self.facts().cause = Some(cause);
    }

    /// The process that holds it, as recorded.
    pub(crate) fn supervisor_process(&self) -> Option<SupervisorProcess> {
        self.facts().row.supervisor
    }

    /// Sets the process that holds it before it is in the registry; its row then.
    pub(crate) fn with_supervisor(&self, process: SupervisorProcess) -> SandboxRow {
        let mut facts = self.facts();
        facts.row.supervisor = Some(process);
        facts.row.clone()
    }

    /// Counts one that waits to the owner who is about to get it.
    pub(crate) fn promise_to(
        &self,
        owner: &str,
        idempotency_key: Option<&String>,
        metadata: &BTreeMap<String, String>,
    ) {
        let mut facts = self.facts();
        facts.owner = Some(owner.to_owned());
        facts.row.idempotency_key = idempotency_key.cloned();
        facts.row.metadata.clone_from(metadata);
    }

    /// It is not handed out after all.
    pub(crate) fn take_back_promise(&self) {
        let mut facts = self.facts();
        facts.owner = None;
        facts.row.idempotency_key = None;
        facts.row.metadata.clear();
    }

    /// It was never made, so it is nobody's.
    pub(crate) fn disown(&self) {
        self.facts().row.key_id = None;
    }

    pub(super) fn set_resuming(&self, resuming: bool) {
        self.facts().resuming = resuming;
    }

    /// As its owner sees it; `None` while it is made, and once it is being ended.
    pub(crate) fn view(&self) -> Option<SandboxView> {
        self.facts().view()
    }

    /// What the data plane must know of it; `None` as with [`Self::view`].
    pub(crate) fn access(&self) -> Option<AccessRules> {
        self.facts().access()
    }

    pub(crate) fn visible_state(&self) -> Option<VisibleState> {
        self.facts().visible_state()
    }

    /// The right to change it, once whoever has it is done.
    pub(crate) async fn turn(&self) -> SandboxTurn<'_> {
        SandboxTurn {
            _held: self.transition.lock().await,
        }
    }

    /// As [`Self::turn`]; `None` if whoever has it is not done in time.
    pub(crate) async fn turn_within(&self, time: Duration) -> Option<SandboxTurn<'_>> {
        timeout(time, self.turn()).await.ok()
    }

    /// As [`Self::turn`], for who can wait a moment.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) async fn turn_soon(&self) -> Result<SandboxTurn<'_>, DaemonError> {
        self.turn_within(SOON).await.ok_or_else(|| self.is_busy())
    }

    /// As [`Self::turn`], for who cannot wait.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn turn_at_once(&self) -> Result<SandboxTurn<'_>, DaemonError> {
        self.turn_now().ok_or_else(|| self.is_busy())
    }

    fn is_busy(&self) -> DaemonError {
        DaemonError::conflict(self.name(), "is being changed at this moment")
    }

    /// The right to change it, if nobody has it.
    pub(crate) fn turn_now(&self) -> Option<SandboxTurn<'_>> {
        let held = self.transition.try_lock().ok()?;
        Some(SandboxTurn { _held: held })
    }

    /// The right to write its row, once whoever writes it is done.
    pub(crate) async fn begin_write(&self) -> RowWrite<'_> {
        let held = self.writing.lock().await;
        RowWrite {
            entry: self,
            _held: held,
        }
    }

    /// Whether it is to be ended because its time is up: true once, until [`Self::end_expiring`].
    pub(crate) fn begin_expiring(&self) -> bool {
        !self.expiring.swap(true, Ordering::AcqRel)
    }

    /// Whether alerts of it are to be heeded now: true once, until [`Self::end_heeding`].
    pub(crate) fn begin_heeding(&self) -> bool {
        !self.heeding.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end_heeding(&self) {
        self.heeding.store(false, Ordering::Release);
    }

    pub(crate) fn end_expiring(&self) {
        self.expiring.store(false, Ordering::Release);
    }

    /// Its supervisor has ended.
    pub(crate) fn note_supervisor_ended(&self) {
        self.ended.send_replace(true);
    }

    /// It is about to have another supervisor; the one before has ended.
    pub(crate) fn renew_supervisor(&self) {
        self.ended.send_replace(false);
    }

    pub(crate) fn has_supervisor_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until its supervisor has ended.
    pub(crate) async fn supervisor_ended(&self) {
        // The sender is in the entry, so the channel is not closed.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

impl SandboxFacts {
    pub(crate) fn row(&self) -> &SandboxRow {
        &self.row
    }

    pub(crate) fn specification(&self) -> &Specification {
        &self.specification
    }

    /// Whose it is, or is about to be.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    pub(crate) fn key_id(&self) -> Option<&str> {
        self.row.key_id.as_deref()
    }

    /// Which secrets its gateway was told of; `None` where nobody knows.
    pub(crate) fn told(&self) -> Option<&SecretVersions> {
        self.told.as_ref()
    }

    /// Why it is being ended.
    pub(crate) fn cause(&self) -> Option<&EndCause> {
        self.cause.as_ref()
    }

    /// Whether its CPUs are used.
    pub(super) fn uses_cpus(&self) -> bool {
        !matches!(self.row.state, SandboxState::Paused | SandboxState::PutAway) || self.resuming
    }

    /// Whether its memory is used.
    pub(super) fn uses_memory(&self) -> bool {
        self.row.state != SandboxState::PutAway || self.resuming
    }

    fn is_resumed_by_traffic(&self) -> bool {
        self.row.auto_resume || self.specification.asleep
    }

    pub(super) fn is_of_request(&self, idempotency_key: Option<&str>) -> bool {
        idempotency_key.is_some()
            && self.row.idempotency_key.as_deref() == idempotency_key
            && self.row.state != SandboxState::Killing
    }

    pub(super) fn is_called(&self, name: Option<&str>) -> bool {
        let own = self.row.metadata.get(NAME_LABEL).map(String::as_str);
        name.is_some() && own == name && self.row.state != SandboxState::Killing
    }

    /// What its owner sees it do; `None` while it is made, and once it is being ended.
    pub(crate) fn visible_state(&self) -> Option<VisibleState> {
        self.row.key_id.as_ref()?;
        match self.row.state {
            SandboxState::Creating | SandboxState::Killing => None,
            SandboxState::Running | SandboxState::Pausing | SandboxState::PuttingAway | SandboxState::Restoring => {
                Some(VisibleState::Running)
            }
            SandboxState::Paused | SandboxState::Resuming | SandboxState::PutAway | SandboxState::Waking => {
                Some(VisibleState::Paused)
            }
        }
    }

    fn view(&self) -> Option<SandboxView> {
        let (row, specification) = (&self.row, &*self.specification);
        Some(SandboxView {
            state: self.visible_state()?,
            id: row.id.clone(),
            template: template_names::shown(&row.template).to_owned(),
            image_digest: image_name(&row.template).and(specification.build.clone()),
            cwd: specification.work_directory().to_owned(),
            started_at: from_ms(row.started_ms),
            end_at: from_ms(row.end_ms),
            metadata: row.metadata.clone(),
            env: specification.env.clone(),
            access_token: row.access_token.clone(),
            traffic_token: row.traffic_token.clone(),
            on_timeout: OnTimeout::of(row),
            auto_resume: row.auto_resume,
            pause_mode: match row.state {
                SandboxState::Paused | SandboxState::Resuming => Some(PauseMode::Full),
                SandboxState::PutAway | SandboxState::Waking => Some(PauseMode::Filesystem),
                _ => None,
            },
            asleep: specification.asleep,
            lifecycle: specification.lifecycle.clone(),
            network: specification.network.clone(),
            volumes: specification.volumes.clone(),
            limits: specification.limits,
            level: specification.level.clone(),
            not_enforced: specification.not_enforced.clone(),
            interpreter: match specification.zygote {
                Some(_) => InterpreterOrigin::Forked,
                None => InterpreterOrigin::Started,
            },
            fork_of: specification.fork_of.clone(),
            snapshot: specification.snapshot.clone(),
            envd_version: ENVD_VERSION,
        })
    }

    fn access(&self) -> Option<AccessRules> {
        let (row, specification) = (&self.row, &*self.specification);
        Some(AccessRules {
            state: self.visible_state()?,
            id: row.id.clone(),
            key_id: row.key_id.clone()?,
            auto_resume: self.is_resumed_by_traffic(),
            access_token: row.access_token.clone(),
            traffic_token: row.traffic_token.clone(),
            mask_request_host: specification.network.mask_request_host.clone(),
            https_ports: specification.network.https_ports.clone(),
            env: specification.env.clone(),
            limits: specification.limits,
        })
    }
}
