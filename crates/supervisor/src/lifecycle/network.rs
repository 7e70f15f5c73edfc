//! The gateway of a run: started between the sandbox and its command, and ended after them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::level::Level;
use offleash_core::limits::Limits;
use offleash_core::network::upstream_proxy::{
    NO_PROXY_VARIABLES, PROXY_VARIABLES, ProxyError, ProxySource, UpstreamProxy, parse_no_proxy,
};
use offleash_core::network::{Host, HostPort};
use offleash_core::plan::Environment;
use offleash_core::record::{
    ConnectionRecord, ConnectionVerdict, InboundConnection, NetworkLoss, NetworkLossCause, NetworkUse, RequestSeen,
    SecretUse,
};
use offleash_core::spec::NetworkSpec;
use offleash_gateway::{
    Account, Audience, Config, Gateway, GatewayLoss, GatewayProcess, LossCause, NamedBy, Outcome, Resolvers, Trust,
    WayOut,
};
use offleash_store::rfc3339;
use offleash_sys::network::NetworkSockets;
use offleash_sys::network::addresses::OwnAddresses;

use super::LifecycleError;
use super::published::PublishedPorts;
use super::secrets::Ready;
use offleash_planner::{PlanningHost, TrustStores, absolute, read_regular_file};

/// The proxy that was asked for, read from wherever its URL is.
///
/// # Errors
/// [`ProxyError`] when there is none, or not one that can be used.
pub(super) fn upstream_proxy(asked: &NetworkSpec, host: &PlanningHost) -> Result<Option<UpstreamProxy>, ProxyError> {
    let Some(source) = &asked.upstream_proxy else {
        return Ok(None);
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let unreadable = |reason: &str| ProxyError::Unreadable {
        place: source.to_string(),
        reason: reason.to_owned(),
    };
    let mut proxy = match source {
        ProxySource::Url(proxy) => proxy.clone(),
        ProxySource::Variable(name) => {
            UpstreamProxy::parse(&variable(name).ok_or_else(|| unreadable("that variable is not set"))?)?
        }
        ProxySource::File(path) => {
            let bytes =
                read_regular_file(&absolute(Path::new(path), host)).map_err(|error| unreadable(&error.to_string()))?;
            UpstreamProxy::parse(str::from_utf8(&bytes).map_err(|_| unreadable("it is not UTF-8"))?)?
        }
        ProxySource::Environment => {
            let url = PROXY_VARIABLES.into_iter().find_map(variable);
            let mut proxy = UpstreamProxy::parse(&url.ok_or_else(|| unreadable("HTTPS_PROXY is not set"))?)?;
            if let Some(text) = NO_PROXY_VARIABLES.into_iter().find_map(variable) {
                match parse_no_proxy(&text)? {
                    Some(direct) => proxy.direct = direct,
                    None => return Ok(None),
                }
            }
            proxy
        }
    };
    proxy.direct.extend_from_slice(&asked.no_proxy);
    Ok(Some(proxy))
}

/// What the gateway has, and the sandbox has not.
#[derive(Debug)]
pub(crate) struct Outside {
    /// What connections are opened with, if any are.
    pub(super) trust: Option<Arc<Trust>>,
    /// The values of secrets, and the variables with their placeholders.
    pub(super) secrets: Ready,
    /// What listens on the host.
    pub(super) published: PublishedPorts,
    /// The proxy of the owner's network, if everything goes through one.
    pub(super) upstream_proxy: Option<UpstreamProxy>,
    /// The gateway's process, which makes itself ready while the sandbox is made.
    pub(super) process: Option<GatewayProcess>,
}

impl Outside {
    /// The variables with the placeholders of secrets.
    pub(crate) fn variables(&self) -> &Environment {
        &self.secrets.variables
    }

    /// Lines about published ports that nobody can know yet.
    pub(crate) fn news(&self) -> Vec<String> {
        self.published.news().collect()
    }

    /// What connections are opened with, if any are.
    pub(crate) fn trust(&self) -> Option<&Arc<Trust>> {
        self.trust.as_ref()
    }
}

/// What connections are opened with, if any are.
///
/// # Errors
/// `Trust` when the certificate authorities of the machine cannot be read.
pub(super) fn trust(asked: &NetworkSpec) -> Result<Option<Arc<Trust>>, LifecycleError> {
    if !asked.reaches_out() || !asked.opens() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Trust::of_this_machine()?)))
}

/// The same in the forms in which programs inside look for it.
pub(crate) fn stores(trust: &Trust) -> TrustStores {
    TrustStores {
        bundle: trust.bundle(),
        own: trust.own_pem(),
        java: trust.java_key_store(),
        hashed_name: trust.hashed_name(),
    }
}

/// Starts the process of a gateway ahead, for a sandbox that will have a network; none where that of its `trust` is one. What
/// keeps it from being started is found again when it is needed.
pub(super) fn process_ahead(asked: &NetworkSpec, level: Level, trust: Option<&Arc<Trust>>) -> Option<GatewayProcess> {
    let is_needed = asked.needs_gateway() && level == Level::Process && trust.is_none();
    is_needed.then(|| GatewayProcess::start().ok()).flatten()
}

/// Serves the sockets of a sandbox as `asked`, within `limits`, with what is `outside`, of which the gateway takes what it
/// alone is to have.
///
/// # Errors
/// `Host` when the gateway cannot be started; the sandbox then has no network.
pub(super) fn start(
    asked: &NetworkSpec,
    limits: &Limits,
    outside: &mut Outside,
    sockets: NetworkSockets,
) -> Result<Gateway, LifecycleError> {
    let failed = |source| LifecycleError::Host {
        action: "start the gateway of the sandbox's network",
        source,
    };
    let own = OwnAddresses::watch().map_err(|error| failed(io::Error::other(error)))?;
    let config = Config {
        rules: asked.policy.clone(),
        internet: asked.internet,
        requests: asked.requests.clone(),
        trust: outside.trust.clone(),
        own: own.into(),
        host_ports: asked.host_ports.clone(),
        published: outside.published.take_listeners(),
        limits: limits.clone(),
        asks: asked.asks,
        process: outside.process.take(),
        way_out: way_out(asked, outside.upstream_proxy.clone()),
        secrets: std::mem::take(&mut outside.secrets.secrets),
        audience: if is_of_server(asked) {
            Audience::Server
        } else {
            Audience::Run
        },
    };
    Gateway::start(config, sockets).map_err(failed)
}

/// Whether it is a sandbox of a server: only those have a way in that no port was published for.
fn is_of_server(asked: &NetworkSpec) -> bool {
    asked.entrance
}

/// How the outside is reached as `asked`, with the proxy that was read from wherever its URL is.
pub(crate) fn way_out(asked: &NetworkSpec, proxy: Option<UpstreamProxy>) -> WayOut {
    WayOut {
        resolvers: match asked.dns_servers.as_slice() {
            [] => Resolvers::System,
            servers => Resolvers::At(servers.iter().map(|server| server.address()).collect()),
        },
        proxy,
        named_by: if is_of_server(asked) {
            NamedBy::Caller
        } else {
            NamedBy::Owner
        },
    }
}

/// What would become of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectAnswer {
    /// Whether it would be made, in words.
    pub word: String,
    /// The rule that decides.
    pub rule: String,
    /// The rules about requests on it, which is then opened; none if it is not.
    pub requests: Vec<String>,
}

/// What would become of a connection to `host` at `port`.
///
/// Whether a name leads where it may lead is found out only when it is resolved.
pub fn explain_connect(network: &NetworkSpec, host: &Host, port: u16) -> ConnectAnswer {
    let default = || "default: nothing is reached unless a rule allows it".to_owned();
    let service = |given: &&HostPort| is_loopback(host) && given.inside == port;
    if let Some(given) = network.host_ports.iter().find(service) {
        return ConnectAnswer {
            word: format!("allowed, to port {} on this machine's loopback", given.port),
            rule: given.to_string(),
            requests: Vec::new(),
        };
    }
    if !network.reaches_out() {
        return ConnectAnswer {
            word: "refused".to_owned(),
            rule: default(),
            requests: Vec::new(),
        };
    }
    let default = || match network.internet {
        true => "network.internet: what is public is reached".to_owned(),
        false => default(),
    };
    let refusal = offleash_gateway::refusal(&network.policy, network.internet, host, port);
    ConnectAnswer {
        word: match (&refusal.reason, host) {
            (None, _) if refusal.asks => "asked about, and refused unless the answer is to allow it".to_owned(),
            (Some(reason), _) => format!("refused: {reason}"),
            (None, Host::Name(_)) => "allowed, if its addresses are public".to_owned(),
            (None, Host::Address(_)) => "allowed".to_owned(),
        },
        requests: match refusal.reason {
            None => rules_for_requests(network, host, port),
            Some(_) => Vec::new(),
        },
        rule: refusal.rule.unwrap_or_else(default),
    }
}

/// The rules about requests on a connection that is opened.
fn rules_for_requests(network: &NetworkSpec, host: &Host, port: u16) -> Vec<String> {
    if !offleash_gateway::opens(&network.policy, &network.requests, host, port) {
        return Vec::new();
    }
    let methods = network.requests.methods.counting_for(host);
    let headers = network.requests.headers_for(host);
    methods
        .map(|rule| format!("network.methods: {rule}"))
        .chain(headers.iter().map(ToString::to_string))
        .collect()
}

/// Whether a program inside that connects there means its own loopback, where services of the host are, too.
fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Address(address) => [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(address),
        Host::Name(name) => name.as_str() == "localhost",
    }
}

/// What the gateway saw, as the record tells it.
pub(super) fn told(account: Account, published: PublishedPorts) -> NetworkUse {
    NetworkUse {
        published: published.into_told(),
        inbound: account.inbound.into_iter().map(inbound).collect(),
        more_inbound: account.more_inbound,
        connections: account.connections.into_iter().map(connection).collect(),
        more_connections: account.more_connections,
        refused_names: account.refused_names,
        more_refused_names: account.more_refused_names,
        secrets: account.secrets.into_iter().map(secret).collect(),
        more_secrets: account.more_secrets,
        lost: account.lost.map(loss),
    }
}

/// How a gateway was lost, as the record tells it.
pub(crate) fn loss(loss: GatewayLoss) -> NetworkLoss {
    let (cause, signal, code) = match loss.cause {
        LossCause::Signaled(signal) => (NetworkLossCause::Signaled, Some(signal), None),
        LossCause::Exited(code) => (NetworkLossCause::Exited, None, Some(code)),
        LossCause::Misbehaved => (NetworkLossCause::Misbehaved, None, None),
    };
    NetworkLoss {
        at: rfc3339(loss.at),
        cause,
        signal,
        code,
    }
}

fn secret((seen, requests): (offleash_gateway::SecretUse, u64)) -> SecretUse {
    SecretUse {
        secret: seen.secret,
        host: seen.host,
        port: seen.port,
        verdict: match seen.refused {
            Some(_) => ConnectionVerdict::Refused,
            None => ConnectionVerdict::Allowed,
        },
        reason: seen.refused,
        requests,
    }
}

fn verdict(outcome: Outcome) -> (ConnectionVerdict, Option<String>) {
    match outcome {
        Outcome::Allowed => (ConnectionVerdict::Allowed, None),
        Outcome::Refused(reason) => (ConnectionVerdict::Refused, Some(reason)),
        Outcome::Failed(reason) => (ConnectionVerdict::Failed, Some(reason)),
        Outcome::Cut(reason) => (ConnectionVerdict::Cut, Some(reason)),
    }
}

fn inbound(seen: offleash_gateway::Inbound) -> InboundConnection {
    let (verdict, reason) = verdict(seen.outcome);
    InboundConnection {
        at: rfc3339(seen.at),
        peer: seen.peer.to_string(),
        host_address: seen.host_address.to_string(),
        port: seen.port,
        verdict,
        reason,
        sent_bytes: seen.sent,
        received_bytes: seen.received,
        duration_ms: milliseconds(seen.duration),
    }
}

fn connection(seen: offleash_gateway::Connection) -> ConnectionRecord {
    let (verdict, reason) = verdict(seen.outcome);
    ConnectionRecord {
        at: rfc3339(seen.at),
        times: seen.times,
        host: seen.host,
        port: seen.port,
        address: seen.address,
        verdict,
        reason,
        rule: seen.rule,
        asked: seen.asked,
        sent_bytes: seen.sent,
        received_bytes: seen.received,
        duration_ms: milliseconds(seen.duration),
        requests: seen.requests.into_iter().map(request).collect(),
        more_requests: seen.more_requests,
    }
}

fn request(seen: offleash_gateway::Request) -> RequestSeen {
    let (verdict, reason) = verdict(seen.outcome);
    RequestSeen {
        method: seen.method,
        path: seen.path,
        status: seen.status,
        verdict,
        reason,
        secrets: seen.secrets,
        rule: seen.rule,
        sent_bytes: seen.sent,
        received_bytes: seen.received,
        duration_ms: milliseconds(seen.duration),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
