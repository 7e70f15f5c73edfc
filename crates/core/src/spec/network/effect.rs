//! Whether everything that was asked of the network has an effect, and nothing contradicts the rest.
//!
//! What does nothing is refused: whoever wrote it believes that it does something. Rules that deny are not among it;
//! they hold whatever else is asked.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::NetworkSpec;
use crate::error::{ErrorKind, Explained};
use crate::network::cidr::Cidr;
use crate::network::host_pattern::HostPattern;
use crate::network::{HeaderRule, NetworkRule, RuleVerdict};

/// Something that was asked of the network and does nothing, or contradicts something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkSpecError {
    /// It is about a host that no rule lets be reached.
    #[error("{what} is of no use: no rule allows `{host}`")]
    Unreached {
        /// The rule for a header, or the secret.
        what: String,
        /// The host.
        host: HostPattern,
    },
    /// It is about connections, and there can be none.
    #[error("{what} is of no use: nothing may be reached")]
    NothingReached {
        /// The rule, the secret or the flag.
        what: String,
    },
    /// Hosts are to be reached without a proxy that is not there.
    #[error("`--no-proxy` (`network.no_proxy`) is of no use: there is no upstream proxy")]
    NoUpstreamProxy,
    /// There is a time for answers, and no question.
    #[error("`--ask-timeout` (`network.ask_timeout`) is of no use: nothing is asked")]
    NoQuestion,
    /// One header of requests to one host has two values.
    #[error("header `{name}` of requests to `{host}` is set to two values")]
    HeaderTwice {
        /// The header.
        name: String,
        /// The host.
        host: HostPattern,
    },
    /// One header of requests to one host is set and removed.
    #[error("header `{name}` of requests to `{host}` is both set and removed")]
    HeaderSetAndRemoved {
        /// The header.
        name: String,
        /// The host.
        host: HostPattern,
    },
    /// A rule is about what is the sandbox's own loopback inside.
    #[error("the rule `{rule}` is of no use: inside, `{}` is the sandbox itself", rule.pattern().host())]
    Loopback {
        /// The rule.
        rule: Box<NetworkRule>,
    },
}

impl NetworkSpecError {
    /// Whether nothing that is added can mend it, so that a policy with it is wrong whatever flags it is used with.
    pub fn is_contradiction(&self) -> bool {
        matches!(self, Self::HeaderTwice { .. } | Self::HeaderSetAndRemoved { .. })
    }
}

impl NetworkSpec {
    /// Checks that all of it has an effect and nothing contradicts the rest. With `asks_about_tools` there are questions about
    /// tools, too.
    ///
    /// # Errors
    /// [`NetworkSpecError`] names the first that has none, or does.
    pub fn check(&self, asks_about_tools: bool) -> Result<(), NetworkSpecError> {
        self.check_headers()?;
        self.check_hosts()?;
        self.check_loopback()?;
        if !self.no_proxy.is_empty() && self.upstream_proxy.is_none() {
            return Err(NetworkSpecError::NoUpstreamProxy);
        }
        for (is_asked, what) in [
            (self.proxy_variables, "`--proxy-variables` (`network.proxy_variables`)"),
            (!self.dns_servers.is_empty(), "`--dns-server` (`network.dns_servers`)"),
            (
                self.upstream_proxy.is_some(),
                "`--upstream-proxy` (`network.upstream_proxy`)",
            ),
        ] {
            if is_asked && !self.reaches_out() {
                return Err(NetworkSpecError::NothingReached { what: what.to_owned() });
            }
        }
        let asks = |rule: &NetworkRule| rule.verdict() == RuleVerdict::Ask;
        let has_questions = asks_about_tools || self.asks.about_the_unknown || self.policy.rules.iter().any(asks);
        if self.asks.timeout.is_some() && !has_questions {
            return Err(NetworkSpecError::NoQuestion);
        }
        Ok(())
    }

    fn check_headers(&self) -> Result<(), NetworkSpecError> {
        let headers = &self.requests.headers;
        for (position, rule) in headers.iter().enumerate() {
            let contradicts = |other: &&HeaderRule| {
                (other.host(), other.name()) == (rule.host(), rule.name()) && other.value() != rule.value()
            };
            let Some(other) = headers[..position].iter().find(contradicts) else {
                continue;
            };
            let (name, host) = (rule.name().to_owned(), rule.host().clone());
            return Err(match (rule.value(), other.value()) {
                (Some(_), Some(_)) => NetworkSpecError::HeaderTwice { name, host },
                _ => NetworkSpecError::HeaderSetAndRemoved { name, host },
            });
        }
        Ok(())
    }

    /// Headers and secrets open no host by themselves.
    fn check_hosts(&self) -> Result<(), NetworkSpecError> {
        let headers = self.requests.headers.iter();
        let headers = headers.map(|rule| (format!("the rule `{rule}`"), rule.host()));
        let secrets = self.secrets.iter().flat_map(|secret| {
            let what = format!("secret `{}`", secret.name);
            secret.hosts.iter().map(move |host| (what.clone(), host))
        });
        for (what, host) in headers.chain(secrets) {
            if !self.reaches_out() {
                return Err(NetworkSpecError::NothingReached { what });
            }
            if !self.may_reach(host) {
                let host = host.clone();
                return Err(NetworkSpecError::Unreached { what, host });
            }
        }
        Ok(())
    }

    /// A rule for a loopback address counts for names that lead to it, and for nothing else.
    fn check_loopback(&self) -> Result<(), NetworkSpecError> {
        let names = self.allowing().any(|rule| match rule.pattern().host() {
            HostPattern::Network(_) => false,
            name => !is_loopback(name),
        });
        let rule = self.allowing().find(|rule| match rule.pattern().host() {
            HostPattern::Network(_) if names || self.reaches_unknown_names() => false,
            host => is_loopback(host),
        });
        match rule {
            Some(rule) => Err(NetworkSpecError::Loopback {
                rule: Box::new(rule.clone()),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn may_reach(&self, host: &HostPattern) -> bool {
        self.reaches_unknown_names() || self.allowing().any(|rule| rule.pattern().host().overlaps(host))
    }

    /// Whether names may be reached that no rule is about.
    fn reaches_unknown_names(&self) -> bool {
        self.internet || self.asks.about_the_unknown
    }

    /// The rules that do not deny.
    fn allowing(&self) -> impl Iterator<Item = &NetworkRule> {
        let rules = self.policy.rules.iter();
        rules.filter(|rule| rule.verdict() != RuleVerdict::Deny)
    }
}

/// Whether a program inside that connects there means its own loopback.
fn is_loopback(host: &HostPattern) -> bool {
    match host {
        HostPattern::Name(name) => name.as_str() == "localhost",
        HostPattern::Below(_) => false,
        HostPattern::Network(network) => [
            Cidr::containing(IpAddr::V4(Ipv4Addr::LOCALHOST), 8),
            Cidr::containing(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
        ]
        .iter()
        .flatten()
        .any(|loopback| loopback.covers(network)),
    }
}

impl Explained for NetworkSpecError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreached { host, .. } => {
                format!("let it be reached with `--allow {host}`, or leave it out; headers and secrets open no host")
            }
            Self::NothingReached { .. } => "let a host be reached with `--allow HOST`, or leave it out".to_owned(),
            Self::NoUpstreamProxy => {
                "name the proxy with `--upstream-proxy`, or leave it out; `--deny-host` keeps a host from being reached"
                    .to_owned()
            }
            Self::NoQuestion => "name hosts to ask about with `--ask HOST`, or leave it out".to_owned(),
            Self::HeaderTwice { .. } => "write one value, or name each host with its own".to_owned(),
            Self::HeaderSetAndRemoved { .. } => {
                "a header that is set takes the place of what the sandbox sent; leave the rule that removes it out"
                    .to_owned()
            }
            Self::Loopback { rule } => {
                let ports = rule.pattern().ports().and_then(|ports| ports.listed(1));
                let port = ports.and_then(|ports| ports.first().copied());
                let port = port.map_or_else(|| "PORT".to_owned(), |port| port.to_string());
                format!("`--host-port {port}` gives the sandbox a service of this machine's 127.0.0.1")
            }
        })
    }
}

#[cfg(test)]
mod tests;
