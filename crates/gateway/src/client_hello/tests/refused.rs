//! Every reason for which a hello is refused.

use super::super::{ClientHelloError as Error, ClientHelloReader, Progress};
use super::build::{Hello, in_records, message, record, server_name, vector16};
use super::{MAX_HELLO, MAX_RECORDS, read, read_in_parts};

/// Asserts the refusal, and that it is the same when the bytes come one by one.
fn refused(bytes: &[u8], error: Error) {
    assert_eq!(read(bytes), Progress::Invalid(error));
    assert_eq!(read_in_parts(bytes, std::iter::empty()).0, Progress::Invalid(error));
}

fn named(name: &[u8]) -> Vec<u8> {
    Hello::default().with(0, &server_name(name)).record()
}

#[test]
fn ssl_2_and_unknown_versions() {
    refused(b"\x80\x2e\x01\x00\x02\x00\x15", Error::Ssl2);
    refused(b"\x80\x2e\x01\x03\x01\x00\x15", Error::Ssl2);
    for minor in [0, 4, 255] {
        let error = Error::Version { major: 3, minor };
        let mut bytes = Hello::named("example.com").record();
        bytes[2] = minor;
        refused(&bytes, error);
        refused(&bytes[..3], error);
        let version = [3, minor];
        let inside = Hello {
            version,
            ..Hello::named("example.com")
        };
        refused(&inside.record(), error);
    }
    let draft = Hello {
        version: [0x7f, 0x1c],
        ..Hello::default()
    };
    refused(
        &draft.record(),
        Error::Version {
            major: 0x7f,
            minor: 0x1c,
        },
    );
}

#[test]
fn records_that_are_empty_long_many_or_of_another_type() {
    refused(b"\x16\x03\x01\0\0", Error::EmptyRecord);
    refused(b"\x16\x03\x01\x40\x01", Error::LongRecord(0x4001));
    refused(b"\x16\x03\x01\xff\xff", Error::LongRecord(0xffff));
    let hello = Hello::named("example.com").message();
    let beginning = record(&hello[..20]);
    refused(&[&beginning[..], b"\x16\x03\x01\0\0"].concat(), Error::EmptyRecord);
    for kind in [20, 21, 23, 24, 0x80, b'G'] {
        refused(
            &[&beginning[..], &[kind, 3, 1, 0, 1, 1]].concat(),
            Error::Interrupted(kind),
        );
    }
    refused(
        &[&beginning[..], &[22, 4]].concat()[..]
            .iter()
            .copied()
            .chain([1])
            .collect::<Vec<u8>>(),
        Error::Version { major: 4, minor: 1 },
    );
    let single: Vec<u8> = hello.chunks(1).flat_map(record).collect();
    assert!(hello.len() > MAX_RECORDS);
    refused(&single, Error::ManyRecords);
    // One record more than allowed, the last of which would complete the hello.
    let (bytewise, rest) = hello.split_at(MAX_RECORDS);
    let one_more: Vec<u8> = bytewise.chunks(1).chain([rest]).flat_map(record).collect();
    refused(&one_more, Error::ManyRecords);
}

#[test]
fn messages_that_are_no_hello_or_too_long() {
    for kind in [0, 2, 16] {
        refused(&record(&[kind, 0, 0, 1, 0]), Error::NotClientHello(kind));
        refused(&record(&[kind, 0, 0, 1, 0])[..6], Error::NotClientHello(kind));
    }
    refused(&record(&[1, 1, 0, 0]), Error::TooLong(MAX_HELLO + 4));
    refused(&record(&[1, 0xff, 0xff, 0xff]), Error::TooLong(0x00ff_ffff + 4));
    let base = Hello::default().with(21, b"").message().len();
    let padding = vec![0; MAX_HELLO - base + 1];
    let message = Hello::default().with(21, &padding).message();
    refused(&in_records(&message, 1 << 14), Error::TooLong(MAX_HELLO + 1));
}

#[test]
fn bytes_behind_the_hello_in_its_record() {
    let message = Hello::named("example.com").message();
    refused(&record(&[&message[..], b"\0"].concat()), Error::Trailing("the hello"));
    let second = [&message[..], &Hello::named("other.example").message()].concat();
    refused(&record(&second), Error::Trailing("the hello"));
    let cut = [record(&message[..50]), record(&[&message[50..], b"\0"].concat())].concat();
    refused(&cut, Error::Trailing("the hello"));
}

#[test]
fn a_body_that_ends_anywhere_too_early() {
    let body = Hello::named("example.com").body();
    let bare = Hello {
        extensions: None,
        ..Hello::default()
    }
    .body()
    .len();
    for length in 0..body.len() {
        let verdict = read(&record(&message(&body[..length])));
        if length == bare {
            assert!(matches!(verdict, Progress::Hello(_)));
        } else {
            assert!(
                matches!(verdict, Progress::Invalid(Error::CutShort(_))),
                "{length}: {verdict:?}"
            );
        }
    }
}

#[test]
fn fixed_fields_with_lengths_that_they_cannot_have() {
    let long = Hello {
        session_id: vec![0; 33],
        ..Hello::default()
    };
    refused(&long.record(), Error::Length("the session id"));
    for suites in [vec![], vec![0x13], vec![0x13, 0x01, 0x13]] {
        let odd = Hello {
            suites,
            ..Hello::default()
        };
        refused(&odd.record(), Error::Length("the cipher suites"));
    }
    let none = Hello {
        compression: vec![],
        ..Hello::default()
    };
    refused(&none.record(), Error::Length("the compression methods"));
}

#[test]
fn extensions_whose_lengths_do_not_add_up() {
    let tail = Hello {
        tail: vec![0],
        ..Hello::named("example.com")
    };
    refused(&tail.record(), Error::Trailing("the extensions"));
    for extensions in [&b"\0"[..], b"\0\0", b"\0\0\0", b"\0\x05\0\x02a", b"\0\x05\xff\xff"] {
        let short = Hello {
            extensions: Some(extensions.to_vec()),
            ..Hello::default()
        };
        refused(&short.record(), Error::CutShort("an extension"));
    }
}

#[test]
fn extensions_that_come_twice_or_too_often() {
    let twice = Hello::named("example.com").with(0, &server_name(b"other.example"));
    refused(&twice.record(), Error::DuplicateExtension(0));
    let same = Hello::named("example.com").with(0, &server_name(b"example.com"));
    refused(&same.record(), Error::DuplicateExtension(0));
    let grease = Hello::default().with(0x0a0a, b"").with(5, b"").with(0x0a0a, b"");
    refused(&grease.record(), Error::DuplicateExtension(0x0a0a));
    let many = (0..129).fold(Hello::default(), |hello, kind| hello.with(1000 + kind, b""));
    refused(&many.record(), Error::TooMany("the extensions"));
    let behind = Hello::default().with(41, b"keys").with(0, &server_name(b"example.com"));
    refused(&behind.record(), Error::BehindPreSharedKey);
}

#[test]
fn n8_lists_of_server_names_that_are_not_one_host_name() {
    let entry = |kind: u8, name: &[u8]| [&[kind], &vector16(name)[..]].concat();
    let list = |entries: &[u8]| Hello::default().with(0, &vector16(entries)).record();
    let two = [entry(0, b"example.com"), entry(0, b"other.example")].concat();
    refused(&list(&two), Error::SeveralNames);
    refused(
        &list(&[entry(0, b"example.com"), entry(1, b"x")].concat()),
        Error::SeveralNames,
    );
    refused(
        &list(&[entry(0, b"example.com"), vec![0]].concat()),
        Error::SeveralNames,
    );
    for kind in [1, 255] {
        refused(&list(&entry(kind, b"example.com")), Error::NameType(kind));
    }
    const LIST: &str = "the list of server names";
    refused(&list(b""), Error::CutShort(LIST));
    refused(&Hello::default().with(0, b"").record(), Error::CutShort(LIST));
    refused(&list(b"\0\0"), Error::CutShort("the server name"));
    refused(&list(b"\0\0\x0cexample.com"), Error::CutShort("the server name"));
    let trailing = [&server_name(b"example.com")[..], b"\0"].concat();
    refused(&Hello::default().with(0, &trailing).record(), Error::Trailing(LIST));
}

#[test]
fn n5_names_that_are_no_host_names() {
    for name in [
        &b""[..],
        b"\0",
        b"example.com\0",
        b"example.com\0.allowed.example",
        b"example.com.",
        b".example.com",
        b"example..com",
        b".",
        b"exa mple.com",
        b"example.com ",
        b"example.com\t",
        b"example.com\r\n",
        b"example.com:443",
        b"user@example.com",
        b"example.com/path",
        b"example.com#x",
        b"example.com,other",
        b"%65xample.com",
        b"*.example.com",
        b"::1",
        b"[::1]",
        b"\xff.com",
        "b\u{fc}cher.example".as_bytes(),
        "example\u{3002}com".as_bytes(),
        "exam\u{ad}ple.com".as_bytes(),
        "\u{ff45}xample.com".as_bytes(),
    ] {
        refused(&named(name), Error::Name);
    }
    refused(&named(&[b'a'; 64]), Error::Name);
    let long = ["a"; 128].join(".");
    assert_eq!(long.len(), 255);
    refused(&named(long.as_bytes()), Error::Name);
}

#[test]
fn protocols_that_do_not_add_up() {
    const LIST: &str = "the list of protocols";
    let with = |content: &[u8]| Hello::named("example.com").with(16, content).record();
    refused(&with(b""), Error::CutShort(LIST));
    refused(&with(b"\0\0"), Error::Length(LIST));
    refused(&with(b"\0\x01\0"), Error::Length("a protocol"));
    refused(&with(b"\0\x02\x02h"), Error::CutShort("a protocol"));
    refused(&with(b"\0\x03\x02h2\0"), Error::Trailing(LIST));
    refused(&with(&vector16(&b"\x01a".repeat(65))), Error::TooMany(LIST));
}

#[test]
fn n8_encrypted_hellos_that_do_not_add_up() {
    const WHAT: &str = "the encrypted hello";
    let with = |content: &[u8]| Hello::named("example.com").with(0xfe0d, content).record();
    refused(&with(b""), Error::CutShort(WHAT));
    refused(&with(b"\x01"), Error::EncryptedKind(1));
    refused(&with(b"\0\0\x01\0\x01\x07\0\0\0\x02p"), Error::CutShort(WHAT));
    refused(&with(b"\0\0\x01\0\x01\x07\0\0\0\0"), Error::Length(WHAT));
    refused(&with(b"\0\0\x01\0\x01\x07\0\0\0\x01p!"), Error::Trailing(WHAT));
}

#[test]
fn a_refusal_says_what_was_wrong() {
    let mut reader = ClientHelloReader::default();
    let Progress::Invalid(error) = reader.read(b"\x16\x03\x01\x40\x01") else {
        panic!()
    };
    assert_eq!(error.to_string(), "a record of 16385 bytes, where 16384 are allowed");
}
