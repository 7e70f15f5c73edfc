//! A sandbox that was made before its command is known, for one run that would have made the same.
//!
//! It is for a run whose plan, made anew by all that a run looks at, is the plan it was made by. What the plan only names
//! is told by its inode, and that no file system was mounted or unmounted since is for the kernel to say.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use offleash_core::exec::ExecEvent;
use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::plan::{Environment, Plan, PlanEntry, PlanNode};
use offleash_core::record::LimitHit;
use offleash_core::spec::{RootChoice, SandboxSpec};
use offleash_core::template::PythonModule;
use offleash_gateway::Gateway;
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{ExecId, Sandbox, SandboxEvent};
use offleash_store::StateDirectory;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::making::{
    CallerEnvironment, HeldSandbox, LaunchSpec, PlannedCommand, RunningSandbox, SandboxMaking, SandboxSetup,
    StateSource,
};
use super::preload::{self, Preload};
use super::{LifecycleError, OwnRoot, RunReport, RunRequest, carry_out, conclude, level, new_id};
use crate::run_client::ExecIo;
use crate::sandbox_loop::{Attention, Ending, LoopSandbox, SandboxClient, SandboxLoop, WaitList};
use crate::tools::ToolsPlace;
use offleash_planner::{self, ExecBasis, PlanningHost};

/// A sandbox that waits for its command. Dropping it ends it; [`Self::discard`] does so and leaves nothing.
#[derive(Debug)]
pub struct PrewarmedSandbox {
    setup: SandboxSetup,
    running: RunningSandbox,
    /// As it was resolved.
    planned: Plan,
    /// What was where the plan's paths lead.
    stamps: Vec<PathStamp>,
    mounts: MountTable,
    remains: MountRemains,
}

/// What the kernel takes apart when this is dropped: for a moment when nobody waits for it any more.
#[derive(Debug)]
pub struct MountRemains {
    _mounts: Option<OwnedFd>,
    /// Nothing runs in it any more.
    _sandbox: Option<RunningSandbox>,
}

/// A run for which a sandbox waits, with what its command starts from.
#[derive(Debug)]
pub struct CheckedRun {
    host: PlanningHost,
    basis: ExecBasis,
}

impl PrewarmedSandbox {
    /// Makes a sandbox of `spec` for a caller like this process, who has these variables beside.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn make(spec: SandboxSpec, state: &StateDirectory, env: &Environment) -> Result<Self, LifecycleError> {
        let mounts = MountTable::watch()?;
        let mut making = SandboxMaking::begin(LaunchSpec {
            spec,
            id: new_id()?,
            state: StateSource::Open(state),
            environment: CallerEnvironment::OwnAnd(env),
            planned_for: PlannedCommand::Later,
            user: None,
            recorded: &[],
            purpose: None,
            wants_copy: false,
            tools: ToolsPlace::default(),
        })?;
        let ready = making.plan()?;
        let planned = ready.plan().clone();
        let stamps = stamps_of(&planned);
        let HeldSandbox {
            running,
            mut setup,
            mut tending,
        } = making.make(ready).map_err(|unmade| unmade.error)?;
        // The run itself is to have nothing else to do.
        while tending.step() {}
        setup.host.known = Some(Arc::new(offleash_planner::KnownEtc::read()));
        let remains = MountRemains {
            _mounts: running.sandbox.keep_mounts(),
            _sandbox: None,
        };
        Ok(Self {
            setup,
            running,
            planned,
            stamps,
            mounts,
            remains,
        })
    }

    /// Has an interpreter of Python wait in it for runs like `request`, if it has a template whose code is to find modules
    /// imported. `false` if none came of it, or not without being noticed, or nobody wants it any more (`is_wanted`): then
    /// this is to be discarded.
    ///
    /// # Errors
    /// When the sandbox fails; it is to be discarded then, too.
    pub fn import_ahead(
        &mut self,
        request: &RunRequest,
        is_wanted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, LifecycleError> {
        // One that was named may not exist, which the command's start is to tell.
        let modules = self.setup.own_root.as_ref().and_then(OwnRoot::imports);
        let limits = &self.setup.plan.limits;
        let Some(modules) = modules.filter(|_| request.cwd.is_none() && preload::fits(limits)) else {
            return Ok(true);
        };
        let like = self.setup.command_of(request, &self.setup.basis, Environment::new())?;
        let modules = modules.iter().map(PythonModule::to_string).collect();
        self.running.preload = Preload::start(like, modules, &mut self.running, is_wanted)?;
        let is_little = preload::is_little(&self.running.sandbox.usage(), limits);
        Ok(self.running.preload.is_some() && is_little && self.has_no_changes())
    }

    /// Whether nothing in the workspace was changed.
    fn has_no_changes(&self) -> bool {
        let upper = |entry: &PlanEntry| match &entry.node {
            PlanNode::Overlay { layer, .. } => Some(layer.join("upper")),
            _ => None,
        };
        let mut layers = self.setup.plan.entries.iter().filter_map(upper);
        layers.all(|upper| std::fs::read_dir(upper).is_ok_and(|mut names| names.next().is_none()))
    }

    /// Whether a sandbox of `spec` can wait for its command: not one that has what is its caller's alone (values of
    /// secrets, listening sockets, questions), and none at a level without namespaces of its own.
    pub fn can_wait(spec: &SandboxSpec) -> bool {
        let has_layer_of_its_own = !matches!(spec.root, RootChoice::Base { layer: Some(_), .. });
        has_layer_of_its_own
            && !spec.network.needs_gateway()
            && spec.tools.is_empty()
            && level::choose(spec).is_ok_and(|level| level == Level::Process)
    }

    /// The id that its run will have.
    pub fn id(&self) -> &RunId {
        &self.planned.id
    }

    /// Whether it is as strong as its spec asks for; one that is not is of no use to later runs.
    pub fn is_whole(&self) -> bool {
        self.setup.chosen.fallen().is_none()
    }

    /// Waits for a run: has `hear` called whenever `listener` is readable, until that says that it is enough, `until` has come
    /// or this can be of no use any more.
    pub(crate) fn wait(&mut self, listener: BorrowedFd<'_>, until: Instant, hear: &mut dyn FnMut() -> bool) {
        let mut client = HandoverClient {
            attention: self.attention(),
            mounts: &mut self.mounts,
            listener,
            until,
            hear,
        };
        // One that fails is found out when it is to be used.
        let _ended = SandboxLoop::new(&mut self.running).run(&mut client);
    }

    fn attention(&self) -> Attention {
        match self.running.preload {
            Some(_) => Attention::OnEvents,
            None => Attention::NewsOnly,
        }
    }

    /// Whether it can still be handed out, as far as can be told without a request.
    pub fn is_alive(&mut self) -> bool {
        let is_gone = |event: &SandboxEvent| matches!(event, SandboxEvent::Gone | SandboxEvent::Limit(_));
        let turned = match self.attention() {
            Attention::NewsOnly => self.running.sandbox.news(true),
            _ => self.running.sandbox.turn(true),
        };
        !self.mounts.have_changed()
            && turned.is_ok_and(|events| !events.iter().any(is_gone))
            && !self.running.gateway.as_ref().is_some_and(Gateway::has_ended)
    }

    /// Whether a run of `request` would make this sandbox at this moment; then, what it starts from. Everything that a
    /// run looks at is looked at again.
    pub fn check(&mut self, request: &RunRequest, host: PlanningHost) -> Option<CheckedRun> {
        if request.spec != self.setup.spec || !self.is_alive() {
            return None;
        }
        let made_on = &self.setup.host;
        let is_current = |root: &OwnRoot| root.is_current(&self.setup.spec, made_on.ids, &made_on.state_directory);
        if !self.setup.own_root.as_ref().is_none_or(is_current) {
            return None;
        }
        let host = PlanningHost {
            ids: made_on.ids,
            base: made_on.base.clone(),
            trust: made_on.trust.clone(),
            state_directory: made_on.state_directory.clone(),
            known: made_on.known.clone(),
            ..host
        };
        let (id, directory) = (self.planned.id.clone(), &self.planned.run_directory);
        let (plan, basis) = offleash_planner::resolve(&self.setup.spec, &host, &request.command, id, directory).ok()?;
        let plan = Plan {
            level: self.planned.level,
            ..plan
        };
        let is_known_user = request.user.as_deref().is_none_or(|name| plan.user_named(name).is_ok());
        let is_same = plan == self.planned && is_known_user && stamps_of(&plan) == self.stamps;
        let is_ready = match &self.running.preload {
            None => true,
            Some(preload) => {
                let command = self.setup.command_of(request, &basis, Environment::new());
                preload.can_be(&command.ok()?, &*self.running.sandbox)
            }
        };
        let command = super::report::texts(&request.command);
        (is_same && is_ready && self.setup.live.begin(command, host.home.clone()).is_ok())
            .then_some(CheckedRun { host, basis })
    }

    /// Runs the command in it, and answers when all of it is over: nothing runs any more, but what was mounted is there
    /// until what `remains` is given has been dropped. What can wait until the command runs is done `meanwhile`.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn run(
        self,
        request: &RunRequest,
        checked: CheckedRun,
        door: &mut dyn ExecIo,
        meanwhile: impl FnOnce(),
        remains: &mut Option<MountRemains>,
    ) -> Result<RunReport, LifecycleError> {
        let Self {
            setup,
            mut running,
            remains: left,
            ..
        } = self;
        let CheckedRun { host, basis } = checked;
        let mut setup = SandboxSetup {
            notes: offleash_planner::grants_of_nothing(&request.spec, &host),
            host,
            basis,
            ..setup
        };
        let mut meanwhile = Some(meanwhile);
        let mut chore = || {
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
            false
        };
        let outcome = carry_out(request, &mut setup, &mut running, &mut chore, door);
        drop(meanwhile);
        *remains = Some(MountRemains {
            // One that failed may not have ended.
            _sandbox: outcome.is_ok().then_some(running),
            ..left
        });
        conclude(request, setup, outcome)
    }

    /// Ends it unused. Nobody hears of it: nothing has run.
    ///
    /// # Errors
    /// When something of it cannot be removed.
    pub fn discard(mut self) -> Result<(), LifecycleError> {
        self.running.sandbox.kill()?;
        drop(self.running);
        let discarded = self.setup.own_root.map_or(Ok(()), OwnRoot::discard);
        self.setup.live.erase()?;
        Ok(discarded?)
    }
}

/// A socket at which a run may ask for a sandbox that waits.
struct HandoverClient<'a> {
    attention: Attention,
    mounts: &'a mut MountTable,
    listener: BorrowedFd<'a>,
    until: Instant,
    hear: &'a mut dyn FnMut() -> bool,
}

impl SandboxClient for HandoverClient<'_> {
    type Source = ();

    fn wait_on<'c>(&'c self, _sandbox: &dyn Sandbox, waiting: &mut WaitList<'c, ()>) {
        waiting.add((), self.listener, PollFlags::IN);
    }

    fn attention(&self) -> Attention {
        self.attention
    }

    fn next_turn(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn hear(&mut self, held: &mut LoopSandbox<'_>, ready: &[()]) -> Result<(), IsolationError> {
        if !ready.is_empty() && (self.hear)() {
            held.end(Ending::ClientDone);
        }
        Ok(())
    }

    fn exec_event(&mut self, _held: &mut LoopSandbox<'_>, _exec: ExecId, _event: ExecEvent) {}

    fn limit_hit(&mut self, held: &mut LoopSandbox<'_>, _hit: &LimitHit) {
        held.end(Ending::ClientDone);
    }

    fn turn(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        if Instant::now() >= self.until || self.mounts.have_changed() {
            held.end(Ending::ClientDone);
        }
        Ok(())
    }
}

/// A path of the host that the plan leads to, and what was there.
#[derive(Debug, PartialEq, Eq)]
struct PathStamp {
    path: PathBuf,
    /// Device, inode, mode, owner and group.
    found: Option<(u64, u64, u32, u32, u32)>,
}

impl PathStamp {
    fn look(path: &Path) -> Self {
        let found = std::fs::symlink_metadata(path).ok();
        Self {
            path: path.to_owned(),
            found: found.map(|found| (found.dev(), found.ino(), found.mode(), found.uid(), found.gid())),
        }
    }
}

/// Everything of the host that is in the sandbox by its path, and what has been looked up in it to be covered: an overlay
/// remembers what it found.
fn stamps_of(plan: &Plan) -> Vec<PathStamp> {
    let source = |node: &PlanNode| match node {
        PlanNode::Bind { source, .. } => Some(source.clone()),
        PlanNode::Overlay { lower, .. } | PlanNode::Base { lower, .. } => Some(lower.clone()),
        _ => None,
    };
    let trees: Vec<(&Path, PathBuf)> = plan
        .entries
        .iter()
        .filter_map(|entry| Some((entry.target.as_path(), source(&entry.node)?)))
        .collect();
    let mut paths: Vec<PathBuf> = trees.iter().map(|(_, source)| source.clone()).collect();
    for entry in &plan.entries {
        let below = |(target, source): &(&Path, PathBuf)| {
            Some((entry.target.strip_prefix(target).ok()?.to_owned(), source.clone()))
        };
        for (rest, source) in trees.iter().filter_map(below) {
            let names = rest.ancestors().filter(|rest| *rest != Path::new(""));
            paths.extend(names.map(|name| source.join(name)));
        }
    }
    paths.sort_by(|one, other| one.as_os_str().as_bytes().cmp(other.as_os_str().as_bytes()));
    paths.dedup();
    paths.iter().map(|path| PathStamp::look(path)).collect()
}

/// The table of mounts of this process, of which the kernel says when it changes (proc_pid_mounts(5)).
#[derive(Debug)]
struct MountTable {
    table: File,
    /// The kernel says it once.
    changed: bool,
}

impl MountTable {
    fn watch() -> Result<Self, LifecycleError> {
        let table = File::open("/proc/self/mounts").map_err(|source| LifecycleError::Host {
            action: "watch what is mounted",
            source,
        })?;
        Ok(Self { table, changed: false })
    }

    fn have_changed(&mut self) -> bool {
        let mut waiting = [PollFd::new(&self.table, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.changed |= !matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(0));
        self.changed
    }
}
