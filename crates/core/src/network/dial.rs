//! Whether an address may be dialled, once a name has been resolved to it.
//!
//! The last check before a connection, made on exactly the address that is dialled: whoever answers DNS has no say in
//! which kinds of address are reached.

use core::net::IpAddr;

use crate::error::{ErrorKind, Explained};
use crate::network::address::{AddressClass, classify_within};
use crate::network::cidr::Cidr;
use crate::network::decide::{NetworkPolicy, RuleVerdict};
use crate::network::embedded::embedded;
use crate::network::host::Host;
use crate::network::name::DomainName;

/// Why an address is not dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefusal {
    /// The rules do not let the host be reached at all.
    #[error("{host} may not be reached on port {port}{}", by(rule.as_deref()))]
    Host {
        /// The name, or the address when there is none.
        host: Host,
        /// The port.
        port: u16,
        /// The rule that denies it; `None` when none allows it.
        rule: Option<String>,
    },
    /// A rule denies the address, or one that it leads to.
    #[error("{} is denied on port {port} by {rule}", subject(host, *address))]
    Denied {
        /// The name, or the address when there is none.
        host: Host,
        /// The address that is denied.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The rule.
        rule: String,
    },
    /// It is not public, and no rule names it that can open it.
    #[error("{} is {class}", subject(host, *address))]
    Special {
        /// The name, or the address when there is none.
        host: Host,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// Its kind.
        class: AddressClass,
        /// Whether no rule of these could open it, whatever the kind.
        public_only: bool,
    },
    /// It is an address of this machine, and no rule names it that can open it.
    #[error("{} is an address of this machine", subject(host, *address))]
    Own {
        /// The name, or the address when there is none.
        host: Host,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// Whether no rule of these could open it.
        public_only: bool,
    },
}

fn by(rule: Option<&str>) -> String {
    rule.map_or_else(
        || ": no rule allows it".to_owned(),
        |rule| format!(": denied by {rule}"),
    )
}

/// What the refusal is about, and how it was come to.
fn subject(host: &Host, address: IpAddr) -> String {
    let address = Host::from(address);
    if *host == address {
        return address.to_string();
    }
    format!("{host} leads to {address}, which")
}

impl NetworkPolicy {
    /// Whether `port` of `address` may be dialled, to which `name` was resolved, or which was asked for itself. `own`
    /// are the addresses of this machine.
    ///
    /// - The rules allow the host, or ask and the user has agreed.
    /// - No rule for addresses denies it, nor an address that it carries.
    /// - It is public and not our own, or a rule that allows addresses names it: a network within the range that the
    ///   registry assigns to its kind, so that `0.0.0.0/1` opens no loopback, and `169.254.0.0/16` no metadata service;
    ///   for our own addresses and for ones that carry others, the address itself. A rule that asks counts for an
    ///   address that was asked for itself. No rule does where they are of one who may reach what is public and no more.
    /// - Or it is in a network that is somebody's, not our own, and the name is one that the owner reaches there at this port.
    ///
    /// # Errors
    /// [`AddressRefusal`] says which of these does not hold.
    pub fn may_dial(
        &self,
        name: Option<&DomainName>,
        address: IpAddr,
        port: u16,
        own: &[IpAddr],
    ) -> Result<(), AddressRefusal> {
        let address = address.to_canonical();
        let host = name.map_or(Host::Address(address), |name| Host::Name(name.clone()));
        let decision = self.decide(&host, port);
        if decision.verdict == RuleVerdict::Deny {
            let rule = decision.rule.map(ToString::to_string);
            return Err(AddressRefusal::Host { host, port, rule });
        }
        let reached = leads_to(address);
        self.refuse_denied(&host, &reached, port)?;
        let (class, mut scope) = classify_within(address);
        let is_own = own.iter().any(|own| reached.contains(&own.to_canonical()));
        if class == AddressClass::Public && !is_own {
            return Ok(());
        }
        // All of loopback is our own; naming the network is naming this machine.
        if is_own && class != AddressClass::Loopback {
            scope = Cidr::single(address);
        }
        if !self.public_only && class.can_be_allowed() && self.opens(name, address, port, &scope) {
            return Ok(());
        }
        let is_inward = |name: &DomainName| self.inward.iter().any(|(known, at)| known == name && *at == port);
        if !self.public_only && !is_own && class.is_of_a_network() && name.is_some_and(is_inward) {
            return Ok(());
        }
        Err(if is_own {
            AddressRefusal::Own {
                host,
                address,
                port,
                public_only: self.public_only,
            }
        } else {
            AddressRefusal::Special {
                host,
                address,
                port,
                class,
                public_only: self.public_only,
            }
        })
    }

    fn refuse_denied(&self, host: &Host, reached: &[IpAddr], port: u16) -> Result<(), AddressRefusal> {
        for address in reached {
            let decision = self.decide(&Host::Address(*address), port);
            if let Some(rule) = decision.rule.filter(|_| decision.verdict == RuleVerdict::Deny) {
                return Err(AddressRefusal::Denied {
                    host: host.clone(),
                    address: *address,
                    port,
                    rule: rule.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Whether a rule for addresses opens one that is not public, and says nothing about addresses outside of `scope`.
    fn opens(&self, name: Option<&DomainName>, address: IpAddr, port: u16, scope: &Cidr) -> bool {
        let decision = self.decide(&Host::Address(address), port);
        let lets = match decision.verdict {
            RuleVerdict::Allow => true,
            RuleVerdict::Ask => name.is_none(),
            RuleVerdict::Deny => false,
        };
        lets && decision.rule.is_some_and(|rule| rule.pattern().is_within(scope))
    }
}

/// The address, and those that it carries: whoever is dialled by it may be any of them.
pub fn leads_to(address: IpAddr) -> Vec<IpAddr> {
    let carried = embedded(address).into_iter().map(IpAddr::V4);
    core::iter::once(address).chain(carried).collect()
}

impl Explained for AddressRefusal {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Denied
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Host { rule: Some(_), .. } | Self::Denied { .. } => None,
            // Whoever is told can do nothing about it.
            Self::Special { public_only: true, .. } | Self::Own { public_only: true, .. } => None,
            // Whoever asks for that address means a service here; only names lead to it by a rule.
            Self::Host { host, port, .. } | Self::Special { host, port, .. } | Self::Own { host, port, .. }
                if host.is_loopback() =>
            {
                Some(format!(
                    "`--host-port {port}` gives the sandbox a service of this machine's 127.0.0.1"
                ))
            }
            Self::Host { host, port, rule: None } => Some(format!("`--allow {host}:{port}` would allow it")),
            Self::Special { class, .. } if !class.can_be_allowed() => None,
            Self::Special { address, port, .. } | Self::Own { address, port, .. } => {
                let host = Host::from(*address);
                Some(format!(
                    "if it is meant, allow the address itself with `--allow {host}:{port}`"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests;
