//! Makes sandboxes, for callers and for the pool.
//!
//! A supervisor is on record before it is told to make anything, so that a daemon that comes after us finds it. What of a
//! sandbox is there when its making fails is removed. Deliberately not here: who may have one.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use offleash_core::level::Level;
use offleash_core::log_level::LogLevel;
use offleash_core::spec::ZygoteRole;
use offleash_core::template::PythonModule;
use offleash_core::text::Text;
use offleash_core::units::{Bytes, CpuCount};
use offleash_store::HeldTemplate;
use offleash_supervisor::clock::{after, own_ms};
use offleash_supervisor::service::answer::MadeSandbox;
use offleash_supervisor::service::order::{LimitsOrder, NetworkOrder, SupervisorOrder};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::allowed_hosts;
use crate::config::DaemonConfig;
use crate::contexts::ContextTable;
use crate::create_spec::CreateSpec;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history;
use crate::launch::{Process, Started};
use crate::network;
use crate::origin::{TemplateOrigin, image_name};
use crate::random;
use crate::registry::{Change, SandboxState};
use crate::request::{BROWSER_LABEL, NetworkSettings};
use crate::sandboxes::{SandboxEntry, SandboxTurn};
use crate::secret_use;
use crate::secrets::SecretStore;
use crate::specification::Specification;
use crate::supervisor_pool::{self, SupervisorPool};
use crate::templates;
use crate::view::SandboxLimits;
use crate::volume_mounts::SandboxVolume;
use crate::zygotes::ZygotePool;

mod remaking;

pub(crate) use self::remaking::RemakeBasis;

/// Makes sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxMaker {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    supervisors: Arc<SupervisorPool>,
    zygotes: Arc<ZygotePool>,
    secrets: Arc<SecretStore>,
    contexts: Arc<ContextTable>,
    ender: Arc<SandboxEnder>,
    /// Places for sandboxes that are being made.
    places: Semaphore,
    tally: TallyCounters,
}

#[derive(Debug, Default)]
struct TallyCounters {
    created: AtomicU64,
    created_warm: AtomicU64,
    failed: AtomicU64,
}

/// How many sandboxes were created since the daemon was started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CreateTally {
    pub(crate) created: u64,
    /// How many of them came out of the pool.
    pub(crate) created_warm: u64,
    pub(crate) failed: u64,
}

impl SandboxMaker {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        supervisors: Arc<SupervisorPool>,
        zygotes: Arc<ZygotePool>,
        secrets: Arc<SecretStore>,
        contexts: Arc<ContextTable>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            places: Semaphore::new(config.max_creating.max(1)),
            tally: TallyCounters::default(),
            core,
            config,
            supervisors,
            zygotes,
            secrets,
            contexts,
            ender,
        }
    }

    pub(crate) fn tally(&self) -> CreateTally {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        CreateTally {
            created: read(&self.tally.created),
            created_warm: read(&self.tally.created_warm),
            failed: read(&self.tally.failed),
        }
    }

    /// A create came to nothing.
    pub(crate) fn count_failed(&self) {
        self.tally.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A create was a hand-out.
    pub(crate) fn count_warm(&self) {
        self.tally.created_warm.fetch_add(1, Ordering::Relaxed);
    }

    /// What follows when a sandbox was made for a caller.
    pub(crate) fn settle(&self, entry: &SandboxEntry, spec: &CreateSpec) {
        self.tally.created.fetch_add(1, Ordering::Relaxed);
        if let Some(template) = spec.held.template() {
            if let Some(note) = templates::note(template) {
                self.core.registry.log(entry.name(), LogLevel::Warn, note);
            }
            self.zygotes.expect(template);
            let why_none = self.zygotes.why_none(&spec.origin().template);
            if let Some(why) = why_none.filter(|_| entry.zygote().is_none()) {
                let line = format!("its interpreters are started, not copied: {why}");
                self.core.registry.log(entry.name(), LogLevel::Warn, line);
            }
        }
        self.core.sandboxes.note_end_changed();
    }

    /// Makes a sandbox that is counted to its owner, when there is a place for it.
    ///
    /// # Errors
    /// Why there is none; then nothing of it is left but, perhaps, what cannot be removed, which is tried again.
    pub(crate) async fn make_in_turn(
        &self,
        entry: &Arc<SandboxEntry>,
        spec: &CreateSpec,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        match timeout(self.config.create_timeout, self.places.acquire()).await {
            Ok(Ok(_place)) => self.make(entry, Some(spec), spec.wants_copy(&self.config), turn).await,
            _ => Err(DaemonError::Overloaded {
                what: "places for sandboxes that are being made",
                retry_after: Duration::from_secs(1),
            }),
        }
    }

    /// Makes a sandbox for the pool, of `template` as it is now.
    ///
    /// One whose template has an interpreter has a context that is ready, a copy of the zygote's where there can be one;
    /// where no context can be, it is one without.
    ///
    /// # Errors
    /// Why there is none; `Draining`.
    pub(crate) async fn make_ahead(
        &self,
        origin: &TemplateOrigin,
        template: Option<&HeldTemplate>,
    ) -> Result<Arc<SandboxEntry>, DaemonError> {
        let recipe = template.map(|template| &template.record().recipe);
        let imports = self.config.pool.ready_imports(&origin.template, recipe);
        if let Some(template) = template.filter(|_| imports.is_some()) {
            self.zygotes.expect(template);
            let settled = self.zygotes.settled(&origin.template);
            self.core.jobs.unless_draining(settled).await?;
        }
        let specification = Specification {
            build: origin.build.clone(),
            ..Specification::usual(&self.config)
        };
        let id = random::sandbox_id()?;
        let row = specification.new_row(id.as_str(), &origin.template);
        let entry = Arc::new(SandboxEntry::new(id, row, specification));
        let turn = entry.turn().await;
        self.core.sandboxes.insert(Arc::clone(&entry));
        self.make(&entry, None, imports.is_some(), &turn).await?;
        if let Some(imports) = imports {
            self.prepare(&entry, &imports).await;
        }
        drop(turn);
        Ok(entry)
    }

    /// Makes a sandbox of `origin` as it is now, in which a browser is to wait.
    ///
    /// # Errors
    /// Why there is none; `Draining`.
    pub(crate) async fn make_for_browser(
        &self,
        origin: &TemplateOrigin,
        limits: SandboxLimits,
    ) -> Result<Arc<SandboxEntry>, DaemonError> {
        let specification = Specification {
            build: origin.build.clone(),
            limits,
            ..Specification::usual(&self.config)
        };
        let id = random::sandbox_id()?;
        let mut row = specification.new_row(id.as_str(), &origin.template);
        // By this the next daemon knows that it is none of the pool's other members.
        row.metadata.insert(BROWSER_LABEL.to_owned(), String::new());
        let entry = Arc::new(SandboxEntry::new(id, row, specification));
        let turn = entry.turn().await;
        self.core.sandboxes.insert(Arc::clone(&entry));
        self.make(&entry, None, false, &turn).await?;
        drop(turn);
        Ok(entry)
    }

    /// Makes the interpreter of a member of the pool ready.
    async fn prepare(&self, entry: &SandboxEntry, imports: &[PythonModule]) {
        let prepared = self.contexts.prepare(entry, imports);
        if let Ok(Err(error)) = self.core.jobs.unless_draining(prepared).await {
            let line = format!("its interpreter cannot be made ready: {error}");
            self.core.registry.log(entry.name(), LogLevel::Warn, line);
        }
    }

    /// Makes the sandbox of `entry`, which is in the table.
    ///
    /// If it `wants_copy` and lies below a zygote, an interpreter is on its way before anybody can ask for one.
    async fn make(
        &self,
        entry: &Arc<SandboxEntry>,
        spec: Option<&CreateSpec>,
        wants_copy: bool,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        // What is made ahead has time.
        let waiting = spec.and_then(|_| supervisor_pool::take(&self.supervisors, self.core.host.program()));
        let (started, process, watched) = match self.core.host.launch(entry.id(), waiting).await {
            Ok(launched) => launched,
            Err(error) => {
                self.ender.discard(entry).await;
                return Err(error);
            }
        };
        self.ender.watch(entry, watched);
        let made = self.order(entry, started, spec, wants_copy, turn).await;
        if made.is_err() {
            self.take_back(entry, &process).await;
        }
        made
    }

    /// Puts the supervisor on record, and has it make the sandbox.
    async fn order(
        &self,
        entry: &SandboxEntry,
        started: Started,
        spec: Option<&CreateSpec>,
        wants_copy: bool,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        let is_copied = spec.is_some_and(|spec| spec.specification.fork_of.is_some());
        // From here on a daemon that comes after us can find the supervisor, and only then it is told to make something.
        if is_copied {
            // It was recorded before it had any files.
            let recorded = |row: &mut crate::registry::SandboxRow| row.supervisor = Some(started.process);
            self.core.registry.write(entry, None, recorded).await?;
        } else {
            let row = entry.with_supervisor(started.process);
            self.core
                .registry
                .apply(vec![Change::AddSandbox(Box::new(row))])
                .await?;
        }
        let specification = entry.specification();
        if !specification.tools.is_empty() {
            let source = specification.fork_of.as_deref();
            self.core.host.make_tool_ledger(entry.id(), source)?;
        }
        let order = SupervisorOrder {
            descent: match specification.asked_level {
                Some(Level::Simulated | Level::Container | Level::Microvm) => ZygoteRole::Alone,
                // What is copied does not know them.
                _ if !specification.tools.is_empty() => ZygoteRole::Alone,
                _ => self.zygotes.descent(&entry.origin()),
            },
            wants_copy,
            is_copied,
            ..self.sandbox_order(entry)?
        };
        let given = started.give(&order, self.config.create_timeout);
        let made = match spec {
            Some(spec) if !spec.specification.volumes.is_empty() => given.await.map_err(DaemonError::of_volumes),
            Some(_) => given.await,
            // Making the first one of a machine takes seconds, and nobody waits for this one.
            None => self.core.jobs.unless_draining(given).await.flatten(),
        }?;
        if spec.is_some_and(|spec| !secret_use::used(&spec.specification.network).is_empty())
            && !self.secrets.renew_one(entry, turn).await
        {
            let source = std::io::Error::other("its secrets cannot be put in");
            return Err(DaemonError::supervisor("make a sandbox", source));
        }
        self.note_made(entry, spec, made).await
    }

    /// The sandbox runs: it is the caller's, or the pool's.
    async fn note_made(
        &self,
        entry: &SandboxEntry,
        spec: Option<&CreateSpec>,
        MadeSandbox {
            hello, descent, cwd, ..
        }: MadeSandbox,
    ) -> Result<(), DaemonError> {
        let specification = Specification {
            zygote: descent.zygote(),
            level: hello.level.to_string(),
            not_enforced: hello.not_enforced,
            // Where those of templates start is known.
            cwd: image_name(&entry.template()).map(|_| cwd.as_os_str().to_string_lossy().into_owned()),
            ..Specification::clone(&entry.specification())
        };
        let mut row = entry.row();
        if let Some(spec) = spec {
            // Its time counts from now.
            row.started_ms = own_ms();
            row.end_ms = after(row.started_ms, spec.timeout);
        }
        row.state = SandboxState::Running;
        row.spec = specification.to_json();
        let created = spec.map(|spec| spec.created(&specification));
        let not_enforced = match spec {
            Some(_) => history::not_enforced(&row.id, &specification.not_enforced),
            None => Vec::new(),
        };
        entry.set_specification(specification);
        if let Some(spec) = spec
            && descent.zygote().is_some()
            && spec.wants_copy(&self.config)
        {
            self.contexts.begin(entry);
        }
        let registry = &self.core.registry;
        registry.write(entry, created, |kept| *kept = row).await?;
        not_enforced
            .into_iter()
            .for_each(|line| registry.submit_droppable(line));
        Ok(())
    }

    /// A sandbox that was not made: its supervisor is ended, and what is left of it removed.
    async fn take_back(&self, entry: &Arc<SandboxEntry>, process: &Process) {
        if process.kill().is_ok() {
            entry.supervisor_ended().await;
        }
        self.ender.discard(entry).await;
    }

    fn sandbox_order(&self, entry: &SandboxEntry) -> Result<SupervisorOrder, DaemonError> {
        let (host, config) = (&self.core.host, &self.config);
        let specification = entry.specification();
        let SandboxLimits {
            cpus,
            memory_mib,
            disk_mib,
            pids,
        } = specification.limits;
        Ok(SupervisorOrder {
            id: entry.id().clone(),
            state: host.state_text(),
            directory: host.directory_text(entry.id()),
            template: templates::of_origin(&entry.origin()),
            // Each command is given them: a sandbox that was made ahead does not know them.
            env: Vec::new(),
            level: specification.asked_level.or(config.level),
            runtime: config.runtime.as_deref().map(text_of),
            hypervisor: config.hypervisor.as_deref().map(text_of),
            acceleration: config.acceleration,
            vm_kernel: config.vm_kernel.as_deref().map(text_of),
            min_level: config.min_level,
            degrade: config.degrade,
            limits: LimitsOrder {
                cpus: Some(CpuCount {
                    millis: u64::from(cpus) * 1000,
                }),
                memory: Some(Bytes::mib(memory_mib)),
                disk: Some(Bytes::mib(disk_mib)),
                pids: Some(u64::from(pids)),
            },
            // Its secrets are put in before anybody has it.
            network: self.first_network(entry, &specification)?,
            allow_ptrace: specification.allow_ptrace,
            descent: ZygoteRole::Alone,
            wants_copy: false,
            is_copied: false,
            is_kept: false,
            snapshot: specification.snapshot.as_deref().and_then(|id| id.parse().ok()),
            volumes: specification.volumes.iter().map(SandboxVolume::mount).collect(),
            longest_hold_ms: None,
            tools: specification.tools.order(&config.tools, &host.tool_ledger(entry.id())),
            monitors: config.monitors.clone(),
        })
    }

    /// What a sandbox may reach that is made now. Its secrets are put in before anybody has it.
    fn first_network(&self, entry: &SandboxEntry, made: &Specification) -> Result<NetworkOrder, DaemonError> {
        let template = entry.template();
        let (mut order, _) = self.secrets.network_order(None, &template, &made.network)?;
        allowed_hosts::apply(&self.core, &mut order, entry.owner().as_deref(), &template)?;
        order.ask_timeout_ms = u64::try_from(self.config.tools.ask_timeout.as_millis()).ok();
        Ok(order)
    }

    /// Makes a member of the pool the caller's; `false` if it is none any more.
    ///
    /// # Errors
    /// When it cannot be given away: then nobody may have it.
    pub(crate) async fn assign(
        &self,
        entry: &SandboxEntry,
        spec: &CreateSpec,
        _turn: &SandboxTurn<'_>,
    ) -> Result<bool, DaemonError> {
        if entry.has_supervisor_ended() || entry.state() != SandboxState::Running {
            return Ok(false);
        }
        let made = entry.specification();
        let specification = Specification {
            zygote: made.zygote,
            level: made.level.clone(),
            not_enforced: made.not_enforced.clone(),
            ..spec.specification.clone()
        };
        let mut row = entry.row();
        spec.fill(&mut row)?;
        row.spec = specification.to_json();
        if network::order(&spec.request.network)? != network::order(&NetworkSettings::default())?
            && !self.give_network(entry, &spec.caller.key_id, &specification).await?
        {
            return Ok(false);
        }
        row.generation = entry.row().generation;
        self.contexts.hand_out(&row.id, &spec.request.env);
        // It has waited for nobody.
        entry.activity().note();
        entry.note_checkpointed();
        let created = spec.created(&specification);
        let not_enforced = history::not_enforced(&row.id, &specification.not_enforced);
        entry.set_specification(specification);
        let registry = &self.core.registry;
        registry.write(entry, Some(created), |kept| *kept = row).await?;
        not_enforced
            .into_iter()
            .for_each(|line| registry.submit_droppable(line));
        Ok(true)
    }

    /// Gives a member of the pool other rules, before it is anybody's: nobody ever has one with other rules than asked for.
    async fn give_network(&self, entry: &SandboxEntry, key: &str, wanted: &Specification) -> Result<bool, DaemonError> {
        let (order, told) = self
            .secrets
            .network_order(Some(key), &entry.template(), &wanted.network)?;
        let marked = Specification {
            network_pending: true,
            ..Specification::clone(&entry.specification())
        };
        // A daemon that dies here leaves a member that the next one knows not to hand out.
        let marking = self.core.registry.write(entry, None, |row| row.spec = marked.to_json());
        marking.await?;
        let given = self.core.host.supervisor(entry.id()).set_network(order).await.is_ok();
        entry.set_told(given.then_some(told));
        Ok(given)
    }
}

fn text_of(path: &Path) -> Text {
    Text(path.as_os_str().as_bytes().to_vec())
}
