//! Creates sandboxes for callers: hands out those that were made ahead, or has them made.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offleash_core::id::RunId;

use crate::admission::AdmissionControl;
use crate::browser_pool::BrowserPool;
use crate::caller::Caller;
use crate::config::DaemonConfig;
use crate::create_spec::CreateSpec;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::jobs::CallerPresence;
use crate::making::SandboxMaker;
use crate::pool::ReadyPool;
use crate::random;
use crate::request::{BROWSER_LABEL, CreateRequest};
use crate::sandbox_sources::SandboxSources;
use crate::sandboxes::{Reservation, SandboxEntry};
use crate::starting::StartRunner;
use crate::template_names;
use crate::view::SandboxView;

/// How long the answer to a request is waited for that the same request, repeated, is in the middle of.
const REPEATED_TIMEOUT: Duration = Duration::from_secs(30);

/// Browsers that wait, for a session that may have one.
#[derive(Debug, Clone)]
pub(crate) struct BrowserHandOut {
    pub(crate) pool: Arc<BrowserPool>,
    /// The label of a sandbox whose browser waited.
    pub(crate) label: String,
}

/// Creates sandboxes for callers.
#[derive(Debug)]
pub(crate) struct SandboxCreator {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    pool: Arc<ReadyPool>,
    sources: SandboxSources,
    maker: Arc<SandboxMaker>,
    starter: StartRunner,
    ender: Arc<SandboxEnder>,
}

impl SandboxCreator {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        pool: Arc<ReadyPool>,
        sources: SandboxSources,
        maker: Arc<SandboxMaker>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            starter: StartRunner::new(core.clone()),
            core,
            config,
            admission,
            pool,
            sources,
            maker,
            ender,
        }
    }

    /// Makes a sandbox, or hands out one that was made ahead.
    ///
    /// # Errors
    /// `Invalid`, `UnknownTemplate`, those of images, `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `Drained`, `Supervisor`.
    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        request: CreateRequest,
    ) -> Result<SandboxView, DaemonError> {
        self.create_session(caller, request, None).await
    }

    /// As [`Self::create`]; a sandbox in which a browser waits is handed out where there is one like what is asked for.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(crate) async fn create_session(
        self: &Arc<Self>,
        caller: &Caller,
        mut request: CreateRequest,
        browser: Option<BrowserHandOut>,
    ) -> Result<SandboxView, DaemonError> {
        self.core.jobs.check_new()?;
        let snapshot = self.sources.snapshots.begin_create(caller, &mut request).await?;
        let mut spec = CreateSpec::of(caller, request, &self.config)?;
        // It stays in place until the sandbox itself holds it.
        let (origins, template) = (&self.sources.origins, &spec.request.template);
        spec.held = match &snapshot {
            Some(snapshot) => origins.of_snapshot(caller, template, snapshot.build()).await?,
            None => origins.ready(caller, template).await?,
        };
        spec.specification.build = spec.origin().build;
        spec.take_limits_of_template(&self.config)?;
        spec.settle_tools(&self.config.tools)?;
        if let Some(snapshot) = snapshot {
            snapshot.check(&spec.specification)?;
            spec.specification.snapshot = Some(snapshot.id);
            (spec.snapshot, spec.saved) = (Some(snapshot.held), snapshot.saved);
        }
        spec.specification.volumes = self
            .sources
            .volumes
            .mounts(caller, spec.request.volumes.clone())
            .await?;
        self.sources.volumes.fetch(&spec.specification.volumes).await?;
        spec.volumes_mib = self.sources.volumes.size_of(caller).await?;
        let listener = CallerPresence::default();
        let (creator, listens) = (Arc::clone(self), listener.is_there());
        let created = self.core.jobs.detached(async move {
            let mut spec = spec;
            let created = match browser {
                Some(browser) => creator.find_browser_or_make(&mut spec, browser).await,
                None => creator.find_or_make(&spec).await,
            };
            let entry = created.inspect_err(|_| creator.maker.count_failed())?;
            // Nobody knows its id but who could ask again with the same key.
            if listens.load(Ordering::Acquire) || spec.request.idempotency_key.is_some() {
                return entry.view().ok_or_else(|| DaemonError::not_found(entry.name()));
            }
            creator.ender.end_unclaimed(&entry);
            Err(DaemonError::not_found(entry.name()))
        });
        let created = created.await;
        drop(listener);
        created
    }

    async fn find_browser_or_make(
        &self,
        spec: &mut CreateSpec,
        browser: BrowserHandOut,
    ) -> Result<Arc<SandboxEntry>, DaemonError> {
        if spec.is_plain(&self.config) {
            self.admission.check()?;
            let (origin, limits) = (spec.origin(), spec.specification.limits);
            let metadata = &mut spec.request.metadata;
            let cold = metadata.insert(BROWSER_LABEL.to_owned(), browser.label);
            let take = || browser.pool.take(&origin, &limits);
            if let Some(Reservation::Now(entry)) = self.hand_out(spec, take).await? {
                self.maker.count_warm();
                return self.finish(entry, spec).await;
            }
            spec.request
                .metadata
                .extend(cold.map(|label| (BROWSER_LABEL.to_owned(), label)));
        }
        self.find_or_make(spec).await
    }

    async fn find_or_make(&self, spec: &CreateSpec) -> Result<Arc<SandboxEntry>, DaemonError> {
        let is_usual = spec.is_usual(&self.config);
        if is_usual {
            self.pool.note_demand(&spec.origin());
        }
        self.admission.check()?;
        let ready = match is_usual {
            true => {
                let origin = spec.origin();
                self.hand_out(spec, || self.pool.take(&origin)).await?
            }
            false => None,
        };
        let entry = match ready {
            Some(Reservation::Before(before)) => return repeated(before).await,
            Some(Reservation::Now(entry)) => {
                self.maker.count_warm();
                entry
            }
            None => match self.make(spec).await? {
                Reservation::Before(before) => return repeated(before).await,
                Reservation::Now(entry) => entry,
            },
        };
        self.finish(entry, spec).await
    }

    /// What follows when there is a sandbox for a caller.
    async fn finish(&self, entry: Arc<SandboxEntry>, spec: &CreateSpec) -> Result<Arc<SandboxEntry>, DaemonError> {
        self.maker.settle(&entry, spec);
        if let Some(template) = spec.held.template() {
            let command = &template.record().start;
            let name = template_names::shown(&spec.request.template);
            if let Err(error) = self.starter.start(&entry, name, command).await {
                let cause = EndCause::killed("what its template starts did not become ready");
                self.ender.end_in_background(&entry, cause);
                return Err(error);
            }
        }
        if let Err(error) = self.sources.carrier.load(&entry, &spec.saved).await {
            let cause = EndCause::killed("its contexts could not load what they had saved");
            self.ender.end_in_background(&entry, cause);
            return Err(error);
        }
        Ok(entry)
    }

    /// Hands out the member of a pool that `take` takes out of it, if there is one.
    async fn hand_out(
        &self,
        spec: &CreateSpec,
        take: impl FnOnce() -> Option<Arc<SandboxEntry>>,
    ) -> Result<Option<Reservation>, DaemonError> {
        let claim = spec.claim(&self.config);
        let reserved = self.core.sandboxes.reserve_ready(&claim, || {
            let entry = take()?;
            let request = &spec.request;
            entry.promise_to(&spec.caller.key_id, request.idempotency_key.as_ref(), &request.metadata);
            Some(entry)
        })?;
        let entry = match reserved {
            Some(Reservation::Now(entry)) => entry,
            before_or_none => return Ok(before_or_none),
        };
        let turn = entry.turn().await;
        match self.maker.assign(&entry, spec, &turn).await {
            Ok(true) => Ok(Some(Reservation::Now(Arc::clone(&entry)))),
            unusable => {
                // It died while it waited, or cannot be given away: nobody's, and not to be used by anybody.
                entry.take_back_promise();
                self.ender
                    .end_in_background(&entry, EndCause::died("it died while it waited"));
                unusable.map(|_| None)
            }
        }
    }

    /// Makes a sandbox that has an id already.
    ///
    /// # Errors
    /// As [`Self::create`], and `Conflict` where there is one of that id.
    pub(crate) async fn create_as(&self, id: RunId, spec: &CreateSpec) -> Result<Arc<SandboxEntry>, DaemonError> {
        self.admission.check()?;
        let made = self.make_as(id, spec).await.inspect_err(|_| self.maker.count_failed());
        match made? {
            Reservation::Now(entry) => self.finish(entry, spec).await,
            Reservation::Before(before) => Err(DaemonError::conflict(before.name(), "was made of the same request")),
        }
    }

    /// Makes a sandbox for a caller.
    async fn make(&self, spec: &CreateSpec) -> Result<Reservation, DaemonError> {
        self.make_as(random::sandbox_id()?, spec).await
    }

    async fn make_as(&self, id: RunId, spec: &CreateSpec) -> Result<Reservation, DaemonError> {
        let mut row = spec.specification.new_row(id.as_str(), &spec.origin().template);
        spec.fill(&mut row)?;
        let entry = Arc::new(SandboxEntry::new(id, row, spec.specification.clone()));
        // Held until it is made, before anybody can find it.
        let turn = entry.turn().await;
        let reserved = self.core.sandboxes.reserve_new(&spec.claim(&self.config), &entry)?;
        if matches!(reserved, Reservation::Now(_))
            && let Err(error) = self.maker.make_in_turn(&entry, spec, &turn).await
        {
            self.core.sandboxes.remove(&entry);
            return Err(error);
        }
        Ok(reserved)
    }
}

/// The sandbox that the same request made before, once it is made.
async fn repeated(entry: Arc<SandboxEntry>) -> Result<Arc<SandboxEntry>, DaemonError> {
    // Held while it is made.
    if entry.turn_within(REPEATED_TIMEOUT).await.is_none() {
        return Err(DaemonError::conflict(entry.name(), "is still being made"));
    }
    Ok(entry)
}
