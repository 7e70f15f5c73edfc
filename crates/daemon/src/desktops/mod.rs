//! Desktops: sandboxes in which an X server runs that viewers look at and drive.
//!
//! A desktop is a sandbox with the label [`DESKTOP_LABEL`], which says what was asked for, and so it is there after the daemon
//! was started again. Beside it, files of the state directory keep who had it and what was recorded; how it ended is what the
//! registry knows of its sandbox. Deliberately not here: what is said to a screen (`desktop`), and how viewers get to it, which
//! is traffic to a port.

mod keeping;
mod starting;
mod view;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use offleash_desktop::{DISPLAY, DesktopOptions};

use self::view::DesktopSpec;
pub use self::view::DesktopView;
use self::watching::LiveDesktop;
use crate::caller::Caller;
use crate::config::DaemonConfig;
use crate::creating::SandboxCreator;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::lifecycle::LifecycleRequest;
use crate::origin::BASE_TEMPLATE;
use crate::request::{CreateRequest, DESKTOP_LABEL, LimitsRequest, NetworkSettings};
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;
use crate::view::SandboxView;

/// The template of a desktop that names none, where there is one of that name.
const DESKTOP_TEMPLATE: &str = "desktop";
/// What a desktop has of memory whose creator does not say, MiB, if anybody may have that.
const USUAL_MEMORY_MIB: u64 = 1024;

/// A desktop that is asked for.
#[derive(Debug, Clone, Default)]
pub struct DesktopRequest {
    /// The template; `desktop` where there is one, or else `base`, if `None`.
    pub template: Option<String>,
    /// What its screen is like.
    pub options: DesktopOptions,
    /// How long it may last, seconds; the daemon's default if `None`.
    pub timeout_seconds: Option<u64>,
    /// Whether pictures of its screen are kept.
    pub record: bool,
    /// What it may reach.
    pub network: NetworkSettings,
    /// What it may use.
    pub limits: LimitsRequest,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
}

/// Desktops, and what goes on with each.
#[derive(Debug)]
pub(crate) struct DesktopService {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    creator: Arc<SandboxCreator>,
    ender: Arc<SandboxEnder>,
    /// Those that are watched, by id.
    live: Mutex<BTreeMap<String, LiveDesktop>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DesktopService {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        creator: Arc<SandboxCreator>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            config,
            creator,
            ender,
            live: Mutex::default(),
        }
    }

    /// Makes a desktop, and answers when its screen can be looked at.
    ///
    /// # Errors
    /// Those of a sandbox, `NoDesktop`, `DesktopFailed`.
    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        request: DesktopRequest,
    ) -> Result<DesktopView, DaemonError> {
        let spec = DesktopSpec {
            options: request.options,
            record: request.record,
        };
        let made = self.make_sandbox(caller, request, spec).await?;
        let entry = self.core.sandboxes.find(caller, &made.id)?;
        let service = Arc::clone(self);
        let work = async move {
            match service.start(&entry, spec).await {
                Ok(()) => {
                    service.keep_record(&entry).await?;
                    service.watch(&entry, spec)?;
                    service.view_of(&entry)
                }
                Err(error) => {
                    let cause = EndCause::killed("its desktop did not start");
                    service.ender.end_in_background(&entry, cause);
                    Err(error)
                }
            }
        };
        self.core.jobs.detached(work).await
    }

    async fn make_sandbox(
        &self,
        caller: &Caller,
        request: DesktopRequest,
        spec: DesktopSpec,
    ) -> Result<SandboxView, DaemonError> {
        let named = request.template.clone();
        let asked = self.sandbox_request(request, spec);
        let of = |template: &str| CreateRequest {
            template: template.to_owned(),
            ..asked.clone()
        };
        let first = named.as_deref().unwrap_or(DESKTOP_TEMPLATE);
        match (self.creator.create(caller, of(first)).await, named.as_deref()) {
            // Programs of the machine's own are seen in every sandbox over its system.
            (Err(DaemonError::UnknownTemplate { .. }), None) => self.creator.create(caller, of(BASE_TEMPLATE)).await,
            (Err(DaemonError::UnknownTemplate { .. }), Some(DESKTOP_TEMPLATE)) => Err(SessionError::NoDesktop {
                template: DESKTOP_TEMPLATE.to_owned(),
                why: "it is not built".to_owned(),
            }
            .into()),
            (made, _) => made,
        }
    }

    fn sandbox_request(&self, request: DesktopRequest, spec: DesktopSpec) -> CreateRequest {
        let (usual, most) = (self.config.default_limits.memory_mib, self.config.max_limits.memory_mib);
        let memory_mib = request
            .limits
            .memory_mib
            .unwrap_or(usual.max(USUAL_MEMORY_MIB).min(most));
        CreateRequest {
            timeout_seconds: request.timeout_seconds,
            metadata: request.metadata,
            // So that whatever is started in it is seen on its screen.
            env: BTreeMap::from([("DISPLAY".to_owned(), DISPLAY.to_owned())]),
            network: NetworkSettings {
                // Who has the token of the desktop gets to its screen, and nobody else to any port.
                allow_public_traffic: Some(false),
                ..request.network
            },
            // A screen is not made again where it was.
            lifecycle: LifecycleRequest {
                idle: Some(Duration::ZERO),
                ..LifecycleRequest::default()
            },
            limits: LimitsRequest {
                memory_mib: Some(memory_mib),
                ..request.limits
            },
            desktop: Some(spec.to_label()),
            ..CreateRequest::default()
        }
    }

    /// A living desktop of the caller's.
    fn find(&self, caller: &Caller, id: &str) -> Result<Arc<SandboxEntry>, DaemonError> {
        let unknown = || DaemonError::from(SessionError::UnknownDesktop { id: id.to_owned() });
        let entry = self.core.sandboxes.find(caller, id).map_err(|_| unknown())?;
        spec_of(&entry).map(|_| entry).ok_or_else(unknown)
    }

    fn view_of(&self, entry: &SandboxEntry) -> Result<DesktopView, DaemonError> {
        let found = entry.view().zip(spec_of(entry));
        let unknown = || SessionError::UnknownDesktop {
            id: entry.name().to_owned(),
        };
        let (view, spec) = found.ok_or_else(unknown)?;
        Ok(DesktopView::of(view, spec))
    }

    /// The caller's desktops, the newest first: those that live, and those that ended as far as they are kept.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) async fn list(&self, caller: &Caller) -> Result<Vec<DesktopView>, DaemonError> {
        let mut all = Vec::new();
        for entry in self.core.sandboxes.all() {
            let is_seen = entry.read(|facts| facts.visible_state().is_some() && caller.sees(facts.key_id()));
            if is_seen && let Ok(view) = self.view_of(&entry) {
                all.push(view);
            }
        }
        let live: BTreeSet<String> = all.iter().map(|view: &DesktopView| view.id.clone()).collect();
        let kept = self.kept_records().await?.into_iter();
        for record in kept.filter(|record| !live.contains(&record.id) && caller.sees(Some(&record.owner))) {
            let end = self.end_on_record(&record).await;
            all.push(record.into_view(end));
        }
        let newest = |one: &DesktopView, other: &DesktopView| other.created_at.cmp(&one.created_at);
        all.sort_by(|one, other| newest(one, other).then_with(|| one.id.cmp(&other.id)));
        Ok(all)
    }

    /// A desktop of the caller's, which may have ended.
    ///
    /// # Errors
    /// `UnknownDesktop`, `Host`.
    pub(crate) async fn get(&self, caller: &Caller, id: &str) -> Result<DesktopView, DaemonError> {
        match self.find(caller, id).and_then(|entry| self.view_of(&entry)) {
            Ok(view) => Ok(view),
            Err(_) => {
                let record = self.kept_of(caller, id).await?;
                let end = self.end_soon_on_record(&record).await;
                Ok(record.into_view(end))
            }
        }
    }

    /// Ends a desktop of the caller's. No process of it is left when this returns.
    ///
    /// # Errors
    /// `UnknownDesktop`, `Host`.
    pub(crate) async fn release(self: &Arc<Self>, caller: &Caller, id: &str) -> Result<DesktopView, DaemonError> {
        let (entry, service) = (self.find(caller, id)?, Arc::clone(self));
        let cause = EndCause::killed(format!("released by {}", crate::history::who(caller)));
        let work = async move {
            drop(locked(&service.live).remove(entry.name()));
            service.ender.end_unless_ending(&entry, cause).await;
            Ok(())
        };
        self.core.jobs.detached(work).await?;
        self.get(caller, id).await
    }
}

/// What was asked for, if a sandbox is a desktop.
fn spec_of(entry: &SandboxEntry) -> Option<DesktopSpec> {
    entry.read(|facts| {
        let label = facts.row().metadata.get(DESKTOP_LABEL)?;
        DesktopSpec::of_label(label)
    })
}
