//! What the carrier of a machine is told, in a file of its house.

use offleash_core::vm::VmPlan;
use offleash_protocol::vm::Begin;

use super::hypervisor::VmCard;

/// The file.
pub(super) const ORDER_INSIDE: &str = "/order";

/// What a carrier carries.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct CarrierOrder {
    /// The machine.
    pub(super) vm: VmPlan,
    /// What it has of a network.
    pub(super) card: VmCard,
    /// What the machine is told, but for randomness and time, which are the carrier's to say.
    pub(super) begin: Begin,
}
