//! The rules of one sandbox, asked in one place.

use std::net::IpAddr;

use offleash_core::network::{Decision, DomainName, Host, NetworkPolicy, RuleVerdict};

/// Why a connection is refused by the rules.
pub(crate) fn reason(rule: Option<&str>) -> String {
    match rule {
        Some(rule) => format!("the rule `{rule}` refuses it"),
        None => "no rule allows it".to_owned(),
    }
}

/// What a sandbox may reach. Nothing else in this room asks the rules.
#[derive(Debug)]
pub(crate) struct Policy {
    rules: NetworkPolicy,
    /// The addresses of the machine itself.
    own: Vec<IpAddr>,
}

impl Policy {
    pub(crate) fn new(rules: NetworkPolicy, own: Vec<IpAddr>) -> Self {
        Self { rules, own }
    }

    /// Whether a name may be reached at any port, so that it has an address inside.
    pub(crate) fn reaches(&self, name: &DomainName) -> RuleVerdict {
        self.rules.names_possible(name).verdict
    }

    /// Whether a connection to `host` at `port` may be made.
    pub(crate) fn decide(&self, host: &Host, port: u16) -> Decision<'_> {
        self.rules.decide(host, port)
    }

    /// Whether `address`, to which `name` leads, may be dialled; if not, why.
    pub(crate) fn check(&self, name: Option<&DomainName>, address: IpAddr, port: u16) -> Result<(), String> {
        self.rules
            .may_dial(name, address, port, &self.own)
            .map_err(|refusal| refusal.to_string())
    }
}
