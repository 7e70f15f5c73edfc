//! What a process of ours is that no help names: `offleash supervise ROLE`.
//!
//! A supervisor holds one sandbox; the others do one thing for one, because it takes a process with one thread. Each reads an
//! order on standard input ([`crate::frames`]) and answers on standard output.

use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_isolation::limits::MEASURE_ROLE;
pub use offleash_isolation::limits::SUPERVISE_COMMAND;
use offleash_isolation::microvm::{CARRY_ROLE, HYPERVISOR_ROLE};
use offleash_protocol::Dialogue;
use offleash_simulated::WORKER_ROLE;
use serde::{Deserialize, Serialize};

use crate::buckets::SYNC_ROLE;
use crate::images::FETCH_ROLE;
use crate::snapshot_archives::{PACK_ROLE, UNPACK_ROLE};
use crate::templates::BUILD_ROLE;
use crate::tools::TOOLS_ROLE;

/// A role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorRole {
    /// Holds a sandbox for a daemon, which it outlives.
    Sandbox,
    /// Holds a sandbox for one program, with which it ends.
    Local,
    /// Holds a sandbox until a run takes it.
    Prewarmed,
    /// Copies what a sandbox wrote, for another one.
    CopyLayer,
    /// Copies what a sandbox wrote, as a snapshot.
    CopySnapshot,
    /// Packs a snapshot as an archive.
    PackSnapshot,
    /// Takes in a snapshot that comes as an archive.
    UnpackSnapshot,
    /// Removes what a sandbox left that is gone.
    RemoveLayer,
    /// Shows what was changed in a sandbox.
    ShowChanges,
    /// Measures what a sandbox wrote, where its supervisor may not enter all of it.
    MeasureLayer,
    /// Builds a template.
    BuildTemplate,
    /// Makes an image ready: pulls it and unpacks it.
    FetchImage,
    /// Brings a volume and its bucket to the same.
    SyncVolume,
    /// Takes calls of tools for a sandbox.
    ServeTools,
    /// Carries the virtual machine of a sandbox, inside that.
    CarryVm,
    /// Becomes the hypervisor of one.
    BecomeHypervisor,
    /// Carries the commands of a simulated shell out, behind walls of its own.
    SimulatedWorker,
    /// Compiles and runs WebAssembly, behind the same walls.
    WasmWorker,
    /// Compiles an interpreter that this program has, for all sandboxes.
    CompileInterpreter,
}

impl SupervisorRole {
    const ALL: [Self; 19] = [
        Self::Sandbox,
        Self::Local,
        Self::Prewarmed,
        Self::CopyLayer,
        Self::CopySnapshot,
        Self::PackSnapshot,
        Self::UnpackSnapshot,
        Self::RemoveLayer,
        Self::ShowChanges,
        Self::MeasureLayer,
        Self::BuildTemplate,
        Self::FetchImage,
        Self::SyncVolume,
        Self::ServeTools,
        Self::CarryVm,
        Self::BecomeHypervisor,
        Self::SimulatedWorker,
        Self::WasmWorker,
        Self::CompileInterpreter,
    ];

    /// Its word behind the command.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Local => "local",
            Self::Prewarmed => "prewarmed",
            Self::CopyLayer => "copy-layer",
            Self::CopySnapshot => "copy-snapshot",
            Self::PackSnapshot => PACK_ROLE,
            Self::UnpackSnapshot => UNPACK_ROLE,
            Self::RemoveLayer => "remove-layer",
            Self::ShowChanges => "show-changes",
            Self::MeasureLayer => MEASURE_ROLE,
            Self::BuildTemplate => BUILD_ROLE,
            Self::FetchImage => FETCH_ROLE,
            Self::SyncVolume => SYNC_ROLE,
            Self::ServeTools => TOOLS_ROLE,
            Self::CarryVm => CARRY_ROLE,
            Self::BecomeHypervisor => HYPERVISOR_ROLE,
            Self::SimulatedWorker => WORKER_ROLE,
            Self::WasmWorker => offleash_wasm::WORKER_ROLE,
            Self::CompileInterpreter => offleash_wasm::COMPILER_ROLE,
        }
    }

    /// The role of that word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }

    /// The arguments of a process of it, our program first.
    pub fn arguments(self, program: &[u8]) -> Vec<Vec<u8>> {
        vec![program.to_vec(), SUPERVISE_COMMAND.into(), self.word().into()]
    }
}

/// What is to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveOrder {
    /// The state directory.
    pub state: Text,
    /// The sandbox, which is gone, or the snapshot.
    pub id: RunId,
    /// Whether it is a snapshot, which nobody holds.
    pub is_snapshot: bool,
}

impl Dialogue for RemoveOrder {
    const MAX_FRAME: usize = 64 * 1024;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_a_word_of_its_own() {
        for role in SupervisorRole::ALL {
            assert_eq!(SupervisorRole::of(role.word()), Some(role));
        }
        assert_eq!(SupervisorRole::of("supervisor"), None);
    }
}
