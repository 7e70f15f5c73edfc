//! What is told of a sandbox's connections.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use offleash_core::approval::ApprovalAnswer;
use offleash_core::record::LimitHit;

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// It was made.
    Allowed,
    /// It was refused, and why.
    Refused(String),
    /// It was allowed and could not be made, and why.
    Failed(String),
    /// It was made, and ended by a limit; which.
    Cut(String),
}

/// One connection of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Connection {
    /// When it was asked for; of several the first.
    pub at: SystemTime,
    /// How many there were.
    pub times: u64,
    /// The name, or the address where none was used.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// What became of it.
    pub outcome: Outcome,
    /// The rule that decided, as it was written; none stands for "nothing is allowed unless a rule says so".
    pub rule: Option<String>,
    /// How it was decided, if it was asked about.
    pub asked: Option<ApprovalAnswer>,
    /// Bytes that the sandbox sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
    /// How long it lasted.
    pub duration: Duration,
    /// The requests on it where they were seen, in the order in which they began.
    pub requests: Vec<Request>,
    /// How many there were beyond those.
    pub more_requests: u64,
}

/// One request on a connection that was opened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Its path without the query, or the beginning of it.
    pub path: String,
    /// The status of its answer, the gateway's own included.
    pub status: Option<u16>,
    /// What became of it.
    pub outcome: Outcome,
    /// The rule that decided, as it was written; none where no rule is about requests to the host.
    pub rule: Option<String>,
    /// The names of the secrets that were put into it.
    pub secrets: Vec<String>,
    /// Bytes of its body that the sandbox sent.
    pub sent: u64,
    /// Bytes of the answer's body that it received.
    pub received: u64,
    /// How long it took until the answer had ended.
    pub duration: Duration,
}

/// A secret that was used, or whose placeholder was refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct SecretUse {
    /// Its name.
    pub secret: String,
    /// The host that the request was for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Why the request was refused; `None` when the value was sent.
    pub refused: Option<String>,
}

/// One connection to the sandbox, from outside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Inbound {
    /// When it was made.
    pub at: SystemTime,
    /// Who made it.
    pub peer: SocketAddr,
    /// Where on the host.
    pub host_address: SocketAddr,
    /// The port in the sandbox.
    pub port: u16,
    /// What became of it.
    pub outcome: Outcome,
    /// Bytes that the sandbox sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
    /// How long it lasted.
    pub duration: Duration,
}

/// What is told as it happens, once each, to whoever watches ([`crate::Gateway::news`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Something that the sandbox asked for was refused.
    Refused {
        /// The name, or the address where none was used.
        host: String,
        /// The port; none for a name that does not exist for the sandbox.
        port: Option<u16>,
        /// Why.
        reason: String,
    },
    /// So much was refused since the last time beyond what is told one by one.
    More {
        /// How often.
        count: u64,
        /// Whether that was never told before.
        is_first: bool,
    },
    /// A limit was hit.
    Limit(LimitHit),
}

/// How the gateway of a sandbox ended that nobody had ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayLoss {
    /// When that was noticed.
    pub at: SystemTime,
    /// How.
    pub cause: LossCause,
}

/// How a process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// A signal ended it.
    Signaled(i32),
    /// It ended by itself, with this code.
    Exited(i32),
    /// It said what no gateway says, and was ended for it.
    Misbehaved,
}

/// Something for the record, on its way from the gateway's process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum JournalEntry {
    Connection(Connection),
    RefusedName {
        name: String,
        times: u64,
    },
    Inbound(Inbound),
    Limit(LimitHit),
    Secret {
        used: SecretUse,
        times: u64,
    },
    /// How many there were beyond what is told one by one.
    More(MoreEntries),
}

/// What is told by its number alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct MoreEntries {
    pub(crate) connections: u64,
    pub(crate) refused_names: u64,
    pub(crate) inbound: u64,
    pub(crate) secrets: u64,
}

/// What connections have in common that are told together: host, port, rule and reason.
pub(crate) type Refusal = (String, u16, Option<String>, String);

impl Connection {
    /// What there is to be told of it, if that is only that it was refused.
    pub(crate) fn only_refused(&self) -> Option<Refusal> {
        let Outcome::Refused(reason) = &self.outcome else {
            return None;
        };
        let is_bare = self.address.is_none()
            && self.asked.is_none()
            && self.requests.is_empty()
            && (self.sent, self.received, self.more_requests) == (0, 0, 0);
        is_bare.then(|| (self.host.clone(), self.port, self.rule.clone(), reason.clone()))
    }
}
