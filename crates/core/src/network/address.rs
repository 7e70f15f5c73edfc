//! What kind of address an address is.
//!
//! Only public addresses are dialled without being named by a rule. Everything that is not known to be public is not:
//! tables list what is special (<https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>), and of IPv6 only what is assigned for global use.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::cidr::Cidr;
use crate::network::embedded::embedded;

/// The kind of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressClass {
    /// Reachable from everywhere.
    Public,
    /// This machine: 127.0.0.0/8 (RFC 1122), ::1 (RFC 4291).
    Loopback,
    /// No address, which the kernel takes for this machine: 0.0.0.0/8 (RFC 1122), :: (RFC 4291).
    Unspecified,
    /// A private network: 10/8, 172.16/12, 192.168/16 (RFC 1918).
    Private,
    /// A private network of IPv6: fc00::/7 (RFC 4193).
    UniqueLocal,
    /// A private network of IPv6 before that: fec0::/10 (RFC 3879).
    SiteLocal,
    /// The same link: 169.254/16 (RFC 3927), fe80::/10 (RFC 4291).
    LinkLocal,
    /// A service of a cloud that hands out the credentials of its machine.
    Metadata,
    /// Behind a provider's translator: 100.64/10 (RFC 6598).
    Cgnat,
    /// Measurements: 198.18/15 (RFC 2544), which sandboxes see as stand-ins for names, and 2001:2::/48 (RFC 5180).
    Benchmark,
    /// Examples: 192.0.2/24, 198.51.100/24, 203.0.113/24 (RFC 5737), 2001:db8::/32 (RFC 3849), 3fff::/20 (RFC 9637).
    Documentation,
    /// Groups: 224/4 (RFC 1112), ff00::/8 (RFC 4291).
    Multicast,
    /// Everybody on the link: 255.255.255.255 (RFC 919).
    Broadcast,
    /// Nowhere: 100::/64 (RFC 6666), 100:0:0:1::/64 (RFC 9780).
    Discard,
    /// Set apart for protocols, or not assigned: 192.0.0.0/24 (RFC 6890), 240/4 (RFC 1112), 2001::/23 (RFC 2928),
    /// 64:ff9b:1::/48 (RFC 8215), 5f00::/16 (RFC 9602), and all outside of 2000::/3.
    Reserved,
}

use AddressClass::{
    Benchmark, Broadcast, Cgnat, Discard, Documentation, LinkLocal, Loopback, Metadata, Multicast, Private, Public,
    Reserved, SiteLocal, UniqueLocal, Unspecified,
};

/// The first entry that an address is in counts.
const SPECIAL_V4: &[(Ipv4Addr, u8, AddressClass)] = &[
    // EC2, Google, Azure and most others; its credentials for containers (ECS, EKS) and its resolver.
    (Ipv4Addr::new(169, 254, 169, 254), 32, Metadata),
    (Ipv4Addr::new(169, 254, 169, 253), 32, Metadata),
    (Ipv4Addr::new(169, 254, 170, 2), 32, Metadata),
    (Ipv4Addr::new(169, 254, 170, 23), 32, Metadata),
    // Scaleway.
    (Ipv4Addr::new(169, 254, 42, 42), 32, Metadata),
    // Alibaba.
    (Ipv4Addr::new(100, 100, 100, 200), 32, Metadata),
    // Azure's own services, on an address that is otherwise public.
    (Ipv4Addr::new(168, 63, 129, 16), 32, Metadata),
    // Oracle.
    (Ipv4Addr::new(192, 0, 0, 192), 32, Metadata),
    (Ipv4Addr::new(0, 0, 0, 0), 8, Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Cgnat),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Documentation),
    // Relays of 6to4, withdrawn by RFC 7526.
    (Ipv4Addr::new(192, 88, 99, 0), 24, Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Benchmark),
    (Ipv4Addr::new(198, 51, 100, 0), 24, Documentation),
    (Ipv4Addr::new(203, 0, 113, 0), 24, Documentation),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Multicast),
    (Ipv4Addr::new(255, 255, 255, 255), 32, Broadcast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Reserved),
];

/// The first entry that an address is in counts; what is in none is reserved.
const SPECIAL_V6: &[(Ipv6Addr, u8, AddressClass)] = &[
    // EC2 and its credentials for containers, Google, Scaleway, OpenStack.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, Metadata),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x253), 128, Metadata),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23), 128, Metadata),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, Metadata),
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128, Metadata),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128, Metadata),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 128, Unspecified),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 1), 128, Loopback),
    // NAT64 and Teredo are as public as the addresses in them.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, Public),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, Public),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, Discard),
    (Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 0), 64, Discard),
    (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48, Benchmark),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, Reserved),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, Documentation),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, Documentation),
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, Public),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, UniqueLocal),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, LinkLocal),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, SiteLocal),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Multicast),
];

/// The kind of `address`. An IPv6 address that carries IPv4 addresses (v4-mapped, v4-compatible, NAT64, 6to4, Teredo,
/// ISATAP) is public only when it and all of them are.
pub fn classify(address: IpAddr) -> AddressClass {
    classify_within(address).0
}

/// The kind of `address`, and the largest network around it that a rule may name to mean this kind: the one that the
/// registry assigns, or the address alone where it is special for what it carries.
pub(crate) fn classify_within(address: IpAddr) -> (AddressClass, Cidr) {
    let address = address.to_canonical();
    let own = registered(address);
    if let Some((class, network)) = own
        && class != Public
    {
        return (class, network);
    }
    let alone = Cidr::single(address);
    let carried = embedded(address)
        .into_iter()
        .filter_map(|inner| registered(inner.into()));
    let special = carried.map(|(class, _)| class).find(|class| *class != Public);
    match (special, own, address) {
        (Some(class), _, _) => (class, alone),
        (None, Some((class, network)), _) => (class, network),
        (None, None, IpAddr::V4(_)) => (Public, alone),
        (None, None, IpAddr::V6(_)) => (Reserved, alone),
    }
}

/// Whether an address of `network` may be public. `false` is certain; of networks whose addresses carry others, `true` is
/// not, and the check before a connection decides ([`classify`] of the address itself).
pub fn has_public(network: &Cidr) -> bool {
    let is_divided = assigned().any(|(part, _)| part != *network && network.covers(&part));
    if is_divided {
        return network.halves().any(|half| has_public(&half));
    }
    // From here on all addresses of it are within one assignment.
    let (first, last) = (network.first(), network.last());
    if registered(first).map_or(first.is_ipv6(), |(class, _)| class != Public) {
        return false;
    }
    if network.is_single() {
        return classify(first) == Public;
    }
    let (first, last) = (embedded(first), embedded(last));
    first.len() != last.len()
        || first.into_iter().zip(last).all(|(first, last)| {
            let alike = (first.to_bits() ^ last.to_bits()).leading_zeros();
            let prefix = u8::try_from(alike).unwrap_or(0);
            Cidr::containing(first.into(), prefix).is_none_or(|carried| has_public(&carried))
        })
}

fn registered(address: IpAddr) -> Option<(AddressClass, Cidr)> {
    assigned()
        .find(|(network, _)| network.contains(address))
        .map(|(network, class)| (class, network))
}

/// What the registries assign, the first that an address is in before others.
fn assigned() -> impl Iterator<Item = (Cidr, AddressClass)> {
    let v4 = SPECIAL_V4
        .iter()
        .map(|(first, prefix, class)| (IpAddr::V4(*first), *prefix, *class));
    let v6 = SPECIAL_V6
        .iter()
        .map(|(first, prefix, class)| (IpAddr::V6(*first), *prefix, *class));
    v4.chain(v6)
        .filter_map(|(first, prefix, class)| Some((Cidr::containing(first, prefix)?, class)))
}

impl AddressClass {
    /// Whether a rule for the address can open it: there are no connections to groups, to everybody, to no address.
    pub fn can_be_allowed(self) -> bool {
        !matches!(self, Unspecified | Multicast | Broadcast)
    }

    /// Whether it is an address in some network that is not the internet, and neither this machine, its link nor a service of
    /// its cloud. Examples are among them: networks use them for stand-ins.
    pub fn is_of_a_network(self) -> bool {
        matches!(
            self,
            Private | UniqueLocal | SiteLocal | Cgnat | Benchmark | Documentation
        )
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Public => "public",
            Loopback => "a loopback address",
            Unspecified => "the unspecified address",
            Private => "a private address",
            UniqueLocal => "a unique local address",
            SiteLocal => "a site-local address",
            LinkLocal => "a link-local address",
            Metadata => "a metadata service of a cloud",
            Cgnat => "an address behind a provider's translator",
            Benchmark => "an address for benchmarks",
            Documentation => "an address for documentation",
            Multicast => "a multicast address",
            Broadcast => "the broadcast address",
            Discard => "an address whose packets are discarded",
            Reserved => "a reserved address",
        })
    }
}

#[cfg(test)]
mod tests;
