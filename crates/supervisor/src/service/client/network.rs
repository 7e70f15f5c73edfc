//! The network of a sandbox: other rules for it, and what was reached.

use super::{AT_ONCE, SupervisorClient, unexpected};
use crate::service::authority;
use crate::service::error::SupervisorError;
use crate::service::message::{Reached, SupervisorReply, SupervisorRequest};
use crate::service::order::NetworkOrder;

const OPERATION: &str = "change the network";

impl SupervisorClient {
    /// What was reached by connections that have ended.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn reached(&self) -> Result<Reached, SupervisorError> {
        let request = SupervisorRequest::Reached;
        match self.answer(&request, AT_ONCE, "ask what was reached").await? {
            SupervisorReply::Reached(reached) => Ok(reached),
            other => Err(unexpected(other)),
        }
    }

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
