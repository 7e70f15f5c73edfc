//! What real clients sent, spoilt at random: no reader falls, takes more than there is, or changes its mind.
//!
//! Bounded, so that it can be part of every test; `OFFLEASH_FUZZ_ROUNDS` makes it longer, and a failure prints the
//! bytes. The seed is fixed: a failure comes again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fuzz/rules.rs"]
mod rules;

use offleash_gateway::client_hello::{self, ClientHelloReader};
use offleash_gateway::http_body::{BodyReader, HttpBodyError};
use offleash_gateway::http_head::{self, RequestHeadReader, Scheme};
use offleash_gateway::http_requests::{Next, RequestError, RequestsReader};
use offleash_gateway::proxy_request::{Progress as Asked, ProxyRequestReader};

const ROUNDS: usize = 4_000;

fn rounds() -> usize {
    let asked = std::env::var("OFFLEASH_FUZZ_ROUNDS").ok();
    asked.map_or(ROUNDS, |asked| asked.parse().unwrap())
}

/// Numbers that look random (xorshift, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// Changes, cuts out, doubles or exchanges a few bytes, or puts in what means something.
    fn spoil(&mut self, bytes: &mut Vec<u8>, pieces: &[&[u8]]) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            let end = (at + self.below(20)).min(bytes.len());
            match self.below(7) {
                0 => bytes[at] = self.byte(),
                1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes.insert(at, self.byte()),
                3 => drop(bytes.drain(at..end)),
                4 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
                5 => bytes.truncate(at),
                _ => drop(bytes.splice(at..end, pieces[self.below(pieces.len())].iter().copied())),
            }
        }
    }

    /// Lengths that grow from nothing to `whole`.
    fn cuts(&mut self, whole: usize) -> Vec<usize> {
        let mut cuts: Vec<usize> = (0..self.below(8)).map(|_| self.below(whole + 1)).collect();
        cuts.push(whole);
        cuts.sort_unstable();
        cuts
    }
}

fn from_hex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

#[test]
fn spoilt_hellos() {
    let hellos: Vec<Vec<u8>> = lines(include_str!("../src/client_hello/tests/recorded.txt"))
        .map(|line| from_hex(line.split(' ').nth(3).unwrap()))
        .collect();
    let pieces: [&[u8]; 8] = [
        b"\0\0",
        b"\xff\xff",
        b"\x16\x03\x01",
        b"\0\0\0\x10\0\x0e\0\0\x0bexample.com",
        b"\xfe\x0d",
        b"\0",
        b"\x01",
        b"\x40\x01",
    ];
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    for round in 0..rounds() {
        let mut bytes = hellos[round % hellos.len()].clone();
        numbers.spoil(&mut bytes, &pieces);
        let at_once = ClientHelloReader::default().read(&bytes);
        let mut reader = ClientHelloReader::default();
        let cuts = numbers.cuts(bytes.len());
        let verdicts = cuts.iter().map(|there| reader.read(&bytes[..*there]));
        let first = verdicts
            .into_iter()
            .find(|verdict| *verdict != client_hello::Progress::NeedMore);
        assert_eq!(
            first.unwrap_or(client_hello::Progress::NeedMore),
            at_once,
            "{bytes:02x?}"
        );
        if let client_hello::Progress::Hello(hello) = at_once {
            assert!(hello.length <= bytes.len(), "{bytes:02x?}");
        }
    }
}

fn requests() -> Vec<Vec<u8>> {
    lines(include_str!("../src/http_head/tests/recorded.txt"))
        .map(|line| {
            line.splitn(5, ' ')
                .nth(4)
                .unwrap()
                .replace("\\r\\n", "\r\n")
                .into_bytes()
        })
        .collect()
}

/// Where the requests of a connection begin and how their reading ended, with the bytes given in parts.
///
/// As a proxy does it: a reader for each head sees what is there, a reader for the body what is new.
fn follow(bytes: &[u8], cuts: &[usize]) -> (Vec<usize>, String) {
    let mut starts = Vec::new();
    let mut cuts = cuts.iter().copied();
    let mut start = 0;
    let mut there = 0;
    loop {
        let mut reader = RequestHeadReader::new(Scheme::Http);
        let head = loop {
            match reader.read(&bytes[start..there]) {
                http_head::Progress::Head(head) => break head,
                http_head::Progress::NeedMore => match cuts.next() {
                    Some(next) => there = next,
                    None => return (starts, format!("in the head at {start}")),
                },
                other => return (starts, format!("{other:?}")),
            }
        };
        assert!(start + head.length <= there);
        starts.push(start);
        start += head.length;
        let mut body = BodyReader::new(head.body);
        loop {
            let taken: Result<_, HttpBodyError> = body.read(&bytes[start..there]);
            let Ok(taken) = taken else {
                return (starts, format!("{taken:?}"));
            };
            assert!(start + taken.length <= there);
            start += taken.length;
            if taken.ended {
                break;
            }
            assert_eq!(start, there, "all is taken until the end");
            match cuts.next() {
                Some(next) => there = next,
                None => return (starts, format!("in the body at {start}")),
            }
        }
    }
}

#[test]
fn n9_requests_on_one_connection_are_told_apart() {
    let requests = requests();
    let mut numbers = Numbers(0xfeed_5678_9abc_def1);
    for _ in 0..rounds() / 10 {
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for _ in 0..1 + numbers.below(6) {
            starts.push(bytes.len());
            bytes.extend(&requests[numbers.below(requests.len())]);
        }
        let cuts = numbers.cuts(bytes.len());
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(
            follow(&bytes, &cuts),
            (starts, format!("in the head at {}", bytes.len())),
            "{text:?}"
        );
    }
}

#[test]
fn spoilt_requests() {
    let requests = requests();
    let pieces: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: other\r\n",
        b"0\r\n\r\n",
        b"\r\n\r\n",
        b"5;x",
        b"ffffffffffffffff",
    ];
    let mut numbers = Numbers(0xdead_5678_9abc_def1);
    for round in 0..rounds() {
        let mut bytes = requests[round % requests.len()].clone();
        bytes.extend(&requests[numbers.below(requests.len())]);
        numbers.spoil(&mut bytes, &pieces);
        let at_once = follow(&bytes, &[bytes.len()]);
        let cuts = numbers.cuts(bytes.len());
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(follow(&bytes, &cuts), at_once, "{text:?}");
        let (passed, next) = judge(&bytes, &cuts);
        let (passed_at_once, next_at_once) = judge(&bytes, &[bytes.len()]);
        assert_eq!(next, next_at_once, "{text:?}");
        // Of a body that is refused as much has passed as came before.
        let is_body = matches!(next, Next::Refused(RequestError::Body(_)));
        assert!(
            passed == passed_at_once || is_body && passed > passed_at_once,
            "{text:?}"
        );
        assert!(at_once.0.iter().all(|start| *start < passed), "{text:?}");
    }
}

/// How many bytes of a connection pass that come in parts, and what is behind them.
fn judge(bytes: &[u8], cuts: &[usize]) -> (usize, Next) {
    let mut reader = RequestsReader::new(Scheme::Http);
    let mut passed = 0;
    let mut next = Next::More;
    for there in cuts {
        loop {
            let judged = reader.read(&bytes[passed..*there]);
            passed += judged.passed;
            assert!(passed <= *there);
            next = judged.next;
            match next {
                // The server declines.
                Next::Switching => reader.stays_http(),
                _ => break,
            }
        }
    }
    (passed, next)
}

/// What was asked of a proxy, with the bytes given in parts.
fn ask(bytes: &[u8], cuts: &[usize]) -> Asked {
    let mut reader = ProxyRequestReader::default();
    let mut start = 0;
    let mut last = Asked::NeedMore;
    for there in cuts {
        while start <= *there {
            last = reader.read(&bytes[start..*there]);
            match &last {
                Asked::NeedMore => break,
                Asked::Answer { length, .. } => start += length,
                Asked::Wanted(wanted) => {
                    assert!(start + wanted.length <= *there);
                    return last;
                }
                Asked::Refused { .. } => return last,
            }
        }
    }
    last
}

#[test]
fn n11_spoilt_questions_to_a_proxy() {
    let questions: [&[u8]; 8] = [
        b"\x05\x02\0\x02\x05\x01\0\x03\x0bexample.com\x01\xbb",
        b"\x05\x01\0\x05\x01\0\x01\x5d\xb8\xd8\x22\0\x50",
        b"\x05\x01\0\x05\x01\0\x04\x26\x06\x28\0\x02\x20\0\x01\x02\x48\x18\x93\x25\xc8\x19\x46\0\x50",
        b"\x04\x01\0\x50\x5d\xb8\xd8\x22me\0",
        b"\x04\x01\0\x50\0\0\0\x01me\0example.com\0",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\nUser-Agent: curl\r\n\r\n",
        b"GET http://example.com:8080/a?b HTTP/1.1\r\nHost: example.com:8080\r\nProxy-Connection: Keep-Alive\r\n\r\n",
        b"POST http://example.com/ HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
    ];
    let pieces: [&[u8]; 9] = [
        b"\0",
        b"\x05\x01\0",
        b"\xff",
        b"\r\n",
        b"http://",
        b"@",
        b"CONNECT ",
        b":443",
        b"Host: other\r\n",
    ];
    let mut numbers = Numbers(0xabcd_5678_9abc_def1);
    for round in 0..rounds() {
        let mut bytes = questions[round % questions.len()].to_vec();
        numbers.spoil(&mut bytes, &pieces);
        let cuts = numbers.cuts(bytes.len());
        assert_eq!(ask(&bytes, &cuts), ask(&bytes, &[bytes.len()]), "{bytes:02x?}");
    }
}
