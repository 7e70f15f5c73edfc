//! Other rules for the network of a sandbox.

use super::{AT_ONCE, Keeper, unexpected};
use crate::keeper::authority;
use crate::keeper::error::KeeperError;
use crate::keeper::message::{KeeperReply, KeeperRequest};
use crate::keeper::order::NetworkOrder;

const OPERATION: &str = "change the network";

impl Keeper {
    /// Replaces the rules of the network; connections that they deny are cut, and those to hosts for which other headers
    /// are set. Where headers are set for the first time, the sandbox's trust stores are extended by its own authority.
    ///
    /// # Errors
    /// `Invalid` when a rule cannot be read; `Unsupported` without a network, and for headers where the machine's
    /// authorities cannot be read or the sandbox has no superuser; `TrustStores` where what is in it is in the way;
    /// `Paused`, `Gone`.
    pub async fn set_network(&self, network: NetworkOrder) -> Result<(), KeeperError> {
        if !network.headers.is_empty() {
            match self.answer(&KeeperRequest::Authority, AT_ONCE, OPERATION).await? {
                KeeperReply::Authority(files) => authority::place(self, &files).await?,
                other => return Err(unexpected(other)),
            }
        }
        self.done(&KeeperRequest::SetNetwork(network), AT_ONCE, OPERATION).await
    }
}
