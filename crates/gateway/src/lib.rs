//! What a sandbox may reach: names are answered, connections judged, dialled and counted here, outside the sandbox.
//!
//! The sandbox has a network of its own in which everything leads to sockets that were made before any of its code ran.
//! They are served here, by an event loop in a process of its own ([`process`]), which its supervisor orders about
//! ([`Gateway`]). When that ends, the sandbox has no network; nothing falls open.
//!
//! Deliberately not here: the rules themselves (`core::network` decides) and the sandbox's side of the network
//! (`isolation` makes the namespace and its sockets).

mod approvals;
mod client;
pub mod client_hello;
mod connection;
mod current;
mod dns;
mod ended;
mod entrance;
mod http;
pub mod http_body;
pub mod http_head;
pub mod http_requests;
mod inbound;
mod journal;
mod limits;
mod names;
mod opened;
mod own;
mod policy;
pub mod process;
pub mod proxy_request;
mod questions;
mod relay;
mod secrets;
mod serve;
pub mod server_hello;
mod upstream;
mod wire;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use offleash_core::limits::Limits;
use offleash_core::network::secret::Secret;
use offleash_core::network::{AddressClass, Asks, Host, HostPort, NetworkPolicy, RequestRules, RuleVerdict, classify};

pub use client::{Gateway, GatewayProcess};
pub use inbound::Published;
pub use journal::{Account, Connection, GatewayLoss, Inbound, LossCause, News, Outcome, Request, SecretUse};
pub use opened::{Trust, TrustError};
pub use own::Own;
pub use questions::{Notice, Questions};
pub use upstream::{NamedBy, Resolvers, WayOut};

use approvals::Approvals;
use entrance::Entrances;
use journal::Journal;
use limits::Budget;
use names::Names;
use policy::{Policy, Unknown};
use relay::Pipes;
use secrets::Secrets;
use upstream::Upstream;

/// What a gateway needs to know.
#[derive(Debug, Default)]
pub struct Config {
    /// What may be reached.
    pub rules: NetworkPolicy,
    /// Whether every public address may be reached of which no rule says anything.
    pub internet: bool,
    /// Which requests pass, and what becomes of their headers.
    pub requests: RequestRules,
    /// With what connections are opened; needed where there are rules for requests.
    pub trust: Option<Arc<Trust>>,
    /// The addresses of this machine, which no name may lead to.
    pub own: Own,
    /// Services of this machine that are given to the sandbox.
    pub host_ports: Vec<HostPort>,
    /// Ports of the sandbox that are published.
    pub published: Vec<Published>,
    /// Of which those of the network are kept here.
    pub limits: Limits,
    /// How it is asked about connections.
    pub asks: Asks,
    /// How the outside is reached.
    pub way_out: WayOut,
    /// Secrets that are put into requests.
    pub secrets: Vec<Secret>,
    /// Who reads what a refusal says can be done.
    pub audience: Audience,
    /// A process that was started ahead.
    pub process: Option<GatewayProcess>,
}

/// Who can change what a sandbox may reach, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Audience {
    /// Whoever typed `offleash run`.
    #[default]
    Run,
    /// Whoever made the sandbox through a server's API.
    Server,
}

impl Audience {
    /// What makes `host` reachable; `None` where nothing that they can do does.
    fn allowing(self, host: &Host) -> Option<String> {
        match (self, host) {
            (Self::Run, host) => Some(format!("`offleash run --allow {host}` allows it")),
            (Self::Server, Host::Address(address)) if classify(*address) != AddressClass::Public => None,
            (Self::Server, host) => Some(format!(
                "whoever made this sandbox can allow it if it is public: `{host}` in `allowOut` of its network, or `offleash \
                 create --allow {host}`"
            )),
        }
    }
}

/// What may be reached from now on.
#[derive(Debug, Default)]
pub struct Reach {
    /// What may be reached.
    pub rules: NetworkPolicy,
    /// Whether every public address may be reached of which no rule says anything.
    pub internet: bool,
    /// Which requests pass, and what becomes of their headers.
    pub requests: RequestRules,
    /// With what connections are opened, if the gateway has nothing for that yet; without either, none is made to hosts
    /// that there are rules for requests about.
    pub trust: Option<Arc<Trust>>,
    /// How the outside is reached. Connections that were made through another proxy are cut.
    pub way_out: WayOut,
    /// Secrets that are put into requests. Connections to hosts that others were for are cut.
    pub secrets: Vec<Secret>,
}

/// What the rules alone say of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why it would be refused; `None` if it would not.
    pub reason: Option<String>,
    /// The rule that decides, as it was written.
    pub rule: Option<String>,
    /// Whether it would be asked about first.
    pub asks: bool,
}

/// What would become of a connection to `host` at `port`, before anything is resolved; with `internet`, what is public is
/// reached unless a rule says otherwise.
pub fn refusal(rules: &NetworkPolicy, internet: bool, host: &Host, port: u16) -> Refusal {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::of(false, internet));
    let decision = policy.decide(host, port);
    let rule = decision.rule.map(ToString::to_string);
    let reason = match (decision.verdict, host) {
        (RuleVerdict::Allow | RuleVerdict::Ask, Host::Address(address)) => policy::check_loopback(host)
            .and_then(|()| policy.check(None, *address, port))
            .err(),
        (RuleVerdict::Allow | RuleVerdict::Ask, Host::Name(_)) => policy::check_loopback(host).err(),
        (RuleVerdict::Deny, _) => Some(policy::reason(rule.as_deref())),
    };
    let asks = reason.is_none() && decision.verdict == RuleVerdict::Ask;
    Refusal { reason, rule, asks }
}

/// Whether the requests on a connection to `host` at `port` are seen, because rules are about them.
pub fn opens(rules: &NetworkPolicy, requests: &RequestRules, host: &Host, port: u16) -> bool {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::Denied).with_requests(requests.clone());
    let protocol = policy.decide(host, port).protocol;
    policy.opens(host, port, protocol, false)
}

/// What a sandbox with these rules and without any name asked for yet is answered to a DNS question, by UDP; `None` if
/// it is no question.
pub fn answer_to(rules: &NetworkPolicy, question: &[u8]) -> Option<Vec<u8>> {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::Denied);
    let (answer, _) = dns::answer(question, &policy, &mut Names::default());
    answer.map(|answer| dns::for_udp(question, answer))
}

/// What all connections of a sandbox share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    policy: Policy,
    /// Whether nothing is carried for now.
    is_closed: bool,
    /// How often it was so.
    closures: u64,
    approvals: Rc<Approvals>,
    secrets: Secrets,
    audience: Audience,
    names: Rc<RefCell<Names>>,
    upstream: Rc<Upstream>,
    budget: Rc<Budget>,
    entrances: Rc<Entrances>,
    journal: Journal,
    pipes: Rc<Pipes>,
    /// With what connections are opened, if any are.
    opening: Option<Rc<opened::Opening>>,
    /// What has replaced this.
    successor: current::Successor,
}
