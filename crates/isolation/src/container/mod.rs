//! The level `container`: an OCI runtime, inside namespaces, a tree, a network and limits of the level `process`.
//!
//! The first process does what that of the level `process` does, up to the tree. Then it makes a small root around the
//! tree (`housing`), describes the sandbox as an OCI bundle (`bundle`) and becomes the runtime, which starts the guest. So
//! what holds the runtime, should it be broken out of, is a sandbox of ours: no process, file or network of the host is
//! there. What the runtime adds is what it is taken for: gVisor's own kernel.
//!
//! Without ids but one, that one is 0 inside: a runtime is to be the superuser of where it is.

mod bundle;
mod housing;
mod running;

use std::path::{Path, PathBuf};

use offleash_core::level::Level;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::runtime::RuntimeKind;
use offleash_core::spec::ZygoteRole;

use offleash_sys::seccomp::{self, FilterOptions, SeccompFilter};

use self::housing::RuntimeHousing;
use self::running::new_sandbox;
use crate::error::IsolationError;
use crate::process::create::PendingInit;
use crate::sandbox::{Backend, LeftoverKeeper, Sandbox, SandboxIds};
use crate::search_path::find_program;

/// Where the guest's program is inside.
const GUEST: &str = "/run/.offleash-guest";
/// Where its filter is (`FILTER` of the guest).
const FILTER: &str = "/run/.offleash-filter";
/// The argument with which it looks there (`FILTERED` of the guest).
const FILTERED: &str = "filtered";

/// Makes sandboxes of the level `container`. The calling process must have one thread.
#[derive(Debug, Default)]
pub struct ContainerBackend {
    prepared: Option<PendingInit>,
}

impl Backend for ContainerBackend {
    fn level(&self) -> Level {
        Level::Container
    }

    fn prepare(&mut self, ids: &SandboxIds) -> Result<(), IsolationError> {
        let pending = PendingInit::new(ids.clone(), Some(&RuntimeHousing));
        self.prepared = Some(pending.map_err(at_this_level)?);
        Ok(())
    }

    fn create(&mut self, plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError> {
        refuse_what_cannot_be(plan)?;
        let ids = SandboxIds::of(plan);
        let pending = match self.prepared.take().filter(|pending| pending.has(&ids)) {
            Some(pending) => pending,
            None => PendingInit::new(ids, Some(&RuntimeHousing)).map_err(at_this_level)?,
        };
        let plan = with_guest(plan);
        let parts = pending.make(&plan, leftovers).map_err(at_this_level)?;
        Ok(Box::new(new_sandbox(&plan, parts)?))
    }
}

/// The plan with the guest's program as a file, from which the runtime starts it, and the filter that it puts itself under.
fn with_guest(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    if !has_own_kernel(&plan) {
        plan.entries.push(PlanEntry {
            target: PathBuf::from(FILTER),
            node: PlanNode::File {
                contents: filter(&plan).to_bytes(),
            },
            rule: "system: the guest".to_owned(),
        });
    }
    plan.entries.push(PlanEntry {
        target: PathBuf::from(GUEST),
        node: PlanNode::Guest,
        rule: "system: the guest".to_owned(),
    });
    plan
}

/// Whether code in the sandbox speaks to another kernel than the host's.
fn has_own_kernel(plan: &Plan) -> bool {
    plan.runtime
        .as_ref()
        .is_some_and(|runtime| runtime.kind.has_own_kernel())
}

/// The system call filter of level `process`, for code that speaks to the host's kernel; nobody is told of what it refuses.
fn filter(plan: &Plan) -> SeccompFilter {
    seccomp::compile(&FilterOptions {
        allow_ptrace: plan.allow_ptrace,
        superuser: plan.has_superuser(),
        allow_set_id: plan.has_own_root() && !plan.writes_for_others(),
        ..FilterOptions::default()
    })
}

/// What this level has no means for.
fn refuse_what_cannot_be(plan: &Plan) -> Result<(), IsolationError> {
    let refused = |what: &str, reason: &str, hint: &str| {
        Err(IsolationError::NotEnforceable {
            level: Level::Container,
            what: what.to_owned(),
            reason: reason.to_owned(),
            hint: hint.to_owned(),
        })
    };
    if plan.descent != ZygoteRole::Alone {
        return Err(IsolationError::Unsupported {
            level: Level::Container,
            operation: "copy a process into another sandbox",
        });
    }
    if plan.runtime.is_none() {
        return refused(
            "that a runtime holds the code",
            "no runtime was found",
            "install `runsc` (gVisor), or name one with `--runtime`",
        );
    }
    let gpu_nodes = plan.gpu_nodes();
    if has_own_kernel(plan) && gpu_nodes.iter().any(|node| !is_nvidia(node)) {
        return refused(
            "a graphics card that is not NVIDIA's",
            "gVisor knows no other driver",
            "use `--runtime crun`, or `--level process`",
        );
    }
    if !plan.executables.is_empty() {
        return refused(
            "that only some programs are executed",
            "Landlock holds that, which would keep a runtime from mounting",
            "use `--level process`, or leave `commands` out",
        );
    }
    Ok(())
}

/// Whether a node below `/dev` is one of NVIDIA's driver.
fn is_nvidia(node: &Path) -> bool {
    node.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("nvidia"))
}

/// The same error at this level.
fn at_this_level(error: IsolationError) -> IsolationError {
    error.at(Level::Container)
}

/// A runtime that was found.
pub fn find_runtime(search_path: &std::ffi::OsStr, wanted: Option<&Path>) -> Option<(RuntimeKind, PathBuf)> {
    let resolved = |path: PathBuf| path.canonicalize().ok();
    match wanted {
        Some(path) if path.components().count() > 1 || path.is_absolute() => {
            let kind = RuntimeKind::of_program(&path.to_string_lossy())?;
            Some((kind, resolved(path.to_owned())?))
        }
        Some(name) => {
            let name = name.to_str()?;
            let kind = RuntimeKind::of_program(name)?;
            Some((kind, resolved(find_program(name, search_path)?)?))
        }
        None => RuntimeKind::LOOKED_FOR.into_iter().find_map(|kind| {
            let found = find_program(kind.name(), search_path)?;
            Some((kind, resolved(found)?))
        }),
    }
}
