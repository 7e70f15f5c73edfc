//! Where nodes are: addresses that a person gave, and those that a name leads to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};
use offleash_core::network::{AddressClass, classify};

/// The highest weight of a node.
const MAX_WEIGHT: u32 = 1000;

/// Where `offleash serve` of a node listens, and its share: `https://node-1.example:3000`, or `http://10.0.0.7:3000=2` for one
/// that gets twice as many sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    authority: Authority,
    weight: u32,
    is_tls: bool,
    /// The name that its certificate has, where it was found by that; its host otherwise.
    found_by: Option<String>,
}

/// A name that leads to nodes by DNS, their port, and the share of each: `https://boxes-nodes.agents.svc:3000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodesName(NodeAddress);

/// Text that is no address of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no address of {what}: {reason}", .given.escape_debug())]
pub struct NodeAddressError {
    given: String,
    what: &'static str,
    reason: &'static str,
}

impl NodeAddress {
    /// What the node is called in answers and in the log: its host and port.
    pub fn name(&self) -> &str {
        self.authority.as_str()
    }

    /// Its share of the sandboxes.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Whether TLS is spoken with it.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether what is said to it can be read on the way: it is not encrypted, and leaves this machine.
    pub fn is_in_the_clear(&self) -> bool {
        let (host, _) = self.host_and_port();
        let is_loopback = host
            .parse()
            .map_or(host == "localhost", |address: IpAddr| address.is_loopback());
        !self.is_tls && !is_loopback
    }

    /// Whether a name led to it.
    pub(super) fn is_found(&self) -> bool {
        self.found_by.is_some()
    }

    /// Whether this name did.
    pub(super) fn is_found_by(&self, name: &NodesName) -> bool {
        let (own, named) = (self.host_and_port().1, name.0.host_and_port().1);
        self.found_by.as_deref() == Some(name.host()) && own == named
    }

    /// The name that its certificate has to have.
    pub(super) fn verified_as(&self) -> &str {
        let (host, _) = self.host_and_port();
        self.found_by.as_deref().unwrap_or(host)
    }

    pub(super) fn host_and_port(&self) -> (&str, u16) {
        let host = self.authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // It has a port: that is seen to where it is read.
        (bare.unwrap_or(host), self.authority.port_u16().unwrap_or_default())
    }
}

impl NodesName {
    /// The name.
    pub(super) fn host(&self) -> &str {
        self.0.authority.host()
    }

    /// Whether keys can be read on the way to its nodes.
    pub fn is_in_the_clear(&self) -> bool {
        self.0.is_in_the_clear()
    }

    /// Whether TLS is spoken with its nodes.
    pub fn is_tls(&self) -> bool {
        self.0.is_tls
    }

    /// The node at an address that the name leads to.
    ///
    /// # Errors
    /// Of which kind the address is, where no name makes it a node: this machine's own and its link's, services of a cloud,
    /// and those that nothing can be at. Whoever answers for the name would have the front speak with them.
    pub(super) fn node_at(&self, address: IpAddr) -> Result<NodeAddress, AddressClass> {
        let class = classify(address);
        if class != AddressClass::Public && !class.is_of_a_network() {
            return Err(class);
        }
        let port = self.0.host_and_port().1;
        let text = std::net::SocketAddr::new(address, port).to_string();
        // What the standard library writes of an address is an authority.
        let authority = text.parse().map_err(|_| AddressClass::Unspecified)?;
        Ok(NodeAddress {
            authority,
            found_by: Some(self.host().to_owned()),
            ..self.0.clone()
        })
    }
}

impl FromStr for NodeAddress {
    type Err = NodeAddressError;

    fn from_str(text: &str) -> Result<Self, NodeAddressError> {
        read(text, "a node")
    }
}

impl FromStr for NodesName {
    type Err = NodeAddressError;

    fn from_str(text: &str) -> Result<Self, NodeAddressError> {
        let what = "nodes";
        let read = read(text, what)?;
        if read.host_and_port().0.parse::<IpAddr>().is_ok() {
            return Err(NodeAddressError {
                given: text.to_owned(),
                what,
                reason: "it names no host but an address; `--node` takes that",
            });
        }
        Ok(Self(read))
    }
}

fn read(text: &str, what: &'static str) -> Result<NodeAddress, NodeAddressError> {
    let bad = |reason| NodeAddressError {
        given: text.to_owned(),
        what,
        reason,
    };
    let (url, weight) = match text.trim().rsplit_once('=') {
        Some((url, weight)) => (
            url,
            weight.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight)),
        ),
        None => (text.trim(), Some(1)),
    };
    let weight = weight.ok_or_else(|| bad("what follows `=` must be a weight from 1 to 1000"))?;
    let uri: Uri = url.parse().map_err(|_| bad("it is no URL"))?;
    let is_tls = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => true,
        Some(scheme) if *scheme == Scheme::HTTP => false,
        _ => return Err(bad("it must begin with `https://` or `http://`")),
    };
    let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("it must name no user"));
    }
    if authority.port_u16().is_none_or(|port| port == 0) {
        return Err(bad("it names no port, as in `https://node-1.example:3000`"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(bad("nothing may follow the port"));
    }
    let authority = authority.clone();
    Ok(NodeAddress {
        authority,
        weight,
        is_tls,
        found_by: None,
    })
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for NodesName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_a_port_and_perhaps_a_weight() {
        for (given, name, weight, reached, is_open) in [
            ("http://127.0.0.1:3000", "127.0.0.1:3000", 1, ("127.0.0.1", 3000), false),
            ("http://node-1:3000/", "node-1:3000", 1, ("node-1", 3000), true),
            ("https://node-1:3000", "node-1:3000", 1, ("node-1", 3000), false),
            ("http://[::1]:9=7", "[::1]:9", 7, ("::1", 9), false),
            ("http://10.0.0.7:9", "10.0.0.7:9", 1, ("10.0.0.7", 9), true),
        ] {
            let node: NodeAddress = given.parse().unwrap();
            assert_eq!(
                (node.name(), node.weight(), node.host_and_port(), node.is_in_the_clear()),
                (name, weight, reached, is_open)
            );
        }
        for given in [
            "",
            "127.0.0.1:3000",
            "dns://a:3000",
            "https://a",
            "http://a:0",
            "http://u:p@a:3000",
            "http://a:3000/v1",
            "http://a:3000/?b=c",
            "http://a:3000=0",
            "http://a:3000=1001",
            "http://a:3000=x",
        ] {
            assert!(given.parse::<NodeAddress>().is_err(), "{given}");
        }
    }

    #[test]
    fn a_name_leads_to_nodes_of_networks_and_to_nothing_of_this_machine_or_its_cloud() {
        let name: NodesName = "https://nodes.box:3000=2".parse().unwrap();
        for (address, called) in [
            ("10.1.2.3", "10.1.2.3:3000"),
            ("192.0.2.1", "192.0.2.1:3000"),
            ("fd00::7", "[fd00::7]:3000"),
            ("1.1.1.1", "1.1.1.1:3000"),
        ] {
            let node = name.node_at(address.parse().unwrap()).unwrap();
            assert_eq!(
                (node.name(), node.weight(), node.verified_as()),
                (called, 2, "nodes.box")
            );
            assert!(node.is_tls() && node.is_found());
        }
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "169.254.169.254",
            "169.254.1.1",
            "fe80::1",
            "fd00:ec2::254",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            assert!(name.node_at(address.parse().unwrap()).is_err(), "{address}");
        }
        for given in ["http://10.0.0.1:3000", "http://[::1]:3000", "nodes.box:3000"] {
            assert!(given.parse::<NodesName>().is_err(), "{given}");
        }
    }
}
