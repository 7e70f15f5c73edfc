//! Requests one behind the other, however they are cut.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";
const POST: &str = "POST /b HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc";
const CHUNKED: &str = "POST /c HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
const SOCKET: &str =
    "GET /d HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n";
const H2C: &str = "GET /e HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
const SOCKET_WITH_BODY: &str = "GET /f HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                                Content-Length: 3\r\n\r\nabc";

/// What passes of bytes that come in parts of these lengths, then at once, and what is behind them.
fn read_in_parts(bytes: &[u8], parts: impl Iterator<Item = usize>) -> (Vec<u8>, Next) {
    let mut reader = RequestsReader::new(Scheme::Http);
    let mut passed = Vec::new();
    let mut waiting = Vec::new();
    let mut rest = bytes;
    for length in parts.chain([usize::MAX]) {
        let (part, more) = rest.split_at(length.min(rest.len()));
        rest = more;
        waiting.extend(part);
        loop {
            let judged = reader.read(&waiting);
            passed.extend(waiting.drain(..judged.passed));
            match judged.next {
                Next::More if judged.passed > 0 => {}
                Next::More => break,
                Next::Switching => reader.stays_http(),
                Next::Refused(_) => return (passed, judged.next),
            }
        }
    }
    (passed, Next::More)
}

fn read(bytes: &[u8]) -> (usize, Next) {
    let judged = RequestsReader::new(Scheme::Http).read(bytes);
    (judged.passed, judged.next)
}

#[test]
fn what_was_judged_passes_and_what_is_refused_does_not() {
    let folded = "GET / HTTP/1.1\r\nHost: a.example\r\nX: y\r\n z\r\n\r\n";
    let refused = Next::Refused(HttpHeadError::Folded.into());
    for before in [
        String::new(),
        GET.repeat(3),
        [GET, POST, CHUNKED, H2C, SOCKET_WITH_BODY].concat(),
    ] {
        assert_eq!(read(before.as_bytes()), (before.len(), Next::More));
        let bytes = [&before, folded, GET].concat();
        assert_eq!(read(bytes.as_bytes()), (before.len(), refused.clone()));
        let beginning = [&before, &GET[..20]].concat();
        assert_eq!(read(beginning.as_bytes()), (before.len(), Next::More));
    }
}

#[test]
fn a_refused_body_ends_where_it_stands() {
    let head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut reader = RequestsReader::new(Scheme::Http);
    assert_eq!(
        reader.read(format!("{head}3\r\nabc\r\n").as_bytes()),
        Judged {
            passed: head.len() + 8,
            next: Next::More
        }
    );
    let refused = Judged {
        passed: 0,
        next: Next::Refused(HttpBodyError::Extension.into()),
    };
    assert_eq!(reader.read(b"3;x\r\n"), refused);
    assert_eq!(reader.read(GET.as_bytes()), refused);
}

#[test]
fn behind_a_request_for_a_websocket_nothing_passes_until_it_is_declined() {
    let mut reader = RequestsReader::new(Scheme::Http);
    let bytes = [SOCKET, GET].concat();
    let judged = reader.read(bytes.as_bytes());
    assert_eq!((judged.passed, judged.next), (SOCKET.len(), Next::Switching));
    assert_eq!(reader.read(b"\x81\x05frame").next, Next::Switching);
    reader.stays_http();
    let judged = reader.read(GET.as_bytes());
    assert_eq!((judged.passed, judged.next), (GET.len(), Next::More));
    // Nobody waits for it any more.
    reader.stays_http();
    assert_eq!(reader.read(GET.as_bytes()).passed, GET.len());
}

const PIECES: [&str; 16] = [
    "\r\n",
    "\n",
    " ",
    "\0",
    "0\r\n\r\n",
    "5;x\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: b.example\r\n",
    GET,
    POST,
    CHUNKED,
    SOCKET,
    H2C,
    SOCKET_WITH_BODY,
    "ffffffffffffffff\r\n",
];

/// Requests, some of which were spoilt.
pub(crate) fn spoilt() -> impl Strategy<Value = Vec<u8>> {
    let requests = prop::collection::vec(prop::sample::select(&PIECES[9..15]), 1..5);
    let changes = prop::collection::vec((any::<Index>(), any::<u8>(), 0..4_u8, any::<Index>()), 0..3);
    (requests, changes).prop_map(|(requests, changes)| {
        let mut bytes = requests.concat().into_bytes();
        for (place, byte, how, piece) in changes {
            let at = place.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => drop(bytes.splice(at..at, PIECES[piece.index(PIECES.len())].bytes())),
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn the_verdict_is_the_same_however_the_bytes_are_cut(
        bytes in spoilt(),
        parts in prop::collection::vec(1..60_usize, 0..30),
    ) {
        let (passed, next) = read_in_parts(&bytes, std::iter::empty());
        prop_assert!(bytes.starts_with(&passed));
        let (in_parts, next_in_parts) = read_in_parts(&bytes, parts.into_iter());
        prop_assert_eq!(&next_in_parts, &next);
        // What came of a body before the byte for which it is refused.
        prop_assert!(in_parts.starts_with(&passed) && bytes.starts_with(&in_parts));
        let (one_by_one, next_one_by_one) = read_in_parts(&bytes, std::iter::repeat_n(1, bytes.len()));
        prop_assert_eq!(&next_one_by_one, &next);
        prop_assert!(one_by_one.starts_with(&in_parts) && bytes.starts_with(&one_by_one));
        if !matches!(next, Next::Refused(RequestError::Body(_))) {
            prop_assert_eq!(passed, one_by_one);
        }
    }
}
