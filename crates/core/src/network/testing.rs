//! What the tests of several modules make up: names, and the ways to write one.

use proptest::prelude::*;

use crate::network::decide::{NetworkPolicy, NetworkRule, RuleVerdict};
use crate::network::host::Host;

/// Names of a small world, so that rules and hosts often meet.
pub(crate) fn names() -> impl Strategy<Value = String> {
    let label = prop::sample::select(vec!["a", "x_y", "xn--zca", "r3---s"]);
    let base = prop::sample::select(vec!["example.com", "ample.com"]);
    (prop::collection::vec(label, 0..3), base).prop_map(|(labels, base)| {
        let mut labels = labels;
        labels.push(base);
        labels.join(".")
    })
}

/// Addresses of a small world.
pub(crate) fn addresses() -> impl Strategy<Value = String> {
    prop::sample::select(
        [
            "10.0.0.1",
            "10.0.1.1",
            "192.0.2.1",
            "93.184.215.14",
            "[2606:4700::1111]",
            "[fd00::1]",
        ]
        .map(str::to_owned)
        .to_vec(),
    )
}

/// Another way to write `name`: other case, full-width letters, other full stops, the root's dot.
pub(crate) fn spelling_of(name: String) -> impl Strategy<Value = String> {
    let ways = prop::collection::vec(0_u8..4, name.len());
    let end = prop::sample::select(vec!["", ".", "\u{3002}", "\u{ff0e}", "\u{ff61}"]);
    (ways, end).prop_map(move |(ways, end)| {
        let spelled = name.chars().zip(ways).map(|(character, way)| match (way, character) {
            (1, letter) => letter.to_ascii_uppercase(),
            (2, '.') => '\u{3002}',
            (3, '.') => '\u{ff61}',
            (2, '!'..='~') => char::from_u32(u32::from(character) + 0xfee0).unwrap(),
            _ => character,
        });
        spelled.collect::<String>() + end
    })
}

/// Patterns of rules about that world.
pub(crate) fn pattern_texts() -> impl Strategy<Value = String> {
    let networks = prop::sample::select(vec![
        "10.0.0.0/8",
        "10.0.0.0/24",
        "192.0.2.0/24",
        "[2000::]/3",
        "[fd00::]/8",
    ]);
    let host = prop_oneof![
        names(),
        names().prop_map(|name| format!("*.{name}")),
        addresses(),
        networks.prop_map(str::to_owned),
    ];
    let ports = prop::sample::select(vec!["", ":443", ":22,443", ":8000-8100", ":*", ":1-100,90-200"]);
    let protocol = prop::sample::select(vec!["", "/tcp", "/tls", "/http"]);
    (host, ports, protocol).prop_map(|(host, ports, protocol)| format!("{host}{ports}{protocol}"))
}

pub(crate) fn verdicts() -> impl Strategy<Value = RuleVerdict> {
    prop::sample::select(vec![RuleVerdict::Allow, RuleVerdict::Ask, RuleVerdict::Deny])
}

/// Policies in which rules often contradict each other.
pub(crate) fn policies() -> impl Strategy<Value = NetworkPolicy> {
    let rules = (prop::collection::vec(verdicts(), 1..3), pattern_texts()).prop_map(|(verdicts, text)| {
        // A rule that denies names no protocol.
        let protocols = ["/tcp", "/tls", "/http"];
        let denied = protocols.into_iter().find_map(|protocol| text.strip_suffix(protocol));
        let rules = verdicts.into_iter().map(|verdict| match verdict {
            RuleVerdict::Deny => NetworkRule::parse(verdict, denied.unwrap_or(&text)).unwrap(),
            RuleVerdict::Allow | RuleVerdict::Ask => NetworkRule::parse(verdict, &text).unwrap(),
        });
        rules.collect::<Vec<_>>()
    });
    prop::collection::vec(rules, 0..6).prop_map(|rules| NetworkPolicy {
        rules: rules.concat(),
        ..NetworkPolicy::default()
    })
}

pub(crate) fn policy(list: &[(RuleVerdict, &str)]) -> NetworkPolicy {
    let rules = list
        .iter()
        .map(|(verdict, text)| NetworkRule::parse(*verdict, text).unwrap());
    NetworkPolicy {
        rules: rules.collect(),
        ..NetworkPolicy::default()
    }
}

pub(crate) fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}
