//! The level `process`: namespaces, a built root file system, seccomp, Landlock, cgroups and rlimits.
//!
//! One sandbox is made in two processes at once. The parent (`create`) has the host's rights: it maps ids, makes the
//! cgroup, opens what only it may open, and hands that over. The child (`child`) is in the new namespaces and
//! assembles the file system (`tree`), takes its own rights away and becomes the guest. They talk over a socket
//! (`handshake`) that closes when the guest is exec'd. What follows is `running`.

mod below;
mod census;
pub(crate) mod child;
pub(crate) mod create;
pub(crate) mod door;
mod enforcement;
pub(crate) mod grouping;
pub(crate) mod handshake;
mod identity;
mod layers;
pub(crate) mod masks;
pub(crate) mod network;
mod network_namespace;
mod no_route;
mod owners;
pub(crate) mod running;
mod showing;
mod superuser;
pub(crate) mod tree;

use std::os::fd::OwnedFd;

use offleash_core::level::Level;
use offleash_core::limits::Limits;
use offleash_core::plan::Plan;
use offleash_core::spec::ZygoteRole;

pub use self::census::open_in_procfs;
use self::create::PendingInit;
pub use self::superuser::{as_superuser_of_own, as_superuser_of_range};
pub(crate) use self::tree::UPPER;
use crate::error::IsolationError;
use crate::sandbox::{Backend, LeftoverKeeper, Sandbox, SandboxIds};

/// Makes sandboxes of the level `process`. The calling process must have one thread.
#[derive(Debug, Default)]
pub struct ProcessBackend {
    prepared: Option<PendingInit>,
}

impl Backend for ProcessBackend {
    fn level(&self) -> Level {
        Level::Process
    }

    fn prepare(&mut self, ids: &SandboxIds) -> Result<(), IsolationError> {
        self.prepared = Some(PendingInit::new(ids.clone(), None)?);
        Ok(())
    }

    fn ask_for_copy(&mut self, zygote: OwnedFd) -> Result<(), IsolationError> {
        match &mut self.prepared {
            Some(embryo) => embryo.ask_for_copy(zygote),
            None => Err(IsolationError::Unsupported {
                level: Level::Process,
                operation: "copy a process into a sandbox that was not prepared",
            }),
        }
    }

    fn create(&mut self, plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError> {
        let ids = SandboxIds::of(plan);
        let embryo = match self.prepared.take().filter(|embryo| embryo.has(&ids)) {
            Some(embryo) => embryo,
            None => PendingInit::new(ids, None)?,
        };
        Ok(Box::new(embryo.become_sandbox(plan, leftovers)?))
    }
}

/// Gives the writable layers of a sandbox to the ids that one of this level would have, for a level that has no namespaces and
/// leaves layers in the same form.
///
/// # Errors
/// When the sandbox's ids are not to be had, or a layer cannot be given away.
pub fn give_layers(plan: &Plan) -> Result<(), IsolationError> {
    let identity = identity::choose(&SandboxIds::of(plan));
    let identity = identity.map_err(|error| failed("choosing ids for", plan.id.as_str(), error))?;
    layers::prepare_layers(plan, &identity)
}

/// What bounds a sandbox itself. What a zygote's first process bounds or counts is all that lies below, too: the kernel alone
/// ends or refuses those of its processes which are too much.
fn limits_of_itself(plan: &Plan) -> Limits {
    let all = plan.limits.clone();
    match plan.descent {
        ZygoteRole::Alone | ZygoteRole::Below(_) => all,
        ZygoteRole::Zygote => Limits {
            memory: None,
            pids: None,
            cpu_time: None,
            ..all
        },
    }
}

/// The error of a step at this level.
fn failed(step: impl Into<String>, subject: impl Into<String>, source: std::io::Error) -> IsolationError {
    IsolationError::Step {
        level: Level::Process,
        step: step.into(),
        subject: subject.into(),
        source,
    }
}
