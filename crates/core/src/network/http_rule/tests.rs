use proptest::prelude::*;

use super::*;
use crate::network::testing::host;

fn rules(list: &[&str]) -> MethodRules {
    let rules = list
        .iter()
        .map(|text| text.parse().unwrap_or_else(|error| panic!("{text}: {error}")));
    MethodRules { rules: rules.collect() }
}

/// The rule that lets a request through; `None` when none does, `-` when the host is not restricted.
fn answer(rules: &MethodRules, method: &str, name: &str, path: &str) -> Option<String> {
    match rules.decide(&host(name), method, &path.parse().unwrap()) {
        RequestDecision::Unrestricted => Some("-".to_owned()),
        RequestDecision::Allowed(rule) => Some(rule.to_string()),
        RequestDecision::Refused => None,
    }
}

#[test]
fn only_requests_that_match_pass() {
    let list = rules(&[
        "GET,HEAD api.example.com/v1/*",
        "POST api.example.com/v1/items",
        "* other.org/*",
    ]);
    for (method, name, path, passes) in [
        ("GET", "api.example.com", "/v1/items", true),
        ("GET", "API.example.com.", "/v1/items", true),
        ("HEAD", "api.example.com", "/v1/", true),
        ("GET", "api.example.com", "/v1/a/b/c?d=e", true),
        ("GET", "api.example.com", "/%761/a", true),
        ("GET", "api.example.com", "/v1", false),
        ("GET", "api.example.com", "/v10/items", false),
        ("GET", "api.example.com", "/V1/items", false),
        ("GET", "api.example.com", "/x/v1/items", false),
        ("get", "api.example.com", "/v1/items", false),
        ("POST", "api.example.com", "/v1/items", true),
        ("POST", "api.example.com", "/v1/items?x", true),
        ("POST", "api.example.com", "/v1/items/", false),
        ("POST", "api.example.com", "/v1/items/3", false),
        ("DELETE", "api.example.com", "/v1/items", false),
        ("DELETE", "other.org", "/", true),
        ("TRACE", "other.org", "/", false),
        ("trace", "other.org", "/", false),
        ("CONNECT", "other.org", "/", false),
    ] {
        assert_eq!(
            answer(&list, method, name, path).is_some(),
            passes,
            "{method} {name}{path}"
        );
    }
    assert_eq!(answer(&list, "TRACE", "unrestricted.org", "/").as_deref(), Some("-"));
    assert!(list.concern(&host("api.example.com")) && !list.concern(&host("example.com")));
}

#[test]
fn a_star_is_one_segment_or_the_rest() {
    for (rule, path, passes) in [
        ("* a.org/repos/*/issues", "/repos/x/issues", true),
        ("* a.org/repos/*/issues", "/repos/x/y/issues", false),
        ("* a.org/repos/*/issues", "/repos/issues", false),
        ("* a.org/repos/*/issues/*", "/repos/x/issues/1/labels", true),
        ("* a.org/*/*", "/x/", true),
        ("* a.org/*/*", "/x", false),
        ("* a.org/item*", "/items/1", true),
        ("* a.org/item*", "/ite", false),
        ("* a.org/*", "/", true),
        ("* a.org/", "/", true),
        ("* a.org/", "/x", false),
        ("* a.org/%7Eme/*", "/~me/x", true),
        ("* a.org/caf%c3%a9", "/caf%C3%A9", true),
        ("* a.org/%2A", "/%2a", true),
        ("* a.org/%2A", "/x", false),
    ] {
        assert_eq!(
            answer(&rules(&[rule]), "GET", "a.org", path).is_some(),
            passes,
            "{rule} {path}"
        );
    }
}

#[test]
fn only_the_rules_for_the_most_specific_host_count() {
    let list = rules(&["GET *.example.com/*", "GET api.example.com/v1/*", "* *.b.example.com/b"]);
    assert!(answer(&list, "GET", "x.example.com", "/admin").is_some());
    assert!(answer(&list, "GET", "api.example.com", "/admin").is_none());
    assert!(answer(&list, "GET", "api.example.com", "/v1/x").is_some());
    assert!(answer(&list, "GET", "a.b.example.com", "/a").is_none());
    assert_eq!(answer(&list, "GET", "example.com", "/a").as_deref(), Some("-"));
}

#[test]
fn rules_are_shown_in_canonical_form() {
    for (text, shown) in [
        ("HEAD,GET,GET API.example.com./%761/*", "GET,HEAD api.example.com/v1/*"),
        ("* [2001:DB8::1]/a", "* [2001:db8::1]/a"),
        ("PATCH *.example.com/a/*/c*", "PATCH *.example.com/a/*/c*"),
        ("VERSION-CONTROL a.org/", "VERSION-CONTROL a.org/"),
    ] {
        let rule: MethodRule = text.parse().unwrap();
        assert_eq!(rule.to_string(), shown);
        assert_eq!(shown.parse(), Ok(rule.clone()));
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<MethodRule>(&json).unwrap(), rule);
    }
}

#[test]
fn broken_rules_say_what_is_wrong_and_what_to_do() {
    for (text, part) in [
        ("", "methods, a space, a host and a path"),
        ("GET", "methods, a space, a host and a path"),
        ("GET api.example.com", "methods, a space, a host and a path"),
        ("api.example.com/v1/*", "methods, a space, a host and a path"),
        ("get api.example.com/", "`get` is no method"),
        ("GET,,HEAD api.example.com/", "`$''` is no method"),
        ("GET,* api.example.com/", "`*` is no method"),
        (" api.example.com/", "`$''` is no method"),
        ("GET  api.example.com/", "contains ' '"),
        ("TRACE api.example.com/", "TRACE is never let through"),
        ("GET,CONNECT api.example.com/", "CONNECT is never let through"),
        ("GET */v1", "every host"),
        ("GET *.com/v1", "nothing to do with each other"),
        ("GET /v1", "a host is empty"),
        ("GET https://api.example.com/v1", "no IPv6 address"),
        ("GET api.example.com:443/v1", "no IPv6 address"),
        ("GET api.example.com/../x", "`.` or `..`"),
        ("GET api.example.com//x", "empty segment"),
        ("GET api.example.com/a b", "0x20"),
        ("GET api.example.com/a?b=*", "has a query"),
        ("GET api.example.com/a*b", "neither a whole segment nor the end"),
        ("GET api.example.com/a*/b", "neither a whole segment nor the end"),
        ("GET api.example.com/**", "neither a whole segment nor the end"),
        ("GET api.example.com/a%2f*", "`%2f`"),
        ("GET api.example.com/a%2*", "two hexadecimal digits"),
    ] {
        let error = text.parse::<MethodRule>().expect_err(text);
        assert!(error.to_string().contains(part), "{text:?}: {error}");
        assert!(error.hint().is_some(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn what_parses_is_shown_so_that_it_parses_back(methods in "[*]|(GET|PUT|X-Y)(,[A-Z]{1,3}){0,2}", path in "(/(a|b|[*]|%41|~)){0,4}/?[*]?") {
        if let Ok(rule) = format!("{methods} a.org{path}").parse::<MethodRule>() {
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }

    #[test]
    fn what_passes_begins_as_the_rule_says(target in "/([a.;/]|%2[eEfF]|v1/|%25|%3[bB]|\\.\\.){0,12}") {
        let list = rules(&["GET a.org/v1/*"]);
        if let Ok(path) = target.parse() {
            let passes = list.decide(&host("a.org"), "GET", &path) != RequestDecision::Refused;
            prop_assert_eq!(passes, path.as_str().starts_with("/v1/"));
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = (text.parse::<MethodRule>(), format!("* a.org/{text}").parse::<MethodRule>());
    }
}
