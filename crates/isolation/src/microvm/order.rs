//! What the carrier of a machine is told, in a file of its house.

use offleash_core::vm::TemplateUse;
use offleash_protocol::vm::Begin;

/// The file.
pub(super) const ORDER_INSIDE: &str = "/order";

/// What a carrier carries.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct CarrierOrder {
    /// The hypervisor's words.
    pub(super) words: Vec<String>,
    /// What is done with the template that the carrier is given.
    pub(super) template: Option<TemplateUse>,
    /// What the machine is told, but for randomness and time, which are the carrier's to say.
    pub(super) begin: Begin,
}
