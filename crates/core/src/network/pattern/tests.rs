use proptest::prelude::*;

use super::*;
use crate::network::testing::{host, pattern_texts};

fn pattern(text: &str) -> NetworkPattern {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn rules_are_shown_in_canonical_form() {
    for (text, shown) in [
        ("example.com", "example.com"),
        ("Example.COM.", "example.com"),
        ("*.Example.com", "*.example.com"),
        ("*.bücher.example.com", "*.xn--bcher-kva.example.com"),
        ("github.com:443,22", "github.com:22,443"),
        ("example.com:*", "example.com:*"),
        ("example.com:22/tcp", "example.com:22/tcp"),
        ("example.com/tls", "example.com/tls"),
        ("192.0.2.1", "192.0.2.1"),
        ("0xC0.0.513", "192.0.2.1"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
        ("[2001:db8::1]:443/tls", "[2001:db8::1]:443/tls"),
        ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:22/tcp", "10.0.0.0/8:22/tcp"),
        ("10.0.0.0/8/http", "10.0.0.0/8/http"),
        ("10.1.2.3/32", "10.1.2.3"),
        ("[fd00::]/8", "[fd00::]/8"),
        ("[fd00::]/8:8000-8100", "[fd00::]/8:8000-8100"),
        ("[::ffff:10.0.0.0]/104", "10.0.0.0/8"),
        ("localhost:3000", "localhost:3000"),
        ("github.io", "github.io"),
        ("com", "com"),
        ("*.example.co.uk", "*.example.co.uk"),
        ("*.user.github.io", "*.user.github.io"),
        ("*.amazonaws.com", "*.amazonaws.com"),
    ] {
        assert_eq!(pattern(text).to_string(), shown, "{text}");
        assert_eq!(pattern(shown), pattern(text), "{text}");
    }
}

#[test]
fn broken_rules_say_what_is_wrong_and_what_to_do() {
    for (text, part, hint) in [
        ("", "empty", "write a host"),
        ("*", "every host", "name the hosts"),
        ("*:443", "every host", "name the hosts"),
        ("*.", "a host is empty", "example.com"),
        ("*.*", "`*` stands in front", "*.example.com"),
        ("*.*.example.com", "`*` stands in front", "*.example.com"),
        ("a.*.example.com", "`*` stands in front", "*.example.com"),
        ("a*.example.com", "`*` stands in front", "*.example.com"),
        ("*example.com", "`*` stands in front", "*.example.com"),
        ("**.example.com", "`*` stands in front", "*.example.com"),
        ("*.1.2.3.4", "is an address, not a name", "write a name"),
        (".example.com", "empty label", "*.example.com"),
        ("https://example.com", "is a URL", "host alone"),
        ("example.com/v1/items", "`items` is no protocol", "tcp, tls and http"),
        ("example.com/", "`$''` is no protocol", "tcp, tls and http"),
        ("example.com/TCP", "`TCP` is no protocol", "tcp, tls and http"),
        ("example.com/udp", "`udp` is no protocol", "tcp, tls and http"),
        ("example.com/auto", "`auto` is no protocol", "tcp, tls and http"),
        ("example.com/tcp:22", "no protocol", "tcp, tls and http"),
        ("example.com:", "a port is missing", "22,443"),
        ("example.com:https", "a port is a number", "22,443"),
        ("example.com:0", "a port is a number", "22,443"),
        ("example.com:22:23", "no IPv6 address", "brackets"),
        ("example.com:90-80", "from the lower", "22,443"),
        ("::1", "stands in brackets", "write [::1]"),
        ("fd00::/8", "stands in brackets", "write [fd00::]"),
        ("10.1.0.0/8", "bits set after its first 8", "write 10.0.0.0/8"),
        ("[fd00::1]/8", "bits set after its first 8", "write [fd00::]/8"),
        ("10.0.0.0/33", "`/33` is no number", "32 bits"),
        ("10.0.0.0/08", "`/08` is no number", "32 bits"),
        ("10/8", "written in full", "10.0.0.0/8"),
        ("0x0a.0.0.0/8", "written in full", "10.0.0.0/8"),
        ("example.com/24", "written in full", "10.0.0.0/8"),
        ("exam ple.com", "contains ' '", "without scheme"),
        ("user@example.com", "contains '@'", "without scheme"),
        ("exa\u{200b}mple.com", "U+200B", "hidden"),
        ("1.2.3.4.5", "ends in a number", "four numbers"),
    ] {
        let error = text.parse::<NetworkPattern>().expect_err(text);
        assert!(error.to_string().contains(part), "{text:?}: {error}");
        let found = error.hint().unwrap_or_default();
        assert!(found.contains(hint), "{text:?}: {found}");
    }
    let long = "a".repeat(100_000);
    assert!(matches!(
        long.parse::<NetworkPattern>(),
        Err(PatternError::TooLong { bytes: 100_000 })
    ));
}

#[test]
fn rules_for_everybody_are_refused_unless_they_deny() {
    for text in [
        "*.com",
        "*.CO.UK.",
        "*.co.uk:443",
        "*.github.io",
        "*.kawasaki.jp",
        "*.s3.amazonaws.com",
        "*.рф",
        "*.xn--p1ai",
        "*.公司.cn",
        "*.internal",
        "*.notatld",
        "0.0.0.0/0",
        "[::]/0:443/tls",
    ] {
        let error = text.parse::<NetworkPattern>().expect_err(text);
        assert!(matches!(error, PatternError::TooWide { .. }), "{text}: {error}");
        assert!(error.hint().is_some());
        let wide = NetworkPattern::parse_deny(text).unwrap();
        assert_eq!(NetworkPattern::parse_deny(&wide.to_string()).unwrap(), wide);
    }
}

#[test]
fn a_wildcard_means_subdomains_and_nothing_else() {
    let wildcard = pattern("*.example.com");
    for (name, expected) in [
        ("a.example.com", true),
        ("a.b.c.example.com", true),
        ("A.EXAMPLE.COM.", true),
        ("example.com", false),
        ("notexample.com", false),
        ("xn--example.com.evil.org", false),
        ("example.com.evil.org", false),
        ("example.org", false),
    ] {
        let Ok(host) = Host::parse(name) else { continue };
        assert_eq!(wildcard.matches(&host), expected, "{name}");
    }
}

#[test]
fn names_and_addresses_do_not_match_each_other() {
    assert!(!pattern("10.0.0.0/8").matches(&host("example.com")));
    assert!(!pattern("example.com").matches(&host("10.0.0.1")));
    assert!(pattern("10.0.0.0/8").matches(&host("0xa.1")));
    assert!(pattern("10.0.0.0/8").matches(&host("[::ffff:10.0.0.1]")));
    assert!(!pattern("[::]/1").matches(&host("10.0.0.1")));
}

#[test]
fn the_protocol_follows_from_the_port_unless_it_is_named() {
    for (text, port, expected) in [
        ("example.com", 443, SpokenProtocol::Tls),
        ("example.com", 80, SpokenProtocol::Http),
        ("example.com:*", 8080, SpokenProtocol::Auto),
        ("example.com/tcp", 443, SpokenProtocol::Tcp),
        ("example.com:8443/tls", 8443, SpokenProtocol::Tls),
        ("example.com:443/http", 443, SpokenProtocol::Http),
    ] {
        assert_eq!(pattern(text).protocol(port), expected, "{text}");
    }
}

proptest! {
    #[test]
    fn what_is_shown_parses_back(text in pattern_texts()) {
        let parsed = pattern(&text);
        prop_assert_eq!(pattern(&parsed.to_string()), parsed.clone());
        let json = serde_json::to_string(&parsed).unwrap();
        prop_assert_eq!(serde_json::from_str::<NetworkPattern>(&json).unwrap(), parsed);
    }

    #[test]
    fn whatever_parses_is_shown_so_that_it_parses_back(text in "[*]?[.]?[a-c0-9.:/\\[\\]-]{0,24}(/tcp|/tls)?|\\PC{0,20}") {
        if let Ok(parsed) = text.parse::<NetworkPattern>() {
            prop_assert_eq!(pattern(&parsed.to_string()), parsed);
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = (text.parse::<NetworkPattern>(), NetworkPattern::parse_deny(&text));
    }
}
