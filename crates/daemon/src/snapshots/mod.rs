//! Snapshots of sandboxes: what one had written at one moment, of which others are made.
//!
//! A snapshot lies below the layers of the sandboxes made of it, and above the template. It is in the registry before there is
//! anything of it, and ready there when it is whole; what is half made the next daemon removes. One that is removed is
//! nobody's at once, and its files go when the last sandbox that uses them has ended. Deliberately not here: copying.

mod archives;
mod automatic;
mod checkpoints;
mod copier;
mod view;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use offleash_core::id::SandboxName;
use offleash_core::log_level::LogLevel;
use offleash_core::units::Bytes;
use offleash_interpreter::state::SavedContext;
use offleash_planner::base::SnapshotOrder;
use offleash_store::HeldSnapshot;
use offleash_supervisor::clock::own_ms;
use offleash_supervisor::service::order::MAX_FILES;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant as Deadline, timeout_at};

use self::archives::ArchivePlaces;
pub use self::archives::{SnapshotExport, SnapshotImport};
pub(crate) use self::automatic::AutomaticCheckpoints;
pub(crate) use self::checkpoints::CheckpointStore;
use self::copier::SnapshotCopier;
pub use self::view::{SnapshotFilter, SnapshotPage, SnapshotView};
use crate::admission::AdmissionControl;
use crate::caller::Caller;
use crate::carrying::CarriedContexts;
use crate::config::DaemonConfig;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::history::who;
use crate::origin::BASE_TEMPLATE;
use crate::origins::OriginFinder;
use crate::random;
use crate::registry::{Change, Registry, SnapshotKind, SnapshotRow, SnapshotState};
use crate::request::CreateRequest;
use crate::sandboxes::SandboxEntry;
use crate::specification::Specification;
use crate::still::StillSources;
use crate::template_names;
use crate::templates::TemplateStore;
use crate::view::SandboxLimits;

/// How many are copied at a time.
const MAX_COPYING: usize = 2;
/// How long copying may take while the sandbox goes on.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);

/// A snapshot that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// What it is called; the snapshot that the key had under that name has none any more.
    pub name: Option<SandboxName>,
    /// What sandboxes made of it have of the contexts of code.
    pub contexts: CarriedContexts,
}

/// What is kept of the sandbox beside what the registry has columns for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SnapshotSpec {
    build: Option<String>,
    env: BTreeMap<String, String>,
    limits: SandboxLimits,
    contexts: Vec<SavedContext>,
    /// Why it was made, if by itself, as in `every 600 s`.
    #[serde(default)]
    automatic: Option<String>,
}

/// What a sandbox that is about to be made of a snapshot gets of it.
#[derive(Debug)]
pub(crate) struct CreateBasis {
    pub(crate) id: String,
    pub(crate) held: HeldSnapshot,
    pub(crate) saved: Vec<SavedContext>,
    build: Option<String>,
}

impl CreateBasis {
    /// Which build of its template it lies over, or the digest of the image.
    pub(crate) fn build(&self) -> Option<&str> {
        self.build.as_deref()
    }

    /// Fails if the template is another build than the snapshot lies over.
    ///
    /// # Errors
    /// `SnapshotUnusable`.
    pub(crate) fn check(&self, specification: &Specification) -> Result<(), DaemonError> {
        if specification.build == self.build {
            return Ok(());
        }
        // What was written says nothing of what lies below.
        Err(DaemonError::SnapshotUnusable {
            id: self.id.clone(),
            why: "is of another build of its template than there is now".to_owned(),
        })
    }
}

/// Makes snapshots, knows and removes them.
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    templates: Arc<TemplateStore>,
    origins: Arc<OriginFinder>,
    still: Arc<StillSources>,
    places: Semaphore,
    archives: ArchivePlaces,
    /// Held while one more is counted and noted, so that two do not both find room for the last one.
    noting: tokio::sync::Mutex<()>,
}

/// What is asked of a copy.
struct CopyRequest {
    kind: SnapshotKind,
    name: Option<String>,
    parent: Option<String>,
    contexts: CarriedContexts,
    automatic: Option<String>,
}

impl SnapshotStore {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        templates: Arc<TemplateStore>,
        origins: Arc<OriginFinder>,
        still: Arc<StillSources>,
    ) -> Self {
        Self {
            core,
            config,
            admission,
            templates,
            origins,
            still,
            places: Semaphore::new(MAX_COPYING),
            archives: ArchivePlaces::default(),
            noting: tokio::sync::Mutex::default(),
        }
    }

    /// Makes a snapshot of a sandbox, running or paused.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `Conflict` if it does not run or is changed meanwhile, `QuotaExceeded`, `Overloaded`, `Draining`,
    /// `Contexts` where they cannot be carried, `NotCopied`, `Short`, `Supervisor`. There is no snapshot then.
    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        request: SnapshotRequest,
    ) -> Result<SnapshotView, DaemonError> {
        let source = self.core.sandboxes.find(caller, id)?;
        if let Some(name) = &request.name {
            self.check_name(caller, name.as_str()).await?;
        }
        let (store, caller) = (Arc::clone(self), caller.clone());
        let work = async move {
            let asked = CopyRequest {
                kind: SnapshotKind::Snapshot,
                name: request.name.map(|name| name.as_str().to_owned()),
                parent: None,
                contexts: request.contexts,
                automatic: None,
            };
            let row = store.copy(&source, &caller, asked).await?;
            let line = format!("{} made snapshot `{}` of it", who(&caller), row.id);
            store.core.registry.log(source.name(), LogLevel::Info, line);
            Ok(SnapshotView::of(&row))
        };
        self.core.jobs.detached(work).await
    }

    /// A name of a template means that, also of one that the caller built. What could be an id is no name: the template or the
    /// snapshot of that id may be another key's, or not be there yet.
    async fn check_name(&self, caller: &Caller, name: &str) -> Result<(), DaemonError> {
        if template_names::is_id(name) || random::is_snapshot_id(name) {
            return Err(DaemonError::invalid("name", "could be an id; choose another one"));
        }
        let registry = &self.core.registry;
        let built = registry.look_up(|registry| registry.built_template(&caller.key_id, name))?;
        match self.is_template(name).await || built.is_some() {
            true => Err(DaemonError::invalid("name", "is that of a template")),
            false => Ok(()),
        }
    }

    async fn is_template(&self, name: &str) -> bool {
        name == BASE_TEMPLATE || self.templates.has(name).await.unwrap_or(false)
    }

    /// Copies what a sandbox has written. What is half made when that fails is removed.
    async fn copy(
        &self,
        source: &Arc<SandboxEntry>,
        caller: &Caller,
        asked: CopyRequest,
    ) -> Result<SnapshotRow, DaemonError> {
        if self.core.jobs.is_draining() {
            return Err(DaemonError::Draining);
        }
        self.still.check(source)?;
        self.admission.check()?;
        let noting = self.noting.lock().await;
        let (row, before) = self.new_row(source, caller, &asked)?;
        let noted = vec![Change::AddSnapshot(Box::new(row.clone()))];
        self.core.registry.apply(noted).await?;
        drop(noting);
        let id = row.id.clone();
        let copied = self.carry_out(source, asked.contexts, row, before).await;
        if copied.is_err() {
            // On a full disk its record stays; the next daemon, or the next round, removes both.
            let _released = self
                .core
                .registry
                .apply(vec![Change::ReleaseSnapshot(id.clone())])
                .await;
            self.remove_files(&id).await;
        }
        copied
    }

    /// The record of a new one, and the one of the same sandbox that was made before.
    fn new_row(
        &self,
        source: &SandboxEntry,
        caller: &Caller,
        asked: &CopyRequest,
    ) -> Result<(SnapshotRow, Option<String>), DaemonError> {
        let (sandbox, specification) = (source.row(), source.specification());
        let owner = match asked.kind {
            SnapshotKind::Snapshot => caller.key_id.clone(),
            SnapshotKind::Checkpoint => sandbox.key_id.clone().unwrap_or_default(),
        };
        let of_owner = self
            .core
            .registry
            .look_up(|registry| registry.snapshots_of_key(&owner))?;
        let of_sandbox = self
            .core
            .registry
            .look_up(|registry| registry.snapshots_of_sandbox(&sandbox.id))?;
        self.check_quota(asked.kind, &of_owner, &of_sandbox)?;
        let before = of_sandbox.iter().rev().find(|row| row.state == SnapshotState::Ready);
        let spec = SnapshotSpec {
            build: specification.build.clone(),
            env: specification.env.clone(),
            limits: specification.limits,
            contexts: Vec::new(),
            automatic: asked.automatic.clone(),
        };
        let row = SnapshotRow {
            id: random::snapshot_id()?.as_str().to_owned(),
            key_id: owner,
            kind: asked.kind,
            sandbox: sandbox.id,
            name: asked.name.clone(),
            state: SnapshotState::Making,
            template: sandbox.template,
            spec: to_json(&spec),
            parent: asked.parent.clone(),
            bytes: 0,
            files: 0,
            held_us: 0,
            created_ms: own_ms(),
        };
        Ok((row, before.map(|row| row.id.clone())))
    }

    fn check_quota(
        &self,
        kind: SnapshotKind,
        of_owner: &[SnapshotRow],
        of_sandbox: &[SnapshotRow],
    ) -> Result<(), DaemonError> {
        let lives = |row: &&SnapshotRow| row.kind == kind && row.state != SnapshotState::Removing;
        let config = &self.config.snapshots;
        let bytes: u64 = of_owner.iter().map(|row| row.bytes).sum();
        let (what, quota, used) = match kind {
            SnapshotKind::Snapshot => ("snapshots", config.max, of_owner.iter().filter(lives).count()),
            SnapshotKind::Checkpoint => (
                "checkpoints of a sandbox",
                config.max_checkpoints,
                of_sandbox.iter().filter(lives).count(),
            ),
        };
        let rows = [
            (what, quota, u64::try_from(used).unwrap_or(u64::MAX), 1),
            ("MiB of snapshots", config.max_mib, bytes >> 20, 0),
        ];
        for (what, quota, used, asked) in rows {
            if used.saturating_add(asked) > quota {
                return Err(DaemonError::QuotaExceeded {
                    what,
                    quota,
                    used,
                    asked,
                });
            }
        }
        Ok(())
    }

    async fn carry_out(
        &self,
        source: &Arc<SandboxEntry>,
        contexts: CarriedContexts,
        mut row: SnapshotRow,
        before: Option<String>,
    ) -> Result<SnapshotRow, DaemonError> {
        let id = |text: &str| text.parse().ok();
        let specification = source.specification();
        let order = SnapshotOrder {
            state: self.core.host.state_text(),
            from: source.id().clone(),
            below: specification.snapshot.as_deref().and_then(id),
            before: before.as_deref().and_then(id),
            to: row.id.parse().map_err(|_| DaemonError::not_found(&row.id))?,
            bytes: Bytes::mib(specification.limits.disk_mib).0,
            entries: MAX_FILES,
            is_durable: row.kind == SnapshotKind::Snapshot,
        };
        let until = Deadline::now() + COPY_TIMEOUT;
        let place = timeout_at(until, self.places.acquire()).await;
        let _place = place.ok().and_then(Result::ok).ok_or(DaemonError::Overloaded {
            what: "places for snapshots",
            retry_after: Duration::from_secs(1),
        })?;
        let failed = |error| DaemonError::of_supervisor("make a snapshot of a sandbox", source.name(), error);
        self.admission.check_disk(self.still.disk_bytes(source).await?)?;
        let process = source.supervisor_process();
        let mut copier = SnapshotCopier::start(self.core.host.program(), &order)?;
        let too_slow = || DaemonError::NotCopied {
            id: source.name().to_owned(),
            why: format!("it takes longer than {} s", COPY_TIMEOUT.as_secs()),
            kind: offleash_core::error::ErrorKind::Unavailable,
        };
        timeout_at(until, copier.ready()).await.map_err(|_| too_slow())??;
        // Cells may take long, and whoever ends the sandbox meanwhile shall not wait for them.
        let saved = self.still.save(source, contexts).await?;
        let turn = source.turn_soon().await?;
        if source.supervisor_process() != process {
            return Err(DaemonError::conflict(
                source.name(),
                "was put back, put away or woken meanwhile",
            ));
        }
        let begun = Instant::now();
        let held = self.still.hold(source, &turn).await?;
        let copied = timeout_at(Deadline::now() + self.config.forks.copy, copier.copy_rest()).await;
        let still = held.release().await;
        row.held_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        drop(turn);
        (row.bytes, row.files) = copied.map_err(|_| too_slow())??;
        still.map_err(failed)?;
        copier.kept().await?;
        if let Some(mut spec) = from_json(&row.spec) {
            spec.contexts = saved.saved().to_vec();
            row.spec = to_json(&spec);
        }
        drop(saved);
        row.state = SnapshotState::Ready;
        self.core
            .registry
            .apply(vec![Change::CompleteSnapshot(Box::new(row.clone()))])
            .await?;
        Ok(row)
    }

    /// A snapshot of which sandboxes are to be made, if the request means one: the request is completed by what it says.
    ///
    /// # Errors
    /// `UnknownSnapshot`, `SnapshotUnusable`, `Host`, `Store`.
    pub(crate) async fn begin_create(
        &self,
        caller: &Caller,
        request: &mut CreateRequest,
    ) -> Result<Option<CreateBasis>, DaemonError> {
        let row = match &request.snapshot {
            Some(which) => self.find(caller, which)?,
            // A name that both have is the template's.
            None if self.is_template(&request.template).await => return Ok(None),
            None => match self.find(caller, &request.template) {
                Err(DaemonError::UnknownSnapshot { .. }) => return Ok(None),
                found => found?,
            },
        };
        let unusable = |why: &str| DaemonError::SnapshotUnusable {
            id: row.id.clone(),
            why: why.to_owned(),
        };
        let spec = from_json(&row.spec).ok_or_else(|| unusable("was made by another version of offleash"))?;
        let held = self.core.host.hold_snapshot(Some(&row.id)).await?;
        let held = held.ok_or_else(|| unusable("is not there any more"))?;
        request.template.clone_from(&row.template);
        for (name, value) in spec.env {
            request.env.entry(name).or_insert(value);
        }
        let limits = &mut request.limits;
        limits.cpus.get_or_insert(spec.limits.cpus);
        limits.memory_mib.get_or_insert(spec.limits.memory_mib);
        limits.disk_mib.get_or_insert(spec.limits.disk_mib);
        limits.pids.get_or_insert(spec.limits.pids);
        Ok(Some(CreateBasis {
            id: row.id,
            held,
            saved: spec.contexts,
            build: spec.build,
        }))
    }

    /// The caller's snapshots that a filter means, the newest first.
    ///
    /// # Errors
    /// `Invalid`, `Store`.
    pub(crate) fn list(&self, caller: &Caller, filter: &SnapshotFilter) -> Result<SnapshotPage, DaemonError> {
        let mut all = self.visible(caller)?;
        all.reverse();
        view::page(all, filter)
    }

    /// One of the caller's snapshots.
    ///
    /// # Errors
    /// `UnknownSnapshot`, `Store`.
    pub(crate) fn get(&self, caller: &Caller, which: &str) -> Result<SnapshotView, DaemonError> {
        Ok(SnapshotView::of(&self.find(caller, which)?))
    }

    /// Those that the caller may know of, the oldest first.
    fn visible(&self, caller: &Caller) -> Result<Vec<SnapshotRow>, DaemonError> {
        let all = self.core.registry.look_up(Registry::all_snapshots)?;
        Ok(all.into_iter().filter(|row| is_visible(row, caller)).collect())
    }

    /// By id, or by the name that the caller's own has.
    fn find(&self, caller: &Caller, which: &str) -> Result<SnapshotRow, DaemonError> {
        // E2B's clients write the tag that every name has.
        let which = which.strip_suffix(":default").unwrap_or(which);
        let called = self
            .core
            .registry
            .look_up(|registry| registry.snapshots_called(which))?;
        let is_it = |row: &SnapshotRow| is_visible(row, caller) && (row.id == which || caller.is(Some(&row.key_id)));
        called
            .into_iter()
            .find(is_it)
            .ok_or_else(|| DaemonError::UnknownSnapshot { name: which.to_owned() })
    }

    /// Removes a snapshot: nothing is made of it any more. Its files go with the last sandbox that uses them.
    ///
    /// # Errors
    /// `UnknownSnapshot`, `Store`.
    pub(crate) async fn remove(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        let row = self.find(caller, which)?;
        self.release(&row.id).await
    }

    async fn release(&self, id: &str) -> Result<(), DaemonError> {
        self.core
            .registry
            .apply(vec![Change::ReleaseSnapshot(id.to_owned())])
            .await?;
        self.remove_files(id).await;
        Ok(())
    }

    /// Removes what there is of one that is nobody's, and its record, unless somebody uses it.
    async fn remove_files(&self, id: &str) {
        let is_gone = match id.parse() {
            Ok(id) => self.core.host.remove_snapshot(&id).await,
            // No directory has such a name.
            Err(_) => true,
        };
        if is_gone {
            let removed = vec![Change::RemoveSnapshot(id.to_owned())];
            // On a full disk it is found again.
            let _removed = self.core.registry.apply(removed).await;
        }
    }

    /// Removes those that are nobody's and that no sandbox uses any more.
    pub(crate) async fn remove_released(&self) {
        let all = self.core.registry.look_up(Registry::all_snapshots).unwrap_or_default();
        for row in all.iter().filter(|row| row.state == SnapshotState::Removing) {
            self.remove_files(&row.id).await;
        }
    }

    /// Removes what the daemon before left half made, and directories that no record speaks of.
    ///
    /// # Errors
    /// `Store`, `Host`.
    pub(crate) async fn clean_up(&self) -> Result<(), DaemonError> {
        let all = self
            .core
            .registry
            .read("read the registry", Registry::all_snapshots)
            .await?;
        let sandboxes: HashSet<String> = self
            .core
            .sandboxes
            .all()
            .iter()
            .map(|entry| entry.name().to_owned())
            .collect();
        let mut known = HashSet::new();
        for row in all {
            let is_lost = row.kind == SnapshotKind::Checkpoint && !sandboxes.contains(&row.sandbox);
            if row.state == SnapshotState::Making || is_lost && row.state == SnapshotState::Ready {
                let released = vec![Change::ReleaseSnapshot(row.id.clone())];
                self.core.registry.apply(released).await?;
            }
            known.insert(row.id);
        }
        self.remove_released().await;
        let failed = |error: offleash_store::FileError| DaemonError::host("list snapshots")(error.source);
        for id in self.core.host.snapshots()?.ids().map_err(failed)? {
            if !known.contains(id.as_str()) {
                self.core.host.remove_snapshot(&id).await;
            }
        }
        Ok(())
    }
}

/// Whether it is a whole snapshot of which the caller may know.
fn is_visible(row: &SnapshotRow, caller: &Caller) -> bool {
    row.kind == SnapshotKind::Snapshot && row.state == SnapshotState::Ready && caller.sees(Some(&row.key_id))
}

fn to_json(spec: &SnapshotSpec) -> String {
    // Maps with keys that are strings, strings and numbers: nothing that could fail.
    serde_json::to_string(spec).unwrap_or_default()
}

fn from_json(text: &str) -> Option<SnapshotSpec> {
    serde_json::from_str(text).ok()
}
