//! Fills the pool of ready sandboxes in the background: a few at a time, when nobody waits for one that is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::admission::AdmissionControl;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::making::SandboxMaker;
use crate::origin::TemplateOrigin;
use crate::pool::{PoolOutcome, ReadyPool};
use crate::registry::SandboxState;
use crate::sandboxes::SandboxEntry;
use crate::templates::TemplateStore;
use crate::zygotes::ZygotePool;

/// How often the number is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Fills the pool.
#[derive(Debug)]
pub(crate) struct PoolFiller {
    core: DaemonCore,
    admission: Arc<AdmissionControl>,
    pool: Arc<ReadyPool>,
    templates: Arc<TemplateStore>,
    zygotes: Arc<ZygotePool>,
    maker: Arc<SandboxMaker>,
    ender: Arc<SandboxEnder>,
}

impl PoolFiller {
    pub(crate) fn new(
        core: DaemonCore,
        admission: Arc<AdmissionControl>,
        pool: Arc<ReadyPool>,
        templates: Arc<TemplateStore>,
        zygotes: Arc<ZygotePool>,
        maker: Arc<SandboxMaker>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            admission,
            pool,
            templates,
            zygotes,
            maker,
            ender,
        }
    }

    /// Begins to fill the pool, until the daemon is gone.
    pub(crate) fn start(self: &Arc<Self>) {
        if self.pool.is_off() {
            // An earlier daemon may have had one.
            self.end_all(self.pool.take_all(), "the pool is switched off");
            return;
        }
        let (weak, wanted) = (Arc::downgrade(self), self.pool.wanted());
        tokio::spawn(async move {
            let mut making: JoinSet<()> = JoinSet::new();
            let mut looked: Option<Instant> = None;
            loop {
                let Some(filler) = weak.upgrade() else { return };
                while making.try_join_next().is_some() {}
                if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
                    looked = Some(Instant::now());
                    filler.look().await;
                }
                let mut wait = filler.pool.wait();
                if wait.is_zero() {
                    wait = LOOK_EVERY;
                    if filler.core.jobs.makes_ahead() {
                        filler.fill(&mut making);
                    }
                }
                drop(filler);
                // A member that is ready, one that was taken, or the time.
                tokio::select! {
                    _ = timeout(wait, wanted.notified()) => {}
                    Some(_) = making.join_next() => {}
                }
            }
        });
    }

    /// What is to be done each second.
    async fn look(&self) {
        if self.core.jobs.is_drained() {
            self.end_all(self.pool.take_all(), "the server is drained");
        }
        self.pool.age();
        for name in self.pool.templates() {
            // Where it cannot be told, the next second may.
            if let Ok(found) = self.templates.current(&name).await {
                match found {
                    Some(held) => {
                        self.pool.note_current(&TemplateOrigin::of(Some(&held)));
                        self.zygotes.expect(&held);
                    }
                    None => self.pool.note_gone(&name),
                }
            }
        }
        self.end_all(self.pool.surplus(), "too many wait");
        if self.admission.check().is_err() {
            self.end_all(self.pool.give_up_half(), "the machine has too little left");
        }
    }

    fn end_all(&self, entries: Vec<Arc<SandboxEntry>>, why: &'static str) {
        for entry in entries {
            self.ender.end_in_background(&entry, EndCause::killed(why));
        }
    }

    fn fill(self: &Arc<Self>, making: &mut JoinSet<()>) {
        while making.len() < self.pool.max_creating() {
            let Some(origin) = self.pool.next() else { return };
            // What the machine has left is for those who wait for it.
            if self.admission.check_beside(self.pool.expected_mib()).is_err() {
                let _nothing = self.pool.finish(&origin, PoolOutcome::Deferred);
                return;
            }
            let filler = Arc::clone(self);
            // Until it is in the pool, where the end of the daemon finds it.
            let job = self.core.jobs.begin();
            making.spawn(async move {
                let made = filler.make(&origin).await;
                filler.put(&origin, made).await;
                drop(filler);
                drop(job);
            });
        }
    }

    async fn make(self: &Arc<Self>, origin: &TemplateOrigin) -> Result<Arc<SandboxEntry>, DaemonError> {
        let (filler, origin) = (Arc::clone(self), origin.clone());
        let work = async move {
            let template = filler.templates.current(&origin.template).await?;
            filler.maker.make_ahead(&origin, template.as_ref()).await
        };
        self.core.jobs.detached(work).await
    }

    /// Puts what was made into the pool, if it is still what is wanted there.
    async fn put(&self, origin: &TemplateOrigin, made: Result<Arc<SandboxEntry>, DaemonError>) {
        let mut ready = None;
        let outcome = match made {
            Ok(entry) if entry.state() != SandboxState::Running => PoolOutcome::Failed,
            Ok(entry) => {
                let memory_mib = self.memory_mib(&entry).await;
                // Asked last: what is outdated from here on is found in the pool by whoever made it so.
                if self.is_current(origin).await && self.has_its_zygote(&entry, origin) {
                    ready = Some(Arc::clone(&entry));
                    PoolOutcome::Ready(entry, memory_mib)
                } else {
                    PoolOutcome::Outdated(entry)
                }
            }
            Err(_) => PoolOutcome::Failed,
        };
        let unwanted = self.pool.finish(origin, outcome);
        // A zygote that came or went between the question and the pool has not found it there.
        if let Some(entry) = ready.filter(|entry| !self.has_its_zygote(entry, origin)) {
            let below = entry.zygote();
            self.pool.retire(&origin.template, |zygote| zygote == below);
        }
        self.end_all(unwanted.into_iter().collect(), "its template has changed");
    }

    /// What a sandbox that waits holds of the machine's memory, without what can be had back.
    async fn memory_mib(&self, entry: &SandboxEntry) -> u64 {
        let usage = self.core.host.supervisor(entry.id()).usage().await;
        usage.map_or(0, |usage| {
            usage.memory_bytes.saturating_sub(usage.memory_cache_bytes) >> 20
        })
    }

    /// Whether a sandbox that was made for `origin` lies below the zygote that there is now, or below none if there is none.
    fn has_its_zygote(&self, entry: &SandboxEntry, origin: &TemplateOrigin) -> bool {
        entry.zygote() == self.zygotes.descent(origin).zygote()
    }

    /// Whether a sandbox that was made for `origin` is of it: its supervisor took what was there then.
    async fn is_current(&self, origin: &TemplateOrigin) -> bool {
        if origin.build.is_none() {
            return true;
        }
        let found = self.templates.current(&origin.template).await;
        found.is_ok_and(|found| found.is_some_and(|held| TemplateOrigin::of(Some(&held)) == *origin))
    }
}
