//! Has browsers wait for sessions: one is made at a time, when the machine has room for it.

use std::sync::Arc;
use std::time::Duration;

use offleash_supervisor::service::client::{ExecNews, ExecStream};
use tokio::time::timeout;

use super::view::SessionSpec;
use super::{BROWSER_TEMPLATE, BrowserService, SESSION_MIB};
use crate::browser_pool::WaitingBrowser;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::origin::TemplateOrigin;
use crate::request::LimitsRequest;
use crate::sandboxes::SandboxEntry;
use crate::specification;
use crate::view::SandboxLimits;

/// How often it is looked at whether one is lacking.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What one that waits is taken to need of the machine's memory, MiB.
const WAITING_MIB: u64 = 256;

impl BrowserService {
    /// Begins to have browsers wait, until the daemon is gone.
    pub(crate) fn start_pool(self: &Arc<Self>) {
        let pool = &self.sources.pool;
        if pool.is_off() {
            return;
        }
        let (weak, wanted) = (Arc::downgrade(self), pool.wanted());
        tokio::spawn(async move {
            loop {
                let Some(service) = weak.upgrade() else { return };
                let wait = service.fill_pool().await;
                drop(service);
                let _told = timeout(wait, wanted.notified()).await;
            }
        });
    }

    /// Ends what is not to wait any longer, and makes one that is lacking; says when to look again.
    async fn fill_pool(self: &Arc<Self>) -> Duration {
        let pool = &self.sources.pool;
        if self.core.jobs.is_draining() {
            return LOOK_EVERY;
        }
        if self.core.jobs.is_drained() {
            self.end_waiting(pool.take_all(), "the server is drained");
            return LOOK_EVERY;
        }
        // Where it cannot be told, the next second may.
        let Ok(held) = self.sources.templates.current(BROWSER_TEMPLATE).await else {
            return LOOK_EVERY;
        };
        let origin = TemplateOrigin::of(held.as_ref());
        let stale = pool.take_stale(&origin, self.config.pool.max_age);
        self.end_waiting(stale, "it is not what sessions are made of any more");
        if self.sources.admission.check().is_err() {
            self.end_waiting(pool.give_up_half(), "the machine has too little left");
        }
        let is_room = self.sources.admission.check_beside(WAITING_MIB).is_ok();
        match pool.wait(&origin).filter(|_| is_room) {
            None => LOOK_EVERY,
            Some(wait) if !wait.is_zero() => wait.min(LOOK_EVERY),
            Some(_) => {
                let limits = held.as_ref().map(|held| held.record().limits).unwrap_or_default();
                let asked = LimitsRequest {
                    cpus: limits.cpus,
                    memory_mib: Some(self.memory_mib(None)),
                    ..LimitsRequest::default()
                };
                let limits = specification::limits(&asked, &self.config);
                let made = match limits {
                    Ok(limits) => self.make_waiting(&origin, limits).await,
                    Err(error) => Err(error),
                };
                if made.is_err() {
                    pool.note_failure();
                }
                Duration::ZERO
            }
        }
    }

    pub(super) fn end_waiting(&self, entries: Vec<Arc<SandboxEntry>>, why: &'static str) {
        for entry in entries {
            self.ender.end_in_background(&entry, EndCause::killed(why));
        }
    }

    /// Makes one that waits. The end of the daemon does not wait for it.
    async fn make_waiting(self: &Arc<Self>, origin: &TemplateOrigin, limits: SandboxLimits) -> Result<(), DaemonError> {
        let (service, origin) = (Arc::clone(self), origin.clone());
        let work = async move {
            let entry = service.sources.maker.make_for_browser(&origin, limits).await?;
            let started = service
                .core
                .jobs
                .unless_draining(service.start(&entry, &SessionSpec::default(), None))
                .await;
            match started.flatten() {
                Ok(stream) => {
                    service.put(entry, stream);
                    Ok(())
                }
                Err(error) => {
                    service.end_waiting(vec![entry], "its browser did not start");
                    Err(error)
                }
            }
        };
        self.core.jobs.detached(work).await
    }

    fn put(self: &Arc<Self>, entry: Arc<SandboxEntry>, stream: ExecStream) {
        let (weak, watched) = (Arc::downgrade(self), Arc::clone(&entry));
        let watch = tokio::spawn(async move {
            ended(stream).await;
            let Some(service) = weak.upgrade() else { return };
            let jobs = Arc::clone(&service.core.jobs);
            // Not here: taking it out ends this.
            jobs.spawn(async move {
                if service.sources.pool.forget(&watched) {
                    service.sources.pool.note_failure();
                    service.end_waiting(vec![watched], "its browser ended while it waited");
                }
            });
        });
        let unwanted = self.sources.pool.put(WaitingBrowser::new(entry, watch));
        self.end_waiting(unwanted.into_iter().collect(), "no more are to wait");
    }

    /// How many browsers wait.
    pub(crate) fn waiting(&self) -> usize {
        self.sources.pool.len()
    }

    /// Ends those that wait.
    pub(crate) fn end_pool(&self) {
        self.end_waiting(self.sources.pool.take_all(), "the daemon ended");
    }

    /// What a session has of memory that asks for `asked`, MiB.
    pub(super) fn memory_mib(&self, asked: Option<u64>) -> u64 {
        let (usual, most) = (self.config.default_limits.memory_mib, self.config.max_limits.memory_mib);
        asked.unwrap_or(usual.max(SESSION_MIB).min(most))
    }
}

/// Waits for the end of a browser; what it says is nobody's.
async fn ended(mut stream: ExecStream) {
    while let Ok(Some(news)) = stream.next().await {
        if matches!(news, ExecNews::Ended(_)) {
            return;
        }
    }
}
