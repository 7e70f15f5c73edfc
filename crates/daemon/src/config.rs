//! What the owner of a daemon can set.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::bucket::BucketEndpoint;
use offleash_core::level::{DegradeMode, Level};
use offleash_core::monitor::MonitorRule;
use offleash_core::template::{PythonModule, Recipe};
use offleash_core::vm::Acceleration;
use offleash_images::{ImagePattern, ImageReference, RegistrySettings};
use offleash_supervisor::templates::BuildWatcher;

use crate::lifecycle::LifecycleConfig;
use crate::origin::BASE_TEMPLATE;
use crate::sandbox_tools::ToolsConfig;
use crate::view::SandboxLimits;
use crate::webhook_config::WebhooksConfig;

/// What the owner of a daemon can set; [`DaemonConfig::default`] is what happens if nothing is.
#[derive(Debug, Clone)]
pub struct DaemonConfig {
    /// The state directory; the user's own if `None`.
    pub state: Option<PathBuf>,
    /// The program that supervisors are; this one, even when its file has been replaced, if `None`.
    pub program: Option<PathBuf>,
    /// How long a sandbox lives whose creator does not say.
    pub default_timeout: Duration,
    /// The longest that anybody may ask for, counted from each request.
    pub max_timeout: Duration,
    /// Whether every caller may ask for sandboxes in which programs may trace each other; the owner always may.
    pub allow_ptrace: bool,
    /// What a sandbox may use whose creator does not say.
    pub default_limits: SandboxLimits,
    /// The most that anybody may ask for.
    pub max_limits: SandboxLimits,
    /// The tools that sandboxes may have.
    pub tools: ToolsConfig,
    /// The level of sandboxes; the strongest that the machine offers if `None`.
    pub level: Option<Level>,
    /// The OCI runtime of level `container`, by its name or its path; the first that is in `PATH` if `None`.
    pub runtime: Option<PathBuf>,
    /// The hypervisor of level `microvm`, by its name or its path; `qemu-system-x86_64` of `PATH` if `None`.
    pub hypervisor: Option<PathBuf>,
    /// How machines of level `microvm` execute instructions; they are emulated if `None`.
    pub acceleration: Option<Acceleration>,
    /// The guest's kernel of level `microvm`; the one that `offleash vm kernel` finds if `None`.
    pub vm_kernel: Option<PathBuf>,
    /// Below which level none is made.
    pub min_level: Option<Level>,
    /// Whether sandboxes are made whose limits this machine cannot all enforce; each says what is not enforced.
    pub degrade: DegradeMode,
    /// Sandboxes at a time, of all keys; the warm pool's are not counted.
    pub max_sandboxes: usize,
    /// Sandboxes that are being made at a time; further ones wait.
    pub max_creating: usize,
    /// How long making one may take.
    pub create_timeout: Duration,
    /// When creates are refused because the machine is short of something.
    pub admission: AdmissionConfig,
    /// Sandboxes made ahead.
    pub pool: PoolConfig,
    /// Interpreters that are held ready to be copied.
    pub zygotes: ZygotesConfig,
    /// How long a fork may take with what.
    pub forks: ForksConfig,
    /// How many snapshots there may be.
    pub snapshots: SnapshotsConfig,
    /// When sandboxes sleep, and when checkpoints of them are made by themselves.
    pub lifecycle: LifecycleConfig,
    /// How long the log of a sandbox that has ended can be read.
    pub keep_logs: Duration,
    /// How often use is sampled; not at all if zero.
    pub sample_every: Duration,
    /// Rules of monitoring: those that change built-in ones, and others.
    pub monitors: Vec<MonitorRule>,
    /// Whom it tells of what happens.
    pub webhooks: WebhooksConfig,
    /// Templates that are built when they are asked for.
    pub templates: TemplatesConfig,
    /// Images that callers may use.
    pub images: ImagesConfig,
    /// Buckets that volumes of callers may have.
    pub volumes: VolumesConfig,
    /// The browser of sessions, program and arguments; the first that is found if empty.
    pub browser_command: Vec<String>,
    /// The SOCKS 5 proxies that keys may name, `HOST:PORT`; any that is public if `None`.
    pub egress_proxies: Option<Vec<String>>,
    /// Browsers that wait for sessions.
    pub browser_pool: usize,
    /// Whoever is told how their builds go on.
    pub build_watcher: Option<Arc<dyn BuildWatcher>>,
}

/// How many snapshots and checkpoints there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotsConfig {
    /// Snapshots of one key.
    pub max: u64,
    /// Checkpoints of one sandbox.
    pub max_checkpoints: u64,
    /// What the snapshots of one key and the checkpoints of its sandboxes take on disk together, MiB, those that are shared
    /// counted each time.
    pub max_mib: u64,
}

impl Default for SnapshotsConfig {
    fn default() -> Self {
        Self {
            max: 100,
            max_checkpoints: 20,
            max_mib: 100 * 1024,
        }
    }
}

/// How long a fork may take with what; afterwards there is none, and its source goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForksConfig {
    /// Waiting for the cells of a context that were there before.
    pub wait: Duration,
    /// Saving what the cells of a context left.
    pub save: Duration,
    /// Copying files once; as long as the first copy takes, the source stands still.
    pub copy: Duration,
    /// Loading, in the fork, what all contexts saved.
    pub load: Duration,
}

/// Templates that are built when they are asked for: that of the code interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplatesConfig {
    /// Whether any is.
    pub build_on_first_use: bool,
    /// How long a create waits for one that is being built, before it is answered that it is to be tried again.
    pub wait: Duration,
    /// What it is built from.
    pub code_interpreter: Recipe,
    /// Variables of the build alone.
    pub build_env: Vec<(OsString, OsString)>,
    /// Whether builds of keys ask the indexes of packages that this machine's configuration names, with its credentials.
    pub own_indexes: bool,
    /// How much what one key has built may take on disk before it builds no more, MiB.
    pub max_mib: u64,
}

/// Images that callers may use, and how they are pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagesConfig {
    /// What callers may do.
    pub rule: ImageRule,
    /// What some keys may do instead, by the key's id.
    pub keys: BTreeMap<String, ImageRule>,
    /// How long a create waits for an image that is being pulled, before it is answered that it is to be tried again.
    pub wait: Duration,
    /// How registries are reached.
    pub registries: RegistrySettings,
}

/// Buckets that volumes of callers may have, and how they are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumesConfig {
    /// Whose buckets may be named by callers; the owner of the daemon may name any. None may, where there is none.
    pub bucket_endpoints: Vec<BucketEndpoint>,
    /// How their servers are reached.
    pub connections: RegistrySettings,
}

/// What a caller may do with images; the owner of the daemon may use each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRule {
    /// Which it may use.
    pub allow: Vec<ImagePattern>,
    /// Whether one that is not here is pulled for it.
    pub pull: PullMode,
}

/// Whether an image is pulled for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullMode {
    /// Not at all.
    Never,
    /// When it is not here.
    Missing,
}

impl ImageRule {
    /// Whether it lets an image of that name be used, or one that has none.
    pub(crate) fn allows(&self, image: Option<&ImageReference>) -> bool {
        self.allow.iter().any(|pattern| pattern.matches(image))
    }
}

/// When creates are refused because the machine is short of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Memory that must be available (`MemAvailable`), MiB.
    pub min_memory_mib: u64,
    /// Processes and threads that must be possible beside those that exist.
    pub min_pids: u64,
    /// Space that must be free on the disk of the state directory, MiB.
    pub min_disk_mib: u64,
}

/// Interpreters that are held ready to be copied into sandboxes: one of each template whose sandboxes have contexts that
/// are ready, and of each in whose sandboxes code was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZygotesConfig {
    /// Of how many templates at once; none if zero.
    pub max: usize,
    /// How long one waits for the next sandbox of its template before it is ended.
    pub idle: Duration,
}

/// Sandboxes with the default limits and network, made ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many of template `base` wait at least.
    pub min: usize,
    /// How many of each template wait at most; the number between follows demand.
    pub max: usize,
    /// How many wait and are being made at most, of all templates together; as `max` if `None`. Zero switches the pool
    /// off.
    pub max_total: Option<usize>,
    /// How many are made at a time.
    pub max_creating: usize,
    /// How long one waits before it is replaced by a fresh one.
    pub max_age: Duration,
    /// What is different for some templates, by name.
    pub templates: BTreeMap<String, TemplatePool>,
}

/// What is different for the sandboxes of one template that are made ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplatePool {
    /// How many wait at least; none if `None`, but for `base`.
    pub min: Option<usize>,
    /// How many wait at most; as for all templates if `None`.
    pub max: Option<usize>,
    /// Whether they have a context of Python that is ready; as the template's recipe says if `None`.
    pub interpreter: Option<bool>,
    /// What that has imported; as the recipe says if `None`.
    pub imports: Option<Vec<PythonModule>>,
}

/// How many of a template wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolBounds {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl PoolConfig {
    /// How many wait and are being made at most, of all templates together.
    pub fn max_total(&self) -> usize {
        self.max_total.unwrap_or(self.max)
    }

    pub(crate) fn bounds(&self, template: &str) -> PoolBounds {
        let own = self.templates.get(template);
        let usual = if template == BASE_TEMPLATE { self.min } else { 0 };
        PoolBounds {
            min: own.and_then(|own| own.min).unwrap_or(usual),
            max: own.and_then(|own| own.max).unwrap_or(self.max),
        }
    }

    /// What contexts of Python have imported that are started in members of a template while they wait; `None` if none
    /// are. `recipe` is that of the template, which the base has not.
    pub fn ready_imports(&self, template: &str, recipe: Option<&Recipe>) -> Option<Vec<PythonModule>> {
        let own = self.templates.get(template);
        let (wanted, imports) = own.map_or((None, None), |own| (own.interpreter, own.imports.clone()));
        let of_recipe = recipe.and_then(Recipe::ready_imports);
        match wanted {
            Some(false) => None,
            Some(true) => Some(imports.or(of_recipe).unwrap_or_else(Recipe::usual_imports)),
            None => of_recipe.map(|of_recipe| imports.unwrap_or(of_recipe)),
        }
    }

    /// How many wait at least of all templates together.
    pub fn least_total(&self) -> usize {
        let others = self.templates.keys().filter(|name| *name != BASE_TEMPLATE);
        let bounds = others.map(|name| self.bounds(name)).chain([self.bounds(BASE_TEMPLATE)]);
        bounds.fold(0, |sum, bounds| sum.saturating_add(bounds.min.min(bounds.max)))
    }
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            state: None,
            program: None,
            default_timeout: Duration::from_secs(300),
            max_timeout: Duration::from_secs(24 * 60 * 60),
            allow_ptrace: false,
            default_limits: SandboxLimits {
                cpus: 2,
                memory_mib: 512,
                disk_mib: 1024,
                pids: 512,
            },
            max_limits: SandboxLimits {
                cpus: 32,
                memory_mib: 64 * 1024,
                disk_mib: 100 * 1024,
                pids: 32 * 1024,
            },
            tools: ToolsConfig::default(),
            level: None,
            runtime: None,
            hypervisor: None,
            acceleration: None,
            vm_kernel: None,
            min_level: None,
            degrade: DegradeMode::Allow,
            max_sandboxes: 2000,
            max_creating: 16,
            create_timeout: Duration::from_secs(30),
            admission: AdmissionConfig::default(),
            pool: PoolConfig::default(),
            zygotes: ZygotesConfig::default(),
            forks: ForksConfig::default(),
            snapshots: SnapshotsConfig::default(),
            lifecycle: LifecycleConfig::default(),
            keep_logs: Duration::from_secs(24 * 60 * 60),
            sample_every: Duration::from_secs(5),
            monitors: Vec::new(),
            webhooks: WebhooksConfig::default(),
            templates: TemplatesConfig::default(),
            images: ImagesConfig::default(),
            volumes: VolumesConfig::default(),
            browser_command: Vec::new(),
            egress_proxies: None,
            browser_pool: 0,
            build_watcher: None,
        }
    }
}

impl Default for ForksConfig {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(60),
            save: Duration::from_secs(60),
            copy: Duration::from_secs(60),
            load: Duration::from_secs(120),
        }
    }
}

impl Default for ZygotesConfig {
    fn default() -> Self {
        Self {
            max: 8,
            idle: Duration::from_secs(30 * 60),
        }
    }
}

impl Default for TemplatesConfig {
    fn default() -> Self {
        Self {
            build_on_first_use: true,
            // SDKs wait a minute for an answer.
            wait: Duration::from_secs(45),
            code_interpreter: Recipe::code_interpreter(),
            build_env: Vec::new(),
            own_indexes: false,
            max_mib: 100 * 1024,
        }
    }
}

impl Default for ImagesConfig {
    fn default() -> Self {
        Self {
            rule: ImageRule {
                allow: vec![ImagePattern::every()],
                pull: PullMode::Never,
            },
            keys: BTreeMap::new(),
            // SDKs wait a minute for an answer.
            wait: Duration::from_secs(45),
            registries: RegistrySettings::of_this_process(),
        }
    }
}

impl Default for VolumesConfig {
    fn default() -> Self {
        Self {
            bucket_endpoints: Vec::new(),
            connections: RegistrySettings::of_this_process(),
        }
    }
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            min_memory_mib: 256,
            min_pids: 512,
            min_disk_mib: 512,
        }
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            min: 2,
            max: 32,
            max_total: None,
            max_creating: 2,
            max_age: Duration::from_secs(60 * 60),
            templates: BTreeMap::new(),
        }
    }
}
