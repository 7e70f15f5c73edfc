//! What the rules say about a host and a port.
//!
//! The most specific host wins: an exact name beats every wildcard, a longer base or prefix a shorter one. Among rules
//! for the same hosts `deny` beats `ask`, `ask` beats `allow`, and of two that allow, the one that asks more of the
//! protocol wins. A rule that is not about the port does not count. The order in which rules are written never matters.

use core::fmt;

use crate::network::host::Host;
use crate::network::host_pattern::{HostPattern, Specificity};
use crate::network::name::DomainName;
use crate::network::pattern::{NetworkPattern, PatternError, SpokenProtocol};
use crate::network::ports::PortSet;

/// What a rule says. Ordered by strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleVerdict {
    /// The connection may be opened.
    Allow,
    /// The user is asked, and the connection waits.
    Ask,
    /// The connection is refused.
    Deny,
}

/// A rule: a verdict and what it is about. Displayed as denials call it: `network.allow: example.com`.
///
/// Without ports it is about 80 and 443 when it allows or asks, and about every port when it denies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct NetworkRule {
    verdict: RuleVerdict,
    pattern: NetworkPattern,
    /// Those of the pattern, or what the verdict means without.
    ports: PortSet,
}

/// The rules of a sandbox's network. None at all means that nothing may be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NetworkPolicy {
    /// In any order.
    pub rules: Vec<NetworkRule>,
    /// Whether they are somebody's who may not speak for the owner of the machine: then none of them opens an address
    /// that is not public, or one of the machine itself.
    pub public_only: bool,
    /// Names, each with a port, that the owner of the machine reaches in networks of their own: there they may lead to an address
    /// that is not public. A rule allows the name; this alone allows nothing.
    pub inward: Vec<(DomainName, u16)>,
}

/// A decision and the rule that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleDecision<'a> {
    /// Whether the connection may be opened.
    pub verdict: RuleVerdict,
    /// The rule; `None` when no rule is about it, which denies.
    pub rule: Option<&'a NetworkRule>,
    /// What the connection has to speak, if it is opened.
    pub protocol: SpokenProtocol,
}

impl NetworkRule {
    /// A rule for what `pattern` means.
    ///
    /// # Errors
    /// [`PatternError::TooWide`] for one that does not deny and means the hosts of people who have nothing in common,
    /// [`PatternError::ProtocolDenied`] for one that denies and names a protocol.
    pub fn new(verdict: RuleVerdict, pattern: NetworkPattern) -> Result<Self, PatternError> {
        let (pattern, usual) = match verdict {
            RuleVerdict::Deny => (pattern.of_every_protocol()?, PortSet::all()),
            RuleVerdict::Allow | RuleVerdict::Ask => (pattern.narrow()?, PortSet::of_the_web()),
        };
        let ports = pattern.ports().cloned().unwrap_or(usual);
        Ok(Self {
            verdict,
            pattern,
            ports,
        })
    }

    /// [`NetworkRule::new`] for the text of a pattern.
    ///
    /// # Errors
    /// [`PatternError`] says what is wrong with the text.
    pub fn parse(verdict: RuleVerdict, text: &str) -> Result<Self, PatternError> {
        Self::new(verdict, NetworkPattern::parse_deny(text)?)
    }

    /// What it says.
    pub fn verdict(&self) -> RuleVerdict {
        self.verdict
    }

    /// What it is about.
    pub fn pattern(&self) -> &NetworkPattern {
        &self.pattern
    }

    /// Whether it asks about `port` of `host` and of no other host, so that it asks although a rule allows just that.
    pub fn asks_exactly(&self, host: &Host, port: u16) -> bool {
        let is_exact = match self.pattern.host() {
            HostPattern::Name(_) => true,
            HostPattern::Network(network) => network.is_single(),
            HostPattern::Below(_) => false,
        };
        self.verdict == RuleVerdict::Ask && is_exact && self.is_about(host, port)
    }

    /// The same rule for all of its ports but one; `None` when it has no other.
    pub fn without_port(&self, port: u16) -> Option<Self> {
        let ports = self.ports.without(port)?;
        Some(Self {
            verdict: self.verdict,
            pattern: self.pattern.clone().with_ports(ports.clone()),
            ports,
        })
    }

    fn is_about(&self, host: &Host, port: u16) -> bool {
        self.pattern.matches(host) && self.ports.contains(port)
    }

    /// By what rules about the same host and port are compared; the pattern only so that the order of rules is nothing.
    fn strength(&self, port: u16) -> (Specificity, RuleVerdict, SpokenProtocol, &NetworkPattern) {
        let pattern = &self.pattern;
        (pattern.specificity(), self.verdict, pattern.protocol(port), pattern)
    }
}

impl NetworkPolicy {
    /// Whether a connection to `port` of `host` may be opened. An address never matches a rule for names, nor a name
    /// one for addresses.
    pub fn decide(&self, host: &Host, port: u16) -> RuleDecision<'_> {
        let about = self.rules.iter().filter(|rule| rule.is_about(host, port));
        let rule = about.max_by(|one, other| one.strength(port).cmp(&other.strength(port)));
        RuleDecision {
            verdict: rule.map_or(RuleVerdict::Deny, |rule| rule.verdict),
            rule,
            protocol: rule.map_or(SpokenProtocol::usual(port), |rule| rule.pattern.protocol(port)),
        }
    }

    /// Every port that a rule lets be reached, or asks about, if they are at most `most`.
    pub fn reachable_ports(&self, most: usize) -> Option<Vec<u16>> {
        let mut ports = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.verdict != RuleVerdict::Deny) {
            ports.extend(rule.ports.listed(most)?);
            ports.sort_unstable();
            ports.dedup();
        }
        (ports.len() <= most).then_some(ports)
    }

    /// Whether `name` may be resolved: whether it may be reached on any port, or the user be asked. Then the decision
    /// is that of the first such port; otherwise it is denied, by the rule for the whole name if there is one.
    pub fn names_possible(&self, name: &DomainName) -> RuleDecision<'_> {
        let host = Host::Name(name.clone());
        // Decisions differ only from one of these ports to the next; before the first, no rule speaks.
        let about = self.rules.iter().filter(|rule| rule.pattern.matches(&host));
        let mut ports: Vec<u16> = about.flat_map(|rule| rule.ports.changes()).collect();
        ports.sort_unstable();
        let decisions = ports.into_iter().map(|port| self.decide(&host, port));
        let best = decisions.min_by_key(|decision| (decision.verdict, decision.rule.is_none()));
        best.unwrap_or(RuleDecision {
            verdict: RuleVerdict::Deny,
            rule: None,
            protocol: SpokenProtocol::Auto,
        })
    }
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network.{}: {}", self.verdict, self.pattern)
    }
}

impl fmt::Display for RuleVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        })
    }
}

#[cfg(test)]
mod tests;
