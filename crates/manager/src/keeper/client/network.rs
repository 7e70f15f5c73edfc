//! Other rules for the network of a sandbox, in words that its keeper understands.

use super::{AT_ONCE, Keeper, unexpected};
use crate::keeper::authority;
use crate::keeper::error::KeeperError;
use crate::keeper::message::{KeeperReply, KeeperRequest, WITH_HEADERS, WITH_NAMED, WITH_WAYS_OUT};
use crate::keeper::order::{ConnectionRules, HeaderRules, NetworkOrder, WayOutRules};

const OPERATION: &str = "change the network";

impl Keeper {
    /// Replaces the rules of the network; connections that they deny are cut, and those to hosts for which other headers
    /// are set. Where headers are set for the first time, the sandbox's trust stores are extended by its own authority.
    ///
    /// # Errors
    /// `Invalid` when a rule cannot be read; `Unsupported` without a network, for DNS servers, a proxy and headers where
    /// the keeper is older than they, for addresses that others than the owner allow where it does not know who allows
    /// them, and for headers where the machine's authorities cannot be read or the sandbox has no superuser;
    /// `TrustStores` where what is in it is in the way; `Paused`, `Gone`.
    pub async fn set_network(&self, network: NetworkOrder) -> Result<(), KeeperError> {
        let is_usual = network.way_out.is_usual();
        let may_open = network.allows_addresses();
        if network.headers.is_empty() && is_usual && !may_open {
            let NetworkOrder {
                internet, allow, deny, ..
            } = network;
            let rules = ConnectionRules { internet, allow, deny };
            return self.done(&KeeperRequest::SetNetwork(rules), AT_ONCE, OPERATION).await;
        }
        let version = self.hello().await?.version;
        let (needed, what) = if may_open && !network.named_by_owner {
            // One that is older would open whatever they name.
            (WITH_NAMED, "allow addresses")
        } else if !is_usual {
            (WITH_WAYS_OUT, "set DNS servers or a proxy")
        } else if !network.headers.is_empty() {
            (WITH_HEADERS, "set headers")
        } else {
            (0, OPERATION)
        };
        if version < needed {
            return Err(KeeperError::Unsupported {
                operation: format!("{what} in a sandbox that an older version made"),
            });
        }
        if !network.headers.is_empty() {
            match self.answer(&KeeperRequest::Authority, AT_ONCE, OPERATION).await? {
                KeeperReply::Authority(files) => authority::place(self, &files).await?,
                other => return Err(unexpected(other)),
            }
        }
        self.done(&said_to(version, network), AT_ONCE, OPERATION).await
    }
}

/// What a keeper of this version is told.
fn said_to(version: u32, network: NetworkOrder) -> KeeperRequest {
    if version >= WITH_NAMED {
        return KeeperRequest::SetNamed(network);
    }
    let is_usual = network.way_out.is_usual();
    let NetworkOrder {
        internet,
        allow,
        deny,
        headers,
        way_out,
        named_by_owner: _,
        secrets: _,
    } = network;
    if !is_usual {
        return KeeperRequest::SetWhole(WayOutRules {
            internet,
            allow,
            deny,
            headers,
            way_out,
        });
    }
    if headers.is_empty() {
        return KeeperRequest::SetNetwork(ConnectionRules { internet, allow, deny });
    }
    KeeperRequest::SetReach(HeaderRules {
        internet,
        allow,
        deny,
        headers,
    })
}
