use core::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::network::testing::{names, spelling_of};

fn shown(text: &str) -> String {
    Host::parse(text)
        .unwrap_or_else(|error| panic!("{text:?}: {error}"))
        .to_string()
}

#[test]
fn every_spelling_of_a_name_is_the_same_name() {
    for (text, canonical) in [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("example\u{3002}com", "example.com"),
        ("example\u{ff0e}com\u{ff61}", "example.com"),
        ("ｅｘａｍｐｌｅ.com", "example.com"),
        ("Ⓔxample.com", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("bu\u{308}cher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("straße.de", "xn--strae-oqa.de"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("r3---sn-4g5e.googlevideo.com", "r3---sn-4g5e.googlevideo.com"),
        ("localhost", "localhost"),
        ("1.example", "1.example"),
        ("1e100.net", "1e100.net"),
        ("0xyz", "0xyz"),
        ("0x7f.0.0.1.example.com", "0x7f.0.0.1.example.com"),
    ] {
        assert_eq!(shown(text), canonical, "{text:?}");
        assert!(matches!(host_of(text), Host::Name(_)), "{text:?}");
    }
}

fn host_of(text: &str) -> Host {
    Host::parse(text).unwrap()
}

#[test]
fn every_spelling_of_an_address_is_the_same_address() {
    for (text, canonical) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("0x7f.0x0.0x0.0x1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0000177.000.0000.001", "127.0.0.1"),
        ("127.0.256", "127.0.1.0"),
        ("127.65536", "127.1.0.0"),
        ("１２７.０.０.１", "127.0.0.1"),
        ("127\u{3002}0\u{ff0e}0\u{ff61}1", "127.0.0.1"),
        ("①②⑦.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("00", "0.0.0.0"),
        ("4294967295", "255.255.255.255"),
        ("169.254.43518", "169.254.169.254"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("[0:0:0:0:0:0:0:1]", "[::1]"),
        ("[FD00::000A]", "[fd00::a]"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("[::ffff:7f00:1]", "127.0.0.1"),
        ("[::127.0.0.1]", "[::7f00:1]"),
        ("[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]"),
    ] {
        assert_eq!(shown(text), canonical, "{text:?}");
        assert!(matches!(host_of(text), Host::Address(_)), "{text:?}");
    }
}

#[test]
fn what_programs_read_differently_is_refused() {
    for (text, part) in [
        ("", "empty"),
        (".", "empty"),
        ("\u{3002}", "empty"),
        ("..", "empty label"),
        (".example.com", "empty label"),
        ("example..com", "empty label"),
        ("example.com..", "empty label"),
        ("example.com\u{3002}.", "empty label"),
        ("evil.com\0.example.com", "contains '\\0'"),
        ("example.com\0", "contains '\\0'"),
        ("example.com\r\n", "contains '\\r'"),
        ("example.com\n", "contains '\\n'"),
        ("exa\tmple.com", "contains '\\t'"),
        (" example.com", "contains ' '"),
        ("example.com ", "contains ' '"),
        ("user@example.com", "contains '@'"),
        ("evil.com#.example.com", "contains '#'"),
        ("evil.com?.example.com", "contains '?'"),
        ("evil.com/.example.com", "contains '/'"),
        ("evil.com\\.example.com", "contains '\\\\'"),
        ("evil.com;.example.com", "contains ';'"),
        ("evil.com,.example.com", "contains ','"),
        ("example%2ecom", "contains '%'"),
        ("%65xample.com", "contains '%'"),
        ("*.example.com", "contains '*'"),
        ("a℀b.example.com", "contains '/'"),
        ("evil.com／.example.com", "contains '/'"),
        ("evil.com＠example.com", "contains '@'"),
        ("exa\u{ad}mple.com", "U+00AD"),
        ("exa\u{200b}mple.com", "U+200B"),
        ("exa\u{2060}mple.com", "U+2060"),
        ("\u{feff}example.com", "U+FEFF"),
        ("example\u{fe0f}.com", "U+FE0F"),
        ("exa\u{200d}mple.com", "international"),
        ("exa\u{202e}mple.com", "international"),
        ("exa\u{a0}mple.com", "' '"),
        ("exa\u{2028}mple.com", "international"),
        ("\u{85}example.com", "international"),
        ("xn--a.com", "international"),
        ("xn--.com", "international"),
        ("xn--example-.com", "international"),
        ("-example.com", "hyphen"),
        ("example-.com", "hyphen"),
        ("1.2.3.4.5", "ends in a number"),
        ("256.0.0.1", "ends in a number"),
        ("127.0.0.256", "ends in a number"),
        ("08.0.0.1", "ends in a number"),
        ("4294967296", "ends in a number"),
        ("99999999999999999999999", "ends in a number"),
        ("0x100000000", "ends in a number"),
        ("0x", "ends in a number"),
        ("127.0x", "ends in a number"),
        ("example.1", "ends in a number"),
        ("example.0xff", "ends in a number"),
        ("1_0.1", "ends in a number"),
        ("fe80::1%eth0", "zone"),
        ("[fe80::1%25eth0]", "zone"),
        ("[::1", "no IPv6 address"),
        ("::1]", "no IPv6 address"),
        ("[[::1]]", "no IPv6 address"),
        ("[127.0.0.1]", "no IPv6 address"),
        ("[::1]:443", "no IPv6 address"),
        ("example.com:443", "no IPv6 address"),
        ("::1\0", "no IPv6 address"),
        ("::1 ", "no IPv6 address"),
    ] {
        let error = Host::parse(text).expect_err(text);
        assert!(error.to_string().contains(part), "{text:?}: {error}");
        assert!(error.hint().is_some(), "{text:?}");
    }
    assert!(matches!(Host::parse_bytes(b"a\xff.com"), Err(HostError::NotText(_))));
    assert!(matches!(
        Host::parse_bytes(&[0xff; 300_000]),
        Err(HostError::TooMuch { bytes: 300_000 })
    ));
}

#[test]
fn names_are_as_long_as_dns_lets_them_be() {
    let label = "a".repeat(63);
    let longest = [label.as_str(), &label, &label, &label[..61]].join(".");
    assert_eq!(longest.len(), 253);
    assert_eq!(shown(&longest), longest);
    assert_eq!(shown(&format!("{longest}.")), longest);
    assert!(matches!(
        Host::parse(&format!("{longest}a")),
        Err(HostError::LongName(_))
    ));
    assert!(matches!(
        Host::parse(&format!("{label}a.com")),
        Err(HostError::LongLabel(_))
    ));
}

#[test]
fn an_error_cannot_drive_a_terminal() {
    let error = Host::parse("\u{1b}]52;c;aGk=\u{7}.com").unwrap_err();
    assert!(!error.to_string().contains(char::is_control), "{error}");
}

#[test]
fn labels_of_a_question_are_not_text() {
    let name = |labels: &[&[u8]]| DomainName::from_labels(labels.iter().copied());
    assert_eq!(name(&[b"Example", b"COM"]).unwrap().as_str(), "example.com");
    for labels in [
        &[&b"example.com"[..]][..],
        &[b"evil.com", b"example", b"com"],
        &[b"", b"com"],
        &["bücher".as_bytes(), b"com"],
        &[b"a\0b", b"com"],
        &[b"\xff"],
    ] {
        assert!(name(labels).is_err(), "{labels:?}");
    }
    assert!(matches!(name(&[]), Err(HostError::Empty)));
    assert!(matches!(name(&[b"127", b"0", b"0", b"1"]), Err(HostError::NotAName(_))));
}

#[test]
fn serde_reads_what_it_wrote_and_checks_it() {
    let json = serde_json::to_string(&[host_of("Example.com"), host_of("::1")]).unwrap();
    assert_eq!(json, r#"["example.com","[::1]"]"#);
    assert_eq!(
        serde_json::from_str::<Vec<Host>>(&json).unwrap()[0],
        host_of("example.com")
    );
    assert!(serde_json::from_str::<DomainName>(r#""127.0.0.1""#).is_err());
    assert!(serde_json::from_str::<Host>(r#""a b""#).is_err());
}

proptest! {
    #[test]
    fn canonical_text_is_its_own_canonical_form(text in "\\PC{0,30}|[a-zA-Z0-9.\u{3002}xn-]{1,20}|[0-9a-fx.]{1,12}|[\\[\\]0-9a-f:.]{2,20}") {
        if let Ok(host) = Host::parse(&text) {
            prop_assert_eq!(Host::parse(&host.to_string()).unwrap(), host);
        }
    }

    #[test]
    fn a_canonical_name_is_plain(text in "\\PC{1,12}(\\.[a-z]{2,3})?") {
        if let Ok(Host::Name(name)) = Host::parse(&text) {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
            prop_assert!(name.as_str().bytes().all(plain), "{name}");
            prop_assert!(!name.as_str().ends_with('.') && name.as_str().len() <= 253);
        }
    }

    #[test]
    fn spellings_of_a_name_are_one_name((name, spelled) in names().prop_flat_map(|name| (Just(name.clone()), spelling_of(name)))) {
        prop_assert_eq!(Host::parse(&spelled).unwrap().to_string(), name);
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, text: String) {
        let _ = (Host::parse_bytes(&bytes), Host::parse(&text), DomainName::from_labels(bytes.chunks(5)));
    }

    #[test]
    fn all_spellings_of_an_ipv4_address_are_it(address: Ipv4Addr) {
        let bits = address.to_bits();
        let [a, b, c, d] = address.octets();
        for text in [
            format!("{bits}"),
            format!("{bits:#x}"),
            format!("0{bits:o}"),
            format!("{a}.{}", bits & 0xff_ffff),
            format!("{a:#x}.0{b:o}.{}", bits & 0xffff),
            format!("0{a:o}.{b:#X}.{c}.{d}."),
            format!("::ffff:{address}"),
            format!("[::ffff:{:x}:{:x}]", bits >> 16, bits & 0xffff),
        ] {
            prop_assert_eq!(Host::parse(&text).unwrap(), Host::from(IpAddr::V4(address)), "{}", text);
        }
    }

    #[test]
    fn addresses_are_shown_so_that_they_parse_back(address: Ipv6Addr) {
        let host = Host::from(IpAddr::V6(address));
        prop_assert_eq!(Host::parse(&host.to_string()).unwrap(), host.clone());
        prop_assert_eq!(Host::parse(&address.to_string()).unwrap(), host);
    }
}
