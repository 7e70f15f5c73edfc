use proptest::prelude::*;

use super::*;

fn one(bytes: &[u8]) -> Progress {
    ProxyRequestReader::default().read(bytes)
}

/// A question that is whole, with the bytes behind it untouched.
#[track_caller]
fn wanted(bytes: &[u8]) -> Wanted {
    match one(bytes) {
        Progress::Wanted(wanted) => wanted,
        other => panic!("{other:?}"),
    }
}

/// The same after the beginning of SOCKS 5.
fn five(bytes: &[u8]) -> Progress {
    let mut reader = ProxyRequestReader::default();
    let begun = reader.read(&[5, 1, 0]);
    assert_eq!(
        begun,
        Progress::Answer {
            answer: [5, 0],
            length: 3
        }
    );
    reader.read(bytes)
}

fn named5(name: &[u8]) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    [&[5, 1, 0, 3, length][..], name, &[1, 187]].concat()
}

#[track_caller]
fn error(progress: Progress) -> ProxyRequestError {
    match progress {
        Progress::Refused { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_way_of_asking_names_the_same_host() {
    let connect = b"CONNECT Example.COM.:443 HTTP/1.1\r\nHost: example.com.:443\r\n\r\nrest";
    let four = b"\x04\x01\x01\xbb\0\0\0\x01me\0EXAMPLE.com\0rest";
    for (bytes, way) in [(&connect[..], Way::Connect), (four, Way::Socks4)] {
        let wanted = wanted(bytes);
        assert_eq!((wanted.host.to_string().as_str(), wanted.port), ("example.com", 443));
        assert_eq!((wanted.way, &bytes[wanted.length..]), (way, &b"rest"[..]));
    }
    let mut with_rest = named5(b"eXample.com.");
    with_rest.extend(b"rest");
    let Progress::Wanted(wanted) = five(&with_rest) else {
        panic!();
    };
    assert_eq!((wanted.host.to_string().as_str(), wanted.port), ("example.com", 443));
    assert_eq!((wanted.way, &with_rest[wanted.length..]), (Way::Socks5, &b"rest"[..]));
}

#[test]
fn addresses_are_read_whichever_way_they_are_written() {
    let four = b"\x04\x01\0\x50\x5d\xb8\xd8\x22\0";
    assert_eq!(wanted(four).host.to_string(), "93.184.216.34");
    let five4 = [&[5, 1, 0, 1][..], &[93, 184, 216, 34], &[0, 80]].concat();
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 93, 184, 216, 34]);
    let five6 = [&[5, 1, 0, 4][..], &mapped, &[0, 80]].concat();
    for bytes in [five4, five6, named5(b"93.184.55330"), named5(b"0x5db8d822")] {
        let Progress::Wanted(wanted) = five(&bytes) else {
            panic!("{bytes:?}");
        };
        assert_eq!(wanted.host.to_string(), "93.184.216.34");
    }
}

#[test]
fn n11_other_commands_and_kinds_of_addresses_are_refused_in_their_form() {
    for command in [0, 2, 3, 255] {
        let refused = five(&[5, command]);
        let Progress::Refused { way: Some(way), error } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error, ProxyRequestError::Command(command));
        assert_eq!(way.not_made(Failing::Unsupported).unwrap()[..2], [5, 7]);
        let refused = one(&[4, command]);
        assert!(matches!(
            refused,
            Progress::Refused {
                way: Some(Way::Socks4),
                ..
            }
        ));
    }
    assert_eq!(error(five(&[5, 1, 0, 2, 0])), ProxyRequestError::AddressType(2));
    assert_eq!(error(five(&[5, 1, 1, 3])), ProxyRequestError::Malformed);
    assert_eq!(error(five(&[4, 1, 1, 3])), ProxyRequestError::Malformed);
    assert_eq!(error(one(&[5, 2, 1, 2])), ProxyRequestError::Authentication);
    assert_eq!(Way::Socks5.not_made(Failing::Refused).unwrap()[1], 2);
}

#[test]
fn n5_names_that_two_readers_would_read_differently_are_refused() {
    for name in [
        &b"allowed.example\0.evil.example"[..],
        b"user@allowed.example",
        b"allowed.example/",
        b"allowed.example%00",
        b"allowed.example\r\nHost: x",
        b" allowed.example",
        b"",
        b".",
        b"a..b",
        b"\xff\xfe",
        b"fe80::1%lo",
    ] {
        assert!(
            matches!(error(five(&named5(name))), ProxyRequestError::Host(_)),
            "{name:?}"
        );
    }
    assert!(matches!(
        error(one(b"\x04\x01\0\x50\0\0\0\x01\0a b\0")),
        ProxyRequestError::Host(_)
    ));
}

#[test]
fn a_request_becomes_one_for_its_server_alone() {
    let asked = b"GET http://api.example/v1?x HTTP/1.1\r\nHost: api.example\r\nProxy-Connection: keep-alive\r\n\
        Proxy-Authorization: Basic eA==\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\nrest";
    let wanted = wanted(asked);
    assert_eq!((wanted.host.to_string().as_str(), wanted.port), ("api.example", 80));
    assert_eq!(&asked[wanted.length..], b"rest");
    let Way::Request { head } = wanted.way else { panic!() };
    assert_eq!(
        String::from_utf8(head).unwrap(),
        "GET /v1?x HTTP/1.1\r\nHost: api.example\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn paths_that_are_left_out_are_those_of_the_method() {
    for (asked, first) in [
        (
            "GET http://a.example:8080 HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a.example:8080\r\n",
        ),
        (
            "OPTIONS http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a.example\r\n",
        ),
    ] {
        let Way::Request { head } = wanted(asked.as_bytes()).way else {
            panic!();
        };
        assert!(String::from_utf8(head).unwrap().starts_with(first));
    }
}

#[test]
fn n8_heads_that_disagree_with_themselves_are_refused() {
    for bytes in [
        "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
        "CONNECT a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "CONNECT a.example:0443 HTTP/1.1\r\n\r\n",
        "CONNECT http://a.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT /:443 HTTP/1.1\r\n\r\n",
        "CONNECT me@a.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.example:443 HTTP/2.0\r\n\r\n",
        "CONNECT  a.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\n Host: a.example\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\nHost: a.example\n\n",
        "GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
        "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: host\r\n\r\n",
    ] {
        assert!(
            matches!(error(one(bytes.as_bytes())), ProxyRequestError::Head(_)),
            "{bytes:?}"
        );
    }
    wanted(b"CONNECT a.example:22 HTTP/1.1\r\nHost: a.example\r\n\r\n");
}

#[test]
fn n12_the_proxy_itself_answers_nothing() {
    for bytes in [
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        "GET /stats HTTP/1.0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: proxy\r\n\r\n",
    ] {
        assert_eq!(error(one(bytes.as_bytes())), ProxyRequestError::Itself, "{bytes:?}");
    }
    for bytes in [&b"hello"[..], b"\x16\x03\x01", b"\0", b"\x06"] {
        assert_eq!(error(one(bytes)), ProxyRequestError::Unknown, "{bytes:?}");
    }
    assert_eq!(
        error(one(b"CONNECT a.example:0 HTTP/1.1\r\n\r\n")),
        ProxyRequestError::Head(HttpHeadError::Target)
    );
    assert_eq!(error(five(&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0])), ProxyRequestError::Port);
}

#[test]
fn n12_questions_without_end_are_refused() {
    let long = [&b"CONNECT a.example:443 HTTP/1.1\r\nX: "[..], &[b'x'; 300_000]].concat();
    assert_eq!(error(one(&long)), ProxyRequestError::Head(HttpHeadError::TooLong));
    let long = [&b"GET http://a.example/ HTTP/1.1\r\nX: "[..], &[b'x'; 300_000]].concat();
    assert_eq!(error(one(&long)), ProxyRequestError::Head(HttpHeadError::TooLong));
    let user = [&[4, 1, 0, 80, 1, 1, 1, 1][..], &[b'x'; 2000]].concat();
    assert!(matches!(error(one(&user)), ProxyRequestError::TooLong(_)));
    let name = [&[4, 1, 0, 80, 0, 0, 0, 1, 0][..], &[b'x'; 2000]].concat();
    assert!(matches!(error(one(&name)), ProxyRequestError::TooLong(_)));
}

proptest! {
    #[test]
    fn the_verdict_is_the_same_however_the_bytes_are_cut(
        bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(3), Just(4), Just(5), any::<u8>()], 0..60),
        first in prop_oneof![Just(None), Just(Some(4_u8)), Just(Some(5))],
        by in 1_usize..9,
    ) {
        let bytes: Vec<u8> = first.into_iter().chain(bytes).collect();
        let at_once = one(&bytes);
        let mut reader = ProxyRequestReader::default();
        let cut = (0..=bytes.len())
            .step_by(by)
            .chain([bytes.len()])
            .map(|there| reader.read(&bytes[..there]))
            .find(|progress| *progress != Progress::NeedMore);
        prop_assert_eq!(cut.unwrap_or(Progress::NeedMore), at_once.clone());
        if let Progress::Wanted(wanted) = at_once {
            prop_assert!(wanted.length <= bytes.len());
        }
    }

    #[test]
    fn names_in_a_question_are_those_that_a_rule_would_be_compared_with(name in "[ -~]{0,30}") {
        let read = five(&named5(name.as_bytes()));
        match Host::parse(&name) {
            Ok(host) => prop_assert!(matches!(read, Progress::Wanted(wanted) if wanted.host == host)),
            Err(error) => prop_assert_eq!(read, Progress::Refused {
                way: Some(Way::Socks5),
                error: error.into(),
            }),
        }
    }
}
