//! The rules of one sandbox, asked in one place.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use offleash_core::approval::ApprovalAnswer;
use offleash_core::error::Explained as _;
use offleash_core::network::{
    AddressClass, AddressRefusal, DomainName, HeaderScope, Host, HostPort, NetworkPolicy, NetworkRule, RequestRules,
    RuleDecision, RuleVerdict, SpokenProtocol, classify, leads_to,
};

use crate::own::Own;

/// Why a connection is refused by the rules.
pub(crate) fn reason(rule: Option<&str>) -> String {
    match rule {
        Some(rule) => format!("the rule `{rule}` refuses it"),
        None => "no rule allows it".to_owned(),
    }
}

/// Why a connection is refused that was asked about.
pub(crate) fn reason_asked(rule: Option<&str>, approval: ApprovalAnswer) -> String {
    match rule {
        Some(rule) => format!("the rule `{rule}` asks about it, and {approval}"),
        None => format!("no rule allows it, and {approval}"),
    }
}

/// What becomes of what no rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Unknown {
    /// It is not reached.
    #[default]
    Denied,
    /// Somebody is asked.
    Asked,
    /// It is reached, if it is public.
    Reached,
}

impl Unknown {
    /// What was asked for; who is to be asked is asked, whatever may be reached.
    pub(crate) fn of(asks_about_the_unknown: bool, internet: bool) -> Self {
        match (asks_about_the_unknown, internet) {
            (true, _) => Self::Asked,
            (false, true) => Self::Reached,
            (false, false) => Self::Denied,
        }
    }

    /// What becomes of a connection on which the rules decided so.
    fn of_decision(self, decision: RuleDecision<'_>) -> RuleDecision<'_> {
        let verdict = match (decision.rule, self) {
            (Some(_), _) | (None, Self::Denied) => decision.verdict,
            (None, Self::Asked) => RuleVerdict::Ask,
            (None, Self::Reached) => RuleVerdict::Allow,
        };
        RuleDecision { verdict, ..decision }
    }
}

/// Whether a connection to `host` at `port` may be made by these rules.
pub(crate) fn decide<'a>(rules: &'a NetworkPolicy, unknown: Unknown, host: &Host, port: u16) -> RuleDecision<'a> {
    unknown.of_decision(rules.decide(host, port))
}

/// Why a program that asks for its own loopback is not led to that of this machine: a rule for such an address counts
/// for names that lead to it, and services that are given have ways of their own.
pub(crate) fn check_loopback(host: &Host) -> Result<(), String> {
    if host.is_loopback() {
        return Err(format!(
            "`{host}` is the sandbox itself, and a proxy leads to other machines"
        ));
    }
    Ok(())
}

/// What a sandbox may reach. Nothing else in this room asks the rules.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    rules: NetworkPolicy,
    requests: RequestRules,
    /// The addresses of the machine itself.
    own: Rc<Own>,
    unknown: Unknown,
    /// Its services that are given to the sandbox.
    host_ports: Vec<HostPort>,
}

impl Policy {
    pub(crate) fn new(rules: NetworkPolicy, own: impl Into<Own>, unknown: Unknown) -> Self {
        Self {
            rules,
            requests: RequestRules::default(),
            own: Rc::new(own.into()),
            unknown,
            host_ports: Vec::new(),
        }
    }

    /// The same with other rules.
    pub(crate) fn with_rules(&self, rules: NetworkPolicy, unknown: Unknown, requests: RequestRules) -> Self {
        Self {
            rules,
            unknown,
            requests,
            ..self.clone()
        }
    }

    /// Whether the headers of requests to `host` are changed in the same ways by `other`.
    pub(crate) fn changes_headers_as(&self, other: &Self, host: &Host) -> bool {
        self.requests.scope == other.requests.scope
            && self.requests.headers_for(host) == other.requests.headers_for(host)
    }

    /// The same with rules for requests.
    pub(crate) fn with_requests(self, requests: RequestRules) -> Self {
        Self { requests, ..self }
    }

    /// The same with these services of the machine.
    pub(crate) fn with_host_ports(self, host_ports: Vec<HostPort>) -> Self {
        Self { host_ports, ..self }
    }

    /// The service of the machine that is given at this port of the sandbox's loopback.
    pub(crate) fn host_port(&self, inside: u16) -> Option<HostPort> {
        self.host_ports.iter().find(|given| given.inside == inside).copied()
    }

    /// The rules for requests.
    pub(crate) fn requests(&self) -> &RequestRules {
        &self.requests
    }

    /// Whether the requests on a connection to `host` at `port` have to be seen, which then must be HTTP, with TLS or
    /// without. A rule that says that a port is raw TCP is taken at its word, but not for the ports of the web.
    ///
    /// Secrets ask for nothing where it is not said what is spoken: whatever turns out to be TLS is opened then.
    pub(crate) fn opens(&self, host: &Host, port: u16, protocol: SpokenProtocol, has_secrets: bool) -> bool {
        let is_raw = protocol == SpokenProtocol::Tcp && !matches!(port, 80 | 443);
        let by_rules = match self.requests.scope {
            HeaderScope::EveryHost => self.requests.concern(host),
            HeaderScope::SpecificHostOverTls => {
                self.requests.methods.concern(host)
                    || self.changes_headers(host)
                        && matches!((protocol, port), (SpokenProtocol::Tls, _) | (SpokenProtocol::Tcp, 443))
            }
        };
        !is_raw && (by_rules || has_secrets && protocol != SpokenProtocol::Auto)
    }

    /// Whether what turns out to be TLS has to be opened for the sake of rules that are about nothing else.
    pub(crate) fn opens_tls(&self, host: &Host) -> bool {
        self.requests.scope == HeaderScope::SpecificHostOverTls && self.changes_headers(host)
    }

    fn changes_headers(&self, host: &Host) -> bool {
        self.requests.headers.iter().any(|rule| rule.concerns(host))
    }

    /// Whether the rule of `decision` says that `port` is reached without TLS.
    pub(crate) fn clear_is_meant(decision: &RuleDecision<'_>, port: u16) -> bool {
        let pattern = decision.rule.map(NetworkRule::pattern);
        pattern.is_some_and(|pattern| {
            let names_port = pattern.ports().is_some_and(|ports| ports.contains(port));
            names_port && pattern.protocol(port) == SpokenProtocol::Http
        })
    }

    /// Whether a name may be reached at any port, so that it has an address inside.
    pub(crate) fn reaches(&self, name: &DomainName) -> RuleVerdict {
        self.or_unknown(self.rules.names_possible(name)).verdict
    }

    /// Whether a connection to `host` at `port` may be made. When it says `Ask`, the caller has to ask first; then the
    /// connection is made as if it were allowed.
    pub(crate) fn decide(&self, host: &Host, port: u16) -> RuleDecision<'_> {
        decide(&self.rules, self.unknown, host, port)
    }

    fn or_unknown<'a>(&self, decision: RuleDecision<'a>) -> RuleDecision<'a> {
        self.unknown.of_decision(decision)
    }

    /// Whether `address`, to which `name` leads, may be dialled; if not, why.
    pub(crate) fn check(&self, name: Option<&DomainName>, address: IpAddr, port: u16) -> Result<(), String> {
        let asked = self.as_if_asked(name, address, port);
        let rules = asked.as_ref().unwrap_or(&self.rules);
        self.own.judge(address, |own| {
            if asked.is_some() && name.is_none() {
                check_unnamed(address, own)?;
            }
            let allowed = rules.may_dial(name, address, port, own);
            allowed.map_err(|refusal| match refusal.hint() {
                // Of a host that no rule allows, whoever tells of the refusal says how to allow it.
                Some(hint) if !matches!(refusal, AddressRefusal::Host { .. }) => format!("{refusal}; {hint}"),
                _ => refusal.to_string(),
            })
        })
    }

    /// Whether a server may be asked on the way to others that somebody named who may reach no more than the sandbox: one
    /// that is public, or that a rule for addresses allows.
    pub(crate) fn check_server(&self, server: SocketAddr) -> Result<(), String> {
        let (address, port) = (server.ip(), server.port());
        self.own.judge(address, |own| {
            let by_rule = || self.rules.may_dial(None, address, port, own).is_ok();
            check_unnamed(address, own).or_else(|reason| if by_rule() { Ok(()) } else { Err(reason) })
        })
    }

    /// Whether no rule is about a connection, and one that allows it would make a difference to whether it is made.
    pub(crate) fn would_need_a_rule(&self, host: &Host, port: u16) -> bool {
        let decision = self.decide(host, port);
        let is_inside = matches!(host, Host::Address(address) if classify(*address) != AddressClass::Public);
        decision.rule.is_none() && (decision.verdict == RuleVerdict::Deny || is_inside)
    }

    /// The rules, with one that asks about exactly this where no rule is about it and it may be reached all the same.
    fn as_if_asked(&self, name: Option<&DomainName>, address: IpAddr, port: u16) -> Option<NetworkPolicy> {
        let host = name.map_or(Host::from(address), |name| Host::Name(name.clone()));
        if self.unknown == Unknown::Denied || self.rules.decide(&host, port).rule.is_some() {
            return None;
        }
        let rule = NetworkRule::parse(RuleVerdict::Ask, &format!("{host}:{port}")).ok()?;
        let mut rules = self.rules.clone();
        rules.rules.push(rule);
        Some(rules)
    }
}

/// Only a rule that was written opens what is not public: an answer to a question is given too quickly for that,
/// and the internet is what is public.
fn check_unnamed(address: IpAddr, own: &[IpAddr]) -> Result<(), String> {
    let address = address.to_canonical();
    match classify(address) {
        AddressClass::Public if own.iter().any(|own| leads_to(address).contains(&own.to_canonical())) => {
            Err(format!("{address} is an address of this machine"))
        }
        AddressClass::Public => Ok(()),
        class => Err(format!("{address} is {class}, and no rule allows it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_the_way_are_public_or_named_by_a_rule_for_addresses() {
        let rules = [
            (RuleVerdict::Allow, "10.0.0.5:53"),
            (RuleVerdict::Allow, "*.example.com"),
            (RuleVerdict::Deny, "9.9.9.9"),
        ];
        let rules = rules.map(|(verdict, text)| NetworkRule::parse(verdict, text).unwrap());
        let own = vec!["151.101.64.2".parse().unwrap()];
        let policy = Policy::new(
            NetworkPolicy {
                rules: rules.to_vec(),
                ..NetworkPolicy::default()
            },
            own,
            Unknown::Reached,
        );
        for (server, may_be_asked) in [
            ("93.184.216.34:53", true),
            // What the sandbox itself may not reach is asked in its place.
            ("9.9.9.9:53", true),
            ("10.0.0.5:53", true),
            ("10.0.0.5:1080", false),
            ("10.0.0.6:53", false),
            ("127.0.0.53:53", false),
            ("169.254.169.254:80", false),
            ("151.101.64.2:53", false),
            ("[::1]:53", false),
            ("[::ffff:127.0.0.1]:53", false),
            ("[64:ff9b::7f00:1]:53", false),
            ("[2606:2800:220:1::5]:53", true),
        ] {
            assert_eq!(
                policy.check_server(server.parse().unwrap()).is_ok(),
                may_be_asked,
                "{server}"
            );
        }
    }

    #[test]
    fn a_rule_is_only_missed_where_it_would_change_something() {
        let rules = [(RuleVerdict::Allow, "a.example"), (RuleVerdict::Deny, "d.example")];
        let rules = rules.map(|(verdict, text)| NetworkRule::parse(verdict, text).unwrap());
        let policy = |unknown| {
            Policy::new(
                NetworkPolicy {
                    rules: rules.to_vec(),
                    ..NetworkPolicy::default()
                },
                Vec::new(),
                unknown,
            )
        };
        for (host, plain, open) in [
            ("a.example", false, false),
            ("d.example", false, false),
            ("b.example", true, false),
            ("93.184.216.34", true, false),
            ("10.0.0.5", true, true),
        ] {
            let host: Host = host.parse().unwrap();
            let [needed, needed_when_open] =
                [Unknown::Denied, Unknown::Reached].map(|unknown| policy(unknown).would_need_a_rule(&host, 443));
            assert_eq!((needed, needed_when_open), (plain, open), "{host}");
        }
    }

    #[test]
    fn what_no_rule_is_about_is_asked_about_when_it_is_to_be_and_only_what_is_public_is_opened_by_that() {
        let rules = [
            (RuleVerdict::Allow, "a.example"),
            (RuleVerdict::Allow, "10.0.0.5"),
            (RuleVerdict::Deny, "d.example"),
            (RuleVerdict::Deny, "93.184.216.35"),
        ];
        let rules = rules.map(|(verdict, text)| NetworkRule::parse(verdict, text).unwrap());
        let own = "151.101.64.2".parse().unwrap();
        let policy = |unknown| {
            Policy::new(
                NetworkPolicy {
                    rules: rules.to_vec(),
                    ..NetworkPolicy::default()
                },
                vec![own],
                unknown,
            )
        };
        let [plain, learning, open] = [Unknown::Denied, Unknown::Asked, Unknown::Reached].map(policy);
        for (host, port, verdict, opened) in [
            ("a.example", 443, RuleVerdict::Allow, true),
            ("a.example", 22, RuleVerdict::Ask, true),
            ("b.example", 22, RuleVerdict::Ask, true),
            ("d.example", 443, RuleVerdict::Deny, false),
            ("10.0.0.5", 80, RuleVerdict::Allow, true),
            ("10.0.0.5", 81, RuleVerdict::Ask, false),
            ("10.0.0.6", 80, RuleVerdict::Ask, false),
            ("169.254.169.254", 80, RuleVerdict::Ask, false),
            ("127.0.0.1", 80, RuleVerdict::Ask, false),
            ("151.101.64.2", 80, RuleVerdict::Ask, false),
            ("64:ff9b::7f00:1", 80, RuleVerdict::Ask, false),
            // This machine, through a translator and a tunnel.
            ("64:ff9b::151.101.64.2", 80, RuleVerdict::Ask, false),
            ("2002:9765:4002::1", 80, RuleVerdict::Ask, false),
            ("64:ff9b::151.101.64.3", 80, RuleVerdict::Ask, true),
            ("93.184.216.34", 80, RuleVerdict::Ask, true),
            ("93.184.216.35", 80, RuleVerdict::Deny, false),
        ] {
            let parsed = Host::parse(host).unwrap();
            assert_eq!(learning.decide(&parsed, port).verdict, verdict, "{host}");
            let unless_asked = if verdict == RuleVerdict::Ask {
                RuleVerdict::Deny
            } else {
                verdict
            };
            assert_eq!(plain.decide(&parsed, port).verdict, unless_asked, "{host}");
            let when_open = if verdict == RuleVerdict::Ask {
                RuleVerdict::Allow
            } else {
                verdict
            };
            assert_eq!(open.decide(&parsed, port).verdict, when_open, "{host}");
            let check = |policy: &Policy, address: Option<&str>| match (&parsed, address) {
                (Host::Address(address), None) => policy.check(None, *address, port).is_ok(),
                (Host::Name(name), Some(address)) => policy.check(Some(name), address.parse().unwrap(), port).is_ok(),
                _ => false,
            };
            match &parsed {
                Host::Address(_) => {
                    assert_eq!(check(&learning, None), opened, "{host}");
                    assert_eq!(check(&open, None), opened, "{host}");
                }
                Host::Name(_) => {
                    assert_eq!(check(&learning, Some("93.184.216.34")), opened, "{host}");
                    assert_eq!(check(&open, Some("93.184.216.34")), opened, "{host}");
                    for inside in [
                        "10.0.0.6",
                        "127.0.0.1",
                        "169.254.169.254",
                        "93.184.216.35",
                        "151.101.64.2",
                    ] {
                        assert!(!check(&learning, Some(inside)), "{host} at {inside}");
                        assert!(!check(&open, Some(inside)), "{host} at {inside}");
                    }
                }
            }
            if verdict == RuleVerdict::Ask {
                assert!(!check(&plain, None) && !check(&plain, Some("93.184.216.34")), "{host}");
            }
        }
    }
}
