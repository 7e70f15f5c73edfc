use proptest::prelude::*;

use super::*;
use crate::network::address::classify;
use crate::network::decide::NetworkRule;
use crate::network::decide::RuleVerdict::{Allow, Ask, Deny};
use crate::network::testing::{policies, policy};

const NAME: &str = "app.example.com";

fn dial(list: &[(RuleVerdict, &str)], name: Option<&str>, address: &str, own: &[&str]) -> Result<(), AddressRefusal> {
    let own: Vec<IpAddr> = own.iter().map(|text| text.parse().unwrap()).collect();
    let name: Option<DomainName> = name.map(|text| text.parse().unwrap());
    policy(list).may_dial(name.as_ref(), address.parse().unwrap(), 443, &own)
}

#[test]
fn an_allowed_name_leads_to_public_addresses_only() {
    let rules = &[(Allow, NAME)];
    for address in ["1.1.1.1", "2606:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1"] {
        assert_eq!(dial(rules, Some(NAME), address, &[]), Ok(()), "{address}");
    }
    for address in [
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1.1.1.1",
        "2002:7f00:1::",
        "2001:0:808:808::80ff:fffe",
        "2001:4860::5efe:10.0.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "4000::1",
    ] {
        let refusal = dial(rules, Some(NAME), address, &[]).expect_err(address);
        assert!(
            matches!(refusal, AddressRefusal::Special { .. }),
            "{address}: {refusal}"
        );
        assert_eq!(refusal.kind(), ErrorKind::Denied);
    }
}

#[test]
fn a_rule_for_the_address_opens_it_a_rule_for_the_name_does_not() {
    let named = (Allow, NAME);
    for (rule, address, opened) in [
        ((Allow, "10.0.0.0/8"), "10.0.0.1", true),
        ((Allow, "10.0.0.0/8"), "::ffff:10.0.0.1", true),
        ((Allow, "10.0.0.1"), "10.0.0.1", true),
        ((Allow, "10.0.0.0/8:22"), "10.0.0.1", false),
        ((Allow, "10.0.0.0/8"), "192.168.0.1", false),
        ((Ask, "10.0.0.0/8"), "10.0.0.1", false),
        ((Allow, "127.0.0.0/8"), "127.0.0.1", true),
        ((Allow, "[::1]"), "::1", true),
        ((Allow, "[fd00::]/8"), "fd00::1", true),
        // Wider than the kind of address it would open.
        ((Allow, "0.0.0.0/1"), "10.0.0.1", false),
        ((Allow, "8.0.0.0/5"), "10.0.0.1", false),
        ((Allow, "[8000::]/1"), "fd00::1", false),
        ((Allow, "169.254.0.0/16"), "169.254.1.1", true),
        ((Allow, "169.254.0.0/16"), "169.254.169.254", false),
        ((Allow, "169.254.169.254"), "169.254.169.254", true),
        ((Allow, "[fd00::]/8"), "fd00:ec2::254", false),
        // The address that is carried is not the one that is dialled.
        ((Allow, "10.0.0.0/8"), "64:ff9b::10.0.0.1", false),
        ((Allow, "[64:ff9b::]/96"), "64:ff9b::10.0.0.1", false),
        ((Allow, "[64:ff9b::a00:1]"), "64:ff9b::10.0.0.1", true),
        // There are no connections to these.
        ((Allow, "0.0.0.0"), "0.0.0.0", false),
        ((Allow, "255.255.255.255"), "255.255.255.255", false),
        ((Allow, "224.0.0.1"), "224.0.0.1", false),
    ] {
        assert_eq!(
            dial(&[named, rule], Some(NAME), address, &[]).is_ok(),
            opened,
            "{rule:?} {address}"
        );
    }
}

#[test]
fn a_rule_that_denies_an_address_holds_for_names_too() {
    for (rules, address, opened) in [
        (&[(Deny, "1.1.1.0/24")][..], "1.1.1.1", false),
        (&[(Deny, "1.1.1.0/24")], "1.1.2.1", true),
        (&[(Deny, "1.1.1.0/24:22")], "1.1.1.1", true),
        (&[(Deny, "1.1.1.0/24")], "64:ff9b::1.1.1.1", false),
        (&[(Deny, "1.1.1.0/24")], "2002:101:101::", false),
        (&[(Deny, "1.1.1.0/24"), (Allow, "1.1.1.1")], "1.1.1.1", true),
        (&[(Allow, "10.0.0.0/8"), (Deny, "10.0.0.1")], "10.0.0.1", false),
        (&[(Deny, "10.0.0.0/8"), (Allow, "10.0.0.1")], "10.0.0.1", true),
        (&[(Deny, "[::]/0")], "2606:4700::1111", false),
        (&[(Deny, "[::]/0")], "1.1.1.1", true),
        (&[(Deny, "0.0.0.0/0")], "1.1.1.1", false),
        (&[(Ask, "1.1.1.1")], "1.1.1.1", true),
    ] {
        let all: Vec<_> = rules.iter().copied().chain([(Allow, NAME)]).collect();
        assert_eq!(
            dial(&all, Some(NAME), address, &[]).is_ok(),
            opened,
            "{rules:?} {address}"
        );
    }
}

#[test]
fn our_own_addresses_are_refused_unless_they_are_named() {
    let own = &["93.184.215.14", "2606:4700::1111", "192.168.1.5"];
    for (rule, address, opened) in [
        ("x.org", "93.184.215.14", false),
        ("x.org", "::ffff:93.184.215.14", false),
        ("x.org", "64:ff9b::93.184.215.14", false),
        ("x.org", "2606:4700::1111", false),
        ("x.org", "93.184.215.15", true),
        ("93.184.215.0/24", "93.184.215.14", false),
        ("93.184.215.14", "93.184.215.14", true),
        ("192.168.1.0/24", "192.168.1.5", false),
        ("192.168.1.0/24", "192.168.1.6", true),
        ("192.168.1.5", "192.168.1.5", true),
    ] {
        let answer = dial(&[(Allow, NAME), (Allow, rule)], Some(NAME), address, own);
        assert_eq!(answer.is_ok(), opened, "{rule} {address}: {answer:?}");
    }
    assert_eq!(
        dial(
            &[(Allow, NAME), (Allow, "127.0.0.0/8")],
            Some(NAME),
            "127.0.0.1",
            &["127.0.0.1"]
        ),
        Ok(())
    );
    let mapped = dial(&[(Allow, NAME)], Some(NAME), "93.184.215.14", &["::ffff:93.184.215.14"]);
    assert!(matches!(mapped, Err(AddressRefusal::Own { .. })));
}

#[test]
fn an_address_asked_for_itself_needs_a_rule_of_its_own() {
    for (list, address, opened) in [
        (&[(Allow, "example.com")][..], "1.1.1.1", false),
        (&[(Allow, "1.1.1.0/24")], "1.1.1.1", true),
        (&[(Ask, "1.1.1.0/24")], "1.1.1.1", true),
        (&[(Ask, "10.0.0.0/8")], "10.0.0.1", true),
        (&[(Allow, "0.0.0.0/1")], "1.1.1.1", true),
        (&[(Allow, "0.0.0.0/1")], "10.0.0.1", false),
        (&[(Deny, "1.1.1.1")], "1.1.1.1", false),
    ] {
        assert_eq!(dial(list, None, address, &[]).is_ok(), opened, "{list:?} {address}");
    }
}

#[test]
fn a_refusal_says_why_and_what_to_do() {
    for (list, name, address, message, hint) in [
        (
            &[(Allow, NAME)][..],
            Some(NAME),
            "::ffff:10.0.0.1",
            "app.example.com leads to 10.0.0.1, which is a private address",
            Some("if it is meant, allow the address itself with `--allow 10.0.0.1:443`"),
        ),
        (
            &[(Allow, NAME), (Deny, "1.1.1.0/24")],
            Some(NAME),
            "64:ff9b::1.1.1.1",
            "app.example.com leads to 1.1.1.1, which is denied on port 443 by network.deny: 1.1.1.0/24",
            None,
        ),
        (
            &[],
            Some(NAME),
            "1.1.1.1",
            "app.example.com may not be reached on port 443: no rule allows it",
            Some("`--allow app.example.com:443` would allow it"),
        ),
        (
            &[(Allow, "[4000::]/2")],
            None,
            "::1",
            "[::1] may not be reached on port 443: no rule allows it",
            Some("`--host-port 443` gives the sandbox a service of this machine's 127.0.0.1"),
        ),
        (
            &[(Allow, "[::]/1")],
            None,
            "::1",
            "[::1] is a loopback address",
            Some("`--host-port 443` gives the sandbox a service of this machine's 127.0.0.1"),
        ),
    ] {
        let refusal = dial(list, name, address, &[]).unwrap_err();
        assert_eq!(refusal.to_string(), message);
        assert_eq!(refusal.hint().as_deref(), hint);
    }
}

#[test]
fn rules_of_who_may_reach_what_is_public_open_nothing_else() {
    let name: DomainName = NAME.parse().unwrap();
    let own = ["8.8.4.4".parse().unwrap()];
    for address in [
        "8.8.4.4",
        "10.0.0.5",
        "127.0.0.1",
        "168.63.129.16",
        "169.254.169.254",
        "192.0.0.192",
        "198.18.0.1",
        "203.0.113.7",
        "::1",
        "64:ff9b::a00:1",
        "64:ff9b::808:404",
        "2002:a00:1::1",
        "fec0::1",
    ] {
        let address: IpAddr = address.parse().unwrap();
        let host = Host::from(address);
        let owners = policy(&[(Allow, NAME), (Allow, &format!("{host}:443"))]);
        let anybodys = NetworkPolicy {
            public_only: true,
            ..owners.clone()
        };
        for name in [None, Some(&name)] {
            assert_eq!(owners.may_dial(name, address, 443, &own), Ok(()), "{address}");
            let refusal = anybodys.may_dial(name, address, 443, &own).unwrap_err();
            assert_eq!(refusal.hint(), None, "{refusal}");
        }
    }
    let public = NetworkPolicy {
        public_only: true,
        ..policy(&[(Allow, "8.8.8.8:443")])
    };
    assert_eq!(public.may_dial(None, "8.8.8.8".parse().unwrap(), 443, &own), Ok(()));
}

proptest! {
    #[test]
    fn rules_of_who_may_reach_what_is_public_never_open_more(
        rules in policies(),
        named: IpAddr,
        port in 1_u16..,
        own: Vec<IpAddr>,
        is_own: bool,
    ) {
        let mut rules = NetworkPolicy { public_only: true, ..rules };
        let host = Host::from(named.to_canonical());
        rules.rules.push(NetworkRule::parse(Allow, &format!("{host}:{port}")).unwrap());
        let own: Vec<IpAddr> = own.into_iter().chain(is_own.then_some(named)).collect();
        if rules.may_dial(None, named, port, &own).is_ok() {
            prop_assert_eq!(classify(named), AddressClass::Public);
            let reached = leads_to(named.to_canonical());
            prop_assert!(!own.iter().any(|own| reached.contains(&own.to_canonical())));
        }
    }

    #[test]
    fn rules_for_names_alone_open_nothing_special(address: IpAddr, own: Vec<IpAddr>) {
        let name = NAME.parse().unwrap();
        let answer = policy(&[(Allow, NAME), (Allow, "*.example.com:*/tcp")]).may_dial(Some(&name), address, 443, &own);
        let is_own = own.iter().any(|own| own.to_canonical() == address.to_canonical());
        prop_assert!(answer.is_err() || (classify(address) == AddressClass::Public && !is_own));
    }

    #[test]
    fn what_the_rules_deny_is_never_dialled(rules in policies(), address: IpAddr, port: u16) {
        if rules.decide(&Host::from(address), port).verdict == Deny {
            prop_assert!(rules.may_dial(None, address, port, &[]).is_err());
        }
    }
}

#[test]
fn a_name_that_the_owner_reaches_inside_may_lead_into_networks_and_nowhere_else() {
    let name: DomainName = "index.example".parse().unwrap();
    let other: DomainName = "other.example".parse().unwrap();
    let rules = NetworkPolicy {
        inward: vec![(name.clone(), 443)],
        ..policy(&[
            (Allow, "index.example:443,8443"),
            (Allow, "other.example"),
            (Deny, "10.9.0.0/16"),
        ])
    };
    let own: [IpAddr; 1] = ["10.0.0.1".parse().unwrap()];
    for (address, may_be_dialled) in [
        ("10.0.0.2", true),
        ("172.16.0.1", true),
        ("192.0.2.7", true),
        ("198.18.0.9", true),
        ("100.64.0.1", true),
        ("fd00::1", true),
        ("8.8.8.8", true),
        // Ours, its own link, services of a cloud, and what a rule denies.
        ("10.0.0.1", false),
        ("127.0.0.1", false),
        ("::1", false),
        ("::ffff:127.0.0.1", false),
        ("169.254.169.254", false),
        ("169.254.1.1", false),
        ("fe80::1", false),
        ("100.100.100.200", false),
        ("168.63.129.16", false),
        ("fd00:ec2::254", false),
        ("0.0.0.0", false),
        ("224.0.0.1", false),
        ("240.0.0.1", false),
        ("64:ff9b::7f00:1", false),
        ("64:ff9b::a9fe:a9fe", false),
        ("10.9.0.1", false),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let dialled = rules.may_dial(Some(&name), address, 443, &own);
        assert_eq!(dialled.is_ok(), may_be_dialled, "{address}: {dialled:?}");
    }
    let inside: IpAddr = "10.0.0.2".parse().unwrap();
    assert!(rules.may_dial(Some(&name), inside, 8443, &own).is_err());
    assert!(rules.may_dial(Some(&other), inside, 443, &own).is_err());
    assert!(rules.may_dial(None, inside, 443, &own).is_err());
    let alone = NetworkPolicy {
        rules: Vec::new(),
        ..rules.clone()
    };
    assert!(alone.may_dial(Some(&name), inside, 443, &own).is_err());
    let anybodys = NetworkPolicy {
        public_only: true,
        ..rules
    };
    assert!(anybodys.may_dial(Some(&name), inside, 443, &own).is_err());
}
