//! Whatever comes, however it is cut: the same verdict, and never a fall.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::fields::DECIDING;
use super::{Body, Progress, Target, head, read, read_in_parts};

#[derive(Debug, Clone)]
struct Request {
    method: String,
    path: String,
    absolute: bool,
    host: String,
    port: Option<u16>,
    fields: Vec<(String, String)>,
    body: Body,
}

impl Request {
    fn text(&self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let before = if self.absolute {
            format!("http://{}{port}", self.host.to_uppercase())
        } else {
            String::new()
        };
        let fields: String = self
            .fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let body = match self.body {
            Body::None => String::new(),
            Body::Length(length) => format!("Content-Length: {length}\r\n"),
            Body::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        };
        let Self { method, path, host, .. } = self;
        format!("{method} {before}{path} HTTP/1.1\r\n{fields}Host: {host}{port}\r\n{body}\r\n")
    }
}

fn request() -> impl Strategy<Value = Request> {
    let field = (
        "[A-Za-z][A-Za-z0-9!#$%&'*+.^_`|~-]{0,12}",
        "([!-~]([ -~]{0,20}[!-~])?)?",
    );
    let deciding = |name: &String| {
        let name = name.to_lowercase();
        DECIDING.iter().any(|field| field.len() == name.len())
    };
    let fields = prop::collection::vec(
        field.prop_filter("a deciding field", move |(name, _)| !deciding(name)),
        0..8,
    );
    let body = prop_oneof![
        Just(Body::None),
        (0..1_u64 << 63).prop_map(Body::Length),
        Just(Body::Chunked)
    ];
    let place = (
        "/[a-zA-Z0-9/?&=%.;:@|{}~-]{0,30}",
        any::<bool>(),
        "[a-z0-9_-]{1,10}(\\.[a-z0-9-]{1,10}){0,3}",
    );
    ("[A-Z]{1,9}", place, prop::option::of(1..=u16::MAX), fields, body)
        .prop_filter("CONNECT", |request| request.0 != "CONNECT")
        .prop_map(|(method, (path, absolute, host), port, fields, body)| Request {
            method,
            path,
            absolute,
            host,
            port,
            fields,
            body,
        })
}

/// Pieces of which attacks are made.
const PIECES: [&str; 20] = [
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    "\0",
    "Host: evil.example\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 6\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding:\tchunked\r\n",
    "\r\n\r\n",
    "http://evil.example",
    "@",
    ",",
    "HTTP/1.0",
    "\u{fc}",
    "Connection: host\r\n",
    "X: y\r\n z\r\n",
];

fn spoilt() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<Index>(), any::<u8>(), 0..5_u8, any::<Index>()), 0..4);
    (request(), changes).prop_map(|(request, changes)| {
        let mut bytes = request.text().into_bytes();
        for (place, byte, how, piece) in changes {
            let at = place.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => drop(bytes.splice(at..at, PIECES[piece.index(PIECES.len())].bytes())),
            }
        }
        bytes
    })
}

/// What must hold of every head that was read, whatever the bytes were.
fn assert_unambiguous(bytes: &[u8], verdict: &Progress) {
    let Progress::Head(read) = verdict else { return };
    let text = &bytes[..read.length];
    assert!(text.ends_with(b"\r\n\r\n"));
    assert_eq!(text.windows(4).filter(|window| window == b"\r\n\r\n").count(), 1);
    let count = |name: &str| {
        let named = |range: &std::ops::Range<usize>| text[range.clone()].eq_ignore_ascii_case(name.as_bytes());
        read.fields.iter().filter(|field| named(&field.name)).count()
    };
    assert!(count("host") <= 1);
    let lengths = (count("content-length"), count("transfer-encoding"));
    let expected = match read.body {
        Body::None => (0, 0),
        Body::Length(_) => (1, 0),
        Body::Chunked => (0, 1),
    };
    assert_eq!(lengths, expected);
    assert!(
        text.iter()
            .enumerate()
            .all(|(at, byte)| *byte != b'\n' || text[at - 1] == b'\r')
    );
    assert!(
        text.iter()
            .enumerate()
            .all(|(at, byte)| *byte != b'\r' || text[at + 1] == b'\n')
    );
}

proptest! {
    #[test]
    fn a_request_that_was_built_is_read(request in request()) {
        let text = request.text();
        let read = head(text.as_bytes());
        prop_assert_eq!(&read.method, &request.method);
        prop_assert_eq!(&read.authority.host, &request.host);
        prop_assert_eq!(read.authority.port, request.port.unwrap_or(80));
        prop_assert_eq!(read.body, request.body);
        let path = request.path.clone();
        prop_assert_eq!(&read.target, &if request.absolute { Target::Absolute(path) } else { Target::Origin(path) });
        prop_assert_eq!(read.length, text.len());
        prop_assert_eq!(read_in_parts(text.as_bytes(), std::iter::empty()), (Progress::Head(Box::new(read)), text.len()));
    }

    #[test]
    fn spoilt_requests_have_one_verdict_however_they_are_cut(
        bytes in spoilt(),
        parts in prop::collection::vec(1..50_usize, 0..20),
    ) {
        let at_once = read(&bytes);
        assert_unambiguous(&bytes, &at_once);
        prop_assert_eq!(&read_in_parts(&bytes, std::iter::empty()).0, &at_once);
        prop_assert_eq!(&read_in_parts(&bytes, parts.into_iter()).0, &at_once);
    }

    #[test]
    fn any_bytes_have_one_verdict_however_they_are_cut(
        http in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = if http { [b"GET / HTTP/1.1\r\nHost: a\r\n", &tail[..]].concat() } else { tail };
        let at_once = read(&bytes);
        assert_unambiguous(&bytes, &at_once);
        prop_assert_eq!(read_in_parts(&bytes, std::iter::empty()).0, at_once);
    }
}

#[test]
fn every_byte_of_a_head_may_have_any_value() {
    let text = b"POST http://a.example/b HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
    for at in 0..text.len() {
        for value in 0..=255 {
            let mut changed = text.to_vec();
            changed[at] = value;
            assert_unambiguous(&changed, &read(&changed));
        }
    }
}
