//! What a sandbox was asked to reach over the network.

mod effect;

pub use effect::NetworkSpecError;

use crate::approval::ApprovalRules;
use crate::network::dns_server::MAX_DNS_SERVERS;
use crate::network::host_pattern::HostPattern;
use crate::network::secret::SecretSpec;
use crate::network::upstream_proxy::ProxySource;
use crate::network::{
    DnsServer, DnsServerError, HostPort, MethodRule, NetworkPolicy, NetworkRule, PatternError, PublishRule,
    RequestRules, RuleVerdict,
};

/// What the sandbox may reach over the network, and how. The default is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSpec {
    /// Which connections may be made.
    pub policy: NetworkPolicy,
    /// Whether every public address may be reached, at any port, of which no rule says anything.
    pub internet: bool,
    /// How it is asked about connections.
    pub asks: ApprovalRules,
    /// Which requests pass to hosts that have such rules, and what becomes of their headers.
    pub requests: RequestRules,
    /// Who is asked for the addresses of names; whoever the machine asks, if nobody.
    pub dns_servers: Vec<DnsServer>,
    /// The proxy of the owner's network, if everything goes through one.
    pub upstream_proxy: Option<ProxySource>,
    /// Hosts that are reached without it.
    pub no_proxy: Vec<HostPattern>,
    /// Whether variables tell programs of the proxy inside.
    pub proxy_variables: bool,
    /// Secrets that requests may use, and the sandbox does not have.
    pub secrets: Vec<SecretSpec>,
    /// Ports of the sandbox to which programs outside may connect.
    pub publish: Vec<PublishRule>,
    /// Services of the host's loopback that are on the sandbox's, too.
    pub host_ports: Vec<HostPort>,
    /// Whether there is a way in for whoever holds the sandbox, with no port published.
    pub entrance: bool,
}

/// The port of the loopback addresses inside at which the gateway is a proxy: an assigned one that nobody uses
/// (TCPMUX), and which no program of the sandbox can take.
pub const PROXY_PORT: u16 = 1;

impl NetworkSpec {
    /// Whether the gateway opens connections to some hosts, so that the sandbox has a certificate authority of its own.
    pub fn opens(&self) -> bool {
        !self.requests.is_empty() || !self.secrets.is_empty()
    }

    /// Adds a rule that lets requests through, and with it that its host may be reached on the ports of the web. A rule
    /// for the same host that denies or asks is stronger.
    ///
    /// # Errors
    /// [`PatternError`] when its host is no host to be reached.
    pub fn add_method_rule(&mut self, rule: MethodRule) -> Result<(), PatternError> {
        let reached = NetworkRule::parse(RuleVerdict::Allow, &rule.host().to_string())?;
        if !self.policy.rules.contains(&reached) {
            self.policy.rules.push(reached);
        }
        self.requests.methods.rules.push(rule);
        Ok(())
    }

    /// Adds a server that is asked for names.
    ///
    /// # Errors
    /// [`DnsServerError::TooMany`] where there are enough.
    pub fn add_dns_server(&mut self, server: DnsServer) -> Result<(), DnsServerError> {
        if self.dns_servers.len() == MAX_DNS_SERVERS {
            return Err(DnsServerError::TooMany);
        }
        self.dns_servers.push(server);
        Ok(())
    }

    /// Takes away what has no effect because of what is reached, and which [`Self::check`] refuses.
    pub fn drop_idle(&mut self) {
        let mut headers = core::mem::take(&mut self.requests.headers);
        headers.retain(|rule| self.reaches_out() && self.may_reach(rule.host()));
        self.requests.headers = headers;
        if !self.reaches_out() {
            self.dns_servers.clear();
            self.upstream_proxy = None;
        }
    }

    /// The variables that tell programs of the proxy inside, if they are to be told.
    pub fn variables(&self) -> Vec<(String, String)> {
        if !self.proxy_variables || !self.reaches_out() {
            return Vec::new();
        }
        // By HTTP for all of them: what many programs speak of SOCKS is an extra that is not installed.
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        let pairs = [
            ("HTTP_PROXY", proxy.as_str()),
            ("HTTPS_PROXY", &proxy),
            ("ALL_PROXY", &proxy),
            // Servers in the sandbox are reached by no proxy.
            ("NO_PROXY", "localhost,127.0.0.1,::1"),
        ];
        let both = pairs.into_iter().flat_map(|(name, value)| {
            [
                (name.to_owned(), value.to_owned()),
                (name.to_lowercase(), value.to_owned()),
            ]
        });
        // Node asks for it before it looks at the others.
        both.chain([("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())])
            .collect()
    }

    /// Whether the sandbox needs a network with a gateway: something may be reached, or reach it.
    pub fn needs_gateway(&self) -> bool {
        self.reaches_out() || self.has_entrance() || !self.host_ports.is_empty()
    }

    /// Whether connections can be made to ports of the sandbox from outside.
    pub fn has_entrance(&self) -> bool {
        self.entrance || !self.publish.is_empty()
    }

    /// Whether a rule allows anything. Rules that only deny are the same as none.
    pub fn reaches_out(&self) -> bool {
        self.internet
            || self.asks.about_the_unknown
            || self.policy.rules.iter().any(|rule| rule.verdict() != RuleVerdict::Deny)
    }
}
