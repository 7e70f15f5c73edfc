//! The daemon, put together: which services there are, and which stands on which.
//!
//! What callers ask of it is in the files beside, each of which passes it on to the service that has to do with it, once
//! it is clear that the caller may ask for it. Deliberately not here: state.

mod browsers;
mod builds;
mod desktops;
mod inspection;
mod sandboxes;
mod secrets;
mod snapshots;
mod templates;
mod tools;
mod traffic;
mod transfers;
mod volumes;
mod webhooks;

pub use self::inspection::{AuditVerification, SeenProcesses};
pub use self::tools::{ClientCall, ClientCalls};

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use offleash_core::level::Level;
use offleash_supervisor::lifecycle::{find_hypervisor, find_runtime};
use offleash_supervisor::probe::ProbeReport;
use tokio::sync::Semaphore;

use crate::admission::AdmissionControl;
use crate::adoption::SandboxAdoption;
use crate::alerts::AlertKeeper;
use crate::browser_pool::BrowserPool;
use crate::browsers::{BrowserService, BrowserSources};
use crate::built_templates::BuiltTemplates;
use crate::caller::Caller;
use crate::carrying::ContextCarrier;
use crate::changes::ChangeService;
use crate::config::DaemonConfig;
use crate::contexts::ContextTable;
use crate::creating::SandboxCreator;
use crate::daemon_core::DaemonCore;
use crate::desktops::DesktopService;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::expiry::SandboxExpiry;
use crate::filling::PoolFiller;
use crate::forking::SandboxForker;
use crate::history::EndCause;
use crate::host::SandboxHost;
use crate::idle::IdleWatch;
use crate::images::ImageService;
use crate::jobs::JobTracker;
use crate::key_revocation::KeyRevocation;
use crate::keys;
use crate::leftovers::LeftoverRemover;
use crate::machine::MachineProbe;
use crate::maintenance::{MaintenanceLoop, Removers};
use crate::making::SandboxMaker;
use crate::origins::OriginFinder;
use crate::pool::ReadyPool;
use crate::putting_away::SandboxKeeper;
use crate::questions::DaemonQuestions;
use crate::readiness::{ReadinessCheck, ReadinessObstacle};
use crate::records::SandboxRecords;
use crate::registry::Scope;
use crate::registry_handle::RegistryHandle;
use crate::sampling::UsageSampler;
use crate::sandbox_sources::SandboxSources;
use crate::sandboxes::SandboxTable;
use crate::secrets::SecretStore;
use crate::snapshots::{AutomaticCheckpoints, CheckpointStore, SnapshotStore};
use crate::still::StillSources;
use crate::supervisor_pool::SupervisorPool;
use crate::template_builds::BuildService;
use crate::template_removal::TemplateRemover;
use crate::templates::TemplateStore;
use crate::transfers::SandboxTransfers;
use crate::transitions::SandboxChanger;
use crate::view::SandboxCounts;
use crate::volumes::VolumeService;
use crate::webhooks::Webhooks;
use crate::zygotes::ZygotePool;

/// How many look at the processes of sandboxes at a time: the kernel may be kept busy by what is looked at.
const MAX_PROCESS_LOOKS: usize = 8;

/// The daemon of one state directory; clones are the same one. Must be used within an event loop of tokio.
///
/// When the last clone is dropped the daemon ends and its sandboxes go on.
#[derive(Debug, Clone)]
pub struct Daemon {
    services: Arc<DaemonServices>,
}

/// All services that callers have to do with, and those that go on by themselves.
#[derive(Debug)]
struct DaemonServices {
    config: Arc<DaemonConfig>,
    core: DaemonCore,
    pool: Arc<ReadyPool>,
    supervisors: Arc<SupervisorPool>,
    templates: Arc<TemplateStore>,
    template_remover: Arc<TemplateRemover>,
    builds: Arc<BuildService>,
    zygotes: Arc<ZygotePool>,
    secrets: Arc<SecretStore>,
    volumes: Arc<VolumeService>,
    contexts: Arc<ContextTable>,
    maker: Arc<SandboxMaker>,
    creator: Arc<SandboxCreator>,
    forker: Arc<SandboxForker>,
    snapshots: Arc<SnapshotStore>,
    checkpoints: Arc<CheckpointStore>,
    automatic: Arc<AutomaticCheckpoints>,
    keeper: Arc<SandboxKeeper>,
    changer: Arc<SandboxChanger>,
    transfers: Arc<SandboxTransfers>,
    ender: Arc<SandboxEnder>,
    browsers: Arc<BrowserService>,
    desktops: Arc<DesktopService>,
    records: SandboxRecords,
    readiness: ReadinessCheck,
    machine: MachineProbe,
    changes: ChangeService,
    /// How many look at processes at a time.
    process_looks: Arc<Semaphore>,
    /// Go on as long as these are held.
    maintenance: Arc<MaintenanceLoop>,
    filler: Arc<PoolFiller>,
    sampler: Arc<UsageSampler>,
    webhooks: Arc<Webhooks>,
}

impl Daemon {
    /// Becomes the daemon of a state directory: takes its lock, opens its registry, adopts the sandboxes that live and
    /// removes what is left of those that do not.
    ///
    /// # Errors
    /// `AlreadyRunning`, `State`, `Store`, `Host`.
    pub async fn open(config: DaemonConfig) -> Result<Self, DaemonError> {
        let services = DaemonServices::open(config).await?;
        services.maintenance.start();
        services.filler.start();
        services.sampler.start();
        services.browsers.adopt().await;
        services.desktops.adopt().await;
        services.browsers.start_pool();
        services.webhooks.start();
        Ok(Self {
            services: Arc::new(services),
        })
    }

    /// Who has `key`. Keys are looked up each time, so that a revoked one is refused at once.
    ///
    /// # Errors
    /// `Unauthorized`, `Store`.
    pub fn authenticate(&self, key: &str) -> Result<Caller, DaemonError> {
        keys::authenticate(&self.services.core.registry, key)
    }

    /// What the machine offers, with paths of it.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `Host`.
    pub async fn machine(&self, caller: &Caller) -> Result<Arc<ProbeReport>, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.machine.report().await
    }

    /// How many sandboxes there are.
    pub fn counts(&self) -> SandboxCounts {
        let (counts, tally) = (self.services.core.sandboxes.counts(), self.services.maker.tally());
        // What is nobody's and runs is not yet, or no longer, to be handed out, if it is not in the pool.
        let waiting = self.waiting().into_iter().map(|(_, count)| count).sum::<usize>() + self.waiting_browsers();
        SandboxCounts {
            pooled: counts.pooled.min(waiting),
            changing: counts.changing + counts.pooled.saturating_sub(waiting),
            created: tally.created,
            created_warm: tally.created_warm,
            failed: tally.failed,
            ..counts
        }
    }

    /// How often each rule of monitoring has fired since the daemon began.
    pub fn alert_counts(&self) -> BTreeMap<String, u64> {
        self.services.core.registry.feed().alerts()
    }

    /// How many messages of webhooks were delivered, given up, and dropped since the daemon began.
    pub fn webhook_counts(&self) -> BTreeMap<&'static str, u64> {
        self.services.webhooks.counts()
    }

    /// How many sandboxes of each template wait to be handed out.
    pub fn waiting(&self) -> Vec<(String, usize)> {
        self.services.pool.waiting()
    }

    /// How many browsers wait for a session.
    pub fn waiting_browsers(&self) -> usize {
        self.services.browsers.waiting()
    }

    /// The templates of which an interpreter is ready to be copied into new sandboxes, once no sandbox of them waits any
    /// more that was made without it.
    pub fn with_zygote(&self) -> Vec<String> {
        let mut ready = self.services.zygotes.ready();
        ready.retain(|(template, zygote)| self.services.pool.are_below(template, *zygote));
        ready.into_iter().map(|(template, _)| template).collect()
    }

    /// What stands against making a sandbox now; nothing, if the daemon is ready. What was found out holds for five
    /// seconds, but for its end.
    pub async fn missing(&self) -> Vec<ReadinessObstacle> {
        self.services.readiness.missing().await
    }

    /// What the owner set.
    pub fn config(&self) -> &DaemonConfig {
        &self.services.config
    }

    /// Makes no more sandboxes, and waits until what is being done with sandboxes has been done. Sandboxes live
    /// on, but for those that were made ahead.
    pub async fn drain(&self) {
        let services = &*self.services;
        let core = &services.core;
        core.jobs.drain();
        services.builds.stop_all();
        core.jobs.all_done().await;
        // Nobody's sandboxes would wait for a daemon that may never come.
        for entry in services.pool.take_all() {
            services
                .ender
                .end_in_background(&entry, EndCause::killed("the daemon ended"));
        }
        services.browsers.end_pool();
        core.jobs.all_done().await;
        services.zygotes.let_go();
        services.supervisors.close();
        // Whatever was handed in before is written when this is.
        let _ = core.registry.apply(Vec::new()).await;
    }
}

impl DaemonServices {
    async fn open(mut config: DaemonConfig) -> Result<Self, DaemonError> {
        // Supervisors do not have the variables of whoever started this.
        config.runtime = find_runtime(config.runtime.as_deref());
        config.hypervisor = find_hypervisor(config.hypervisor.as_deref());
        config.level = config
            .level
            .or(config.min_level.filter(|floor| *floor > Level::Process));
        if config
            .level
            .is_some_and(|level| level >= Level::Container || level <= Level::Wasm)
        {
            config.zygotes.max = 0;
        }
        let config = Arc::new(config);
        let host = SandboxHost::open(config.state.clone(), config.program.clone()).await?;
        let registry = RegistryHandle::open(host.state(), host.lock()).await?;
        let core = DaemonCore {
            questions: Arc::new(DaemonQuestions::new(host.state().clone(), &config)),
            jobs: Arc::new(JobTracker::default()),
            registry: Arc::new(registry),
            host: Arc::new(host),
            sandboxes: Arc::new(SandboxTable::default()),
        };
        let services = Self::compose(config, core);
        services.adoption().adopt_all().await?;
        services.snapshots.clean_up().await?;
        services.volumes.clean_up().await?;
        services.builds.clean_up().await?;
        services.volumes.send_unsent_in_background();
        Ok(services)
    }

    /// Each service is given those that it stands on, so that none can stand on one that comes after it.
    fn compose(config: Arc<DaemonConfig>, core: DaemonCore) -> Self {
        let state = core.host.state().path().to_owned();
        let admission = Arc::new(AdmissionControl::new(config.admission, state));
        let pool = Arc::new(ReadyPool::new(config.pool.clone()));
        let browser_pool = Arc::new(BrowserPool::new(config.browser_pool));
        let supervisors = Arc::new(SupervisorPool::default());
        let contexts = Arc::new(ContextTable::new(Arc::clone(&core.host)));
        let leftovers = Arc::new(LeftoverRemover::new(Arc::clone(&core.host), Arc::clone(&core.registry)));
        let secrets = Arc::new(SecretStore::new(core.clone()));
        let volumes = Arc::new(VolumeService::new(
            core.clone(),
            Arc::clone(&admission),
            Arc::clone(&secrets),
            config.volumes.clone(),
        ));
        let templates = Arc::new(TemplateStore::new(
            Arc::clone(&core.host),
            config.templates.clone(),
            config.build_watcher.clone(),
        ));
        let images = Arc::new(ImageService::new(Arc::clone(&core.host), config.images.clone()));
        let built = Arc::new(BuiltTemplates::new(Arc::clone(&core.registry)));
        let origins = Arc::new(OriginFinder::new(
            Arc::clone(&admission),
            Arc::clone(&templates),
            Arc::clone(&images),
            Arc::clone(&built),
        ));
        let ender = Arc::new(SandboxEnder::new(
            core.clone(),
            Arc::clone(&pool),
            Arc::clone(&contexts),
            Arc::clone(&leftovers),
            Arc::clone(&volumes),
        ));
        let zygotes = Arc::new(ZygotePool::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            Arc::clone(&templates),
            Arc::clone(&pool),
            leftovers,
        ));
        let template_remover = Arc::new(TemplateRemover::new(
            Arc::clone(&templates),
            Arc::clone(&core.sandboxes),
            Arc::clone(&pool),
            Arc::clone(&browser_pool),
            Arc::clone(&zygotes),
            Arc::clone(&ender),
        ));
        let builds = Arc::new(BuildService::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            images,
            built,
            Arc::clone(&template_remover),
            Arc::clone(&volumes),
        ));
        let maker = Arc::new(SandboxMaker::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&supervisors),
            Arc::clone(&zygotes),
            Arc::clone(&secrets),
            Arc::clone(&contexts),
            Arc::clone(&ender),
        ));
        let carrier = Arc::new(ContextCarrier::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&contexts),
        ));
        let still = Arc::new(StillSources::new(core.clone(), Arc::clone(&carrier)));
        let snapshots = Arc::new(SnapshotStore::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            Arc::clone(&templates),
            Arc::clone(&origins),
            Arc::clone(&still),
        ));
        let sources = SandboxSources {
            origins: Arc::clone(&origins),
            snapshots: Arc::clone(&snapshots),
            volumes: Arc::clone(&volumes),
            carrier: Arc::clone(&carrier),
            still,
        };
        let creator = Arc::new(SandboxCreator::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            Arc::clone(&pool),
            sources.clone(),
            Arc::clone(&maker),
            Arc::clone(&ender),
        ));
        let forker = Arc::new(SandboxForker::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            sources.clone(),
            Arc::clone(&maker),
            Arc::clone(&ender),
        ));
        let keeper = Arc::new(SandboxKeeper::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            Arc::clone(&origins),
            Arc::clone(&contexts),
            carrier,
            Arc::clone(&maker),
            Arc::clone(&ender),
        ));
        let checkpoints = Arc::new(CheckpointStore::new(
            core.clone(),
            Arc::clone(&snapshots),
            origins,
            Arc::clone(&contexts),
            Arc::clone(&maker),
            Arc::clone(&ender),
        ));
        let changer = Arc::new(SandboxChanger::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&admission),
            Arc::clone(&secrets),
            Arc::clone(&ender),
            Arc::clone(&keeper),
        ));
        let transfers = Arc::new(SandboxTransfers::new(
            core.clone(),
            Arc::clone(&config),
            sources,
            Arc::clone(&creator),
            Arc::clone(&changer),
            Arc::clone(&ender),
        ));
        let automatic = Arc::new(AutomaticCheckpoints::new(core.clone(), Arc::clone(&checkpoints)));
        let alerts = Arc::new(AlertKeeper::new(
            core.clone(),
            Arc::clone(&changer),
            Arc::clone(&checkpoints),
        ));
        let maintenance = Arc::new(MaintenanceLoop::new(
            core.clone(),
            config.keep_logs,
            Arc::new(SandboxExpiry::new(
                core.clone(),
                Arc::clone(&changer),
                Arc::clone(&ender),
            )),
            Arc::new(KeyRevocation::new(core.clone(), Arc::clone(&ender))),
            Arc::clone(&secrets),
            Removers {
                ender: Arc::clone(&ender),
                snapshots: Arc::clone(&snapshots),
                builds: Arc::clone(&builds),
            },
            Arc::new(IdleWatch::new(
                core.clone(),
                Arc::clone(&contexts),
                Arc::clone(&changer),
            )),
            Arc::clone(&automatic),
        ));
        let filler = Arc::new(PoolFiller::new(
            core.clone(),
            Arc::clone(&admission),
            Arc::clone(&pool),
            Arc::clone(&templates),
            Arc::clone(&zygotes),
            Arc::clone(&maker),
            Arc::clone(&ender),
        ));
        let browsers = Arc::new(BrowserService::new(
            core.clone(),
            Arc::clone(&config),
            BrowserSources {
                templates: Arc::clone(&templates),
                maker: Arc::clone(&maker),
                admission: Arc::clone(&admission),
                pool: browser_pool,
            },
            Arc::clone(&creator),
            Arc::clone(&ender),
        ));
        let desktops = Arc::new(DesktopService::new(
            core.clone(),
            Arc::clone(&config),
            Arc::clone(&creator),
            Arc::clone(&ender),
        ));
        Self {
            records: SandboxRecords::new(core.clone(), config.keep_logs),
            readiness: ReadinessCheck::new(core.clone(), admission),
            webhooks: Arc::new(Webhooks::new(core.clone(), config.webhooks.clone())),
            machine: MachineProbe::new(core.host.state().path().to_owned()),
            changes: ChangeService::new(core.host.state().clone(), core.host.program().map(Path::to_owned)),
            process_looks: Arc::new(Semaphore::new(MAX_PROCESS_LOOKS)),
            sampler: Arc::new(UsageSampler::new(core.clone(), config.sample_every, alerts)),
            config,
            core,
            pool,
            supervisors,
            templates,
            template_remover,
            builds,
            zygotes,
            secrets,
            volumes,
            contexts,
            maker,
            creator,
            forker,
            snapshots,
            checkpoints,
            automatic,
            keeper,
            changer,
            transfers,
            ender,
            browsers,
            desktops,
            maintenance,
            filler,
        }
    }

    fn adoption(&self) -> SandboxAdoption {
        SandboxAdoption::new(
            self.core.clone(),
            Arc::clone(&self.config),
            Arc::clone(&self.pool),
            Arc::clone(&self.zygotes),
            Arc::clone(&self.secrets),
            Arc::clone(&self.ender),
            Arc::clone(&self.checkpoints),
            Arc::clone(&self.keeper),
        )
    }
}
