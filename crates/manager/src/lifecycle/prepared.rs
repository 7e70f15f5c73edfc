//! A sandbox that was made before its command is known, for one run that would have made the same.
//!
//! It is for a run whose plan, made anew by all that a run looks at, is the plan it was made by. What the plan only names
//! is told by its inode, and that no file system was mounted or unmounted since is for the kernel to say.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use offleash_core::exec::ExecRequest;
use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::plan::{Entry, Environment, Node, Plan};
use offleash_core::spec::{RootChoice, SandboxSpec};
use offleash_core::template::PythonModule;
use offleash_gateway::Gateway;
use offleash_isolation::sandbox::SandboxEvent;
use offleash_store::{LiveRun, StateDirectory};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::ahead::{self, Ahead};
use super::making::{Made, Resolved, new_run, place_layers};
use super::{
    ManagerError, Over, OwnRoot, RunReport, RunRequest, Task, carry_out, command_of, conclude, level, network, new_id,
};
use crate::drive::Door;
use offleash_planner::{self, ExecBasis, Host};

/// A sandbox that waits for its command. Dropping it ends it; [`Self::discard`] does so and leaves nothing.
#[derive(Debug)]
pub struct Prepared {
    spec: SandboxSpec,
    chosen: level::Chosen,
    state: StateDirectory,
    host: Host,
    outside: network::Outside,
    /// As it was resolved.
    planned: Plan,
    /// As it was carried out.
    plan: Plan,
    /// What was where the plan's paths lead.
    places: Vec<Place>,
    mounts: Mounts,
    made: Made,
    own_root: Option<OwnRoot>,
    /// What its commands start from, as far as that is known without one.
    basis: ExecBasis,
    remains: Remains,
    live: LiveRun,
}

/// What the kernel takes apart when this is dropped: for a moment when nobody waits for it any more.
#[derive(Debug)]
pub struct Remains {
    _mounts: Option<OwnedFd>,
    /// Nothing runs in it any more.
    _sandbox: Option<Made>,
}

/// A run for which a sandbox waits, with what its command starts from.
#[derive(Debug)]
pub struct Checked {
    host: Host,
    basis: ExecBasis,
}

impl Prepared {
    /// Makes a sandbox of `spec` for a caller whose host this is.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn make(spec: SandboxSpec, state: &StateDirectory, host: Host) -> Result<Self, ManagerError> {
        let mounts = Mounts::watch()?;
        let id = new_id()?;
        let mut chosen = level::Chosen::prepare(&spec, &id)?;
        let resolved = Resolved::without_command(&spec, host, id, &chosen)?;
        let outside = resolved.outside(&spec, &[])?;
        let Resolved {
            mut host,
            plan: planned,
            basis,
            own_root,
            ..
        } = resolved;
        let places = places(&planned);
        let mut plan = planned.clone();
        let mut live = LiveRun::create(state, new_run(&spec, &[], &plan, &host))?;
        place_layers(&mut plan, &live);
        let mut tending = live.tending();
        let made = super::making::make(&spec, &mut chosen, &mut plan, &outside, &mut live, &mut tending)?;
        // The run itself is to have nothing else to do.
        while tending.step() {}
        host.known = Some(Arc::new(offleash_planner::Known::read()));
        let remains = Remains {
            _mounts: made.sandbox.keep_mounts(),
            _sandbox: None,
        };
        Ok(Self {
            spec,
            chosen,
            state: state.clone(),
            host,
            outside,
            planned,
            plan,
            places,
            mounts,
            made,
            own_root,
            basis,
            remains,
            live,
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
    ) -> Result<bool, ManagerError> {
        // One that was named may not exist, which the command's start is to tell.
        let modules = self.own_root.as_ref().and_then(OwnRoot::imports);
        let limits = &self.plan.limits;
        let Some(modules) = modules.filter(|_| request.cwd.is_none() && ahead::fits(limits)) else {
            return Ok(true);
        };
        let like = self.command_of(request, &self.basis)?;
        let modules = modules.iter().map(PythonModule::to_string).collect();
        let sandbox = &mut *self.made.sandbox;
        self.made.ahead = Ahead::start(like, modules, sandbox, is_wanted)?;
        let is_little = ahead::is_little(&sandbox.usage(), &self.plan.limits);
        Ok(self.made.ahead.is_some() && is_little && self.has_no_changes())
    }

    /// Whether nothing in the workspace was changed.
    fn has_no_changes(&self) -> bool {
        let upper = |entry: &Entry| match &entry.node {
            Node::Overlay { layer, .. } => Some(layer.join("upper")),
            _ => None,
        };
        let mut layers = self.plan.entries.iter().filter_map(upper);
        layers.all(|upper| std::fs::read_dir(upper).is_ok_and(|mut names| names.next().is_none()))
    }

    fn command_of(&self, request: &RunRequest, basis: &ExecBasis) -> Result<ExecRequest, ManagerError> {
        let user = request
            .user
            .as_deref()
            .map(|name| self.plan.user_named(name))
            .transpose()?;
        let task = Task {
            request,
            basis,
            user: user.unwrap_or(&basis.user),
        };
        Ok(command_of(&task, &self.plan, Environment::new()))
    }

    /// Whether a sandbox of `spec` can wait for its command: not one that has what is its caller's alone (values of
    /// secrets, listening sockets, questions), and none at a level without namespaces of its own.
    pub fn can_wait(spec: &SandboxSpec) -> bool {
        matches!(spec.root, RootChoice::System | RootChoice::Base { layer: None, .. })
            && !spec.network.needs_gateway()
            && level::choose(spec).is_ok_and(|level| level == Level::Process)
    }

    /// The id that its run will have.
    pub fn id(&self) -> &RunId {
        &self.planned.id
    }

    /// Whether it is as strong as its spec asks for; one that is not is of no use to later runs.
    pub fn is_whole(&self) -> bool {
        self.chosen.fallen().is_none()
    }

    /// What to wait for: then [`Self::is_alive`] has something to say.
    pub fn interests(&self) -> Vec<PollFd<'_>> {
        let sandbox = self.made.sandbox.wait_on(true).into_iter();
        let mut interests: Vec<PollFd<'_>> = sandbox
            .map(|interest| PollFd::from_borrowed_fd(interest.descriptor, PollFlags::IN))
            .collect();
        interests.extend(
            self.made
                .gateway
                .as_ref()
                .map(|gateway| PollFd::from_borrowed_fd(gateway.lives(), PollFlags::empty())),
        );
        interests
    }

    /// Whether it can still be handed out, as far as can be told without a request.
    pub fn is_alive(&mut self) -> bool {
        let is_gone = |event: &SandboxEvent| matches!(event, SandboxEvent::Gone | SandboxEvent::Limit(_));
        // Where nothing has run nothing can have reached a limit, and whoever asks waits.
        let turned = match self.made.ahead {
            Some(_) => self.made.sandbox.turn(true),
            None => self.made.sandbox.news(true),
        };
        !self.mounts.have_changed()
            && turned.is_ok_and(|events| !events.iter().any(is_gone))
            && !self.made.gateway.as_ref().is_some_and(Gateway::has_ended)
    }

    /// Whether a run of `request` would make this sandbox at this moment; then, what it starts from. Everything that a
    /// run looks at is looked at again.
    pub fn check(&mut self, request: &RunRequest, host: Host) -> Option<Checked> {
        if request.spec != self.spec || !self.is_alive() {
            return None;
        }
        let is_current = |root: &OwnRoot| root.is_current(&self.spec, self.host.ids, &self.host.state_directory);
        if !self.own_root.as_ref().is_none_or(is_current) {
            return None;
        }
        let host = Host {
            ids: self.host.ids,
            base: self.host.base.clone(),
            trust: self.host.trust.clone(),
            state_directory: self.host.state_directory.clone(),
            known: self.host.known.clone(),
            ..host
        };
        let (id, directory) = (self.planned.id.clone(), &self.planned.run_directory);
        let (plan, basis) = offleash_planner::resolve(&self.spec, &host, &request.command, id, directory).ok()?;
        let plan = Plan {
            level: self.planned.level,
            ..plan
        };
        let is_known_user = request.user.as_deref().is_none_or(|name| plan.user_named(name).is_ok());
        let is_same = plan == self.planned && is_known_user && places(&plan) == self.places;
        let is_ready = match &self.made.ahead {
            None => true,
            Some(ahead) => ahead.can_be(&self.command_of(request, &basis).ok()?, &*self.made.sandbox),
        };
        let command = super::report::texts(&request.command);
        (is_same && is_ready && self.live.begin(command, host.home.clone()).is_ok()).then_some(Checked { host, basis })
    }

    /// Runs the command in it, and answers when all of it is over: nothing runs any more, but what was mounted is there
    /// until what `remains` is given has been dropped. What can wait until the command runs is done `meanwhile`.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn run(
        self,
        request: &RunRequest,
        checked: Checked,
        door: &mut dyn Door,
        meanwhile: impl FnOnce(),
        remains: &mut Option<Remains>,
    ) -> Result<RunReport, ManagerError> {
        let Self {
            chosen,
            state,
            outside,
            plan,
            mut made,
            own_root,
            remains: left,
            live,
            ..
        } = self;
        let Checked { host, basis } = checked;
        let user = request.user.as_deref().map(|name| plan.user_named(name)).transpose()?;
        let task = Task {
            request,
            basis: &basis,
            user: user.unwrap_or(&basis.user),
        };
        let notes = offleash_planner::grants_of_nothing(&request.spec, &host);
        let mut meanwhile = Some(meanwhile);
        let mut chore = || {
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
            false
        };
        let outcome = carry_out(&task, &chosen, &plan, outside, &mut made, &mut chore, door);
        drop(meanwhile);
        *remains = Some(Remains {
            // One that failed may not have ended.
            _sandbox: outcome.is_ok().then_some(made),
            ..left
        });
        let over = Over {
            state,
            host,
            plan,
            own_root,
            live,
            notes,
        };
        conclude(request, over, outcome)
    }

    /// Ends it unused. Nobody hears of it: nothing has run.
    ///
    /// # Errors
    /// When something of it cannot be removed.
    pub fn discard(mut self) -> Result<(), ManagerError> {
        self.made.sandbox.kill()?;
        drop(self.made);
        let discarded = self.own_root.map_or(Ok(()), OwnRoot::discard);
        self.live.erase()?;
        Ok(discarded?)
    }
}

/// A path of the host that the plan leads to, and what was there.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    /// Device, inode, mode, owner and group.
    found: Option<(u64, u64, u32, u32, u32)>,
}

impl Place {
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
fn places(plan: &Plan) -> Vec<Place> {
    let source = |node: &Node| match node {
        Node::Bind { source, .. } => Some(source.clone()),
        Node::Overlay { lower, .. } | Node::Base { lower, .. } => Some(lower.clone()),
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
    paths.iter().map(|path| Place::look(path)).collect()
}

/// The table of mounts of this process, of which the kernel says when it changes (proc_pid_mounts(5)).
#[derive(Debug)]
struct Mounts {
    table: File,
    /// The kernel says it once.
    changed: bool,
}

impl Mounts {
    fn watch() -> Result<Self, ManagerError> {
        let table = File::open("/proc/self/mounts").map_err(|source| ManagerError::Host {
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
