//! Makes sandboxes of the level `wasm`.

use std::path::Path;

use offleash_core::level::Level;
use offleash_core::plan::Plan;
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{Backend, LeftoverKeeper, Sandbox, SandboxIds};
use offleash_simulated::{EngineKind, SimulatedBackend};

use crate::store::ModuleStore;
use crate::worker::WORKER_ROLE;

const WASM: EngineKind = EngineKind {
    level: Level::Wasm,
    role: WORKER_ROLE,
    name: "WebAssembly",
    commands: "WebAssembly: no program of the machine is executed",
    feature: "wasm",
};

/// Makes sandboxes of the level `wasm`: those of `simulated` with another engine.
#[derive(Debug)]
pub struct WasmBackend(SimulatedBackend);

impl Default for WasmBackend {
    fn default() -> Self {
        Self(SimulatedBackend::of(WASM, None).with_interpreters(crate::interpreter_store()))
    }
}

impl Backend for WasmBackend {
    fn level(&self) -> Level {
        Level::Wasm
    }

    fn prepare(&mut self, ids: &SandboxIds) -> Result<(), IsolationError> {
        self.0.prepare(ids)
    }

    fn keep_in(&mut self, state: &Path) {
        self.0.keep_in(state);
        self.0.keep_compiled(Box::new(ModuleStore::new(state)));
    }

    fn create(&mut self, plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError> {
        self.0.create(plan, leftovers)
    }
}
