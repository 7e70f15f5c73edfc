//! Questions for names, and what the rules say of hosts however they are spelled, against a second opinion that is
//! written another way.

use std::net::{IpAddr, Ipv4Addr};

use offleash_core::network::{Host, NetworkPolicy, NetworkRule, RuleVerdict};
use offleash_gateway::{answer_to, refusal};

use crate::{Numbers, from_hex, rounds};

fn policy() -> NetworkPolicy {
    let rule = |verdict, text| NetworkRule::parse(verdict, text).unwrap();
    NetworkPolicy {
        rules: vec![
            rule(RuleVerdict::Allow, "example.com"),
            rule(RuleVerdict::Allow, "*.wide.example"),
            rule(RuleVerdict::Deny, "no.wide.example"),
            rule(RuleVerdict::Allow, "93.184.216.0/24"),
            rule(RuleVerdict::Deny, "93.184.216.7"),
        ],
        ..NetworkPolicy::default()
    }
}

/// Whether these labels are a name that the rules above allow.
fn is_allowed(labels: &[Vec<u8>]) -> bool {
    let labels: Vec<Vec<u8>> = labels.iter().map(|label| label.to_ascii_lowercase()).collect();
    let labels: Vec<&[u8]> = labels.iter().map(Vec::as_slice).collect();
    match labels.as_slice() {
        [b"example", b"com"] => true,
        [b"no", b"wide", b"example"] => false,
        [_, .., b"wide", b"example"] => labels.iter().all(|label| !label.contains(&b'.')),
        _ => false,
    }
}

/// The labels of the only name of a question, read as RFC 1035 (4.1.2) has it and without compression.
fn labels_of(message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = message.get(12..)?;
    let mut labels = Vec::new();
    loop {
        let (length, after) = rest.split_first()?;
        match usize::from(*length) {
            0 => return Some(labels),
            length @ 1..=63 => {
                labels.push(after.get(..length)?.to_vec());
                rest = after.get(length..)?;
            }
            _ => return None,
        }
    }
}

/// What asked: glibc, musl, Go, Chromium (for HTTPS records), `dig` with a cookie, and a question in capitals by chance.
const QUESTIONS: [&str; 6] = [
    "a1b2010000010000000000000765786100706c6503636f6d0000010001",
    "12340100000100000000000007657861 6d706c6503636f6d0000010001",
    "beef01000001000000000001076578616d706c6503636f6d00001c00010000291000000000000000",
    "000001000001000000000000016104776964650765786d706c65000041000100",
    "77770120000100000000000103776977047769646507657861 6d706c650000010001000029100000000000000c000a00080123456789abcdef",
    "4242010000010000000000000745584161 4d704c6503634f4d0000010001",
];

#[test]
fn n4_spoilt_questions() {
    let questions: Vec<Vec<u8>> = QUESTIONS.iter().map(|hex| from_hex(&hex.replace(' ', ""))).collect();
    let pieces: [&[u8]; 10] = [
        b"\0",
        b"\xc0\x0c",
        b"\xc0\xff",
        b"\x3f",
        b"\x07example\x03com\0",
        b"\x01a\x04wide\x07example\0",
        b"\x02no\x04wide\x07example\0",
        b"\x0bexample.com\0",
        b"\0\x01\0\x01",
        b"\0\0\x29\x10\0\0\0\0\0\0\0",
    ];
    let policy = policy();
    let mut numbers = Numbers(0xabcd_5678_9abc_def1);
    let mut answered = 0;
    for round in 0..rounds() {
        let mut bytes = questions[round % questions.len()].clone();
        if round >= questions.len() {
            numbers.spoil(&mut bytes, &pieces);
        }
        let Some(answer) = answer_to(&policy, &bytes) else {
            continue;
        };
        assert!((12..=1232).contains(&answer.len()), "{bytes:02x?}: {answer:02x?}");
        assert_eq!(answer[..2], bytes[..2], "the same question: {bytes:02x?}");
        assert_eq!(answer[2] & 0x80, 0x80, "an answer: {bytes:02x?}");
        let records = u16::from_be_bytes([answer[6], answer[7]]);
        if records > 0 {
            let labels = labels_of(&answer).unwrap_or_else(|| panic!("{bytes:02x?}: {answer:02x?}"));
            assert!(is_allowed(&labels), "{bytes:02x?}: {answer:02x?}");
            answered += 1;
        }
    }
    assert!(answered > 0);
}

/// Parts of which hosts are put together: letters and whatever was ever taken for something else.
const PARTS: [&str; 36] = [
    "example.com",
    "EXAMPLE.com",
    "wide.example",
    "no.wide.example",
    "a.wide.example",
    "a",
    "no",
    ".",
    "..",
    "\u{3002}",
    "\u{ff0e}",
    "\u{ad}",
    "\u{200b}",
    "\0",
    "%2e",
    "%00",
    "\r\n",
    " ",
    "\t",
    "/",
    "\\",
    "#",
    "?",
    "@",
    ":443",
    "[",
    "]",
    "::ffff:",
    "93.184.216.34",
    "93.184.216.7",
    "93.184.216.",
    "0x5d.0xb8.0xd8.0x22",
    "1572395042",
    "0135.0270.0330.042",
    "\u{ff45}xample.com",
    "-",
];

/// What the rules above say of a host as it was understood.
fn second_opinion(host: &Host) -> bool {
    match host {
        Host::Name(name) => {
            let text = name.to_string();
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
            assert!(text.bytes().all(plain) && !text.ends_with('.'), "{text:?}");
            is_allowed(
                &text
                    .split('.')
                    .map(|label| label.as_bytes().to_vec())
                    .collect::<Vec<_>>(),
            )
        }
        Host::Address(IpAddr::V4(address)) => {
            address.octets()[..3] == [93, 184, 216] && *address != Ipv4Addr::new(93, 184, 216, 7)
        }
        Host::Address(IpAddr::V6(address)) => {
            assert_eq!(address.to_ipv4_mapped(), None, "{address}");
            false
        }
    }
}

#[test]
fn n5_n6_hosts_of_any_spelling() {
    let policy = policy();
    let mut numbers = Numbers(0x7654_5678_9abc_def1);
    let (mut allowed, mut refused, mut no_host) = (0, 0, 0);
    for _ in 0..rounds() {
        let mut bytes = Vec::new();
        for _ in 0..1 + numbers.below(4) {
            bytes.extend(PARTS[numbers.below(PARTS.len())].as_bytes());
        }
        if numbers.below(4) == 0 {
            numbers.spoil(&mut bytes, &[b".", b"\0", b"\xff", b"com"]);
        }
        let Ok(host) = Host::parse_bytes(&bytes) else {
            no_host += 1;
            continue;
        };
        let shown = String::from_utf8_lossy(&bytes);
        assert_eq!(
            Host::parse(&host.to_string()).ok().as_ref(),
            Some(&host),
            "{shown:?} means one host"
        );
        for port in [80, 443] {
            let is_refused = refusal(&policy, false, &host, port).reason.is_some();
            assert_eq!(is_refused, !second_opinion(&host), "{shown:?} as {host}, {port}");
        }
        let elsewhere = refusal(&policy, false, &host, 22);
        assert!(elsewhere.reason.is_some(), "{shown:?} as {host}, {elsewhere:?}");
        if second_opinion(&host) {
            allowed += 1;
        } else {
            refused += 1;
        }
    }
    assert!(
        allowed > 0 && refused > 0 && no_host > 0,
        "{allowed}, {refused}, {no_host}"
    );
}
