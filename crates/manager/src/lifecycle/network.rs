//! The gateway of a run: started between the sandbox and its command, and ended after them.

use std::io;

use offleash_core::network::NetworkPolicy;
use offleash_core::record::{Connection, ConnectionVerdict, NetworkUse};
use offleash_gateway::{Account, Config, Gateway, Outcome, Resolvers, Sockets};
use offleash_isolation::sandbox::NetworkSockets;
use offleash_store::rfc3339;
use offleash_sys::network::addresses::own_addresses;

use super::ManagerError;

/// Serves the sockets of a sandbox by `rules`.
///
/// # Errors
/// `Host` when the gateway cannot be started; the sandbox then has no network.
pub(super) fn start(rules: &NetworkPolicy, sockets: NetworkSockets) -> Result<Gateway, ManagerError> {
    let failed = |source| ManagerError::Host {
        action: "start the gateway of the sandbox's network",
        source,
    };
    let own = own_addresses().map_err(|error| failed(io::Error::other(error)))?;
    let config = Config {
        rules: rules.clone(),
        own: own.into_iter().collect(),
        resolvers: Resolvers::System,
    };
    let NetworkSockets {
        connections,
        questions,
        long_questions,
    } = sockets;
    let sockets = Sockets {
        connections,
        questions,
        long_questions,
    };
    Gateway::start(config, sockets).map_err(failed)
}

/// What the gateway saw, as the record tells it.
pub(super) fn told(account: Account) -> NetworkUse {
    NetworkUse {
        connections: account.connections.into_iter().map(connection).collect(),
        more_connections: account.more_connections,
        refused_names: account.refused_names,
        more_refused_names: account.more_refused_names,
    }
}

fn connection(seen: offleash_gateway::Connection) -> Connection {
    let (verdict, reason) = match seen.outcome {
        Outcome::Allowed => (ConnectionVerdict::Allowed, None),
        Outcome::Refused(reason) => (ConnectionVerdict::Refused, Some(reason)),
        Outcome::Failed(reason) => (ConnectionVerdict::Failed, Some(reason)),
    };
    Connection {
        at: rfc3339(seen.at),
        host: seen.host,
        port: seen.port,
        address: seen.address,
        verdict,
        reason,
        rule: seen.rule,
        sent_bytes: seen.sent,
        received_bytes: seen.received,
        duration_ms: u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX),
    }
}
