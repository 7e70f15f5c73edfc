//! What a sandbox was asked to reach over the network.

use crate::network::{Asks, NetworkPolicy, RuleVerdict};

/// What the sandbox may reach over the network, and how. The default is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSpec {
    /// Which connections may be made.
    pub policy: NetworkPolicy,
    /// How it is asked about connections.
    pub asks: Asks,
}

impl NetworkSpec {
    /// Whether anything may be reached, so that the sandbox needs a network with a gateway. Rules that only deny are the
    /// same as none.
    pub fn reaches_out(&self) -> bool {
        self.asks.about_the_unknown || self.policy.rules.iter().any(|rule| rule.verdict() != RuleVerdict::Deny)
    }
}
