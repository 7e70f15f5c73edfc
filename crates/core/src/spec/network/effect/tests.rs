use core::time::Duration;

use super::*;
use crate::network::HeaderRule;

fn spec(allow: &[&str]) -> NetworkSpec {
    let mut spec = NetworkSpec::default();
    for text in allow {
        let rule = NetworkRule::parse(RuleVerdict::Allow, text).unwrap();
        spec.policy.rules.push(rule);
    }
    spec
}

fn headers(mut spec: NetworkSpec, set: &[&str], removed: &[&str]) -> NetworkSpec {
    let set = set.iter().map(|text| HeaderRule::parse_set(text).unwrap());
    let removed = removed.iter().map(|text| HeaderRule::parse_remove(text).unwrap());
    spec.requests.headers = set.chain(removed).collect();
    spec
}

#[track_caller]
fn assert_refused(spec: &NetworkSpec, part: &str) {
    let error = spec.check(false).expect_err(part);
    assert!(error.to_string().contains(part), "{error}");
    assert!(error.hint().is_some(), "{error}");
}

#[test]
fn nothing_and_rules_alone_are_fine() {
    assert_eq!(NetworkSpec::default().check(false), Ok(()));
    let mut denied = NetworkSpec::default();
    denied
        .policy
        .rules
        .push(NetworkRule::parse(RuleVerdict::Deny, "*.com").unwrap());
    assert_eq!(denied.check(false), Ok(()));
    assert_eq!(spec(&["example.com", "10.0.0.0/8:22"]).check(false), Ok(()));
}

#[test]
fn headers_and_secrets_are_for_hosts_that_some_rule_allows() {
    for (allowed, host, is_reached) in [
        ("a.example.com", "a.example.com", true),
        ("*.example.com", "a.example.com", true),
        ("a.example.com", "*.example.com", true),
        ("*.a.example.com", "*.example.com", true),
        ("10.0.0.0/8", "10.1.0.0/16", true),
        ("*.example.com", "example.com", false),
        ("a.example.com", "b.example.com", false),
        ("*.a.example.com", "*.b.example.com", false),
        ("10.0.0.0/8", "11.0.0.1", false),
    ] {
        let with_header = headers(spec(&[allowed]), &[&format!("{host} X-Team: a")], &[]);
        let mut with_secret = spec(&[allowed]);
        with_secret.secrets = vec![format!("KEY=env:V@{host}").parse().unwrap()];
        for spec in [with_header, with_secret] {
            assert_eq!(spec.check(false).is_ok(), is_reached, "{allowed} {host}");
            if !is_reached {
                assert_refused(&spec, &format!("no rule allows `{host}`"));
            }
            let learning = NetworkSpec {
                asks: crate::approval::ApprovalRules {
                    about_the_unknown: true,
                    ..spec.asks
                },
                ..spec
            };
            assert_eq!(learning.check(false), Ok(()));
        }
    }
    let alone = headers(spec(&[]), &[], &["example.com Cookie"]);
    assert_refused(&alone, "nothing may be reached");
}

#[test]
fn one_header_has_one_fate_for_one_host() {
    let spec = || spec(&["example.com", "*.example.com"]);
    let twice = ["example.com X-A: one", "example.com x-a: two"];
    assert_refused(&headers(spec(), &twice, &[]), "set to two values");
    let both = headers(spec(), &twice[..1], &["example.com X-A"]);
    assert_refused(&both, "both set and removed");
    assert!(both.check(false).unwrap_err().is_contradiction());
    for (set, removed) in [
        (&["example.com X-A: one", "example.com X-A: one"][..], &[][..]),
        (&["example.com X-A: one", "*.example.com X-A: two"], &[]),
        (&["example.com X-A: one"], &["example.com X-B", "*.example.com X-A"]),
        (&[], &["example.com X-A", "example.com X-A"]),
    ] {
        assert_eq!(
            headers(spec(), set, removed).check(false),
            Ok(()),
            "{set:?} {removed:?}"
        );
    }
}

#[test]
fn what_is_about_connections_needs_some() {
    let proxy = || Some("http://proxy:3128".parse().unwrap());
    let one = |change: fn(&mut NetworkSpec)| {
        let (mut without, mut with) = (spec(&[]), spec(&["example.com"]));
        change(&mut without);
        change(&mut with);
        (without, with)
    };
    let (without, with) = one(|spec| spec.proxy_variables = true);
    assert_refused(&without, "`--proxy-variables`");
    assert_eq!(with.check(false), Ok(()));
    let (mut without, with) = one(|spec| spec.dns_servers = vec!["9.9.9.9".parse().unwrap()]);
    assert_refused(&without, "`--dns-server`");
    assert_eq!(with.check(false), Ok(()));
    without.upstream_proxy = proxy();
    without.drop_idle();
    assert_eq!(without.check(false), Ok(()));
    let mut spec = spec(&[]);
    spec.upstream_proxy = proxy();
    assert_refused(&spec, "`--upstream-proxy`");
    let (without, mut with) = one(|spec| spec.no_proxy = vec![HostPattern::parse("a.example").unwrap()]);
    assert_refused(&without, "`--no-proxy`");
    assert_refused(&with, "there is no upstream proxy");
    with.upstream_proxy = proxy();
    assert_eq!(with.check(false), Ok(()));
}

#[test]
fn a_time_for_answers_needs_a_question() {
    let mut spec = spec(&["example.com"]);
    spec.asks.timeout = Some(Duration::from_secs(60));
    assert_refused(&spec, "nothing is asked");
    let mut learning = spec.clone();
    learning.asks.about_the_unknown = true;
    assert_eq!(learning.check(false), Ok(()));
    spec.policy
        .rules
        .push(NetworkRule::parse(RuleVerdict::Ask, "a.example").unwrap());
    assert_eq!(spec.check(false), Ok(()));
}

#[test]
fn the_loopback_inside_is_opened_by_no_rule() {
    for rule in ["127.0.0.1:8080", "127.0.0.0/8:8080", "[::1]:8080", "localhost:8080"] {
        let spec = spec(&[rule]);
        assert_refused(&spec, "inside, `");
        let hint = spec.check(false).unwrap_err().hint().unwrap();
        assert!(hint.contains("`--host-port 8080`"), "{hint}");
    }
    // A name that leads there is dialled only where the address is allowed, too.
    assert_eq!(spec(&["127.0.0.1:8080", "app.example:8080"]).check(false), Ok(()));
    assert_refused(&spec(&["localhost", "app.example"]), "`localhost`");
    assert_refused(&spec(&["127.0.0.1", "10.0.0.1"]), "`127.0.0.1`");
}

#[test]
fn the_whole_internet_reaches_every_host_that_a_header_or_a_secret_is_for() {
    let mut internet = headers(spec(&["127.0.0.1:80"]), &["b.example.com X-Team: a"], &[]);
    internet.secrets = vec!["KEY=env:V@c.example.com".parse().unwrap()];
    assert_refused(&internet, "no rule allows `b.example.com`");
    internet.internet = true;
    // A name may lead to the loopback address that a rule allows.
    assert_eq!(internet.check(false), Ok(()));
}
