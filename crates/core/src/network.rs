//! Decides which connections a sandbox may open, and which requests it may send over them.
//!
//! Pure: no sockets, no DNS, no clock. One canonical form of a host ([`host`]) for whatever names one, the text of
//! rules ([`pattern`]), what they say about a host and a port ([`decide`]), what may be dialled once a name has been
//! resolved ([`address`], [`dial`]), which HTTP requests pass ([`http_rule`], [`http_path`]), how they are changed
//! ([`header_rule`]), and which secrets go with them ([`secret`]).
//!
//! No rule means no connection.

/// Gives a type that is displayed and parsed as text that form where people read it, in JSON above all, and its parts in the
/// compact forms that our own processes speak: what was parsed once is not parsed again.
///
/// The type derives both traits of serde with `remote = "Self"`, which makes the functions that are called here.
macro_rules! string_in_serde {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => <$type>::serialize(self, serializer),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    return <$type>::deserialize(deserializer);
                }
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub mod address;
pub mod cidr;
pub(crate) mod confidential;
pub mod decide;
pub mod dial;
pub mod dns_server;
mod embedded;
#[cfg(test)]
mod forms;
pub mod header_rule;
pub mod host;
pub mod host_pattern;
pub mod http_path;
pub mod http_rule;
pub mod name;
pub mod pattern;
pub mod port_given;
pub mod ports;
pub mod request_rules;
pub mod secret;
#[cfg(test)]
mod testing;
pub mod upstream_proxy;

pub use address::{AddressClass, classify};
pub use decide::{NetworkPolicy, NetworkRule, RuleDecision, RuleVerdict};
pub use dial::{AddressRefusal, leads_to};
pub use dns_server::{DnsServer, DnsServerError};
pub use header_rule::{HeaderRule, HeaderRuleError};
pub use host::{Host, HostError};
pub use http_path::CanonicalPath;
pub use http_rule::{MethodRule, MethodRuleError, RequestDecision};
pub use name::DomainName;
pub use pattern::{NetworkPattern, PatternError, SpokenProtocol};
pub use port_given::{HostPort, PortGivenError, PublishRule};
pub use request_rules::{HeaderScope, RequestRules};
