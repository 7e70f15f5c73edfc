//! From a spec to a sandbox with its gateway: what a run and a keeper have in common.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use offleash_core::id::RunId;
use offleash_core::plan::{Entry, Node, Plan};
use offleash_core::spec::{Access, SandboxSpec};
use offleash_core::text::Text;
use offleash_gateway::{Gateway, Trust};
use offleash_isolation::guest_image;
use offleash_isolation::sandbox::{Leftovers, Sandbox};
use offleash_store::{HostPath, LiveRun, NewRun, Tending};

use super::ahead::Ahead;
use super::level::Chosen;
use super::network::{self, Outside};
use super::published::PublishedPorts;
use super::secrets;
use super::{ManagerError, OwnRoot};
use offleash_planner::{self, ExecBasis, Host, PlanError};

/// A spec, resolved.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) host: Host,
    pub(crate) plan: Plan,
    pub(crate) basis: ExecBasis,
    /// The root of its own, if it has one: to be discarded when the sandbox is gone.
    pub(crate) own_root: Option<OwnRoot>,
    /// What connections are opened with, if any are.
    trust: Option<Arc<Trust>>,
}

impl Resolved {
    /// Resolves `spec` on `host` for a run of `command` at the level that was chosen.
    ///
    /// # Errors
    /// As [`offleash_planner::resolve`], and when the certificate authorities of the machine are needed and cannot be read.
    pub(crate) fn of(
        spec: &SandboxSpec,
        host: Host,
        command: &[OsString],
        id: RunId,
        chosen: &Chosen,
    ) -> Result<Self, ManagerError> {
        let resolve =
            |host: &Host, id: RunId, directory: &Path| offleash_planner::resolve(spec, host, command, id, directory);
        Self::by(resolve, spec, host, id, chosen)
    }

    /// The same for a sandbox that will wait for its command.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) fn without_command(
        spec: &SandboxSpec,
        host: Host,
        id: RunId,
        chosen: &Chosen,
    ) -> Result<Self, ManagerError> {
        let resolve = |host: &Host, id: RunId, directory: &Path| {
            offleash_planner::resolve_without_command(spec, host, id, directory)
        };
        Self::by(resolve, spec, host, id, chosen)
    }

    // In a frame of its own, which is not there while the command runs.
    #[inline(never)]
    fn by(
        resolve: impl FnOnce(&Host, RunId, &Path) -> Result<(Plan, ExecBasis), PlanError>,
        spec: &SandboxSpec,
        host: Host,
        id: RunId,
        chosen: &Chosen,
    ) -> Result<Self, ManagerError> {
        let trust = network::trust(&spec.network)?;
        let own_root = OwnRoot::ready(spec, chosen.ids(), &host.state_directory, &id)?;
        let host = Host {
            ids: chosen.ids(),
            base: own_root.as_ref().map(OwnRoot::parts).transpose()?,
            trust: trust.as_deref().map(network::stores),
            ..host
        };
        let run_directory = host.state_directory.join("runs").join(id.as_str());
        let (plan, basis) = resolve(&host, id, &run_directory)?;
        let plan = Plan {
            level: chosen.level(),
            ..plan
        };
        Ok(Self {
            host,
            plan,
            basis,
            own_root,
            trust,
        })
    }

    /// What the gateway has and the sandbox has not; ports are listened on from now.
    ///
    /// # Errors
    /// When a secret, the proxy or a port that was asked for is not to be had.
    pub(crate) fn outside(&self, spec: &SandboxSpec, command: &[OsString]) -> Result<Outside, ManagerError> {
        Ok(Outside {
            trust: self.trust.clone(),
            secrets: secrets::ready(spec, &self.host, &self.plan, &self.basis.env, command)?,
            upstream_proxy: network::upstream_proxy(&spec.network, &self.host)?,
            published: PublishedPorts::listen(&spec.network.publish)?,
        })
    }
}

/// A sandbox, and what serves its network if it has one.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) sandbox: Box<dyn Sandbox>,
    pub(crate) gateway: Option<Gateway>,
    /// An interpreter that waits in it, to be the command if it can.
    pub(crate) ahead: Option<Ahead>,
}

/// Makes the sandbox of a run that is recorded, and starts its gateway.
///
/// # Errors
/// As [`Chosen::create`], and when the gateway cannot be started; nothing of the sandbox is left then.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub(crate) fn make(
    spec: &SandboxSpec,
    chosen: &mut Chosen,
    plan: &mut Plan,
    outside: &Outside,
    live: &mut LiveRun,
    tending: &mut Tending,
) -> Result<Made, ManagerError> {
    plan.guest = guest_of_all(live, &plan.id);
    let mut sandbox = chosen.create(plan, &mut Noted { live, tending })?;
    forget_contents(plan);
    let gateway = match sandbox.take_network() {
        Some(sockets) => Some(network::start(&spec.network, &plan.limits, outside, sockets)?),
        None => None,
    };
    Ok(Made {
        sandbox,
        gateway,
        ahead: None,
    })
}

/// The guest's program as a file that all sandboxes execute. Where none can be made, as on a full disk, or executed, each
/// gets a copy.
fn guest_of_all(live: &LiveRun, id: &RunId) -> Option<PathBuf> {
    let name = format!("offleash-guest-{}", guest_image::DIGEST);
    live.state().program(&name, guest_image::GUEST, id).ok().flatten()
}

/// The run as the store is to know it.
pub(crate) fn new_run(spec: &SandboxSpec, command: &[OsString], plan: &Plan, host: &Host) -> NewRun {
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
            Node::Bind { source, access } => *access == Access::Ro && *source == entry.target,
            Node::Base { lower, .. } => *lower == entry.target && *lower != Path::new("/"),
            // `/bin` is `usr/bin`.
            Node::Symlink { to } => {
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
fn numbered_layer(entry: &Entry) -> Option<(usize, PathBuf)> {
    match &entry.node {
        Node::Overlay { lower, layer } => Some((layer.file_name()?.to_str()?.parse().ok()?, lower.clone())),
        _ => None,
    }
}

/// Puts the store's directories in place of the plan's numbers.
pub(crate) fn place_layers(plan: &mut Plan, live: &LiveRun) {
    for entry in &mut plan.entries {
        let number = numbered_layer(entry);
        if let (Some((number, _)), Node::Overlay { layer, .. }) = (number, &mut entry.node) {
            *layer = live.layer_directory(number);
        }
    }
}

/// Drops what was in files of the sandbox, copies of the machine's above all: it has them now, and may wait for long.
fn forget_contents(plan: &mut Plan) {
    for entry in &mut plan.entries {
        if let Node::File { contents } = &mut entry.node {
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
struct Noted<'a> {
    live: &'a mut LiveRun,
    tending: &'a mut Tending,
}

impl Leftovers for Noted<'_> {
    fn cgroups(&mut self, paths: &[PathBuf]) -> std::io::Result<()> {
        self.live.record_cgroups(paths).map_err(std::io::Error::other)
    }

    fn meanwhile(&mut self) -> bool {
        self.tending.step()
    }
}
