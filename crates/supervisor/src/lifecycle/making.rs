//! From a spec to a sandbox with its gateway: the steps by which every supervisor makes its sandbox, in their order.
//!
//! Who asked differs in a [`LaunchSpec`] and in nothing else: [`SandboxMaking::begin`] has the kernel make namespaces and
//! finds out meanwhile what planning needs, [`SandboxMaking::plan`] resolves the spec, [`SandboxMaking::make`] puts the run
//! on record and makes the sandbox. What is left of it at its end is a [`SandboxSetup`].

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::monitor::MonitorAction;
use offleash_core::plan::{Environment, Plan, PlanEntry, PlanNode};
use offleash_core::spec::{ImageSpec, MountAccess, RootChoice, SandboxSpec, ZygoteRole};
use offleash_core::text::Text;
use offleash_core::units::CpuCount;
use offleash_gateway::{Gateway, Trust};
use offleash_isolation::guest_image;
use offleash_isolation::sandbox::{EnforcementReport, LeftoverKeeper, Sandbox};
use offleash_store::{HostIdentity, HostPath, LiveRun, NewRun, SpareMaintenance, StateDirectory};

use super::level::ChosenLevel;
use super::network::{self, Outside};
use super::preload::Preload;
use super::published::PublishedPorts;
use super::secrets;
use super::{LifecycleError, OwnRoot, open_state, this_host};
use crate::monitor::SandboxMonitor;
use crate::service::zygote;
use crate::templates;
use crate::tools::{self, ToolsOrder, ToolsPlace, ToolsProcess};
use crate::volumes::HeldVolumes;
use offleash_planner::base::kept_build;
use offleash_planner::{self, ExecBasis, PlanError, PlanningHost};

/// A sandbox that is to be made, for whoever asked.
#[derive(Debug)]
pub(crate) struct LaunchSpec<'a> {
    /// What it is.
    pub(crate) spec: SandboxSpec,
    /// Its id, which no other has.
    pub(crate) id: RunId,
    /// Where its run is recorded.
    pub(crate) state: StateSource<'a>,
    /// Which variables of its caller it may have, as far as its spec lets them in.
    pub(crate) environment: CallerEnvironment<'a>,
    /// What planning looks at.
    pub(crate) planned_for: PlannedCommand<'a>,
    /// Who the command runs as, by name; the usual user when absent.
    pub(crate) user: Option<&'a str>,
    /// What the run is recorded as.
    pub(crate) recorded: &'a [OsString],
    /// What it is part of, for lists of runs; nothing when a person asked for it.
    pub(crate) purpose: Option<&'static str>,
    /// Whether a copy of its zygote's process is wanted as soon as it is made.
    pub(crate) wants_copy: bool,
    /// Where its tools are served.
    pub(crate) tools: ToolsPlace<'a>,
}

/// The state directory of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StateSource<'a> {
    /// That path or the usual one; what crashed runs left there is finished first.
    Swept(Option<&'a Path>),
    /// The same, without a look at what is there.
    Unswept(Option<&'a Path>),
    /// One that is open.
    Open(&'a StateDirectory),
}

impl StateSource<'_> {
    fn open(self) -> Result<StateDirectory, LifecycleError> {
        match self {
            Self::Swept(path) => open_state(path),
            Self::Unswept(path) => Ok(StateDirectory::open(path, &HostIdentity::of_this_process())?),
            Self::Open(state) => Ok(state.clone()),
        }
    }
}

/// The variables that a caller has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallerEnvironment<'a> {
    /// Those of this process.
    Own,
    /// Those of this process, and these.
    OwnAnd(&'a Environment),
    /// None.
    Empty,
}

/// The command that a plan is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlannedCommand<'a> {
    /// This one.
    Known(&'a [OsString]),
    /// One that will be known later.
    Later,
}

impl<'a> PlannedCommand<'a> {
    fn words(self) -> &'a [OsString] {
        match self {
            Self::Known(words) => words,
            Self::Later => &[],
        }
    }

    fn resolve(
        self,
        spec: &SandboxSpec,
        host: &PlanningHost,
        id: RunId,
        directory: &Path,
    ) -> Result<(Plan, ExecBasis), PlanError> {
        match self {
            Self::Known(words) => offleash_planner::resolve(spec, host, words, id, directory),
            Self::Later => offleash_planner::resolve_without_command(spec, host, id, directory),
        }
    }
}

/// A sandbox on its way: its level is chosen, and the kernel is at work.
#[derive(Debug)]
pub(crate) struct SandboxMaking<'a> {
    launch: LaunchSpec<'a>,
    chosen: ChosenLevel,
    state: StateDirectory,
    host: PlanningHost,
}

/// A sandbox that can be made.
#[derive(Debug)]
pub(crate) struct PlannedSandbox {
    host: PlanningHost,
    plan: Plan,
    basis: ExecBasis,
    own_root: Option<OwnRoot>,
    outside: Outside,
    volumes: HeldVolumes,
}

/// What a sandbox was made from and what of it is on disk: all that its end needs.
#[derive(Debug)]
pub(crate) struct SandboxSetup {
    pub(crate) spec: SandboxSpec,
    pub(crate) chosen: ChosenLevel,
    pub(crate) state: StateDirectory,
    pub(crate) host: PlanningHost,
    /// As it was carried out.
    pub(crate) plan: Plan,
    /// What its commands start from.
    pub(crate) basis: ExecBasis,
    /// What the gateway has, and the sandbox has not.
    pub(crate) outside: Outside,
    /// The root of its own, if it has one.
    pub(crate) own_root: Option<OwnRoot>,
    /// The volumes that it has, as long as this is there.
    pub(crate) volumes: HeldVolumes,
    pub(crate) live: LiveRun,
    /// What there is to say of what was asked for, a line each.
    pub(crate) notes: Vec<String>,
}

/// A sandbox that was made, which this process holds.
#[derive(Debug)]
pub(crate) struct HeldSandbox {
    pub(crate) running: RunningSandbox,
    pub(crate) setup: SandboxSetup,
    /// What can be done for later runs while this one waits.
    pub(crate) tending: SpareMaintenance,
}

/// What there is of a sandbox while it runs.
#[derive(Debug)]
pub(crate) struct RunningSandbox {
    pub(crate) sandbox: Box<dyn Sandbox>,
    /// What serves its network, if it has one.
    pub(crate) gateway: Option<Gateway>,
    /// Who takes calls of its tools, if it has any.
    pub(crate) tools: Option<ToolsProcess>,
    /// An interpreter that waits in it, to be the command if it can.
    pub(crate) preload: Option<Preload>,
    /// What watches it.
    pub(crate) monitor: SandboxMonitor,
}

/// Why there is no sandbox, and what is on record of it.
#[derive(Debug)]
pub(crate) struct UnmadeSandbox {
    pub(crate) error: LifecycleError,
    /// Absent where it failed before there was anything.
    pub(crate) setup: Option<Box<SandboxSetup>>,
}

impl PlannedSandbox {
    /// As it was resolved.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl UnmadeSandbox {
    /// Removes what is on record of it.
    pub(crate) fn forget(self) -> LifecycleError {
        if let Some(setup) = self.setup {
            setup.forget();
        }
        self.error
    }
}

impl<'a> SandboxMaking<'a> {
    /// Chooses the level, which has the kernel begin, and finds out meanwhile where this is.
    ///
    /// # Errors
    /// When the level is not to be had, or the state directory cannot be used.
    pub(crate) fn begin(mut launch: LaunchSpec<'a>) -> Result<Self, LifecycleError> {
        find_image(&mut launch)?;
        check_pauses(&launch.spec)?;
        bound_cpus_to_throttle(&mut launch.spec);
        let mut chosen = choose(&mut launch)?;
        if let (ZygoteRole::Below(zygote), true) = (launch.spec.descent, launch.wants_copy) {
            // Otherwise it is asked for when it is to come in.
            let _asked = zygote::connect(zygote).map(|socket| chosen.ask_for_copy(socket));
        }
        let state = launch.state.open()?;
        let mut host = this_host(state.path())?;
        match launch.environment {
            CallerEnvironment::Own => {}
            CallerEnvironment::OwnAnd(more) => host.env.extend(more.iter().cloned()),
            CallerEnvironment::Empty => host.env = Vec::new(),
        }
        Ok(Self {
            launch,
            chosen,
            state,
            host,
        })
    }

    /// Where its run is recorded.
    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    /// The level that was chosen.
    pub(crate) fn level(&self) -> Level {
        self.chosen.level()
    }

    /// Resolves the spec; ports are listened on from now.
    ///
    /// # Errors
    /// As [`offleash_planner::resolve`], and when what is to be outside of the sandbox is not to be had, or the user unknown.
    // In a frame of its own, which is not there while the command runs.
    #[inline(never)]
    pub(crate) fn plan(&mut self) -> Result<PlannedSandbox, LifecycleError> {
        let LaunchSpec { spec, id, .. } = &self.launch;
        let volumes = HeldVolumes::hold(&self.state, &spec.volumes)?;
        if self.chosen.ids().is_one() {
            volumes.give_to_worker()?;
        }
        let trust = network::trust(&spec.network)?;
        let own_root = OwnRoot::ready(spec, self.chosen.ids(), &self.host.state_directory, id)?;
        let mut host = PlanningHost {
            ids: self.chosen.ids(),
            base: own_root.as_ref().map(OwnRoot::parts).transpose()?,
            trust: trust.as_deref().map(network::stores),
            volumes: volumes.found(),
            ..self.host.clone()
        };
        let run_directory = host.state_directory.join("runs").join(id.as_str());
        let command = self.launch.planned_for;
        let (plan, basis) = command.resolve(spec, &host, id.clone(), &run_directory)?;
        let plan = Plan {
            level: self.chosen.level(),
            ..plan
        };
        let outside = outside(spec, &host, &plan, &basis, trust, command.words())?;
        secrets::forget_sources(&spec.network.secrets, &mut host);
        secrets::forget_sources(&spec.network.secrets, &mut self.host);
        if let Some(name) = self.launch.user {
            plan.user_named(name)?;
        }
        Ok(PlannedSandbox {
            host,
            plan,
            basis,
            own_root,
            outside,
            volumes,
        })
    }

    /// Puts the run on record, makes the sandbox and starts its gateway.
    ///
    /// # Errors
    /// As [`ChosenLevel::create`], and when the run cannot be recorded or the gateway not be started; nothing of the sandbox is
    /// left then but what is on record.
    // In a frame of its own, which is not there while the command runs.
    #[inline(never)]
    pub(crate) fn make(self, planned: PlannedSandbox) -> Result<HeldSandbox, UnmadeSandbox> {
        let PlannedSandbox {
            host,
            mut plan,
            basis,
            own_root,
            outside,
            volumes,
        } = planned;
        let LaunchSpec {
            spec,
            recorded,
            purpose,
            tools,
            ..
        } = self.launch;
        let new = NewRun {
            purpose,
            ..new_run(&spec, recorded, &plan, &host)
        };
        let live = match LiveRun::create(&self.state, new) {
            Ok(live) => live,
            Err(error) => {
                return Err(UnmadeSandbox {
                    error: error.into(),
                    setup: None,
                });
            }
        };
        place_layers(&mut plan, &live);
        let mut tending = live.tending();
        let mut setup = SandboxSetup {
            notes: offleash_planner::grants_of_nothing(&spec, &host),
            spec,
            chosen: self.chosen,
            state: self.state,
            host,
            plan,
            basis,
            outside,
            own_root,
            volumes,
            live,
        };
        match setup.start(&tools, &mut tending) {
            Ok(running) => Ok(HeldSandbox {
                running,
                setup,
                tending,
            }),
            Err(error) => Err(UnmadeSandbox {
                error,
                setup: Some(Box::new(setup)),
            }),
        }
    }
}

/// A template that is an image is known by its name alone until here.
fn find_image(launch: &mut LaunchSpec<'_>) -> Result<(), LifecycleError> {
    let RootChoice::Base {
        template: Some(name),
        snapshot,
        layer: None,
    } = &launch.spec.root
    else {
        return Ok(());
    };
    let state = match launch.state {
        StateSource::Open(state) => state.path().to_owned(),
        StateSource::Swept(path) | StateSource::Unswept(path) => {
            path.map_or_else(|| HostIdentity::of_this_process().default_state(), Path::to_owned)
        }
    };
    let build = kept_build(&state, &launch.id);
    if let Some(image) = templates::image_root(&state, name, build.as_deref())? {
        let snapshot = snapshot.clone();
        launch.spec.root = RootChoice::Image(Box::new(ImageSpec { snapshot, ..image }));
    }
    Ok(())
}

/// Nobody resumes a run that is paused.
fn check_pauses(spec: &SandboxSpec) -> Result<(), LifecycleError> {
    let mut pausing = spec.monitors.iter().filter(|rule| rule.action.pauses());
    match pausing.next().filter(|_| !spec.pausable) {
        Some(rule) => Err(LifecycleError::NobodyResumes {
            rule: rule.name.clone(),
            action: rule.action,
        }),
        None => Ok(()),
    }
}

/// Where a rule slows the sandbox down, what bounds its processors is made with it: all that there are, until then.
fn bound_cpus_to_throttle(spec: &mut SandboxSpec) {
    let throttles = spec.monitors.iter().any(|rule| rule.action == MonitorAction::Throttle);
    if throttles && spec.limits.cpus.is_none() {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let millis = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(1000);
        spec.limits.cpus = Some(CpuCount { millis });
    }
}

/// Chooses the level; below no zygote where the one that was meant is gone, or cannot be entered.
fn choose(launch: &mut LaunchSpec<'_>) -> Result<ChosenLevel, LifecycleError> {
    let chosen = ChosenLevel::prepare(&launch.spec, &launch.id);
    match launch.spec.descent {
        ZygoteRole::Below(_) if chosen.is_err() => {
            launch.spec.descent = ZygoteRole::Alone;
            ChosenLevel::prepare(&launch.spec, &launch.id)
        }
        _ => chosen,
    }
}

/// What the gateway has and the sandbox has not.
fn outside(
    spec: &SandboxSpec,
    host: &PlanningHost,
    plan: &Plan,
    basis: &ExecBasis,
    trust: Option<Arc<Trust>>,
    command: &[OsString],
) -> Result<Outside, LifecycleError> {
    let secrets = secrets::ready(spec, host, plan, &basis.env, command)?;
    Ok(Outside {
        process: network::process_ahead(&spec.network, plan.level, trust.as_ref()),
        trust,
        secrets,
        upstream_proxy: network::upstream_proxy(&spec.network, host)?,
        published: PublishedPorts::listen(&spec.network.publish)?,
    })
}

impl SandboxSetup {
    /// Makes the sandbox and starts its gateway; while there is nothing to do, `tending` goes on.
    fn start(
        &mut self,
        place: &ToolsPlace<'_>,
        tending: &mut SpareMaintenance,
    ) -> Result<RunningSandbox, LifecycleError> {
        let Self {
            spec,
            chosen,
            state,
            plan,
            outside,
            live,
            ..
        } = self;
        plan.guest = guest_of_all(live, &plan.id);
        let mut sandbox = chosen.create(plan, state.path(), &mut LeftoverNotes { live, tending })?;
        forget_contents(plan);
        let gateway = match sandbox.take_network() {
            Some(sockets) => Some(network::start(&spec.network, &plan.limits, outside, sockets)?),
            None => None,
        };
        let order = ToolsOrder {
            tools: spec.tools.clone(),
            grants: spec.tool_grants.clone(),
            ask_timeout: spec.network.asks.timeout(),
            ledger: None,
            has_door: false,
        };
        let tools = tools::start(order, &mut *sandbox, place)?;
        let monitor = SandboxMonitor::of(plan, &spec.monitors, state);
        Ok(RunningSandbox {
            sandbox,
            gateway,
            tools,
            preload: None,
            monitor,
        })
    }

    /// What is enforced, and what was asked for and is not.
    pub(crate) fn enforcement(&self, sandbox: &dyn Sandbox) -> EnforcementReport {
        let mut enforcement = sandbox.enforcement().clone();
        if let Some(reason) = self.chosen.fallen() {
            enforcement.lacks("level", reason);
        }
        enforcement
    }

    /// Removes what it has in the state directory.
    pub(crate) fn forget(self) {
        forget(self.own_root, self.live);
    }
}

/// Removes what a sandbox has in the state directory; the next start does it where this fails.
pub(crate) fn forget(own_root: Option<OwnRoot>, live: LiveRun) {
    let _discarded = own_root.map(OwnRoot::discard);
    let _erased = live.erase();
}

/// The guest's program as a file that all sandboxes execute. Where none can be made, as on a full disk, or executed, each
/// gets a copy.
fn guest_of_all(live: &LiveRun, id: &RunId) -> Option<PathBuf> {
    let name = format!("offleash-guest-{}", guest_image::DIGEST);
    live.state().program(&name, guest_image::GUEST, id).ok().flatten()
}

/// The run as the store is to know it.
fn new_run(spec: &SandboxSpec, command: &[OsString], plan: &Plan, host: &PlanningHost) -> NewRun {
    let mut layers: Vec<(usize, PathBuf)> = plan.entries.iter().filter_map(numbered_layer).collect();
    layers.sort();
    NewRun {
        id: plan.id.clone(),
        command: command.iter().map(Text::from).collect(),
        purpose: None,
        layers: layers.into_iter().map(|(_, lower)| lower).collect(),
        protect: protect_patterns(spec),
        home: host.home.clone(),
        host_paths: host_paths(plan),
    }
}

/// What the sandbox has of the host at the host's own paths, to which links from the workspace may lead: what it sees
/// read-only, and the system in a root of its own. Beneath that, what a rule hides or puts in its place.
fn host_paths(plan: &Plan) -> Vec<HostPath> {
    let mut found: Vec<HostPath> = Vec::new();
    let known = |found: &[HostPath], path: &Path| found.iter().any(|known| path.starts_with(known.path.as_path()));
    for entry in &plan.entries {
        let is_seen = match &entry.node {
            PlanNode::Bind { source, access } => *access == MountAccess::Ro && *source == entry.target,
            PlanNode::Base { lower, .. } => *lower == entry.target && *lower != Path::new("/"),
            // `/bin` is `usr/bin`.
            PlanNode::Symlink { to } => {
                let parent = entry.target.parent().unwrap_or(Path::new("/"));
                !to.components().any(|name| name == Component::ParentDir) && known(&found, &parent.join(to))
            }
            _ => false,
        };
        if is_seen || known(&found, &entry.target) {
            found.push(HostPath {
                path: Text::from(&entry.target),
                is_seen,
            });
        }
    }
    found
}

/// The number of an overlay's layer, the workspace's first, and the directory that it lies over. The plan knows layers
/// by number; where they are is for the store to say.
fn numbered_layer(entry: &PlanEntry) -> Option<(usize, PathBuf)> {
    match &entry.node {
        PlanNode::Overlay { lower, layer } => Some((layer.file_name()?.to_str()?.parse().ok()?, lower.clone())),
        _ => None,
    }
}

/// Puts the store's directories in place of the plan's numbers.
fn place_layers(plan: &mut Plan, live: &LiveRun) {
    for entry in &mut plan.entries {
        let number = numbered_layer(entry);
        if let (Some((number, _)), PlanNode::Overlay { layer, .. }) = (number, &mut entry.node) {
            *layer = live.layer_directory(number);
        }
    }
}

/// Drops what was in files of the sandbox, copies of the machine's above all: it has them now, and may wait for long.
fn forget_contents(plan: &mut Plan) {
    for entry in &mut plan.entries {
        if let PlanNode::File { contents } = &mut entry.node {
            *contents = Vec::new();
        }
    }
}

/// What is not applied unless named: what the owner protects, and what is hidden from the sandbox. Mounts hide what
/// exists when the run starts; a hidden name can be made anew in the writable layer, and must not reach the host.
fn protect_patterns(spec: &SandboxSpec) -> Vec<Text> {
    let patterns = spec.paths.protect.iter().chain(&spec.paths.deny);
    patterns.map(|pattern| Text::from(pattern.to_string())).collect()
}

/// Writes down in the run's record what a crash would leave.
struct LeftoverNotes<'a> {
    live: &'a mut LiveRun,
    tending: &'a mut SpareMaintenance,
}

impl LeftoverKeeper for LeftoverNotes<'_> {
    fn cgroups(&mut self, paths: &[PathBuf]) -> std::io::Result<()> {
        self.live.record_cgroups(paths).map_err(std::io::Error::other)
    }

    fn meanwhile(&mut self) -> bool {
        self.tending.step()
    }
}
