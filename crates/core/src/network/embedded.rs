//! The IPv4 addresses that an IPv6 address leads to, through a translator or a tunnel.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every IPv4 address in `address`: v4-mapped and v4-compatible (RFC 4291, section 2.5.5), NAT64 (RFC 6052, section
/// 2.2; RFC 8215), 6to4 (RFC 3056), server and client of Teredo (RFC 4380, section 4), ISATAP (RFC 5214, section 6.1).
///
/// `::` and `::1` are addresses of their own.
pub(crate) fn embedded(address: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let low = v4(address, 96);
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, rest] if high != 0 || rest > 1 => found.push(low),
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => found.push(low),
        // The operator of the translator chooses how long the prefix is; an address does not say.
        [0x64, 0xff9b, 1, ..] => found.extend([
            low,
            around_byte_8(address, 48),
            around_byte_8(address, 56),
            v4(address, 72),
        ]),
        [0x2002, ..] => found.push(v4(address, 16)),
        [0x2001, 0, ..] => found.extend([v4(address, 32), Ipv4Addr::from_bits(!low.to_bits())]),
        _ => {}
    }
    // In any prefix, the universal bit set or not.
    if let [_, _, _, _, 0 | 0x200, 0x5efe, _, _] = address.segments() {
        found.push(low);
    }
    found
}

/// The 32 bits that begin at `bit`.
fn v4(address: Ipv6Addr, bit: u32) -> Ipv4Addr {
    let [.., a, b, c, d] = (address.to_bits() >> (96 - bit)).to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// The 32 bits that begin at `bit` and leave out bits 64 to 71, which RFC 6052 keeps free.
fn around_byte_8(address: Ipv6Addr, bit: u32) -> Ipv4Addr {
    let all = address.to_bits();
    let before = all >> 64;
    let after = (all >> 16) & ((1 << 40) - 1);
    // Bits 0 to 63 and 72 to 111 in one piece, of 104 bits.
    let joined = (before << 40) | after;
    let [.., a, b, c, d] = (joined >> (104 - bit - 32)).to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: &str) -> Vec<String> {
        let address: Ipv6Addr = address.parse().unwrap();
        embedded(address.into()).iter().map(Ipv4Addr::to_string).collect()
    }

    #[test]
    fn every_form_that_carries_an_address_is_seen_through() {
        for (address, expected) in [
            ("::ffff:192.0.2.33", &["192.0.2.33"][..]),
            ("::192.0.2.33", &["192.0.2.33"]),
            ("::2", &["0.0.0.2"]),
            ("64:ff9b::192.0.2.33", &["192.0.2.33"]),
            ("2002:c000:221::1", &["192.0.2.33"]),
            // The example of RFC 4380, section 5.2.1 spells server and client so.
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", &["65.54.227.120", "192.0.2.45"]),
            ("fe80::5efe:192.0.2.33", &["192.0.2.33"]),
            ("2001:4860::200:5efe:192.0.2.33", &["192.0.2.33"]),
            ("::", &[]),
            ("::1", &[]),
            ("2606:4700::1111", &[]),
            ("64:ff9b:0:1::1", &[]),
        ] {
            assert_eq!(found(address), expected, "{address}");
        }
        assert_eq!(embedded(Ipv4Addr::LOCALHOST.into()), Vec::<Ipv4Addr>::new());
    }

    /// The forms of RFC 6052, section 2.4, in the prefix of RFC 8215.
    #[test]
    fn local_translators_are_seen_through_whatever_their_prefix() {
        for address in [
            "64:ff9b:1:c000:2:2100::",
            "64:ff9b:1:c0:0:221::",
            "64:ff9b:1:0:c0:2:2100::",
            "64:ff9b:1::192.0.2.33",
        ] {
            assert!(
                found(address).contains(&"192.0.2.33".to_owned()),
                "{address}: {:?}",
                found(address)
            );
        }
    }
}
