use proptest::prelude::*;

use super::*;

fn settings(allow: &[&str], deny: &[&str]) -> NetworkSettings {
    NetworkSettings {
        allow_out: allow.iter().map(ToString::to_string).collect(),
        deny_out: deny.iter().map(ToString::to_string).collect(),
        ..NetworkSettings::default()
    }
}

#[test]
fn lists_become_rules() {
    type List = &'static [&'static str];
    let cases: [(List, List, bool, List, List); 9] = [
        (&[], &[], true, &[], &[]),
        (&[], &["8.8.8.8"], true, &[], &["8.8.8.8"]),
        (&[], &["0.0.0.0/0"], false, &[], &[]),
        (&["1.1.1.1"], &["0.0.0.0/0"], false, &["1.1.1.1:1-65535/tcp"], &[]),
        (
            &["example.com", "*.example.org"],
            &["0.0.0.0/0", "9.9.9.9"],
            false,
            &["example.com", "*.example.org"],
            &[],
        ),
        (&["8.8.8.8/31"], &["8.8.8.8/30"], true, &[], &["8.8.8.10/31"]),
        (&["0.0.0.0/0"], &["0.0.0.0/0", "8.8.8.8"], true, &[], &[]),
        (
            &["1.1.1.1:443", "[2606:4700::1111]:53/tcp", "example.com:22,8000-8010"],
            &["0.0.0.0/0"],
            false,
            &["example.com:22,8000-8010", "1.1.1.1:443", "[2606:4700::1111]:53/tcp"],
            &[],
        ),
        // Of a network that is public in part, that part.
        (&["10.0.0.0/7:443"], &["0.0.0.0/0"], false, &["11.0.0.0/8:443"], &[]),
    ];
    for (allow, deny, internet, allowed, denied) in cases {
        let rules = order(&settings(allow, deny)).unwrap();
        assert_eq!(
            (rules.internet, rules.allow, rules.deny),
            (
                internet,
                allowed.iter().map(ToString::to_string).collect(),
                denied.iter().map(ToString::to_string).collect()
            ),
            "{allow:?} {deny:?}"
        );
    }
}

#[test]
fn no_internet_is_all_of_it_denied() {
    let none = NetworkSettings {
        internet: Some(false),
        ..settings(&["1.1.1.1"], &[])
    };
    let rules = order(&none).unwrap();
    assert_eq!((rules.internet, rules.allow.len()), (false, 1));
}

#[test]
fn what_means_nothing_or_too_much_is_refused() {
    for (allow, deny) in [
        (&["example.com"][..], &[][..]),
        (&[], &["example.com"]),
        (&["*"], &["0.0.0.0/0"]),
        (&["*.com"], &["0.0.0.0/0"]),
        (&["10.0.0.0/8"], &["0.0.0.0/0"]),
        (&["1.2.3.4/33"], &["0.0.0.0/0"]),
        (&[], &["1.2.3.4/+8"]),
        (&["a\nb"], &["0.0.0.0/0"]),
        (&["1.1.1.1:443"], &[]),
        (&["1.1.1.1:443"], &["1.1.1.1"]),
        (&["1.1.1.1:0"], &["0.0.0.0/0"]),
        (&["1.1.1.1:443/udp"], &["0.0.0.0/0"]),
        (&["*.com:443"], &["0.0.0.0/0"]),
        (&["http://example.com"], &["0.0.0.0/0"]),
    ] {
        assert!(order(&settings(allow, deny)).is_err(), "{allow:?} {deny:?}");
    }
}

#[test]
fn what_can_never_be_reached_is_not_allowed() {
    for never in [
        "10.0.0.1",
        "169.254.169.254",
        "192.168.0.0/16",
        "fd00::1",
        "::1",
        "127.0.0.1",
        "10.0.0.1:443",
        "[::1]:80",
    ] {
        for deny in [&[][..], &["0.0.0.0/0"]] {
            let refused = check(&settings(&["8.8.8.8", never], deny));
            assert!(
                matches!(&refused, Err(DaemonError::Invalid { .. })),
                "{never}: {refused:?}"
            );
        }
    }
    for some in ["8.8.8.8", "0.0.0.0/0", "10.0.0.0/7"] {
        assert!(check(&settings(&[some], &["0.0.0.0/0"])).is_ok(), "{some}");
    }
}

#[test]
fn who_has_a_key_names_public_addresses_alone_and_the_owner_more() {
    for special in [
        "198.18.0.1:80",
        "203.0.113.80:443",
        "168.63.129.16",
        "192.0.0.192",
        "[64:ff9b::a00:1]:443",
        "[2002:a00:1::1]:80",
        "[fec0::1]:80",
        "[::127.0.0.1]:80",
        "[::]/127:80",
        "224.0.0.1:80",
        "255.255.255.255",
    ] {
        let by_key = settings(&["8.8.8.8", special], &["0.0.0.0/0"]);
        let refused = check(&by_key);
        assert!(
            matches!(&refused, Err(DaemonError::Invalid { .. })),
            "{special}: {refused:?}"
        );
        assert!(!order(&by_key).unwrap().named_by_owner);
    }
    let by_owner = NetworkSettings {
        named_by_owner: true,
        ..settings(&["203.0.113.80:443"], &["0.0.0.0/0"])
    };
    check(&by_owner).unwrap();
    assert!(order(&by_owner).unwrap().named_by_owner);
    // What opens nothing is the same of everybody, so that the owner gets sandboxes of the warm pool.
    let usual = NetworkSettings {
        named_by_owner: true,
        ..NetworkSettings::default()
    };
    assert_eq!(order(&usual).unwrap(), order(&NetworkSettings::default()).unwrap());
    let inside = NetworkSettings {
        named_by_owner: true,
        ..settings(&["10.0.0.1"], &["0.0.0.0/0"])
    };
    assert!(check(&inside).is_err());
}

#[test]
fn rules_are_counted_of_all_entries_together() {
    let wide = |count: usize| -> Vec<String> { (0..count).map(|number| format!("0.0.0.0/0:{}", number + 1)).collect() };
    let asked = |allow_out: Vec<String>| NetworkSettings {
        allow_out,
        ..settings(&[], &["0.0.0.0/0"])
    };
    let of_one = order(&asked(wide(1))).unwrap().allow.len();
    let most = MAX_RULES / of_one;
    assert!(most < MAX_ENTRIES, "{of_one}");
    assert_eq!(order(&asked(wide(most))).unwrap().allow.len(), most * of_one);
    let refused = check(&asked(wide(most + 1)));
    assert!(matches!(&refused, Err(DaemonError::Invalid { .. })), "{refused:?}");
}

fn with_headers(rules: &[(&str, &[(&str, &str)])]) -> NetworkSettings {
    let headers = rules.iter().map(|(host, headers)| {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        (host.to_string(), headers.collect())
    });
    NetworkSettings {
        headers: headers.collect(),
        ..NetworkSettings::default()
    }
}

#[test]
fn headers_are_passed_on_with_their_hosts() {
    let rules: &[(&str, &[(&str, &str)])] = &[("*.example.com", &[("X-B", "2")]), ("api.example.com", &[("X-A", "1")])];
    let orders = order(&with_headers(rules)).unwrap().headers;
    let told: Vec<_> = orders
        .iter()
        .map(|order| (order.host.as_str(), order.name.as_str(), order.value.as_str()))
        .collect();
    assert_eq!(told, [("*.example.com", "X-B", "2"), ("api.example.com", "X-A", "1")]);
    assert!(!format!("{orders:?}").contains('2'), "a value is shown");
}

#[test]
fn headers_that_mean_nothing_or_too_much_are_refused() {
    for rules in [
        &[("*", &[("X", "1")][..])][..],
        &[("*.com", &[("X", "1")])],
        &[("http://a.test", &[("X", "1")])],
        &[("a.test", &[("Host", "b.test")])],
        &[("a.test", &[("Content-Length", "1")])],
        &[("a.test", &[("X", "")])],
        &[("a.test", &[("X", "1\r\nY: 2")])],
        &[("a.test", &[("X: 1", "2")])],
        &[("a.test X: 1", &[("Y", "2")])],
        &[("a.test", &[("X", "1"), ("x", "2")])],
        &[("a.test", &[("X", "1")]), ("A.test", &[("x", "2")])],
    ] {
        let refused = order(&with_headers(rules));
        assert!(
            matches!(refused, Err(DaemonError::Invalid { .. })),
            "{rules:?}: {refused:?}"
        );
    }
    let minted = order(&with_headers(&[(
        "a.test",
        &[("X", "Bearer ${e2b.identity.tokens.a}")],
    )]));
    assert!(matches!(minted, Err(DaemonError::Unsupported { .. })), "{minted:?}");
    let names: Vec<String> = (0..30).map(|number| format!("x{number}")).collect();
    let one: BTreeMap<String, String> = [("X".to_owned(), "1".to_owned())].into();
    let many_hosts = NetworkSettings {
        headers: names
            .iter()
            .take(11)
            .map(|name| (format!("{name}.test"), one.clone()))
            .collect(),
        ..NetworkSettings::default()
    };
    let many: BTreeMap<String, String> = names
        .iter()
        .take(21)
        .map(|name| (name.clone(), "1".to_owned()))
        .collect();
    let many_headers = NetworkSettings {
        headers: [("a.test".to_owned(), many)].into(),
        ..NetworkSettings::default()
    };
    for settings in [many_hosts, many_headers] {
        assert!(
            matches!(order(&settings), Err(DaemonError::Invalid { .. })),
            "{settings:?}"
        );
    }
}

proptest! {
    #[test]
    fn what_is_left_is_what_is_in_the_one_and_not_in_the_other(
        networks in prop::collection::vec((any::<u32>(), 20_u8..=32), 1..4),
        holes in prop::collection::vec((any::<u32>(), 20_u8..=32), 0..4),
        near in any::<prop::sample::Index>(),
        offset in any::<u16>(),
    ) {
        let read = |list: &[(u32, u8)]| -> Vec<Cidr> {
            // Close together, so that they overlap.
            list.iter()
                .filter_map(|(bits, prefix)| Cidr::containing(IpAddr::V4((0x0808_0000 | (bits & 0x3fff)).into()), *prefix))
                .collect()
        };
        let (networks, holes) = (read(&networks), read(&holes));
        let rest = subtracted("x", &networks, &holes).unwrap();
        let first = match near.get(&networks).first() {
            IpAddr::V4(first) => first.to_bits(),
            IpAddr::V6(_) => 0,
        };
        let address = IpAddr::V4((first ^ u32::from(offset & 0x0fff)).into());
        let within = |list: &[Cidr]| list.iter().any(|network| network.contains(address));
        prop_assert_eq!(within(&rest), within(&networks) && !within(&holes));
    }
}
