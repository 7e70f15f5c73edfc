//! Heads of real clients, every form of a target, every refusal, and whatever else may come.

mod properties;
mod refused;

use super::{Body, MAX_FIELDS, MAX_HEAD, Progress, RequestHead, RequestHeadReader, Scheme, Target, Version};
use crate::http_body::BodyReader;

fn read(received: &[u8]) -> Progress {
    RequestHeadReader::new(Scheme::Http).read(received)
}

/// The verdict over bytes that arrive in parts, then one by one; and how many it took.
fn read_in_parts(received: &[u8], mut parts: impl Iterator<Item = usize>) -> (Progress, usize) {
    let mut reader = RequestHeadReader::new(Scheme::Http);
    let mut there = 0;
    loop {
        match reader.read(&received[..there]) {
            Progress::NeedMore if there < received.len() => {
                there = (there + parts.next().unwrap_or(1).max(1)).min(received.len());
            }
            verdict => return (verdict, there),
        }
    }
}

fn head(received: &[u8]) -> RequestHead {
    match read(received) {
        Progress::Head(head) => *head,
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(received)),
    }
}

/// A head with these lines behind `Host`.
fn with(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: example.com\r\n{lines}\r\n").into_bytes()
}

#[test]
fn requests_of_real_clients_are_read() {
    let lines = include_str!("tests/recorded.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let [client, authority, body, connection, text] = words[..] else {
            panic!("{line}")
        };
        let text = text.replace("\\r\\n", "\r\n");
        let read = head(text.as_bytes());
        assert_eq!(
            format!("{}:{}", read.authority.host, read.authority.port),
            authority,
            "{client}"
        );
        assert_eq!(format!("{:?}", read.body), body, "{client}");
        assert_eq!(read.keep_alive, connection != "close", "{client}");
        assert_eq!(
            read.upgrade.as_deref(),
            Some(connection).filter(|said| *said == "h2c"),
            "{client}"
        );
        assert_eq!(read.expects_continue, text.contains("Expect"), "{client}");
        let rest = &text.as_bytes()[read.length..];
        let taken = BodyReader::new(read.body).read(rest).unwrap();
        assert_eq!((taken.length, taken.ended), (rest.len(), true), "{client}");
        let one_by_one = read_in_parts(text.as_bytes(), std::iter::empty());
        assert_eq!(
            one_by_one,
            (Progress::Head(Box::new(read)), text.len() - rest.len()),
            "{client}"
        );
        count += 1;
    }
    assert_eq!(count, 12);
}

#[test]
fn lengths_up_to_those_with_a_sign_are_read() {
    for length in [0, 1, 65_536, u64::MAX >> 1] {
        assert_eq!(
            head(&with(&format!("Content-Length: {length}\r\n"))).body,
            Body::Length(length)
        );
    }
}

#[test]
fn an_address_in_brackets_is_a_host() {
    let read = head(b"GET / HTTP/1.1\r\nHost: [::FFFF:1.2.3.4]:8000\r\n\r\n");
    assert_eq!(
        (read.authority.host.as_str(), read.authority.port),
        ("[::ffff:1.2.3.4]", 8000)
    );
    assert_eq!(head(b"GET / HTTP/1.1\r\nHost:[::1]\r\n\r\n").authority.port, 80);
}

#[test]
fn targets_have_three_forms() {
    let origin = head(b"GET /a%2fb?x=|{}^[]`&y HTTP/1.1\r\nHost: example.com\r\n\r\n");
    assert_eq!(origin.target, Target::Origin("/a%2fb?x=|{}^[]`&y".to_owned()));
    let absolute = head(b"GET HTTP://Example.com:80/a?b HTTP/1.1\r\nHost: example.COM\r\n\r\n");
    assert_eq!(absolute.target, Target::Absolute("/a?b".to_owned()));
    assert_eq!(
        (absolute.authority.host.as_str(), absolute.authority.port),
        ("example.com", 80)
    );
    let empty = head(b"GET http://example.com HTTP/1.1\r\nHost: example.com\r\n\r\n");
    assert_eq!(empty.target, Target::Absolute(String::new()));
    let asterisk = head(b"OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n");
    assert_eq!(asterisk.target, Target::Asterisk);
}

#[test]
fn http_1_0_may_name_its_host_in_the_target_or_in_host() {
    let absolute = head(b"GET http://example.com:81/ HTTP/1.0\r\n\r\n");
    assert_eq!(
        (absolute.authority.host.as_str(), absolute.authority.port),
        ("example.com", 81)
    );
    assert_eq!(absolute.version, Version::Http10);
    assert!(!absolute.keep_alive);
    assert!(head(b"GET / HTTP/1.0\r\nHost: example.com\r\nConnection: keep-alive\r\n\r\n").keep_alive);
}

#[test]
fn close_wins_over_keep_alive() {
    assert!(!head(&with("Connection: keep-alive, close\r\n")).keep_alive);
    assert!(!head(&with("Connection: keep-alive\r\nConnection: close\r\n")).keep_alive);
}

#[test]
fn the_default_port_is_that_of_the_scheme() {
    let bytes = b"GET https://example.com/ HTTP/1.1\r\nHost: example.com:443\r\n\r\n";
    let Progress::Head(read) = RequestHeadReader::new(Scheme::Https).read(bytes) else {
        panic!()
    };
    assert_eq!(read.authority.port, 443);
}

#[test]
fn an_upgrade_is_told() {
    let lines = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n";
    assert_eq!(head(&with(lines)).upgrade.as_deref(), Some("websocket"));
    assert_eq!(
        head(&with("Connection: upgrade\r\nUpgrade: TLS/1.2\r\n"))
            .upgrade
            .as_deref(),
        Some("tls/1.2")
    );
    assert_eq!(head(&with("")).upgrade, None);
}

#[test]
fn fields_are_found_where_they_stand() {
    let bytes = with("X-One: \t a b\t \r\nEmpty:\r\nBytes: \u{fc}\r\n");
    let read = head(&bytes);
    let texts: Vec<(&[u8], &[u8])> = read
        .fields
        .iter()
        .map(|field| (&bytes[field.name.clone()], &bytes[field.value.clone()]))
        .collect();
    let expected: [(&[u8], &[u8]); 4] = [
        (b"Host", b"example.com"),
        (b"X-One", b"a b"),
        (b"Empty", b""),
        (b"Bytes", "\u{fc}".as_bytes()),
    ];
    assert_eq!(texts, expected);
    let lines: Vec<u8> = read
        .fields
        .iter()
        .flat_map(|field| bytes[field.line.clone()].to_vec())
        .collect();
    assert_eq!(lines, bytes["GET / HTTP/1.1\r\n".len()..bytes.len() - 2]);
}

#[test]
fn n9_a_pipelined_request_is_left_for_the_next_reader() {
    let first = with("");
    let both = [&first[..], b"GET /evil HTTP/1.1\r\nHost: other\r\n\r\n"].concat();
    assert_eq!(head(&both), head(&first));
    assert_eq!(head(&both).length, first.len());
}

#[test]
fn the_longest_head_and_the_most_fields_are_read() {
    let rest = with("X: \r\n").len();
    let longest = with(&format!("X: {}\r\n", "a".repeat(MAX_HEAD - rest)));
    assert_eq!(head(&longest).length, MAX_HEAD);
    let most = with(&"a: b\r\n".repeat(MAX_FIELDS - 1));
    assert_eq!(head(&most).fields.len(), MAX_FIELDS);
}

#[test]
fn what_is_no_http_is_told() {
    for bytes in [
        b"\x16\x03\x01".as_slice(),
        b"\0",
        b" GET / HTTP/1.1\r\n",
        b"\r\nGET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"GET / \r\n",
        b"GET /\r\n",
        b"EHLO me\r\n",
        b"GET / HTTP/1\r\n",
        b"GET\t/ HTTP/1.1\r\n",
        b"GET: / HTTP/1.1\r\n",
        &[b'A'; 33],
    ] {
        assert_eq!(read(bytes), Progress::NotHttp, "{bytes:?}");
        assert_eq!(
            read_in_parts(bytes, std::iter::empty()).0,
            Progress::NotHttp,
            "{bytes:?}"
        );
    }
    for bytes in [b"".as_slice(), b"G", b"GET", b"GET /", b"GET / HTTP/1.1\r", &[b'A'; 32]] {
        assert_eq!(read(bytes), Progress::NeedMore, "{bytes:?}");
    }
}

#[test]
fn a_verdict_is_repeated() {
    for bytes in [
        with(""),
        with("Host: other\r\n"),
        b"\x16\x03".to_vec(),
        b"GET / \0".to_vec(),
    ] {
        let mut reader = RequestHeadReader::new(Scheme::Http);
        let verdict = reader.read(&bytes);
        assert_ne!(verdict, Progress::NeedMore);
        assert_eq!(reader.read(&bytes), verdict);
    }
    // A caller that forgets what it gave does not make the reader fall.
    let mut reader = RequestHeadReader::new(Scheme::Http);
    reader.read(b"GET / HTTP/1.1\r\nHost: a");
    for forgotten in [b"".as_slice(), b"G", &[b'\r'; 30], &[b'\n'; 30]] {
        reader.read(forgotten);
    }
}
