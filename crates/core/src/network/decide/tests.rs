use proptest::prelude::*;

use super::RuleVerdict::{Allow, Ask, Deny};
use super::*;
use crate::network::testing::{addresses, host, names, policies, policy, spelling_of};

fn verdict(policy: &NetworkPolicy, text: &str, port: u16) -> RuleVerdict {
    policy.decide(&host(text), port).verdict
}

#[test]
fn no_rule_means_no() {
    let decision = NetworkPolicy::default();
    let decision = decision.decide(&host("example.com"), 443);
    assert_eq!((decision.verdict, decision.rule), (Deny, None));
}

#[test]
fn the_most_specific_host_wins() {
    for (list, name, port, expected) in [
        (&[(Allow, "example.com")][..], "example.com", 443, Allow),
        (&[(Allow, "example.com")], "example.com", 80, Allow),
        (&[(Allow, "example.com")], "example.com", 22, Deny),
        (&[(Allow, "example.com:22")], "example.com", 443, Deny),
        (
            &[(Allow, "*.example.com"), (Deny, "evil.example.com")],
            "evil.example.com",
            443,
            Deny,
        ),
        (
            &[(Allow, "*.example.com"), (Deny, "evil.example.com")],
            "a.evil.example.com",
            443,
            Allow,
        ),
        (
            &[(Allow, "*.example.com"), (Deny, "*.evil.example.com")],
            "a.evil.example.com",
            443,
            Deny,
        ),
        (
            &[(Deny, "*.example.com"), (Allow, "good.example.com")],
            "good.example.com",
            443,
            Allow,
        ),
        (
            &[(Deny, "*.com"), (Allow, "*.example.com")],
            "a.example.com",
            443,
            Allow,
        ),
        (&[(Deny, "*.com"), (Allow, "*.example.com")], "b.com", 443, Deny),
        (
            &[(Allow, "example.com"), (Deny, "example.com")],
            "example.com",
            443,
            Deny,
        ),
        (&[(Allow, "example.com"), (Ask, "example.com")], "example.com", 443, Ask),
        (&[(Ask, "example.com"), (Deny, "example.com")], "example.com", 443, Deny),
        (
            &[(Allow, "example.com:*"), (Deny, "example.com:22")],
            "example.com",
            22,
            Deny,
        ),
        (
            &[(Allow, "example.com:*"), (Deny, "example.com:22")],
            "example.com",
            23,
            Allow,
        ),
        (
            &[(Deny, "example.com:22"), (Allow, "*.example.com:*")],
            "example.com",
            23,
            Deny,
        ),
        (&[(Allow, "10.0.0.0/8:*"), (Deny, "10.0.0.0/24")], "10.0.0.7", 22, Deny),
        (&[(Deny, "10.0.0.0/8"), (Allow, "10.0.0.7:22")], "10.0.0.7", 22, Allow),
        (&[(Deny, "10.0.0.0/8"), (Allow, "10.0.0.7:22")], "0xa.7", 22, Allow),
        (&[(Deny, "10.0.0.0/8"), (Allow, "10.0.0.7:22")], "10.0.0.8", 22, Deny),
        (&[(Allow, "example.com:*")], "10.0.0.7", 22, Deny),
        (&[(Allow, "10.0.0.0/8:*")], "example.com", 22, Deny),
    ] {
        let mut rules = policy(list);
        assert_eq!(verdict(&rules, name, port), expected, "{list:?} {name}:{port}");
        rules.rules.reverse();
        assert_eq!(
            verdict(&rules, name, port),
            expected,
            "{list:?} {name}:{port}, in reverse"
        );
    }
}

#[test]
fn of_equal_rules_the_one_that_asks_more_of_the_protocol_wins() {
    let rules = policy(&[(Allow, "example.com:*/tcp"), (Allow, "example.com")]);
    let protocol = |port| rules.decide(&host("example.com"), port).protocol;
    assert_eq!(protocol(443), SpokenProtocol::Tls);
    assert_eq!(protocol(80), SpokenProtocol::Http);
    assert_eq!(protocol(22), SpokenProtocol::Tcp);
}

#[test]
fn a_decision_names_its_rule() {
    let rules = policy(&[(Allow, "*.Example.com:443"), (Deny, "evil.example.com")]);
    let rule = |name| rules.decide(&host(name), 443).rule.map(ToString::to_string);
    assert_eq!(
        rule("a.example.com").as_deref(),
        Some("network.allow: *.example.com:443")
    );
    assert_eq!(
        rule("evil.example.com").as_deref(),
        Some("network.deny: evil.example.com")
    );
    assert_eq!(rule("example.com"), None);
}

#[test]
fn only_rules_that_deny_may_be_wide() {
    let wide = NetworkPattern::parse_deny("*.com").unwrap();
    assert!(NetworkRule::new(Deny, wide.clone()).is_ok());
    for verdict in [Allow, Ask] {
        assert!(matches!(
            NetworkRule::new(verdict, wide.clone()),
            Err(PatternError::TooWide { .. })
        ));
    }
}

#[test]
fn a_name_is_resolved_only_if_some_port_of_it_may_be_reached() {
    for (list, expected) in [
        (&[][..], Deny),
        (&[(Allow, "a.example.com:8080")], Allow),
        (&[(Ask, "*.example.com:8080")], Ask),
        (&[(Ask, "*.example.com:22"), (Allow, "*.example.com:23")], Allow),
        (&[(Allow, "example.com")], Deny),
        (&[(Allow, "*.a.example.com")], Deny),
        (&[(Allow, "*.example.com:*"), (Deny, "a.example.com")], Deny),
        (&[(Allow, "*.example.com:*"), (Deny, "a.example.com:1-65534")], Allow),
        (
            &[
                (Allow, "*.example.com:22-23"),
                (Deny, "a.example.com:22"),
                (Deny, "a.example.com:23"),
            ],
            Deny,
        ),
        (&[(Allow, "10.0.0.0/8")], Deny),
    ] {
        let rules = policy(list);
        let name = "a.example.com".parse().unwrap();
        assert_eq!(rules.names_possible(&name).verdict, expected, "{list:?}");
    }
    let rules = policy(&[(Allow, "*.example.com:*"), (Deny, "a.example.com")]);
    let decision = rules.names_possible(&"a.example.com".parse().unwrap());
    assert_eq!(decision.rule.unwrap().to_string(), "network.deny: a.example.com");
}

proptest! {
    #[test]
    fn the_order_of_rules_is_nothing(rules in policies(), name in prop_oneof![names(), addresses()], port in 1_u16..9000, turn in 0_usize..8) {
        let host = host(&name);
        let decision = rules.decide(&host, port);
        let mut other = rules.clone();
        let turn = turn.min(other.rules.len());
        other.rules.rotate_left(turn);
        prop_assert_eq!(decision, other.decide(&host, port));
        other.rules.reverse();
        prop_assert_eq!(decision, other.decide(&host, port));
        if let Host::Name(name) = &host {
            prop_assert_eq!(rules.names_possible(name), other.names_possible(name));
        }
    }

    #[test]
    fn every_spelling_gets_the_same_decision(
        rules in policies(),
        (name, spelled) in names().prop_flat_map(|name| (Just(name.clone()), spelling_of(name))),
        port in prop::sample::select(vec![22_u16, 80, 443, 8080]),
    ) {
        prop_assert_eq!(rules.decide(&host(&name), port), rules.decide(&host(&spelled), port));
    }

    #[test]
    fn a_denied_name_below_an_allowed_wildcard_stays_denied(
        (name, in_rule, in_question) in names().prop_flat_map(|name| (Just(name.clone()), spelling_of(name.clone()), spelling_of(name))),
        port: u16,
    ) {
        let rules = policy(&[(Allow, "*.example.com:*"), (Allow, "*.ample.com:*"), (Deny, &in_rule)]);
        let decision = rules.decide(&host(&in_question), port);
        prop_assert_eq!(decision.verdict, Deny, "{}", name);
    }

    #[test]
    fn a_wildcard_never_means_its_base_nor_half_a_label(base in names(), label in "[a-z]{1,5}") {
        let rules = policy(&[(Allow, &format!("*.{base}"))]);
        prop_assert_eq!(verdict(&rules, &base, 443), Deny);
        prop_assert_eq!(verdict(&rules, &format!("{label}{base}"), 443), Deny);
        prop_assert_eq!(verdict(&rules, &format!("{base}.{label}"), 443), Deny);
        prop_assert_eq!(verdict(&rules, &format!("{label}.{base}"), 443), Allow);
    }

    #[test]
    fn names_are_possible_exactly_when_a_port_is(rules in policies(), name in names()) {
        let host = host(&name);
        let best = (1..=9000).chain([u16::MAX]).map(|port| rules.decide(&host, port).verdict).min().unwrap();
        let Host::Name(name) = &host else { unreachable!() };
        prop_assert_eq!(rules.names_possible(name).verdict, best);
    }

    #[test]
    fn nothing_is_allowed_without_a_rule_that_says_so(rules in policies(), name in prop_oneof![names(), addresses()], port: u16) {
        let host = host(&name);
        let decision = rules.decide(&host, port);
        if decision.verdict != Deny {
            let rule = decision.rule.unwrap();
            prop_assert!(rule.verdict() == decision.verdict && rule.pattern().matches(&host));
        }
    }
}

#[test]
fn the_ports_that_may_be_reached_are_listed_while_they_are_few() {
    let policy = |rules: &[(RuleVerdict, &str)]| NetworkPolicy {
        rules: rules
            .iter()
            .map(|(verdict, text)| NetworkRule::parse(*verdict, text).unwrap())
            .collect(),
        ..NetworkPolicy::default()
    };
    let mixed = policy(&[
        (RuleVerdict::Allow, "a.example"),
        (RuleVerdict::Ask, "b.example:22,443"),
        (RuleVerdict::Deny, "c.example:7"),
        (RuleVerdict::Allow, "d.example:8000-8002"),
    ]);
    assert_eq!(mixed.reachable_ports(6), Some(vec![22, 80, 443, 8000, 8001, 8002]));
    assert_eq!(mixed.reachable_ports(5), None);
    assert_eq!(policy(&[(RuleVerdict::Allow, "a.example:*")]).reachable_ports(12), None);
    assert_eq!(
        policy(&[(RuleVerdict::Deny, "a.example")]).reachable_ports(12),
        Some(Vec::new())
    );
}
