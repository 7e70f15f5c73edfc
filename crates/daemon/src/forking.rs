//! Forks: new sandboxes whose files begin as a copy of another one's, at one moment.
//!
//! A fork is made as any sandbox is, of the same template and specification, with ids, network, limits and tokens of its
//! own. What the source has written is copied while nothing in it moves; of several forks the others are copied from the
//! first, when it moves again. Forks are in the registry before there is anything of them, so that the next daemon removes
//! what is half made; the source goes on by itself when the daemon dies, because its supervisor holds it only as long as it is
//! asked to. Contexts of code of the source save what their cells left into its files before, and those of the forks load it;
//! until the copy is there no cell of the source runs. Deliberately not here: processes of the source, which are not carried.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offleash_core::id::{SandboxName, SandboxNameError};
use offleash_core::log_level::LogLevel;
use offleash_core::units::Bytes;
use offleash_interpreter::state::SavedContext;
use offleash_planner::base::CopyOrder;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::order::MAX_FILES;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::admission::AdmissionControl;
use crate::caller::Caller;
use crate::carrying::CarriedContexts;
use crate::config::DaemonConfig;
use crate::copying;
use crate::create_spec::{CreateSpec, check_ptrace};
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::{EndCause, who};
use crate::jobs::CallerPresence;
use crate::lifecycle::LifecycleRequest;
use crate::making::SandboxMaker;
use crate::random;
use crate::registry::Change;
use crate::request::{
    BROWSER_LABEL, CreateRequest, DESKTOP_LABEL, LimitsRequest, NAME_LABEL, NetworkSettings, OnTimeout,
};
use crate::sandbox_sources::SandboxSources;
use crate::sandbox_tools::ToolsRequest;
use crate::sandboxes::{Reservation, SandboxClaim, SandboxEntry};
use crate::specification::{self, Specification};
use crate::view::SandboxView;

/// Most forks that one request makes.
pub const MAX_FORKS: u32 = 20;

/// Forks that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRequest {
    /// How many, 1 to [`MAX_FORKS`].
    pub count: u32,
    /// How long they may live, seconds; the daemon's default if `None`. Zero is refused.
    pub timeout_seconds: Option<u64>,
    /// What they have of the contexts of code.
    pub contexts: CarriedContexts,
    /// What it is called; of several each has its number behind that, from `NAME-1` on.
    pub name: Option<SandboxName>,
}

impl ForkRequest {
    /// What each is called.
    fn names(&self) -> Result<Vec<Option<SandboxName>>, DaemonError> {
        let name = |number: u32| match &self.name {
            Some(name) if self.count > 1 => format!("{}-{number}", name.as_str()).parse().map(Some),
            name => Ok(name.clone()),
        };
        let names: Result<_, _> = (1..=self.count).map(name).collect();
        names.map_err(|error: SandboxNameError| DaemonError::invalid("name", error.to_string()))
    }
}

impl Default for ForkRequest {
    fn default() -> Self {
        Self {
            count: 1,
            timeout_seconds: None,
            contexts: CarriedContexts::All,
            name: None,
        }
    }
}

/// How many forks have their files copied at a time: what is copied is read and written as fast as the disk can.
const MAX_COPYING: usize = 2;

/// What came of one fork.
type ForkOutcome = Result<Arc<SandboxEntry>, DaemonError>;

/// What came of each fork that was asked for.
pub type ForkResults = Vec<Result<SandboxView, DaemonError>>;

/// Forks sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxForker {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    sources: SandboxSources,
    maker: Arc<SandboxMaker>,
    ender: Arc<SandboxEnder>,
    /// Places for forks whose files are being copied.
    places: Semaphore,
}

impl SandboxForker {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        sources: SandboxSources,
        maker: Arc<SandboxMaker>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            config,
            admission,
            sources,
            maker,
            ender,
            places: Semaphore::new(MAX_COPYING),
        }
    }

    /// Makes forks of a sandbox, running or paused. Each is made or not: the answer has an entry for each that was asked for.
    ///
    /// # Errors
    /// When no fork can be: `NotFound`, `Invalid`, `Conflict` for one that is paused or whose template was built again since,
    /// `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `Drained`, `Contexts` where they cannot be carried, `NotCopied`,
    /// `Supervisor`.
    pub(crate) async fn fork(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        request: ForkRequest,
    ) -> Result<ForkResults, DaemonError> {
        let source = self.core.sandboxes.find(caller, id)?;
        self.core.jobs.check_new()?;
        if !(1..=MAX_FORKS).contains(&request.count) {
            let why = format!("must be between 1 and {MAX_FORKS}");
            return Err(DaemonError::invalid("count", why));
        }
        let timeout = specification::timeout(request.timeout_seconds, &self.config)?;
        let names = request.names()?;
        let listener = CallerPresence::default();
        let (forker, caller, listens) = (Arc::clone(self), caller.clone(), listener.is_there());
        let work = async move {
            let forks = forker
                .fork_as(&source, &caller, timeout, &names, request.contexts)
                .await?;
            let answer = forks.into_iter().map(|made| {
                let entry = made?;
                if listens.load(Ordering::Acquire) {
                    return entry.view().ok_or_else(|| DaemonError::not_found(entry.name()));
                }
                forker.ender.end_unclaimed(&entry);
                Err(DaemonError::not_found(entry.name()))
            });
            Ok(answer.collect())
        };
        let answer = self.core.jobs.detached(work).await;
        drop(listener);
        answer
    }

    async fn fork_as(
        self: &Arc<Self>,
        source: &Arc<SandboxEntry>,
        caller: &Caller,
        timeout: Duration,
        names: &[Option<SandboxName>],
        contexts: CarriedContexts,
    ) -> Result<Vec<ForkOutcome>, DaemonError> {
        self.admission.check()?;
        let spec = Arc::new(self.spec_of(source, caller, timeout).await?);
        let mut forks: Vec<_> = names.iter().map(|name| self.reserve(&spec, name.as_ref())).collect();
        let saved = match self.fill(source, &spec, &mut forks, contexts).await {
            Ok(saved) => Arc::new(saved),
            Err(error) => {
                for entry in forks.into_iter().flatten() {
                    self.ender.discard(&entry).await;
                }
                return Err(error);
            }
        };
        let line = format!("{} had it forked", who(caller));
        self.core.registry.log(source.name(), LogLevel::Info, line);
        Ok(self.make_all(&spec, forks, &saved).await)
    }

    /// What each fork is made from: the same as its source.
    async fn spec_of(
        &self,
        source: &SandboxEntry,
        caller: &Caller,
        timeout: Duration,
    ) -> Result<CreateSpec, DaemonError> {
        let (mut row, specification) = (source.row(), source.specification());
        let held = self.sources.origins.again(&source.origin()).await?;
        if held.origin().build != specification.build {
            // What it wrote says nothing of what lies below.
            return Err(DaemonError::conflict(
                &row.id,
                "is of another build of its template than there is now",
            ));
        }
        check_ptrace(&specification, caller, &self.config)?;
        specification
            .tools
            .check_fork(caller, caller.is(row.key_id.as_deref()))?;
        let (limits, on_timeout) = (specification.limits, OnTimeout::of(&row));
        // Whoever forks the sandbox of another does not speak with that one's voice.
        let network = NetworkSettings {
            named_by_owner: specification.network.named_by_owner && caller.is_owner(),
            ..specification.network.clone()
        };
        // A name is one sandbox's.
        row.metadata.remove(NAME_LABEL);
        // What runs in it is no browser, and no desktop.
        row.metadata.remove(BROWSER_LABEL);
        row.metadata.remove(DESKTOP_LABEL);
        Ok(CreateSpec {
            caller: caller.clone(),
            request: CreateRequest {
                template: row.template,
                snapshot: None,
                timeout_seconds: None,
                name: None,
                metadata: row.metadata,
                env: specification.env.clone(),
                secure: row.access_token.is_some(),
                on_timeout,
                auto_resume: row.auto_resume,
                lifecycle: LifecycleRequest::default(),
                network: network.clone(),
                volumes: Vec::new(),
                limits: LimitsRequest {
                    cpus: Some(limits.cpus),
                    memory_mib: Some(limits.memory_mib),
                    disk_mib: Some(limits.disk_mib),
                    pids: Some(limits.pids),
                },
                tools: ToolsRequest::default(),
                idempotency_key: None,
                browser: None,
                desktop: None,
            },
            specification: Specification {
                network,
                network_pending: false,
                zygote: None,
                volumes: self.sources.volumes.of_fork(specification.volumes.clone()).await?,
                fork_of: Some(row.id),
                left_ms: None,
                asleep: false,
                saved: Vec::new(),
                checkpoint: None,
                level: String::new(),
                not_enforced: std::collections::BTreeMap::new(),
                ..Specification::clone(&specification)
            },
            timeout,
            held,
            snapshot: self.core.host.hold_snapshot(specification.snapshot.as_deref()).await?,
            saved: Vec::new(),
            volumes_mib: self.sources.volumes.size_of(caller).await?,
            kept: None,
        })
    }

    /// A place for one fork, which is called so, counted to its owner.
    fn reserve(&self, spec: &CreateSpec, name: Option<&SandboxName>) -> ForkOutcome {
        let id = random::sandbox_id()?;
        let mut row = spec.specification.new_row(id.as_str(), &spec.origin().template);
        spec.fill(&mut row)?;
        let name = name.map(SandboxName::as_str);
        row.metadata
            .extend(name.map(|name| (NAME_LABEL.to_owned(), name.to_owned())));
        let entry = Arc::new(SandboxEntry::new(id, row, spec.specification.clone()));
        let claim = SandboxClaim {
            name,
            ..spec.claim(&self.config)
        };
        match self.core.sandboxes.reserve_new(&claim, &entry)? {
            Reservation::Now(entry) => Ok(entry),
            Reservation::Before(_) => Err(DaemonError::not_found(entry.name())),
        }
    }

    /// Copies what the source has written for each of `forks` that there is; those for which that fails are there no more.
    /// Answers the contexts that saved themselves into it.
    async fn fill(
        &self,
        source: &Arc<SandboxEntry>,
        spec: &CreateSpec,
        forks: &mut [ForkOutcome],
        carried: CarriedContexts,
    ) -> Result<Vec<SavedContext>, DaemonError> {
        let all: Vec<Arc<SandboxEntry>> = forks.iter().flatten().cloned().collect();
        let Some(first) = all.first() else {
            return match forks.iter_mut().next() {
                Some(refused) => std::mem::replace(refused, Err(DaemonError::Draining)).map(|_| Vec::new()),
                None => Ok(Vec::new()),
            };
        };
        let (still, process) = (&self.sources.still, source.supervisor_process());
        still.check(source)?;
        // Before its turn: cells may take long, and whoever ends the source meanwhile shall not wait for them. Dropped after
        // it moves again, since a driver that stands still removes no file.
        let contexts = still.save(source, carried).await?;
        // The place comes before its turn, too, for others may be copied for long.
        let place = self.place().await?;
        let turn = source.turn_soon().await?;
        if source.supervisor_process() != process {
            return Err(DaemonError::conflict(
                source.name(),
                "was put back, put away or woken meanwhile",
            ));
        }
        let network = NetworkSettings {
            named_by_owner: spec.specification.network.named_by_owner,
            ..source.specification().network.clone()
        };
        if network != spec.specification.network {
            return Err(DaemonError::conflict(source.name(), "has got other rules meanwhile"));
        }
        let failed = |error| from_supervisor(source, error);
        let used = still.disk_bytes(source).await?;
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        self.admission.check_disk(used.saturating_mul(count))?;
        for entry in &all {
            let row = entry.row();
            self.core
                .registry
                .apply(vec![Change::AddSandbox(Box::new(row))])
                .await?;
        }
        let copy_order = |from: &SandboxEntry, is_copy, to: &SandboxEntry| CopyOrder {
            state: self.core.host.state_text(),
            from: from.id().clone(),
            is_copy,
            to: to.id().clone(),
            bytes: Bytes::mib(spec.specification.limits.disk_mib).0,
            entries: MAX_FILES,
        };
        let (program, time) = (self.core.host.program(), self.config.forks.copy);
        let held = still.hold(source, &turn).await?;
        let copied = copying::copy(program, &copy_order(source, false, first), time).await;
        let still = held.release().await;
        drop((turn, place));
        copied?;
        still.map_err(failed)?;
        for fork in forks.iter_mut().filter(|fork| fork.is_ok()).skip(1) {
            let Ok(entry) = fork else { continue };
            // A place for each, so that others have theirs in between.
            let order = copy_order(first, true, entry);
            let copied = async {
                let _place = self.place().await?;
                copying::copy(program, &order, time).await
            };
            if let Err(error) = copied.await {
                self.ender.discard(entry).await;
                *fork = Err(error);
            }
        }
        Ok(contexts.saved().to_vec())
    }

    /// A place among those that copy at the same time; first come, first served.
    async fn place(&self) -> Result<SemaphorePermit<'_>, DaemonError> {
        match timeout(self.config.create_timeout, self.places.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(DaemonError::Overloaded {
                what: "places for forks",
                retry_after: Duration::from_secs(1),
            }),
        }
    }

    /// Makes sandboxes of those whose files are there.
    async fn make_all(
        self: &Arc<Self>,
        spec: &Arc<CreateSpec>,
        forks: Vec<ForkOutcome>,
        saved: &Arc<Vec<SavedContext>>,
    ) -> Vec<ForkOutcome> {
        let mut making = JoinSet::new();
        let mut answers: Vec<_> = forks.iter().map(|_| None).collect();
        for (number, fork) in forks.into_iter().enumerate() {
            let (forker, spec, saved) = (Arc::clone(self), Arc::clone(spec), Arc::clone(saved));
            making.spawn(async move {
                let made = match fork {
                    Ok(entry) => forker.make_one(&spec, &entry, &saved).await.map(|()| entry),
                    Err(error) => Err(error),
                };
                (number, made)
            });
        }
        while let Some(made) = making.join_next().await {
            if let Ok((number, made)) = made
                && let Some(answer) = answers.get_mut(number)
            {
                *answer = Some(made);
            }
        }
        let lost = || {
            Err(DaemonError::Host {
                tried: "finish a fork",
                source: "it was cut off".into(),
            })
        };
        answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    async fn make_one(
        &self,
        spec: &CreateSpec,
        entry: &Arc<SandboxEntry>,
        saved: &[SavedContext],
    ) -> Result<(), DaemonError> {
        let turn = entry.turn().await;
        if let Err(error) = self.maker.make_in_turn(entry, spec, &turn).await {
            self.maker.count_failed();
            self.ender.discard(entry).await;
            return Err(error);
        }
        self.maker.settle(entry, spec);
        drop(turn);
        if let Err(error) = self.sources.carrier.load(entry, saved).await {
            let cause = EndCause::killed("its contexts could not load what they had saved");
            self.ender.end_in_background(entry, cause);
            return Err(error);
        }
        Ok(())
    }
}

fn from_supervisor(source: &SandboxEntry, error: SupervisorError) -> DaemonError {
    DaemonError::of_supervisor("fork a sandbox", source.name(), error)
}
