use proptest::prelude::*;

use super::*;

fn shown(text: &str) -> String {
    UpstreamProxy::parse(text).map_or_else(|error| error.to_string(), |proxy| proxy.to_string())
}

#[test]
fn a_proxy_is_a_host_and_a_port() {
    for (text, expected) in [
        ("http://proxy.corp.example:3128", "http://proxy.corp.example:3128"),
        ("HTTP://Proxy.Corp.Example:3128/", "http://proxy.corp.example:3128"),
        ("http://proxy", "http://proxy:80"),
        ("proxy:8080", "http://proxy:8080"),
        ("http://10.0.0.1:8080\n", "http://10.0.0.1:8080"),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8080"),
        ("http://[fd00::1]", "http://[fd00::1]:80"),
        ("socks5://proxy.example", "socks5://proxy.example:1080"),
        ("SOCKS5H://[fd00::1]:9", "socks5h://[fd00::1]:9"),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
    for text in [
        "",
        "http://",
        "https://proxy:443",
        "socks4://proxy:1080",
        "socks5://:password@proxy",
        "http://proxy:0",
        "http://proxy:",
        "http://proxy:65536",
        "http://proxy:3128/path",
        "http://proxy:3128?x",
        "http://pro xy",
        "http://a:%@proxy",
        "http://a%3ab:c@proxy",
        "http://a:b%0d@proxy",
    ] {
        assert!(UpstreamProxy::parse(text).is_err(), "{text}");
    }
    assert!(matches!(
        UpstreamProxy::parse(&"x".repeat(5000)),
        Err(ProxyError::TooLong(5000))
    ));
}

fn said(proxy: &UpstreamProxy) -> (&str, &str) {
    let credentials = proxy.credentials.as_ref().unwrap();
    (credentials.expose_name(), credentials.expose_password())
}

#[test]
fn socks_is_told_no_more_than_it_can_say() {
    let long = "x".repeat(256);
    assert!(ProxyCredentials::for_socks(&long[..255], &long[..255]).is_ok());
    for (name, password) in [("", "x"), (long.as_str(), ""), ("x", &long)] {
        let refused = ProxyCredentials::for_socks(name, password);
        assert_eq!(refused, Err(ProxyError::LongCredentials));
    }
    let proxy = UpstreamProxy::socks("proxy.example:1080", None).unwrap();
    assert_eq!(proxy.to_string(), "socks5h://proxy.example:1080");
    for address in [
        "proxy.example",
        "",
        "proxy.example:0",
        "me:x@proxy.example:1080",
        "a/b:1",
    ] {
        assert!(UpstreamProxy::socks(address, None).is_err(), "{address}");
    }
}

#[test]
fn passwords_are_read_and_never_shown() {
    let proxy = UpstreamProxy::parse("http://me:s%40cret%3A%2Fx@proxy:3128").unwrap();
    assert_eq!(said(&proxy), ("me", "s@cret:/x"));
    for shown in [format!("{proxy:?}"), proxy.to_string()] {
        assert!(!shown.contains("cret") && !shown.contains("me:"), "{shown}");
    }
    let nameless = UpstreamProxy::parse("http://token@proxy:3128").unwrap();
    assert_eq!(said(&nameless), ("token", ""));
    let socks = UpstreamProxy::parse("socks5://a%3ab:c@proxy").unwrap();
    assert_eq!(said(&socks), ("a:b", "c"));
    for text in [
        "http://me:s3cret@:80",
        "socks4://me:s3cret@proxy",
        "http://me:s3cret@proxy:x",
    ] {
        let error = UpstreamProxy::parse(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

#[test]
fn a_source_in_sight_has_no_password() {
    assert_eq!("env".parse(), Ok(ProxySource::Environment));
    assert_eq!("env:CORP".parse(), Ok(ProxySource::Variable("CORP".to_owned())));
    assert_eq!(
        "file:/etc/proxy".parse(),
        Ok(ProxySource::File("/etc/proxy".to_owned()))
    );
    assert!(matches!("http://proxy:1".parse(), Ok(ProxySource::Url(_))));
    for text in [
        "http://me:s3cret@proxy:1",
        "me:s3cret@proxy:1",
        "https://me:s3cret@proxy",
    ] {
        let error = text.parse::<ProxySource>().unwrap_err();
        assert_eq!(error, ProxyError::PasswordInSight);
        assert!(error.to_string().contains("user name or a password"), "{error}");
        assert!(error.hint().unwrap().contains("env:VARIABLE"));
    }
}

#[test]
fn a_url_that_is_written_names_its_port() {
    for text in ["http://proxy", "proxy", "http://[fd00::1]", "http://proxy/"] {
        let error = text.parse::<ProxySource>().unwrap_err();
        assert_eq!(error, ProxyError::NoPort, "{text}");
        assert!(error.hint().unwrap().contains("http://HOST:3128"));
    }
    for text in ["proxy:3128", "http://[fd00::1]:3128", " http://10.0.0.1:3128/ "] {
        assert!(matches!(text.parse(), Ok(ProxySource::Url(_))), "{text}");
    }
}

#[test]
fn hosts_without_the_proxy_are_those_of_the_list() {
    let direct = parse_no_proxy("localhost, .corp.example,10.0.0.0/8,fd00::1,*.lan,")
        .unwrap()
        .unwrap();
    let proxy = UpstreamProxy {
        direct,
        ..UpstreamProxy::parse("http://proxy").unwrap()
    };
    for (host, spared) in [
        ("localhost", true),
        ("corp.example", true),
        ("a.corp.example", true),
        ("xcorp.example", false),
        ("10.1.2.3", true),
        ("11.1.2.3", false),
        ("[fd00::1]", true),
        ("x.lan", true),
        ("example.com", false),
    ] {
        assert_eq!(proxy.spares(&Host::parse(host).unwrap()), spared, "{host}");
    }
    assert_eq!(parse_no_proxy("a.example,*"), Ok(None));
    assert!(parse_no_proxy("a.example:80").is_err());
    assert!(parse_direct("*").is_err());
}

proptest! {
    #[test]
    fn whatever_is_written_nothing_of_a_password_is_shown(text in "[ -~]{0,40}") {
        let whole = format!("http://user:VERYSECRET{text}@proxy:1");
        let shown = match UpstreamProxy::parse(&whole) {
            Ok(proxy) => format!("{proxy:?}{proxy}"),
            Err(error) => format!("{error:?}{error}"),
        };
        prop_assert!(!shown.contains("VERYSECRET"), "{shown}");
    }
}
