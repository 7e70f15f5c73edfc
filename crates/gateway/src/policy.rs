//! The rules of one sandbox, asked in one place.

use std::net::IpAddr;

use offleash_core::network::{
    Approval, Decision, DomainName, Host, NetworkPolicy, NetworkRule, Protocol, RequestRules, RuleVerdict,
};

/// Why a connection is refused by the rules.
pub(crate) fn reason(rule: Option<&str>) -> String {
    match rule {
        Some(rule) => format!("the rule `{rule}` refuses it"),
        None => "no rule allows it".to_owned(),
    }
}

/// Why a connection is refused that was asked about.
pub(crate) fn reason_asked(rule: Option<&str>, approval: Approval) -> String {
    match rule {
        Some(rule) => format!("the rule `{rule}` asks about it, and {approval}"),
        None => format!("no rule allows it, and {approval}"),
    }
}

/// What a sandbox may reach. Nothing else in this room asks the rules.
#[derive(Debug)]
pub(crate) struct Policy {
    rules: NetworkPolicy,
    requests: RequestRules,
    /// The addresses of the machine itself.
    own: Vec<IpAddr>,
    /// Whether what no rule is about is asked about.
    asks_about_the_unknown: bool,
}

impl Policy {
    pub(crate) fn new(rules: NetworkPolicy, own: Vec<IpAddr>, asks_about_the_unknown: bool) -> Self {
        Self {
            rules,
            requests: RequestRules::default(),
            own,
            asks_about_the_unknown,
        }
    }

    /// The same with rules for requests.
    pub(crate) fn with_requests(self, requests: RequestRules) -> Self {
        Self { requests, ..self }
    }

    /// The rules for requests.
    pub(crate) fn requests(&self) -> &RequestRules {
        &self.requests
    }

    /// Whether the requests on a connection to `host` at `port` have to be seen, which then must be HTTP, with TLS or
    /// without. A rule that says that a port is raw TCP is taken at its word, but not for the ports of the web.
    pub(crate) fn opens(&self, host: &Host, port: u16, protocol: Protocol) -> bool {
        let is_raw = protocol == Protocol::Tcp && !matches!(port, 80 | 443);
        !is_raw && self.requests.concern(host)
    }

    /// Whether the rule of `decision` says that `port` is reached without TLS.
    pub(crate) fn clear_is_meant(decision: &Decision<'_>, port: u16) -> bool {
        let pattern = decision.rule.map(NetworkRule::pattern);
        pattern.is_some_and(|pattern| {
            let names_port = pattern.ports().is_some_and(|ports| ports.contains(port));
            names_port && pattern.protocol(port) == Protocol::Http
        })
    }

    /// Whether a name may be reached at any port, so that it has an address inside.
    pub(crate) fn reaches(&self, name: &DomainName) -> RuleVerdict {
        self.or_ask(self.rules.names_possible(name)).verdict
    }

    /// Whether a connection to `host` at `port` may be made. When it says `Ask`, the caller has to ask first; then the
    /// connection is made as if it were allowed.
    pub(crate) fn decide(&self, host: &Host, port: u16) -> Decision<'_> {
        self.or_ask(self.rules.decide(host, port))
    }

    fn or_ask<'a>(&self, decision: Decision<'a>) -> Decision<'a> {
        match decision.rule {
            None if self.asks_about_the_unknown => Decision {
                verdict: RuleVerdict::Ask,
                ..decision
            },
            _ => decision,
        }
    }

    /// Whether `address`, to which `name` leads, may be dialled; if not, why.
    pub(crate) fn check(&self, name: Option<&DomainName>, address: IpAddr, port: u16) -> Result<(), String> {
        let asked = self.asked_about(name, address, port);
        asked
            .as_ref()
            .unwrap_or(&self.rules)
            .may_dial(name, address, port, &self.own)
            .map_err(|refusal| refusal.to_string())
    }

    /// The rules, with one that asks about exactly this where no rule is about it and it is asked about all the same.
    fn asked_about(&self, name: Option<&DomainName>, address: IpAddr, port: u16) -> Option<NetworkPolicy> {
        let host = name.map_or(Host::from(address), |name| Host::Name(name.clone()));
        if !self.asks_about_the_unknown || self.rules.decide(&host, port).rule.is_some() {
            return None;
        }
        let rule = NetworkRule::parse(RuleVerdict::Ask, &format!("{host}:{port}")).ok()?;
        let mut rules = self.rules.clone();
        rules.rules.push(rule);
        Some(rules)
    }
}
