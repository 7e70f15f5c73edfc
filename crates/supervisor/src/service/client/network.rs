//! Other rules for the network of a sandbox.

use super::{AT_ONCE, SupervisorClient, unexpected};
use crate::service::authority;
use crate::service::error::SupervisorError;
use crate::service::message::{SupervisorReply, SupervisorRequest};
use crate::service::order::NetworkOrder;

const OPERATION: &str = "change the network";

impl SupervisorClient {
    /// Replaces the rules of the network; connections that they deny are cut, and those to hosts for which other headers
    /// are set. Where headers are set for the first time, the sandbox's trust stores are extended by its own authority.
    ///
    /// # Errors
    /// `Invalid` when a rule cannot be read; `Unsupported` without a network, and for headers where the machine's
    /// authorities cannot be read or the sandbox has no superuser; `TrustStores` where what is in it is in the way;
    /// `Paused`, `Gone`.
    pub async fn set_network(&self, network: NetworkOrder) -> Result<(), SupervisorError> {
        if !network.headers.is_empty() {
            match self.answer(&SupervisorRequest::Authority, AT_ONCE, OPERATION).await? {
                SupervisorReply::Authority(files) => authority::place(self, &files).await?,
                other => return Err(unexpected(other)),
            }
        }
        self.done(&SupervisorRequest::SetNetwork(network), AT_ONCE, OPERATION)
            .await
    }
}
