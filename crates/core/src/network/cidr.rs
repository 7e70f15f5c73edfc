//! Networks of addresses.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All addresses with the same leading bits (RFC 4632; RFC 4291, section 2.3), or one address. Displayed as a rule says
/// it: `10.0.0.0/8`, `192.0.2.1`, `[fd00::]/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The network of `address`, whose bits after `prefix` are cleared; `None` when there are not so many bits. A
    /// network of v4-mapped addresses is the one of IPv4.
    pub fn containing(address: IpAddr, prefix: u8) -> Option<Self> {
        let (address, prefix) = match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(mapped)) if (96..=128).contains(&prefix) => (IpAddr::V4(mapped), prefix - 96),
            _ => (address, prefix),
        };
        let first = match address {
            IpAddr::V4(address) if prefix <= 32 => Ipv4Addr::from_bits(address.to_bits() & mask_v4(prefix)).into(),
            IpAddr::V6(address) if prefix <= 128 => Ipv6Addr::from_bits(address.to_bits() & mask_v6(prefix)).into(),
            _ => return None,
        };
        Some(Self { first, prefix })
    }

    /// The network of one address.
    pub fn single(address: IpAddr) -> Self {
        let first = address.to_canonical();
        let prefix = bits(first);
        Self { first, prefix }
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() | !mask_v4(self.prefix)).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | !mask_v6(self.prefix)).into(),
        }
    }

    /// The two halves of a network of more than one address.
    pub fn halves(&self) -> impl Iterator<Item = Self> {
        let prefix = self.prefix + 1;
        let (first, last) = (self.first, self.last());
        [first, last]
            .into_iter()
            .filter_map(move |address| Self::containing(address, prefix))
    }

    /// How many leading bits are the same.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether it is one address.
    pub fn is_single(&self) -> bool {
        self.prefix == bits(self.first)
    }

    /// Whether `address` is in it, seen as IPv4 when it is v4-mapped.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                (first.to_bits() ^ address.to_bits()) & mask_v4(self.prefix) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                (first.to_bits() ^ address.to_bits()) & mask_v6(self.prefix) == 0
            }
            _ => false,
        }
    }

    /// Whether every address of `other` is in it.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.prefix <= other.prefix && self.contains(other.first)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first {
            IpAddr::V4(address) => address.fmt(f)?,
            IpAddr::V6(address) => write!(f, "[{address}]")?,
        }
        if self.is_single() {
            return Ok(());
        }
        write!(f, "/{}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(address: &str, prefix: u8) -> Cidr {
        Cidr::containing(address.parse().unwrap(), prefix).unwrap()
    }

    #[test]
    fn networks_hold_what_shares_their_bits() {
        for (network, address, expected) in [
            (cidr("10.0.0.0", 8), "10.255.255.255", true),
            (cidr("10.0.0.0", 8), "11.0.0.0", false),
            (cidr("10.0.0.0", 8), "::ffff:10.1.2.3", true),
            (cidr("0.0.0.0", 0), "255.255.255.255", true),
            (cidr("0.0.0.0", 0), "::", false),
            (cidr("192.0.2.1", 32), "192.0.2.1", true),
            (cidr("192.0.2.1", 32), "192.0.2.0", false),
            (cidr("fd00::", 8), "fdff::1", true),
            (cidr("fd00::", 8), "fe00::1", false),
            (cidr("::", 0), "ffff::", true),
            (cidr("::", 0), "127.0.0.1", false),
            (cidr("::ffff:10.0.0.0", 104), "10.9.9.9", true),
        ] {
            assert_eq!(
                network.contains(address.parse().unwrap()),
                expected,
                "{network} {address}"
            );
        }
    }

    #[test]
    fn there_are_no_more_bits_than_an_address_has() {
        assert_eq!(Cidr::containing("10.0.0.0".parse().unwrap(), 33), None);
        assert_eq!(Cidr::containing("fd00::".parse().unwrap(), 129), None);
        assert_eq!(cidr("::ffff:10.0.0.0", 104).to_string(), "10.0.0.0/8");
    }

    proptest! {
        #[test]
        fn a_network_covers_its_parts_and_no_others(address: IpAddr, wide in 0_u8..=32, more in 0_u8..=32) {
            let address = address.to_canonical();
            let narrow = Cidr::containing(address, (wide + more).min(32)).unwrap();
            let wide = Cidr::containing(address, wide).unwrap();
            prop_assert!(wide.contains(address) && wide.covers(&narrow));
            prop_assert_eq!(narrow.covers(&wide), narrow == wide);
        }
    }
}
