//! Sessions of browsers: sandboxes in which a browser runs that clients drive, and contexts that outlive them.
//!
//! A session is a sandbox with the label [`BROWSER_LABEL`], which says what was asked for; what lives is known of that sandbox
//! and of nothing else, so sessions are there after the daemon was started again. Beside it, files of the state directory
//! keep what was recorded, for sessions that have ended, too. Deliberately not here: what is said to a browser (`browser`),
//! and how clients get to it, which is traffic to a port.

mod ends;
mod filling;
mod keeping;
mod profiles;
mod starting;
mod view;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use offleash_browser::{BrowserOptions, ContextStore, PageInfo};
use offleash_supervisor::clock::{before, now_ms};
use tokio::sync::Semaphore;

pub(crate) use self::starting::endpoint;
pub use self::view::{BrowserSessionView, SessionStatus};
use self::view::{SessionRecord, SessionSpec};
use self::watching::LiveSession;
use crate::admission::AdmissionControl;
use crate::browser_pool::BrowserPool;
use crate::caller::Caller;
use crate::config::DaemonConfig;
use crate::creating::{BrowserHandOut, SandboxCreator};
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::lifecycle::LifecycleRequest;
use crate::making::SandboxMaker;
use crate::origin::BASE_TEMPLATE;
use crate::registry::SandboxState;
use crate::request::{BROWSER_LABEL, CreateRequest, LimitsRequest, NetworkSettings};
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;
use crate::templates::TemplateStore;

/// The template of a session that names none, where there is one of that name.
const BROWSER_TEMPLATE: &str = "browser";
/// What a browser has of memory whose creator does not say, MiB, if anybody may have that.
const SESSION_MIB: u64 = 1024;
/// For so long a sandbox lives on when the time of its session is up, so that its profile can be saved.
const RELEASE_GRACE: Duration = Duration::from_secs(60);
/// How many profiles are in memory at a time.
const MAX_PROFILES_AT_ONCE: usize = 2;

/// A session that is asked for.
#[derive(Debug, Clone, Default)]
pub struct BrowserRequest {
    /// The template; `browser` where there is one, or else `base`, if `None`.
    pub template: Option<String>,
    /// What the browser is to look like.
    pub options: BrowserOptions,
    /// How long it may last, seconds; the daemon's default if `None`.
    pub timeout_seconds: Option<u64>,
    /// The context that it begins with.
    pub context: Option<ContextChoice>,
    /// Whether pictures of its pages are kept.
    pub pictures: bool,
    /// What its pages may reach.
    pub network: NetworkSettings,
    /// What it may use.
    pub limits: LimitsRequest,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
}

/// A context of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextChoice {
    /// Its id or its name.
    pub context: String,
    /// Whether the session saves to it, which one at a time does.
    pub persist: bool,
}

/// What browsers that wait are made with, and where they are.
#[derive(Debug, Clone)]
pub(crate) struct BrowserSources {
    pub(crate) templates: Arc<TemplateStore>,
    pub(crate) maker: Arc<SandboxMaker>,
    pub(crate) admission: Arc<AdmissionControl>,
    pub(crate) pool: Arc<BrowserPool>,
}

/// Sessions, and what goes on with each.
#[derive(Debug)]
pub(crate) struct BrowserService {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    sources: BrowserSources,
    creator: Arc<SandboxCreator>,
    ender: Arc<SandboxEnder>,
    /// Those that are watched, by id.
    live: Mutex<BTreeMap<String, LiveSession>>,
    /// Contexts that a session is about to write to, which is not there yet.
    claimed: Mutex<BTreeSet<String>>,
    /// Levels at which a browser was found not to keep a sandbox of its own.
    without_nesting: Mutex<BTreeSet<String>>,
    /// Held from counting contexts to making one.
    adding: tokio::sync::Mutex<()>,
    profiles: Semaphore,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BrowserService {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        sources: BrowserSources,
        creator: Arc<SandboxCreator>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            config,
            sources,
            creator,
            ender,
            live: Mutex::default(),
            claimed: Mutex::default(),
            without_nesting: Mutex::default(),
            adding: tokio::sync::Mutex::default(),
            profiles: Semaphore::new(MAX_PROFILES_AT_ONCE),
        }
    }

    fn contexts(&self) -> ContextStore {
        ContextStore::in_directory(self.core.host.state().path().join("browser/contexts"))
    }

    /// Makes a session, and answers when its browser does.
    ///
    /// # Errors
    /// Those of a sandbox, `UnknownContext`, `ContextInUse`, `Failed`.
    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        request: BrowserRequest,
    ) -> Result<BrowserSessionView, DaemonError> {
        let (context, claim) = self.context_of(caller, request.context.as_ref()).await?;
        let spec = SessionSpec {
            options: request.options.clone(),
            context: context.as_ref().map(|context| context.id.clone()),
            persist: request.context.as_ref().is_some_and(|choice| choice.persist),
            pictures: request.pictures,
            proxy: request.network.egress_proxy.as_ref().map(|proxy| proxy.address.clone()),
            pooled: false,
        };
        let may_wait = request.options == BrowserOptions::default()
            // A profile is unpacked before its browser is started.
            && context.as_ref().is_none_or(|context| context.bytes == 0);
        let (entry, spec) = self.find_or_make(caller, request, spec, may_wait).await?;
        let service = Arc::clone(self);
        self.core
            .jobs
            .detached(async move {
                let _until_its_label_is_there = claim;
                let started = match spec.pooled {
                    true => Ok(()),
                    false => service.start(&entry, &spec, context).await.map(drop),
                };
                match started {
                    Ok(()) => {
                        service.keep_record(&entry, &spec).await?;
                        service.watch(&entry, &spec)?;
                        let view = service.view_of(&entry)?;
                        Ok(service.with_own_sandbox(view, &entry).await)
                    }
                    Err(error) => {
                        let cause = EndCause::killed("its browser did not start");
                        service.ender.end_in_background(&entry, cause);
                        Err(error)
                    }
                }
            })
            .await
    }

    /// The sandbox of a session: one whose browser waited and answers, where there is one and it may be, or a new one.
    async fn find_or_make(
        &self,
        caller: &Caller,
        request: BrowserRequest,
        spec: SessionSpec,
        may_wait: bool,
    ) -> Result<(Arc<SandboxEntry>, SessionSpec), DaemonError> {
        if may_wait && self.waiting() > 0 {
            let (entry, found) = self.make_sandbox(caller, request.clone(), &spec, true).await?;
            if !found.pooled || endpoint(&self.core.host.supervisor(entry.id())).await.is_ok() {
                return Ok((entry, found));
            }
            let cause = EndCause::killed("its browser did not answer when it was handed out");
            self.ender.end_in_background(&entry, cause);
        }
        self.make_sandbox(caller, request, &spec, false).await
    }

    async fn make_sandbox(
        &self,
        caller: &Caller,
        request: BrowserRequest,
        spec: &SessionSpec,
        may_wait: bool,
    ) -> Result<(Arc<SandboxEntry>, SessionSpec), DaemonError> {
        let hand_out = may_wait.then(|| BrowserHandOut {
            pool: Arc::clone(&self.sources.pool),
            label: spec.pooled().to_label(),
        });
        let template = request.template.clone();
        let asked = self.sandbox_request(request, spec)?;
        let of = |template: &str| {
            let asked = CreateRequest {
                template: template.to_owned(),
                ..asked.clone()
            };
            self.creator.create_session(caller, asked, hand_out.clone())
        };
        let made = match template {
            Some(template) => of(&template).await?,
            None => match of(BROWSER_TEMPLATE).await {
                // A browser of the machine's own is seen in every sandbox over its system.
                Err(DaemonError::UnknownTemplate { .. }) => of(BASE_TEMPLATE).await?,
                made => made?,
            },
        };
        let entry = self.core.sandboxes.find(caller, &made.id)?;
        // What its label says: whether its browser waited.
        let spec = spec_of(&entry).unwrap_or_else(|| spec.clone());
        Ok((entry, spec))
    }

    fn sandbox_request(&self, request: BrowserRequest, spec: &SessionSpec) -> Result<CreateRequest, DaemonError> {
        let grace = RELEASE_GRACE.as_secs();
        let asked = request.timeout_seconds.unwrap_or(self.config.default_timeout.as_secs());
        let most = self.config.max_timeout.as_secs();
        if asked == 0 || asked > most {
            return Err(DaemonError::invalid(
                "timeout",
                format!("must be between 1 and {most} seconds"),
            ));
        }
        let memory_mib = self.memory_mib(request.limits.memory_mib);
        Ok(CreateRequest {
            timeout_seconds: Some(asked.saturating_add(grace)),
            metadata: request.metadata,
            network: NetworkSettings {
                // Who has the token of the session gets to its browser, and nobody else to any port.
                allow_public_traffic: Some(false),
                ..request.network
            },
            // A browser is not made again where it was.
            lifecycle: LifecycleRequest {
                idle: Some(Duration::ZERO),
                ..LifecycleRequest::default()
            },
            limits: LimitsRequest {
                memory_mib: Some(memory_mib),
                ..request.limits
            },
            browser: Some(spec.to_label()),
            ..CreateRequest::default()
        })
    }

    /// A living session of the caller's.
    fn find(&self, caller: &Caller, id: &str) -> Result<Arc<SandboxEntry>, DaemonError> {
        let unknown = || DaemonError::from(SessionError::UnknownSession { id: id.to_owned() });
        let entry = self.core.sandboxes.find(caller, id).map_err(|_| unknown())?;
        spec_of(&entry).map(|_| entry).ok_or_else(unknown)
    }

    fn view_of(&self, entry: &SandboxEntry) -> Result<BrowserSessionView, DaemonError> {
        let unknown = || {
            DaemonError::from(SessionError::UnknownSession {
                id: entry.name().to_owned(),
            })
        };
        let (view, spec) = (entry.view().ok_or_else(unknown)?, spec_of(entry).ok_or_else(unknown)?);
        Ok(BrowserSessionView::of(view, spec))
    }

    /// The caller's sessions, the newest first: those that live, and those that ended as far as they are kept.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) async fn list(&self, caller: &Caller) -> Result<Vec<BrowserSessionView>, DaemonError> {
        let mut all = Vec::new();
        for entry in self.core.sandboxes.all() {
            let is_seen = entry.read(|facts| facts.visible_state().is_some() && caller.sees(facts.key_id()));
            if is_seen && let Ok(view) = self.view_of(&entry) {
                all.push(view);
            }
        }
        let live: BTreeSet<String> = all.iter().map(|view: &BrowserSessionView| view.id.clone()).collect();
        let kept = self.kept_records().await?.into_iter();
        let ended = kept.filter(|record| !live.contains(&record.id) && caller.sees(Some(&record.owner)));
        all.extend(ended.map(SessionRecord::into_view));
        all.sort_by(|one, other| {
            other
                .created_at
                .cmp(&one.created_at)
                .then_with(|| one.id.cmp(&other.id))
        });
        Ok(all)
    }

    /// A session of the caller's, which may have ended.
    ///
    /// # Errors
    /// `UnknownSession`, `Host`.
    pub(crate) async fn get(&self, caller: &Caller, id: &str) -> Result<BrowserSessionView, DaemonError> {
        match self
            .find(caller, id)
            .and_then(|entry| Ok((self.view_of(&entry)?, entry)))
        {
            Ok((view, entry)) => Ok(self.with_own_sandbox(view, &entry).await),
            Err(_) => {
                let mut record = self.kept_of(caller, id).await?;
                if record.end.is_none() {
                    // It is being ended at this moment.
                    record.end = Some(self.end_soon_on_record(id, record.expires_ms).await);
                }
                Ok(record.into_view())
            }
        }
    }

    /// The pages of a living session of the caller's.
    ///
    /// # Errors
    /// `UnknownSession`, `Failed` where the browser does not answer.
    pub(crate) async fn pages(&self, caller: &Caller, id: &str) -> Result<Vec<PageInfo>, DaemonError> {
        let entry = self.find(caller, id)?;
        let stream = self.core.host.supervisor(entry.id()).port(offleash_browser::PORT).await;
        let stream = stream.map_err(|error| browser_failed(&error))?;
        offleash_browser::pages(stream)
            .await
            .map_err(|error| browser_failed(&error))
    }

    /// Ends a session of the caller's, and saves its context first if it is to be saved.
    ///
    /// # Errors
    /// `UnknownSession`; `Conflict` for one that is being started or released.
    pub(crate) async fn release(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
    ) -> Result<BrowserSessionView, DaemonError> {
        let (entry, service) = (self.find(caller, id)?, Arc::clone(self));
        let reason = format!("released by {}", crate::history::who(caller));
        let work = async move { service.finish(&entry, SessionStatus::Completed, reason).await };
        self.core.jobs.detached(work).await
    }

    /// Removes what is kept of sessions that ended long ago. What cannot be removed now is tried again with the next one.
    async fn forget_old(&self) {
        let Ok(mut kept) = self.kept_records().await else {
            return;
        };
        kept.retain(|record| self.core.sandboxes.get(&record.id).is_none());
        kept.sort_by_key(|record| std::cmp::Reverse(record.created_ms));
        let oldest = before(now_ms(), self.config.keep_logs);
        let ended = |record: &SessionRecord| record.end.as_ref().map_or(record.created_ms, |end| end.at_ms);
        let surplus = kept.iter().enumerate();
        let surplus = surplus.filter(|(place, record)| *place >= keeping::MAX_KEPT_SESSIONS || ended(record) < oldest);
        for (_, record) in surplus {
            let files = self.files_of(&record.id);
            let _removed = crate::jobs::blocking("remove a session", move || files.remove()).await;
        }
    }
}

/// What was asked for, if a sandbox is a session.
fn spec_of(entry: &SandboxEntry) -> Option<SessionSpec> {
    entry.read(|facts| {
        let label = facts.row().metadata.get(BROWSER_LABEL)?;
        SessionSpec::of_label(label)
    })
}

/// Whether a sandbox is still to save to a context when it ends.
fn writes_to(entry: &SandboxEntry, context: &str) -> bool {
    let is_ending = entry.state() == SandboxState::Killing;
    let spec = spec_of(entry).filter(|_| !is_ending);
    spec.is_some_and(|spec| spec.persist && spec.context.as_deref() == Some(context))
}

/// What a caller is told of a browser that does not do what it is asked.
fn browser_failed(error: &dyn std::error::Error) -> DaemonError {
    SessionError::Failed { why: error.to_string() }.into()
}
