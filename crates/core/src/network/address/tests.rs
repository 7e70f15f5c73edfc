use proptest::prelude::*;

use super::*;

fn class(text: &str) -> AddressClass {
    classify(text.parse().unwrap())
}

/// The edges of every range, and addresses right outside.
#[test]
fn every_range_has_its_class() {
    for (class_of, list) in [
        (Unspecified, &["0.0.0.0", "0.255.255.255", "::"][..]),
        (
            Loopback,
            &["127.0.0.0", "127.0.0.1", "127.0.0.53", "127.255.255.255", "::1"],
        ),
        (
            Private,
            &[
                "10.0.0.0",
                "10.255.255.255",
                "172.16.0.0",
                "172.31.255.255",
                "192.168.0.0",
                "192.168.255.255",
            ],
        ),
        (UniqueLocal, &["fc00::", "fd00::1", "fdff:ffff::1"]),
        (SiteLocal, &["fec0::1", "feff::1"]),
        (LinkLocal, &["169.254.0.1", "169.254.169.255", "fe80::1", "febf::1"]),
        (
            Metadata,
            &[
                "169.254.169.254",
                "169.254.170.2",
                "100.100.100.200",
                "168.63.129.16",
                "192.0.0.192",
                "fd00:ec2::254",
                "fd20:ce::254",
            ],
        ),
        (Cgnat, &["100.64.0.0", "100.127.255.255"]),
        (Benchmark, &["198.18.0.0", "198.19.255.255", "2001:2::1"]),
        (
            Documentation,
            &[
                "192.0.2.1",
                "198.51.100.1",
                "203.0.113.1",
                "2001:db8::1",
                "3fff::1",
                "3fff:fff:ffff::1",
            ],
        ),
        (Multicast, &["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"]),
        (Broadcast, &["255.255.255.255"]),
        (Discard, &["100::1", "100:0:0:1::1"]),
        (
            Reserved,
            &[
                "240.0.0.1",
                "255.255.255.254",
                "192.0.0.1",
                "192.88.99.1",
                "2001:10::1",
                "2001:1ff::1",
                "5f00::1",
                "4000::1",
                "64:ff9b:2::1",
                "1::1",
            ],
        ),
        (
            Public,
            &[
                "1.1.1.1",
                "8.8.8.8",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "100.128.0.0",
                "126.255.255.255",
                "128.0.0.0",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.0.1.0",
                "192.167.255.255",
                "192.169.0.0",
                "198.17.255.255",
                "198.20.0.0",
                "223.255.255.255",
                "2606:4700::1111",
                "2001:200::1",
                "2001:4860:4860::8888",
                "2a00::1",
                "3ffe::1",
            ],
        ),
    ] {
        for text in list {
            assert_eq!(class(text), class_of, "{text}");
        }
    }
}

/// Everything in which an IPv4 address reaches the machine, as text.
fn carriers(inner: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = inner.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let public = Ipv4Addr::new(65, 54, 227, 120).to_bits();
    let (server_high, server_low) = (public >> 16, public & 0xffff);
    vec![
        format!("::ffff:{inner}"),
        format!("::{inner}"),
        format!("64:ff9b::{inner}"),
        format!("64:ff9b:1::{inner}"),
        format!("2002:{high:x}:{low:x}::1"),
        format!("2001:0:{high:x}:{low:x}:8000:63bf:3fff:fdd2"),
        format!("2001:0:{server_high:x}:{server_low:x}:8000:63bf:{:x}:{:x}", !high, !low),
        format!("2001:4860::5efe:{inner}"),
        format!("2001:4860::200:5efe:{inner}"),
    ]
}

#[test]
fn no_special_address_is_public_for_being_carried() {
    for (first, prefix, expected) in SPECIAL_V4 {
        for text in carriers(*first) {
            let exact = text != "::0.0.0.0";
            assert!(class(&text) != Public, "{text} carries {first}/{prefix}");
            assert!(
                class(&text) == *expected || !exact,
                "{text} carries {first}, but is {}",
                class(&text)
            );
        }
    }
}

#[test]
fn translators_and_tunnels_to_public_addresses_are_public() {
    for text in [
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
        "2001:0:808:808:8000:63bf:f7f7:f7f7",
        "::ffff:8.8.8.8",
    ] {
        assert_eq!(class(text), Public, "{text}");
    }
    // Withdrawn, and local: not public even so.
    for text in ["::8.8.8.8", "64:ff9b:1::8.8.8.8", "64:ff9b:1:808:8:800::"] {
        assert_ne!(class(text), Public, "{text}");
    }
}

fn cidr(text: &str) -> Cidr {
    let (address, prefix) = text.split_once('/').unwrap();
    Cidr::containing(address.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

#[test]
fn networks_with_no_public_address_are_known() {
    for text in [
        "10.0.0.0/8",
        "127.0.0.1/32",
        "168.63.129.16/32",
        "192.0.0.0/24",
        "198.18.0.0/15",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "240.0.0.0/4",
        "::/127",
        "::ffff:10.0.0.0/104",
        "::7f00:0/104",
        "64:ff9b::a00:0/104",
        "64:ff9b:1::/48",
        "2001:db8::/32",
        "2002:a00:1::/48",
        "2002:a00::/24",
        "fc00::/6",
        "fec0::/10",
        "fec0::1/128",
        "ff00::/8",
    ] {
        assert!(!has_public(&cidr(text)), "{text}");
    }
    for text in [
        "0.0.0.0/0",
        "0.0.0.0/1",
        "8.8.8.8/32",
        "10.0.0.0/7",
        "168.63.129.16/31",
        "192.0.0.0/16",
        "::/0",
        "64:ff9b::/96",
        "64:ff9b::808:808/128",
        "2000::/3",
        "2002::/16",
        "2002:808:808::/48",
        "2606:4700::/32",
    ] {
        assert!(has_public(&cidr(text)), "{text}");
    }
}

proptest! {
    #[test]
    fn a_network_of_a_public_address_has_a_public_one(address: IpAddr, prefix: u8) {
        if let Some(network) = Cidr::containing(address.to_canonical(), prefix) {
            prop_assert!(has_public(&network) || classify(address) != Public, "{network}");
        }
    }

    #[test]
    fn a_network_of_one_address_has_a_public_one_where_that_is(address: IpAddr, inner: Ipv4Addr) {
        for address in carriers(inner).into_iter().map(|text| text.parse().unwrap()).chain([address]) {
            prop_assert_eq!(has_public(&Cidr::single(address)), classify(address) == Public);
        }
    }

    #[test]
    fn a_carried_address_is_never_more_public_than_by_itself(inner: Ipv4Addr) {
        let own = classify(inner.into());
        for text in carriers(inner) {
            prop_assert!(own == Public || class(&text) != Public, "{text}");
        }
        prop_assert_eq!(class(&format!("::ffff:{inner}")), own);
    }

    #[test]
    fn the_network_of_a_class_holds_the_address(address: IpAddr) {
        let (_, network) = classify_within(address);
        prop_assert!(network.contains(address));
    }

    #[test]
    fn public_is_at_most_what_the_standard_library_takes_for_it(address: Ipv4Addr) {
        let special = address.is_private() || address.is_loopback() || address.is_link_local() || address.is_broadcast()
            || address.is_documentation() || address.is_multicast() || address.is_unspecified();
        prop_assert!(!special || classify(address.into()) != Public);
    }
}
