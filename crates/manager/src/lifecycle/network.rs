//! The gateway of a run: started between the sandbox and its command, and ended after them.

use std::io;

use offleash_core::limits::Limits;
use offleash_core::network::Host;
use offleash_core::record::{Connection, ConnectionVerdict, NetworkUse};
use offleash_core::spec::NetworkSpec;
use offleash_gateway::{Account, Config, Gateway, OPEN_FILES, Outcome, Resolvers};
use offleash_store::rfc3339;
use offleash_sys::network::NetworkSockets;
use offleash_sys::network::addresses::own_addresses;
use offleash_sys::rlimit::{self, Resource};

use super::ManagerError;

/// Serves the sockets of a sandbox as `asked`, within `limits`.
///
/// # Errors
/// `Host` when the gateway cannot be started; the sandbox then has no network.
pub(super) fn start(asked: &NetworkSpec, limits: &Limits, sockets: NetworkSockets) -> Result<Gateway, ManagerError> {
    let failed = |source| ManagerError::Host {
        action: "start the gateway of the sandbox's network",
        source,
    };
    // The sandbox exists already, and keeps the limit that it was started with.
    rlimit::raise_soft(Resource::OpenFiles, OPEN_FILES).map_err(|error| failed(error.source.into()))?;
    let own = own_addresses().map_err(|error| failed(io::Error::other(error)))?;
    let config = Config {
        rules: asked.policy.clone(),
        own: own.into_iter().collect(),
        limits: limits.clone(),
        asks: asked.asks,
        resolvers: Resolvers::System,
    };
    Gateway::start(config, sockets).map_err(failed)
}

/// What would become of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectAnswer {
    /// Whether it would be made, in words.
    pub word: String,
    /// The rule that decides.
    pub rule: String,
}

/// What would become of a connection to `host` at `port`.
///
/// Whether a name leads where it may lead is found out only when it is resolved.
pub fn explain_connect(network: &NetworkSpec, host: &Host, port: u16) -> ConnectAnswer {
    let default = || "default: nothing is reached unless a rule allows it".to_owned();
    if !network.reaches_out() {
        return ConnectAnswer {
            word: "refused".to_owned(),
            rule: default(),
        };
    }
    let refusal = offleash_gateway::refusal(&network.policy, host, port);
    ConnectAnswer {
        word: match (&refusal.reason, host) {
            (None, _) if refusal.asks => "asked about, and refused unless the answer is to allow it".to_owned(),
            (Some(reason), _) => format!("refused: {reason}"),
            (None, Host::Name(_)) => "allowed, if its addresses are public".to_owned(),
            (None, Host::Address(_)) => "allowed".to_owned(),
        },
        rule: refusal.rule.unwrap_or_else(default),
    }
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
        Outcome::Cut(reason) => (ConnectionVerdict::Cut, Some(reason)),
    };
    Connection {
        at: rfc3339(seen.at),
        host: seen.host,
        port: seen.port,
        address: seen.address,
        verdict,
        reason,
        rule: seen.rule,
        asked: seen.asked,
        sent_bytes: seen.sent,
        received_bytes: seen.received,
        duration_ms: u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX),
    }
}
