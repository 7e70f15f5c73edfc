//! Which level a run gets, and what makes sandboxes of it.

use std::os::fd::OwnedFd;
use std::path::Path;

use offleash_core::id::RunId;
use offleash_core::level::{DegradeMode, Level, LevelChoice};
use offleash_core::limits::Limits;
use offleash_core::plan::{Plan, SandboxUser};
use offleash_core::runtime::{RuntimeFacts, RuntimePlan};
use offleash_core::spec::{IdChoice, MountAccess, MountSpec, RootChoice, SandboxSpec};
use offleash_core::units::Bytes;
use offleash_core::vm::{Acceleration, VmPlan, VmSpec};
use offleash_isolation::container::{self, ContainerBackend};
use offleash_isolation::error::IsolationError;
use offleash_isolation::microvm::error::VmError;
use offleash_isolation::microvm::{MicrovmBackend, hypervisor, images, kernel, kvm};
use offleash_isolation::process::ProcessBackend;
use offleash_isolation::process_landlock::ProcessLandlockBackend;
use offleash_isolation::sandbox::{Backend, LeftoverKeeper, Sandbox, SandboxIds};
use offleash_simulated::SimulatedBackend;
use offleash_sys::process::is_root;
use offleash_wasm::WasmBackend;

use super::{LifecycleError, runtimes};
use offleash_core::error::with_causes;

/// Memory of a machine for whose code no other limit than the usual one was asked for, MiB: each page of it is looked at when it
/// is restored.
const USUAL_MACHINE_MIB: u64 = 512;
/// The least in which a machine boots, MiB.
const MIN_MACHINE_MIB: u64 = 96;
/// What a machine's kernel takes for itself, MiB.
const MACHINE_KERNEL_MIB: u64 = 48;
/// Most processors of a machine.
const MAX_MACHINE_CPUS: u32 = 16;

/// The level for a spec: the one asked for; or `process`, or a stronger one where that is the floor.
///
/// # Errors
/// `BelowFloor`.
pub fn choose(spec: &SandboxSpec) -> Result<Level, LifecycleError> {
    let level = match spec.level {
        LevelChoice::Auto => spec.min_level.unwrap_or(Level::Process).max(Level::Process),
        LevelChoice::Escalating => Level::Simulated,
        LevelChoice::Exactly(level) => level,
    };
    match spec.min_level {
        Some(floor) if level < floor => Err(LifecycleError::BelowFloor { level, floor }),
        _ => Ok(level),
    }
}

/// The OCI runtime of that name or path, or the strongest in this process's `PATH`.
pub fn find_runtime(wanted: Option<&std::path::Path>) -> Option<std::path::PathBuf> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    container::find_runtime(&search_path, wanted).map(|(_, program)| program)
}

/// The hypervisor of that name or path, or the usual one in this process's `PATH`.
pub fn find_hypervisor(wanted: Option<&Path>) -> Option<std::path::PathBuf> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    hypervisor::place(wanted.map(Path::as_os_str), &search_path)
}

/// The runtime that makes a sandbox of the level, if that needs one.
fn runtime(spec: &SandboxSpec, level: Level) -> Result<Option<RuntimePlan>, LifecycleError> {
    if level != Level::Container {
        return Ok(None);
    }
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let wanted = spec.runtime.as_deref().map(std::path::Path::new);
    let found = container::find_runtime(&search_path, wanted);
    let (kind, program) = found.ok_or_else(|| LifecycleError::NoRuntime {
        wanted: spec.runtime.as_ref().map(|name| name.to_string_lossy().into_owned()),
    })?;
    Ok(Some(RuntimePlan {
        kind,
        program,
        facts: RuntimeFacts::default(),
    }))
}

/// The virtual machine that makes a sandbox of level `microvm`; what it is booted from is made if it is not there.
fn vm(spec: &VmSpec, plan: &Plan, state: &Path) -> Result<VmPlan, LifecycleError> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let found = hypervisor::find(spec.hypervisor.as_deref(), &search_path, state)?;
    let kernel = kernel::find(spec.kernel.as_deref(), state)?;
    let images = images::prepare(&kernel, state)?;
    let processors = plan.limits.cpus.map_or(1, |cpus| cpus.millis.div_ceil(1000));
    let vm = VmPlan {
        hypervisor: found.program,
        version: found.version,
        images,
        release: kernel.release,
        acceleration: spec.acceleration.unwrap_or(Acceleration::Tcg),
        memory_mib: memory_of_machine(plan),
        cpus: u32::try_from(processors).unwrap_or(1).clamp(1, MAX_MACHINE_CPUS),
        code_memory: plan.limits.memory,
        pids: plan.limits.pids,
        template: None,
    };
    if vm.acceleration == Acceleration::Kvm {
        kvm::require(&vm, state)?;
    }
    Ok(vm)
}

/// Refuses, before anything is made, a machine that there cannot be: without a hypervisor, or without the kernel that was
/// named. Another kernel is looked for where the state directory is known.
fn look_for_machine(spec: &VmSpec) -> Result<(), LifecycleError> {
    hypervisor::require_processor()?;
    let wanted = spec.hypervisor.as_deref();
    if find_hypervisor(wanted.map(Path::new)).is_none() {
        let wanted = wanted.map(|name| name.to_string_lossy().into_owned());
        return Err(VmError::NoHypervisor { wanted }.into());
    }
    if let Some(path) = spec.kernel.as_deref().filter(|path| !path.exists()) {
        let wanted = Some(path.to_owned());
        return Err(VmError::NoKernel { wanted }.into());
    }
    Ok(())
}

/// A machine has less memory than the usual limit; a limit that was asked for stays.
fn bound_as_a_machine(limits: &mut Limits) {
    if limits.memory == Limits::default().memory {
        limits.memory = Some(Bytes::mib(USUAL_MACHINE_MIB));
    }
}

/// How much memory a machine has, MiB: as much as its code may use, and what its kernel takes.
fn memory_of_machine(plan: &Plan) -> u64 {
    let asked = plan
        .limits
        .memory
        .map_or(USUAL_MACHINE_MIB, |memory| memory.0.div_ceil(1 << 20));
    asked.max(MIN_MACHINE_MIB) + MACHINE_KERNEL_MIB
}

/// The same with the interpreters of this build.
fn with_interpreters(backend: SimulatedBackend) -> SimulatedBackend {
    backend.with_interpreters(offleash_wasm::interpreter_store())
}

/// What makes sandboxes of a level.
fn backend(level: Level) -> Box<dyn Backend> {
    match level {
        Level::Simulated => Box::new(with_interpreters(SimulatedBackend::default())),
        Level::Wasm => Box::new(WasmBackend::default()),
        Level::Process => Box::new(ProcessBackend::default()),
        Level::ProcessLandlock => Box::new(ProcessLandlockBackend),
        Level::Container => Box::new(ContainerBackend::default()),
        Level::Microvm => Box::new(MicrovmBackend::default()),
    }
}

/// The level that a run has got, with what makes its sandbox.
#[derive(Debug)]
pub(crate) struct ChosenLevel {
    level: Level,
    backend: Box<dyn Backend>,
    /// The level to take when namespaces turn out to be forbidden. That is not asked beforehand: it would cost every
    /// run the time to make them once more.
    fallback: Option<Level>,
    /// Why it is not the level that was meant.
    fallen: Option<String>,
    /// How many ids the sandbox has.
    ids: IdChoice,
    /// What makes it at level `container`.
    runtime: Option<RuntimePlan>,
    /// What was said of the machine of level `microvm`.
    vm: VmSpec,
}

impl ChosenLevel {
    /// Chooses, and does ahead what does not depend on a plan.
    ///
    /// # Errors
    /// As [`choose`], and when the machine does not let the level be had and a weaker one was not allowed.
    pub(crate) fn prepare(spec: &SandboxSpec, id: &RunId) -> Result<Self, LifecycleError> {
        let level = choose(spec)?;
        if level == Level::Microvm {
            look_for_machine(&spec.vm)?;
        }
        let mut chosen = Self {
            level,
            backend: match spec.level {
                LevelChoice::Escalating => Box::new(with_interpreters(SimulatedBackend::escalating())),
                _ => backend(level),
            },
            fallback: fallback(spec),
            fallen: None,
            ids: spec.ids.unwrap_or_default(),
            runtime: runtime(spec, level)?,
            vm: spec.vm.clone(),
        };
        if spec.gpu.is_some() && matches!(level, Level::Microvm | Level::Simulated | Level::Wasm) {
            let operation = "give a sandbox graphics cards";
            return Err(IsolationError::Unsupported { level, operation }.into());
        }
        let has_own_root = matches!(spec.root, RootChoice::Base { .. } | RootChoice::Image(_));
        if has_own_root && let Some(operation) = lacks_root(spec, level) {
            return Err(IsolationError::Unsupported { level, operation }.into());
        }
        // Files of an ordinary user are the superuser's where there are two, and the usual user could not change them.
        let is_written = |mount: &MountSpec| mount.access == MountAccess::Rw;
        let shares_files = spec.workspace.is_some() || spec.mounts.iter().any(is_written) || !spec.volumes.is_empty();
        let wants_range = is_root() || !shares_files;
        let takes_range = match level {
            // A runtime, and who serves a machine its files, is the superuser of where it is, and its code better is not.
            Level::Container | Level::Microvm => true,
            // Without namespaces only the superuser gives files to several users.
            Level::Simulated => has_own_root && is_root(),
            _ => has_own_root && wants_range,
        };
        if spec.ids.is_none() && takes_range {
            chosen.ids = IdChoice::Range;
            if chosen.backend.prepare(&ids_of(spec, id, IdChoice::Range)).is_ok() {
                return Ok(chosen);
            }
            // Then one has to do.
            chosen.ids = IdChoice::Single;
        }
        if level >= Level::Container && chosen.ids.is_one() {
            chosen.ids = IdChoice::Zero;
        }
        if let Err(error) = chosen.backend.prepare(&ids_of(spec, id, chosen.ids)) {
            chosen.fall_back(error)?;
        }
        Ok(chosen)
    }

    /// Has the zygote at the other end of `zygote`, below which the sandbox is made, make a copy of its process meanwhile.
    ///
    /// # Errors
    /// As [`Backend::ask_for_copy`].
    pub(crate) fn ask_for_copy(&mut self, zygote: OwnedFd) -> Result<(), LifecycleError> {
        Ok(self.backend.ask_for_copy(zygote)?)
    }

    /// How many ids the sandbox has.
    pub(super) fn ids(&self) -> IdChoice {
        self.ids
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Makes the sandbox; `plan` is told the level at which it was made. `state` is the state directory.
    ///
    /// # Errors
    /// As [`Backend::create`].
    pub(crate) fn create(
        &mut self,
        plan: &mut Plan,
        state: &Path,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<Box<dyn Sandbox>, LifecycleError> {
        plan.level = self.level;
        self.backend.keep_in(state);
        if let Some(runtime) = &mut self.runtime {
            runtime.facts = runtimes::facts(state, runtime.kind, &runtime.program);
        }
        plan.runtime.clone_from(&self.runtime);
        if self.level == Level::Microvm {
            bound_as_a_machine(&mut plan.limits);
            plan.vm = Some(vm(&self.vm, plan, state)?);
        }
        match self.backend.create(plan, leftovers) {
            Ok(sandbox) => Ok(sandbox),
            Err(error) => {
                self.fall_back(error)?;
                plan.level = self.level;
                Ok(self.backend.create(plan, leftovers)?)
            }
        }
    }

    /// Why the level is weaker than the one that was meant, if it is.
    pub(super) fn fallen(&self) -> Option<&str> {
        self.fallen.as_deref()
    }

    fn fall_back(&mut self, error: IsolationError) -> Result<(), LifecycleError> {
        let Some(level) = self.fallback.take().filter(|_| error.forbids_namespaces()) else {
            return Err(error.into());
        };
        self.fallen = Some(with_causes(&error));
        self.level = level;
        self.backend = backend(level);
        Ok(())
    }
}

/// What a level cannot do that a root of its own asks for.
fn lacks_root(spec: &SandboxSpec, level: Level) -> Option<&'static str> {
    match (level, &spec.root) {
        (Level::Simulated, RootChoice::Image(_)) => Some("give a sandbox the root of an image"),
        (Level::Simulated, _) if spec.level == LevelChoice::Escalating => {
            Some("give a sandbox a root of its own, with programs of level `process`")
        }
        (Level::Wasm | Level::ProcessLandlock, _) => Some("give a sandbox a root of its own"),
        _ => None,
    }
}

fn ids_of(spec: &SandboxSpec, id: &RunId, choice: IdChoice) -> SandboxIds {
    let first = offleash_planner::first_user(&spec.root, choice).ids();
    let users = offleash_planner::users(&spec.root, choice);
    SandboxIds {
        sandbox: id.clone(),
        choice,
        uid: first.uid,
        gid: first.gid,
        worker: users.first().map_or(first, SandboxUser::ids),
        descent: spec.descent,
    }
}

/// What the owner accepts when user namespaces are forbidden: only what he named, or allowed by `degrade`.
fn fallback(spec: &SandboxSpec) -> Option<Level> {
    let is_possible = spec.root == RootChoice::System;
    let is_allowed = is_possible && spec.level == LevelChoice::Auto && spec.degrade == DegradeMode::Allow;
    let level = Level::ProcessLandlock;
    (is_allowed && spec.min_level.is_none_or(|floor| floor <= level)).then_some(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weaker_level_is_taken_only_where_the_owner_allows_it() {
        let spec = |level, degrade, min_level| SandboxSpec {
            level,
            degrade,
            min_level,
            ..SandboxSpec::default()
        };
        let (auto, exactly) = (LevelChoice::Auto, LevelChoice::Exactly(Level::Process));
        for (spec, expected) in [
            (spec(auto, DegradeMode::Refuse, None), None),
            (spec(auto, DegradeMode::Allow, None), Some(Level::ProcessLandlock)),
            (
                spec(auto, DegradeMode::Allow, Some(Level::ProcessLandlock)),
                Some(Level::ProcessLandlock),
            ),
            (spec(auto, DegradeMode::Allow, Some(Level::Process)), None),
            (spec(exactly, DegradeMode::Allow, None), None),
        ] {
            assert_eq!(fallback(&spec), expected, "{spec:?}");
        }
    }

    #[test]
    fn a_floor_refuses_what_is_below() {
        let spec = SandboxSpec {
            level: LevelChoice::Exactly(Level::ProcessLandlock),
            min_level: Some(Level::Process),
            ..SandboxSpec::default()
        };
        assert!(matches!(choose(&spec), Err(LifecycleError::BelowFloor { .. })));
    }
}
