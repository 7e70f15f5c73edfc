use http::Request;
use http_body_util::{Empty, Full};
use hyper::body::Bytes;
use offleash_core::network::{HeaderRule, NetworkPolicy, RequestRules};

use super::*;
use crate::policy::Unknown;

fn policy(methods: &[&str], headers: &[HeaderRule]) -> Policy {
    let mut requests = RequestRules::default();
    requests.methods.rules = methods.iter().map(|rule| rule.parse().unwrap()).collect();
    requests.headers = headers.to_vec();
    Policy::new(NetworkPolicy::default(), Vec::new(), Unknown::Denied).with_requests(requests)
}

fn to(host: &str, port: u16, scheme: Scheme) -> Destination {
    Destination {
        host: host.parse().unwrap(),
        port,
        scheme,
        clear_is_meant: false,
    }
}

fn api() -> Destination {
    to("api.example.com", 443, Scheme::Https)
}

fn parts(method: &str, uri: &str, hosts: &[&str]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for host in hosts {
        request = request.header("Host", *host);
    }
    request.body(()).unwrap().into_parts().0
}

const RULE: &str = "GET,HEAD api.example.com/v1/*";

#[test]
fn requests_pass_by_method_and_path() {
    let policy = policy(&[RULE], &[]);
    let passed = |method: &str, target: &str| judge(&policy, &api(), &parts(method, target, &["api.example.com"]));
    let through = passed("GET", "/v1/items?page=2").unwrap();
    assert_eq!(through.target.as_str(), "/v1/items?page=2");
    assert_eq!(
        through.rule.as_deref(),
        Some("network.methods: GET,HEAD api.example.com/v1/*")
    );
    assert_eq!(passed("HEAD", "/v1/%69tems").unwrap().target.as_str(), "/v1/items");
    for (method, target) in [("POST", "/v1/items"), ("GET", "/admin"), ("GET", "/V1/items")] {
        let refused = passed(method, target).unwrap_err();
        assert!(refused.rule.unwrap().contains(RULE), "{method} {target}");
        assert!(refused.reason.contains(RULE));
        assert!(refused.hint.unwrap().contains("--allow-method"));
    }
}

#[test]
fn paths_that_servers_read_differently_are_refused() {
    let policy = policy(&["* api.example.com/v1/*"], &[]);
    for target in [
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/.%2E/admin",
        "/v1//admin",
        "//v1/items",
        "/v1/..;/admin",
        "/v1/%2fadmin",
        "/v1/%5cadmin",
        "/v1\\..\\admin",
        "/v1/%252e%252e/admin",
        "/v1/%00",
        "/v1/%c0%ae",
        "/v1/%zz",
        "*",
    ] {
        let method = if target == "*" { "OPTIONS" } else { "GET" };
        let refused = judge(&policy, &api(), &parts(method, target, &["api.example.com"]));
        assert!(refused.is_err(), "{target}");
    }
}

#[test]
fn a_host_without_rules_for_paths_may_have_any() {
    let policy = policy(&[RULE], &[HeaderRule::parse_set("git.example.com X-A: b").unwrap()]);
    let to = to("git.example.com", 443, Scheme::Https);
    let passed = judge(
        &policy,
        &to,
        &parts("POST", "/api/group%2Fproject", &["git.example.com"]),
    )
    .unwrap();
    assert_eq!((passed.target.as_str(), passed.rule), ("/api/group%2Fproject", None));
}

#[test]
fn every_name_in_a_request_is_the_one_of_the_connection() {
    let policy = policy(&["* api.example.com/*"], &[]);
    let judged = |uri: &str, hosts: &[&str]| judge(&policy, &api(), &parts("GET", uri, hosts)).is_ok();
    assert!(judged("/", &["api.example.com"]));
    assert!(judged("/", &["API.example.com:443"]));
    assert!(judged("https://api.example.com/", &[]));
    assert!(judged("https://api.example.com/", &["api.example.com"]));
    for (uri, hosts) in [
        ("/", &[][..]),
        ("/", &["evil.example.com"]),
        ("/", &["api.example.com", "api.example.com"]),
        ("/", &["api.example.com:8443"]),
        ("/", &["api.example.com, evil.example.com"]),
        ("/", &["user@api.example.com"]),
        ("/", &[""]),
        ("https://evil.example.com/", &["api.example.com"]),
        ("https://api.example.com/", &["evil.example.com"]),
        ("https://user@api.example.com/", &[]),
        ("http://api.example.com/", &["api.example.com"]),
        ("ftp://api.example.com/", &[]),
    ] {
        assert!(!judged(uri, hosts), "{uri} {hosts:?}");
    }
}

#[test]
fn some_methods_never_pass() {
    let policy = policy(&["* api.example.com/*"], &[]);
    for method in ["TRACE", "trace", "Trace", "CONNECT"] {
        let uri = if method == "CONNECT" {
            "api.example.com:443"
        } else {
            "/"
        };
        let refused = judge(&policy, &api(), &parts(method, uri, &["api.example.com"])).unwrap_err();
        assert!(refused.reason.contains("never"), "{method}");
    }
    assert!(judge(&policy, &api(), &parts("PROPFIND", "/", &["api.example.com"])).is_ok());
}

#[test]
fn headers_are_set_in_place_of_what_was_sent_and_taken_away() {
    let rules = [
        HeaderRule::parse_set("api.example.com X-Team: agents").unwrap(),
        HeaderRule::parse_remove("*.example.com Cookie").unwrap(),
    ];
    let policy = policy(&[], &rules);
    let mut message = parts("GET", "/", &["api.example.com"]);
    for (name, value) in [("x-team", "one"), ("x-team", "two"), ("cookie", "a=1"), ("x-kept", "1")] {
        message.headers.append(name, HeaderValue::from_static(value));
    }
    let mut in_the_clear = message.clone();
    rewrite(&policy, &api(), &mut message).unwrap();
    assert_eq!(message.headers.get_all("x-team").iter().collect::<Vec<_>>(), ["agents"]);
    assert!(!message.headers.contains_key("cookie") && message.headers.contains_key("x-kept"));

    let clear = to("api.example.com", 80, Scheme::Http);
    let refused = rewrite(&policy, &clear, &mut in_the_clear).unwrap_err();
    assert_eq!(
        refused.rule.as_deref(),
        Some("network.set_headers: api.example.com x-team")
    );
    let meant = Destination {
        clear_is_meant: true,
        ..clear
    };
    rewrite(&policy, &meant, &mut in_the_clear).unwrap();
    assert_eq!(in_the_clear.headers.get("x-team").unwrap(), "agents");
}

#[test]
fn what_is_shown_of_a_request_cannot_be_mistaken_for_ours() {
    let policy = policy(&[RULE], &[]);
    let refused = judge(&policy, &api(), &parts("GET", "/x'$(reboot)'", &["api.example.com"])).unwrap_err();
    assert!(!refused.hint.unwrap().contains("reboot"));
    assert_eq!(printable(b"a\x1b]52;x\x07\xff"), "a?]52;x?\u{fffd}");
}

#[test]
fn a_target_is_written_as_the_version_needs_it() {
    let target = PathAndQuery::from_static("/v1?x=y");
    let to = to("api.example.com", 8443, Scheme::Https);
    assert_eq!(
        address(&to, &target, http::Version::HTTP_11).unwrap().to_string(),
        "/v1?x=y"
    );
    assert_eq!(
        address(&to, &target, http::Version::HTTP_2).unwrap().to_string(),
        "https://api.example.com:8443/v1?x=y"
    );
}

/// The same with another header.
fn with(method: &str, name: &'static str, values: &[&str]) -> Parts {
    let mut parts = parts(method, "/v1/items", &["api.example.com"]);
    for value in values {
        parts
            .headers
            .append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    parts
}

#[test]
fn n9_nothing_that_servers_take_for_a_length_or_a_host_passes_beside_them() {
    let plain = policy(&[], &[]);
    for (name, values) in [
        ("content_length", &["5"][..]),
        ("transfer_encoding", &["chunked"]),
        ("host_", &["a"]),
        ("content-length", &["5", "5"]),
        ("content-length", &[""]),
        ("content-length", &["+5"]),
        ("content-length", &["5, 5"]),
        // Octal to some.
        ("content-length", &["010"]),
    ] {
        let refused = judge(&plain, &api(), &with("POST", name, values));
        // One letter more makes it a header like any other.
        assert_eq!(refused.is_err(), name != "host_", "{name}: {values:?}");
    }
    for length in ["5", "0"] {
        judge(&plain, &api(), &with("POST", "content-length", &[length])).unwrap();
    }
}

#[test]
fn n8_headers_that_override_what_is_judged_are_refused_where_it_is_judged() {
    let judged = policy(&["GET,POST api.example.com/v1/*"], &[]);
    for name in [
        "x-http-method-override",
        "x_http_method_override",
        "x-http-method",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
    ] {
        let refused = judge(&judged, &api(), &with("POST", name, &["/admin"])).unwrap_err();
        assert!(refused.reason.contains(name), "{refused:?}");
        judge(&policy(&[], &[]), &api(), &with("POST", name, &["/admin"])).unwrap();
    }
    judge(&judged, &api(), &with("POST", "x-forwarded-proto", &["https"])).unwrap();
}

#[test]
fn a_header_is_not_set_beside_a_rule_by_another_spelling() {
    let rules = [
        HeaderRule::parse_set("api.example.com X-Team: agents").unwrap(),
        HeaderRule::parse_remove("api.example.com X-Debug").unwrap(),
    ];
    let policy = policy(&[], &rules);
    let mut asked = with("GET", "x_team", &["admins", "root"]);
    for name in ["x-team", "x.team", "x_debug", "x-teams"] {
        asked
            .headers
            .append(HeaderName::from_static(name), HeaderValue::from_static("mine"));
    }
    rewrite(&policy, &api(), &mut asked).unwrap();
    let mut left: Vec<(&str, &[u8])> = asked
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    left.sort_unstable();
    assert_eq!(
        left,
        [
            ("host", &b"api.example.com"[..]),
            ("x-team", b"agents"),
            ("x-teams", b"mine")
        ]
    );
}

#[test]
fn the_first_line_is_of_what_it_is_of_in_every_version() {
    let ruled = policy(&["* api.example.com/*"], &[]);
    let long = "M".repeat(33);
    for policy in [&policy(&[], &[]), &ruled] {
        let judged = |method: &str, target: &str| judge(policy, &api(), &parts(method, target, &["api.example.com"]));
        for (method, target) in [("GET", "/a?b={c}"), ("VERSION-CONTROL", "/"), (&long[1..], "/x?y=%22")] {
            judged(method, target).unwrap();
        }
        for (method, target, why) in [
            ("get", "/", "a method that is not"),
            ("refused", "/", "a method that is not"),
            ("G!#$", "/", "a method that is not"),
            ("G3T", "/", "a method that is not"),
            (long.as_str(), "/", "a method that is not"),
            ("GET", "/a\\b", "a malformed request target"),
            ("GET", "/a\"b", "a malformed request target"),
            ("GET", "/\u{e9}", "a malformed request target"),
            ("GET", "*", "a malformed request target"),
        ] {
            let refused = judged(method, target).unwrap_err();
            assert!(refused.reason.contains(why), "{method} {target}: {refused:?}");
            assert!(refused.hint.is_some(), "{method} {target}: {refused:?}");
        }
    }
    let asterisk = parts("OPTIONS", "*", &["api.example.com"]);
    judge(&policy(&[], &[]), &api(), &asterisk).unwrap();
}

#[test]
fn fields_are_as_many_as_in_every_version() {
    let policy = policy(&[], &[]);
    let judged = |uri: &str, hosts: &[&str], fields: &[(&'static str, usize)]| {
        let mut parts = parts("GET", uri, hosts);
        for (name, count) in fields {
            for _ in 0..*count {
                parts.headers.append(*name, HeaderValue::from_static("y"));
            }
        }
        judge(&policy, &api(), &parts)
    };
    for (uri, hosts) in [("/", &["api.example.com"][..]), ("https://api.example.com/", &[])] {
        judged(uri, hosts, &[("x", MAX_FIELDS - 1)]).unwrap();
        judged(uri, hosts, &[("x", MAX_FIELDS - 2), ("cookie", 50)]).unwrap();
        for fields in [&[("x", MAX_FIELDS)][..], &[("x", MAX_FIELDS - 1), ("cookie", 50)]] {
            let refused = judged(uri, hosts, fields).unwrap_err();
            assert!(refused.reason.contains("more than 100 fields"), "{refused:?}");
        }
    }
}

#[test]
fn n9_bodies_that_mean_nothing_are_refused_where_requests_are_judged() {
    let ruled = policy(&["* api.example.com/*"], &[]);
    let elsewhere = policy(
        &["* git.example.com/*"],
        &[HeaderRule::parse_set("api.example.com X-A: b").unwrap()],
    );
    let body = Full::new(Bytes::from_static(b"POST /forbidden HTTP/1.1"));
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        let refused = check_body(&ruled, &api(), &method, &body).unwrap_err();
        assert!(refused.reason.contains("has a body"), "{refused:?}");
        assert!(refused.hint.is_some(), "{refused:?}");
        check_body(&ruled, &api(), &method, &Empty::<Bytes>::new()).unwrap();
        check_body(&elsewhere, &api(), &method, &body).unwrap();
    }
    for method in ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"] {
        check_body(&ruled, &api(), &method.parse().unwrap(), &body).unwrap();
    }
}
