//! Zygotes of templates: a sandbox each, in which an interpreter waits that has imported what code in contexts needs.
//!
//! One is made when sandboxes of a template are to have contexts that are ready, or when code is first run in a sandbox of
//! one that was built. Sandboxes that are made from then on lie below it and get copies of its process. It has neither
//! network nor owner, and is of one build of one template. It is in no record: its supervisor ends by itself when no daemon
//! follows it and nothing lies below it any more.

mod making;
mod table;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_core::log_level::LogLevel;
use offleash_core::spec::{ProcessRef, ZygoteRole};
use offleash_core::template::PythonModule;
use offleash_store::HeldTemplate;
use offleash_supervisor::service::client::ExecNews;
use offleash_supervisor::service::message::Selector;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;
use tokio::time::sleep;

use self::making::{MadeZygote, make};
use self::table::{StopRequest, ZygoteSlot, ZygoteTable};
use crate::admission::AdmissionControl;
use crate::config::DaemonConfig;
use crate::daemon_core::DaemonCore;
use crate::launch::Process;
use crate::leftovers::LeftoverRemover;
use crate::origin::TemplateOrigin;
use crate::pool::ReadyPool;
use crate::templates::TemplateStore;

/// How often it is looked at whether one is needed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The zygotes of all templates.
#[derive(Debug)]
pub(crate) struct ZygotePool {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    templates: Arc<TemplateStore>,
    /// What waits below one ends with it.
    pool: Arc<ReadyPool>,
    leftovers: Arc<LeftoverRemover>,
    table: ZygoteTable,
}

impl ZygotePool {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        templates: Arc<TemplateStore>,
        pool: Arc<ReadyPool>,
        leftovers: Arc<LeftoverRemover>,
    ) -> Self {
        Self {
            table: ZygoteTable::new(config.zygotes),
            core,
            config,
            admission,
            templates,
            pool,
            leftovers,
        }
    }

    /// Where a sandbox of this origin is to be made.
    pub(crate) fn descent(&self, origin: &TemplateOrigin) -> ZygoteRole {
        self.table.descent(origin)
    }

    /// Why there is none of a template, if one failed.
    pub(crate) fn why_none(&self, template: &str) -> Option<String> {
        self.table.why_none(template)
    }

    /// Waits until that of a template is ready, if one is being made.
    pub(crate) async fn settled(&self, template: &str) {
        self.table.settled(template).await;
    }

    /// Ends that of a template, with whatever lies below it, and waits until it is gone.
    pub(crate) async fn close(&self, template: &str) {
        self.table.close(template).await;
    }

    /// Has all end as soon as nothing lies below them any more.
    pub(crate) fn let_go(&self) {
        self.table.let_go();
    }

    /// The templates of which new sandboxes find one, and its first process.
    pub(crate) fn ready(&self) -> Vec<(String, ProcessRef)> {
        self.table.ready()
    }

    /// Code is about to be run in a sandbox of this template: sandboxes of it that are made later shall find a zygote.
    pub(crate) fn want(self: &Arc<Self>, template: &str) {
        if self.table.is_off() || self.core.jobs.is_draining() {
            return;
        }
        let Some(wait) = self.table.next_look(template, Instant::now()) else {
            return;
        };
        let (weak, template) = (Arc::downgrade(self), template.to_owned());
        tokio::spawn(async move {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let Some(zygotes) = weak.upgrade() else { return };
            // The base changes with the host, and has only what that has.
            if let Ok(Some(held)) = zygotes.templates.current(&template).await {
                zygotes.begin(&held);
            }
        });
    }

    /// Sandboxes of this template are wanted: if contexts in them shall be ready, so shall be a zygote.
    pub(crate) fn expect(self: &Arc<Self>, template: &HeldTemplate) {
        if self.imports_of(template).is_some() {
            self.begin(template);
        }
    }

    fn imports_of(&self, template: &HeldTemplate) -> Option<Vec<PythonModule>> {
        let record = template.record();
        let pool = &self.config.pool;
        pool.ready_imports(record.name.as_str(), Some(&record.recipe))
    }

    /// Has one made of a template, unless there is one.
    fn begin(self: &Arc<Self>, template: &HeldTemplate) {
        if self.table.is_off() || self.core.jobs.is_draining() || self.admission.check().is_err() {
            return;
        }
        let imports = self.imports_of(template).unwrap_or_default();
        let origin = TemplateOrigin::of(Some(template));
        if let Some((slot, stopped)) = self.table.begin(&origin) {
            let weak = Arc::downgrade(self);
            tokio::spawn(async move { live(&weak, &origin, &slot, &imports, stopped).await });
        }
    }

    /// One was not made, or has ended by itself; told once.
    fn note_failure(&self, slot: &ZygoteSlot, lived: Duration, why: &str, told: (&str, String)) {
        if self.table.fail(slot, lived, why) {
            let (id, line) = told;
            self.core.registry.log(id, LogLevel::Warn, line);
        }
    }

    /// Whether a sandbox that no record speaks of is a zygote of an earlier daemon that sandboxes lie below. Then what it
    /// leaves is removed when it ends.
    pub(crate) async fn is_left(&self, id: &RunId) -> bool {
        let Ok(hello) = self.core.host.supervisor(id).hello().await else {
            return false;
        };
        let pid = i32::try_from(hello.pid)
            .ok()
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw);
        let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
            return false;
        };
        let (weak, id) = (Arc::downgrade(&self.leftovers), id.clone());
        tokio::spawn(async move {
            let _watched = Process::new(process).ended().await;
            if let Some(leftovers) = weak.upgrade() {
                leftovers.remove(&id).await;
            }
        });
        true
    }
}

/// The life of one, from its slot among all to its end.
async fn live(
    weak: &Weak<ZygotePool>,
    origin: &TemplateOrigin,
    slot: &ZygoteSlot,
    imports: &[PythonModule],
    mut stopped: watch::Receiver<StopRequest>,
) {
    let Some(zygotes) = weak.upgrade() else { return };
    let made = match make(&zygotes, origin, imports).await {
        Ok(made) => made,
        Err((id, why)) => {
            let line = format!("no zygote of template `{}` was made: {why}", origin.template);
            let told = (id.as_ref().map_or("", RunId::as_str), line);
            zygotes.note_failure(slot, Duration::ZERO, &why, told);
            return;
        }
    };
    let MadeZygote {
        id,
        supervisor,
        process,
        mut stream,
        first,
    } = made;
    let since = Instant::now();
    zygotes.table.is_ready(slot, first);
    // Those that were made before it, or below another one, which may be gone.
    zygotes.pool.retire(&origin.template, |zygote| zygote != Some(first));
    drop(zygotes);
    let mut has_failed = false;
    loop {
        tokio::select! {
            news = stream.next() => {
                // What it writes is of no use; its end is none that we asked for.
                has_failed = !matches!(news, Ok(Some(ExecNews::Output { .. })));
                if has_failed {
                    break;
                }
            }
            changed = stopped.changed() => {
                if changed.is_err() {
                    // The daemon is gone, and its sandboxes go on.
                    return;
                }
                if *stopped.borrow() != StopRequest::None {
                    break;
                }
            }
            () = sleep(LOOK_EVERY) => {
                if weak.upgrade().is_none_or(|zygotes| zygotes.table.is_idle(slot)) {
                    break;
                }
            }
        }
    }
    if let Some(zygotes) = weak.upgrade() {
        zygotes.table.is_closed(slot);
        // Their interpreters end with it, or cannot be had anew.
        zygotes.pool.retire(&origin.template, |zygote| zygote == Some(first));
    }
    let at_once = *stopped.borrow() == StopRequest::AtOnce;
    if at_once {
        // One that is gone already is what was wanted.
        let _ended = supervisor.kill().await;
    } else {
        // Copies go on, and it with them.
        let _told = supervisor.close_input(&Selector::Pid(stream.pid())).await;
    }
    drop(stream);
    if !at_once && let Some(zygotes) = weak.upgrade() {
        // Another one may be made while sandboxes lie below this one.
        if has_failed {
            let why = "it ended";
            let line = format!("the zygote of template `{}`: {why}", origin.template);
            zygotes.note_failure(slot, since.elapsed(), why, (id.as_str(), line));
        } else {
            zygotes.table.end(slot);
        }
    }
    let _watched = process.ended().await;
    let Some(zygotes) = weak.upgrade() else { return };
    zygotes.leftovers.remove(&id).await;
    if at_once {
        zygotes.table.end(slot);
    }
}
