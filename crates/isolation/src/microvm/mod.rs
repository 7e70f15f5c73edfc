//! The level `microvm`: a virtual machine, inside namespaces, a tree, a network and limits of the level `process`.
//!
//! The first process does what that of the level `process` does, up to the tree. Then it makes a small root around the tree
//! (`housing`) and becomes the carrier (`carrier`), a role of our own program. That starts the hypervisor inside the same
//! sandbox, tells the machine what it is to become (`beginning`), carries its channel (`mux`) and serves it the tree. So what
//! holds a hypervisor that was broken out of is a sandbox of ours: no process, file or network of the host is there.
//!
//! What a machine is booted from is made once (`kernel`, `images`): the distribution's kernel, and our guest as its first
//! process.

mod beginning;
mod carrier;
pub mod error;
mod housing;
pub mod hypervisor;
pub mod images;
mod initramfs;
pub mod kernel;
pub mod kvm;
mod modules;
mod monitor;
pub mod mux;
mod order;
mod running;
mod saying;
mod starting;
mod template;

use offleash_core::level::Level;
use offleash_core::plan::Plan;
use offleash_core::spec::ZygoteRole;
use offleash_core::units::Bytes;

pub use self::carrier::{become_hypervisor, carry};
use self::housing::CarrierHousing;
use self::hypervisor::VmCard;
use self::running::new_sandbox;
use crate::error::IsolationError;
use crate::process::create::PendingInit;
use crate::sandbox::{Backend, LeftoverKeeper, Sandbox, SandboxIds};

/// Memory of the hypervisor and the carrier besides the machine's own, MiB: 64 of them are translated instructions.
const HYPERVISOR_MIB: u64 = 192;
/// Threads that these have at most: one of each processor, and those that serve the tree and wait for files.
const MAX_OWN_THREADS: u64 = 256;

/// The role of a machine's carrier, as the argument of our program (`SUPERVISE_COMMAND`).
pub const CARRY_ROLE: &str = "carry-vm";
/// What a carrier says, before the reason, of a machine that boots although it has a template.
const NOT_RESTORED: &str = "the machine is not restored from its template";

/// The role of what becomes a hypervisor.
pub const HYPERVISOR_ROLE: &str = "become-hypervisor";

/// Makes sandboxes of the level `microvm`. The calling process must have one thread.
#[derive(Debug, Default)]
pub struct MicrovmBackend {
    prepared: Option<PendingInit>,
}

impl Backend for MicrovmBackend {
    fn level(&self) -> Level {
        Level::Microvm
    }

    fn prepare(&mut self, ids: &SandboxIds) -> Result<(), IsolationError> {
        let pending = PendingInit::new(ids.clone(), Some(&CarrierHousing));
        self.prepared = Some(pending.map_err(at_this_level)?);
        Ok(())
    }

    fn create(&mut self, plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError> {
        refuse_what_cannot_be(plan)?;
        let ids = SandboxIds::of(plan);
        let pending = match self.prepared.take().filter(|pending| pending.has(&ids)) {
            Some(pending) => pending,
            None => PendingInit::new(ids, Some(&CarrierHousing)).map_err(at_this_level)?,
        };
        let mut outside = of_the_hypervisor(plan);
        let lock = choose_template(&mut outside);
        let parts = pending.make(&outside, leftovers).map_err(at_this_level)?;
        Ok(Box::new(new_sandbox(plan, &outside, parts, lock)?))
    }
}

/// The plan with what bounds the hypervisor and the carrier: the machine's memory and their own, and their own threads. What
/// the code inside may have is the machine's to hold.
fn of_the_hypervisor(plan: &Plan) -> Plan {
    let mut outside = plan.clone();
    if let Some(vm) = &plan.vm {
        let memory = Bytes::mib(vm.memory_mib + HYPERVISOR_MIB);
        outside.limits.memory = plan.limits.memory.and(Some(memory));
        outside.limits.pids = plan.limits.pids.and(Some(MAX_OWN_THREADS));
    }
    outside
}

/// Chooses the template of the plan's machine; answers the lock of one that is saved.
fn choose_template(plan: &mut Plan) -> Option<std::fs::File> {
    let card = VmCard::of(plan);
    let vm = plan.vm.as_mut()?;
    let chosen = template::choose(vm, card)?;
    vm.template = Some(chosen.plan);
    chosen.lock
}

/// What this level has no means for.
fn refuse_what_cannot_be(plan: &Plan) -> Result<(), IsolationError> {
    let refused = |what: &str, reason: &str, hint: &str| {
        Err(IsolationError::NotEnforceable {
            level: Level::Microvm,
            what: what.to_owned(),
            reason: reason.to_owned(),
            hint: hint.to_owned(),
        })
    };
    if plan.descent != ZygoteRole::Alone || plan.vm.is_none() {
        return Err(IsolationError::Unsupported {
            level: Level::Microvm,
            operation: "copy a process into another sandbox",
        });
    }
    if !plan.executables.is_empty() {
        return refused(
            "that only some programs are executed",
            "Landlock holds that, and the machine's kernel has other files",
            "use `--level process`, or leave `commands` out",
        );
    }
    if !plan.network_doors.services.is_empty() {
        return refused(
            "that services of the host are reached",
            "the machine's loopback interface is its own",
            "use `--level process`, or leave `--host-port` out",
        );
    }
    Ok(())
}

/// The same error at this level.
fn at_this_level(error: IsolationError) -> IsolationError {
    error.at(Level::Microvm)
}
