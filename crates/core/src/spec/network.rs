//! What a sandbox was asked to reach over the network.

use crate::network::{Asks, MethodRule, NetworkPolicy, NetworkRule, PatternError, RequestRules, RuleVerdict};

/// What the sandbox may reach over the network, and how. The default is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSpec {
    /// Which connections may be made.
    pub policy: NetworkPolicy,
    /// How it is asked about connections.
    pub asks: Asks,
    /// Which requests pass to hosts that have such rules, and what becomes of their headers.
    pub requests: RequestRules,
}

impl NetworkSpec {
    /// Whether the gateway opens connections to some hosts, so that the sandbox has a certificate authority of its own.
    pub fn opens(&self) -> bool {
        !self.requests.is_empty()
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

    /// Whether anything may be reached, so that the sandbox needs a network with a gateway. Rules that only deny are the
    /// same as none.
    pub fn reaches_out(&self) -> bool {
        self.asks.about_the_unknown || self.policy.rules.iter().any(|rule| rule.verdict() != RuleVerdict::Deny)
    }
}
