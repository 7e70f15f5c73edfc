//! Hellos built byte by byte, hellos of real clients, every refusal, and whatever else may come.

mod build;
mod properties;
mod refused;

use super::{ClientHello, ClientHelloReader, MAX_HELLO, MAX_RECEIVED, MAX_RECORDS, Progress};
use build::{Hello, in_records, record, server_name};

/// The verdict over bytes that arrive at once.
fn read(received: &[u8]) -> Progress {
    ClientHelloReader::default().read(received)
}

/// The verdict over bytes of which `cuts` arrive first, then one more each time; and how many it took.
fn read_in_parts(received: &[u8], mut parts: impl Iterator<Item = usize>) -> (Progress, usize) {
    let mut reader = ClientHelloReader::default();
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

fn hello(received: &[u8]) -> ClientHello {
    match read(received) {
        Progress::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hellos_of_real_clients_are_read() {
    let mut count = 0;
    for line in include_str!("tests/recorded.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split(' ').collect();
        let [client, name, alpn, hex] = words[..] else {
            panic!("{line}")
        };
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let read = hello(&bytes);
        assert_eq!(
            read.server_name.as_deref(),
            Some(name).filter(|name| *name != "-"),
            "{client}"
        );
        let protocols: Vec<String> = read
            .alpn
            .iter()
            .map(|name| String::from_utf8(name.clone()).unwrap())
            .collect();
        assert_eq!(protocols.join(","), alpn.trim_start_matches('-'), "{client}");
        assert!(!read.encrypted, "{client}");
        assert_eq!(read.length, bytes.len(), "{client}");
        assert_eq!(
            read_in_parts(&bytes, std::iter::empty()),
            (Progress::Hello(read), bytes.len()),
            "{client}"
        );
        count += 1;
    }
    assert_eq!(count, 8);
}

#[test]
fn a_name_is_read_in_lower_case() {
    assert_eq!(
        hello(&Hello::named("PyPI.Org").record()).server_name.as_deref(),
        Some("pypi.org")
    );
}

#[test]
fn underscores_and_punycode_are_names() {
    for name in [
        "_dmarc.example.com",
        "xn--bcher-kva.example",
        "localhost",
        "a--b.c",
        "10.0.0.1",
    ] {
        assert_eq!(hello(&Hello::named(name).record()).server_name.as_deref(), Some(name));
    }
    let longest = [vec!["a".repeat(63); 3], vec!["b".repeat(61)]].concat().join(".");
    assert_eq!(longest.len(), 253);
    assert_eq!(hello(&Hello::named(&longest).record()).server_name, Some(longest));
}

#[test]
fn a_hello_without_a_name_or_without_extensions_has_no_name() {
    let without = Hello::default();
    assert_eq!(hello(&without.record()).server_name, None);
    let bare = Hello {
        extensions: None,
        ..Hello::default()
    };
    assert_eq!(hello(&bare.record()).server_name, None);
}

#[test]
fn versions_of_tls_1_0_to_1_3_are_read() {
    for minor in 1..=3 {
        let old = Hello {
            version: [3, minor],
            ..Hello::named("example.com")
        };
        let mut bytes = old.record();
        bytes[2] = minor;
        assert_eq!(hello(&bytes).server_name.as_deref(), Some("example.com"), "3.{minor}");
    }
}

#[test]
fn protocols_are_read_in_their_order() {
    let bytes = Hello::named("example.com")
        .with(16, b"\0\x0c\x02h2\x08http/1.1")
        .record();
    assert_eq!(hello(&bytes).alpn, [b"h2".to_vec(), b"http/1.1".to_vec()]);
}

#[test]
fn grease_is_tolerated_wherever_it_may_stand() {
    let greasy = Hello {
        suites: vec![0x0a, 0x0a, 0x13, 0x01],
        ..Hello::default()
    };
    let bytes = greasy
        .with(0x2a2a, b"")
        .with(0, &server_name(b"example.com"))
        .with(16, b"\0\x06\x02\xba\xba\x02h2")
        .with(0xdada, b"\0")
        .record();
    let read = hello(&bytes);
    assert_eq!(read.server_name.as_deref(), Some("example.com"));
    assert_eq!(read.alpn, [b"\xba\xba".to_vec(), b"h2".to_vec()]);
}

#[test]
fn n8_an_encrypted_hello_is_told() {
    let outer = [b"\0".as_slice(), b"\0\x01\0\x01\x07\0\x02kk\0\x03ppp"].concat();
    assert!(hello(&Hello::named("public.example").with(0xfe0d, &outer).record()).encrypted);
    for draft in [0xffce, 0xfe08, 0xfe0c] {
        assert!(hello(&Hello::named("public.example").with(draft, b"any").record()).encrypted);
    }
    assert!(!hello(&Hello::named("public.example").with(0xfe0e, b"any").record()).encrypted);
}

#[test]
fn a_hello_over_several_records_is_put_together() {
    let message = Hello::named("example.com").message();
    for size in [2, 3, 4, 5, 10, 100] {
        let bytes = in_records(&message, size);
        let read = hello(&bytes);
        assert_eq!(read.server_name.as_deref(), Some("example.com"), "{size}");
        assert_eq!(read.length, bytes.len(), "{size}");
        assert_eq!(
            read_in_parts(&bytes, std::iter::empty()).0,
            Progress::Hello(read),
            "{size}"
        );
    }
}

#[test]
fn what_follows_the_hello_in_records_of_its_own_is_left_alone() {
    let bytes = Hello::named("example.com").record();
    let change_cipher_spec = b"\x14\x03\x03\0\x01\x01";
    let more = [&bytes[..], change_cipher_spec, b"\x17\x03\x03\x40\x01whatever"].concat();
    assert_eq!(hello(&more), hello(&bytes));
    assert_eq!(hello(&more).length, bytes.len());
}

#[test]
fn the_longest_hello_is_read_and_one_byte_more_is_not() {
    let base = Hello::named("example.com").with(21, b"").message().len();
    let padding = vec![0; MAX_HELLO - base];
    let longest = Hello::named("example.com").with(21, &padding).message();
    assert_eq!(longest.len(), MAX_HELLO);
    assert_eq!(
        hello(&in_records(&longest, 1 << 14)).server_name.as_deref(),
        Some("example.com")
    );
    // The most that a reader ever sees: the longest hello in as many records as it may have.
    let bytes = in_records(&longest, MAX_HELLO.div_ceil(MAX_RECORDS));
    assert_eq!(bytes.len(), MAX_RECEIVED);
    assert_eq!(hello(&bytes).length, MAX_RECEIVED);
    let beginning = [1, 1, 0, 0];
    assert!(matches!(read(&record(&beginning)), Progress::Invalid(_)));
}

#[test]
fn what_is_no_tls_is_told_at_its_first_bytes() {
    for bytes in [
        b"GET / HTTP/1.1\r\n".as_slice(),
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\0",
        b"\x15\x03\x01\0\x02\x02\x28",
        b"\x16\x02",
        b"\x16P",
        b"\x80\x2e\x04",
        b"\xff\xff\xff",
    ] {
        assert_eq!(read(bytes), Progress::NotTls, "{bytes:?}");
    }
    for bytes in [b"".as_slice(), b"\x16", b"\x16\x03", b"\x80", b"\x80\x2e\x01"] {
        assert_eq!(read(bytes), Progress::NeedMore, "{bytes:?}");
    }
}

#[test]
fn a_verdict_is_repeated() {
    let mut reader = ClientHelloReader::default();
    let good = Hello::named("example.com").record();
    let verdict = reader.read(&good);
    assert_eq!(reader.read(&good), verdict);
    let mut reader = ClientHelloReader::default();
    let bad = Hello::named("").record();
    let verdict = reader.read(&bad);
    assert!(matches!(verdict, Progress::Invalid(_)));
    assert_eq!(reader.read(&bad), verdict);
    // A caller that forgets what it gave does not make the reader fall.
    assert_eq!(reader.read(&[]), verdict);
}
