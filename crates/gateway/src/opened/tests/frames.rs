//! What no library for HTTP/2 would send: frames by hand.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::journal_entries::Outcome;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// Flags of those.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Codes of errors.
const PROTOCOL_ERROR: u32 = 1;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;
/// The setting by which a server takes `:protocol` (RFC 8441, section 3).
const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// `:status: 200` in the table of HPACK.
const OK: u8 = 0x88;

/// How long anything may take that should come at once.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs a test that must not hang.
fn in_time(test: impl Future<Output = ()>) {
    run(async { tokio::time::timeout(TIMEOUT * 3, test).await.unwrap() });
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A request of fields that are written out; its body follows unless `flags` say that there is none.
fn request(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        // A literal that is not indexed (RFC 7541, 6.2.2).
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

fn get(setting: &Setting, stream: u32) -> Vec<u8> {
    asking(setting, stream, END_STREAM, "GET")
}

/// A request whose answer waits for the end of a body.
fn waiting(setting: &Setting, stream: u32) -> Vec<u8> {
    asking(setting, stream, 0, "POST")
}

fn asking(setting: &Setting, stream: u32, flags: u8, method: &str) -> Vec<u8> {
    let authority = format!("127.0.0.1:{}", setting.port);
    request(
        stream,
        flags,
        &[
            (":method", method),
            (":scheme", "https"),
            (":authority", &authority),
            (":path", "/v1/x"),
        ],
    )
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// A connection on which both sides have begun.
async fn begun(setting: &Setting) -> TlsStream<TcpStream> {
    let mut stream = setting.stream(HTTP2).await;
    stream.write_all(PREFACE).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    stream
}

/// The next frame; `None` when the other side has hung up.
async fn next(stream: &mut TlsStream<TcpStream>) -> Option<Frame> {
    let read = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.ok()?;
        Some(Frame {
            kind: head[3],
            stream: u32::from_be_bytes(head[5..].try_into().unwrap()),
            payload,
        })
    };
    tokio::time::timeout(TIMEOUT, read).await.unwrap()
}

/// The first frame of these kinds.
async fn first(stream: &mut TlsStream<TcpStream>, kinds: &[u8]) -> Option<Frame> {
    loop {
        match next(stream).await {
            Some(frame) if !kinds.contains(&frame.kind) => {}
            found => return found,
        }
    }
}

async fn assert_answered(setting: &Setting) {
    let mut stream = begun(setting).await;
    stream.write_all(&get(setting, 1)).await.unwrap();
    let answer = first(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
    assert_eq!(
        (answer.kind, answer.payload.first()),
        (HEADERS, Some(&OK)),
        "{answer:?}"
    );
}

/// CVE-2023-44487: streams that are taken back as soon as they were asked for, all in one go.
#[test]
fn n12_rapid_resets_end_a_connection_before_their_requests_reach_a_server() {
    in_time(async {
        let setting = Setting::new(HTTP2, usize::MAX, 0).await;
        let mut stream = begun(&setting).await;
        // Fewer than are too many, and the one behind them is answered.
        let few: Vec<u8> = (0..10)
            .flat_map(|number| [get(&setting, 1 + 2 * number), reset(1 + 2 * number)].concat())
            .chain(get(&setting, 21))
            .collect();
        stream.write_all(&few).await.unwrap();
        let answer = first(&mut stream, &[HEADERS, GOAWAY]).await.unwrap();
        assert_eq!((answer.kind, answer.stream), (HEADERS, 21), "the control: {answer:?}");
        let met_before = setting.met.requests.get();
        let flood: Vec<u8> = (11..5_000)
            .flat_map(|number| [get(&setting, 1 + 2 * number), reset(1 + 2 * number)].concat())
            .collect();
        // It may hang up before all of it was written.
        let _ = stream.write_all(&flood).await;
        let end = first(&mut stream, &[GOAWAY]).await;
        if let Some(end) = end {
            assert_eq!(end.code(), ENHANCE_YOUR_CALM, "{end:?}");
        }
        while next(&mut stream).await.is_some() {}
        assert!(setting.met.requests.get() - met_before <= 200, "{:?}", setting.met);
        assert!(setting.told().len() <= 400, "{}", setting.told().len());
        assert_answered(&setting).await;
    });
}

/// The same, each taken back only when its request has reached the server: it is taken back there, too.
#[test]
fn n12_resets_of_requests_that_are_on_their_way_never_add_up() {
    in_time(async {
        let setting = Setting::new(HTTP2, usize::MAX, 0).await;
        let mut stream = begun(&setting).await;
        for number in 0..500 {
            stream.write_all(&waiting(&setting, 1 + 2 * number)).await.unwrap();
            let met = usize::try_from(number).unwrap() + 1;
            // The control: each of them does reach the server.
            while setting.met.requests.get() < met {
                tokio::time::sleep(std::time::Duration::from_micros(200)).await;
            }
            stream.write_all(&reset(1 + 2 * number)).await.unwrap();
        }
        assert_eq!(setting.met.connections.get(), 1, "{:?}", setting.met);
        assert!(setting.met.most_answering.get() <= 100, "{:?}", setting.met);
        assert_answered(&setting).await;
        drop(stream);
        // What was taken back is not being answered for ever.
        while setting.met.answering.get() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn connect_in_either_form_leads_nowhere() {
    in_time(async {
        let setting = Setting::new(HTTP2, usize::MAX, 0).await;
        let authority = format!("127.0.0.1:{}", setting.port);
        let mut stream = begun(&setting).await;
        let settings = first(&mut stream, &[SETTINGS]).await.unwrap();
        for setting in settings.payload.chunks(6) {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            assert_ne!(name, ENABLE_CONNECT_PROTOCOL, "{settings:?}");
        }
        let extended = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", authority.as_str()),
            (":path", "/v1/socket"),
            ("sec-websocket-version", "13"),
        ];
        stream.write_all(&request(1, END_STREAM, &extended)).await.unwrap();
        let answer = first(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
        assert_eq!((answer.kind, answer.stream), (RST_STREAM, 1), "{answer:?}");
        assert_eq!(answer.code(), PROTOCOL_ERROR);
        // The form that every server knows is refused as a request.
        let plain = [(":method", "CONNECT"), (":authority", authority.as_str())];
        stream.write_all(&request(3, END_STREAM, &plain)).await.unwrap();
        let answer = first(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
        assert!(answer.payload.first() != Some(&OK), "{answer:?}");
        for told in setting.told() {
            assert!(matches!(told.outcome, Outcome::Refused(_)), "{told:?}");
        }
        assert_eq!(setting.met.requests.get(), 0);
        assert_eq!(setting.met.connections.get(), 0);
        assert_answered(&setting).await;
    });
}

/// What HTTP/1.1 has for the length of a body and for a connection means nothing here, and a server behind another
/// gateway may read it all the same (RFC 9113, sections 8.1.1 and 8.2.2).
#[test]
fn n9_what_could_become_another_request_of_http_1_is_refused() {
    const BODY: &[u8] = b"GET /v1/smuggled HTTP/1.1\r\n\r\n";
    for outside in [HTTP1, HTTP2] {
        in_time(async {
            let setting = Setting::new(outside, usize::MAX, 0).await;
            let authority = format!("127.0.0.1:{}", setting.port);
            let length = BODY.len().to_string();
            let ask = async |fields: &[(&str, &str)], body: &[u8]| {
                let mut all = vec![
                    (":method", "POST"),
                    (":scheme", "https"),
                    (":authority", authority.as_str()),
                    (":path", "/v1/x"),
                ];
                all.extend(fields);
                let mut stream = begun(&setting).await;
                stream.write_all(&request(1, 0, &all)).await.unwrap();
                // It may have hung up.
                let _ = stream.write_all(&frame(DATA, END_STREAM, 1, body)).await;
                first(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap()
            };
            for fields in [&[][..], &[("content-length", length.as_str())], &[("te", "trailers")]] {
                let answer = ask(fields, BODY).await;
                assert_eq!(
                    (answer.kind, answer.payload.first()),
                    (HEADERS, Some(&OK)),
                    "the control: {answer:?}"
                );
            }
            for (name, value) in [
                ("content-length", "0"),
                ("content-length", "5"),
                ("content-length", "500"),
                ("content-length", "-1"),
                ("content-length", "0, 5"),
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "identity"),
                ("connection", "close"),
                ("connection", "content-length"),
                ("proxy-connection", "keep-alive"),
                ("keep-alive", "timeout=5"),
                ("upgrade", "websocket"),
                ("te", "chunked"),
                ("Content-Length", &length),
                ("content_length", &length),
                ("transfer_encoding", "chunked"),
                ("host", "other.example"),
                ("x", "y\r\nContent-Length: 5"),
                ("x\r\ncontent-length", "5"),
                ("x:y", "z"),
            ] {
                let answer = ask(&[(name, value)], BODY).await;
                let is_passed = answer.kind == HEADERS && answer.payload.first() == Some(&OK);
                assert!(!is_passed, "{name}: {value}: {answer:?}");
                let answer = ask(&[("content-length", &length), (name, value)], BODY).await;
                let is_passed = answer.kind == HEADERS && answer.payload.first() == Some(&OK);
                assert!(!is_passed, "twice: {name}: {value}: {answer:?}");
            }
            // The same length twice is one too many.
            let answer = ask(&[("content-length", &length), ("content-length", &length)], BODY).await;
            assert!(answer.payload.first() != Some(&OK), "{answer:?}");
            assert!(setting.told().iter().all(|told| told.path == "/v1/x"));
            assert_answered(&setting).await;
        });
    }
}

/// A body of which HTTP/2 says no length would become chunks behind a `GET` of HTTP/1.1.
#[test]
fn n9_a_body_behind_a_get_is_refused_where_requests_are_judged() {
    for outside in [HTTP1, HTTP2] {
        in_time(async {
            let judged = Setting::new(outside, usize::MAX, 0).await;
            let plain = Setting::without_rule(outside).await;
            for (method, means_nothing) in [
                ("POST", false),
                ("GET", true),
                ("DELETE", false),
                ("OPTIONS", true),
                ("HEAD", true),
            ] {
                for (setting, is_judged) in [(&judged, true), (&plain, false)] {
                    let met = setting.met.requests.get();
                    let mut stream = begun(setting).await;
                    stream.write_all(&asking(setting, 1, 0, method)).await.unwrap();
                    // It may have been refused already.
                    let _ = stream
                        .write_all(&frame(DATA, END_STREAM, 1, b"POST /forbidden HTTP/1.1\r\n\r\n"))
                        .await;
                    let answer = first(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
                    assert_eq!((answer.kind, answer.stream), (HEADERS, 1), "{method}: {answer:?}");
                    let passes = !(means_nothing && is_judged);
                    assert_eq!(answer.payload.first() == Some(&OK), passes, "{method}: {answer:?}");
                    assert_eq!(setting.met.requests.get() - met, usize::from(passes), "{method}");
                    let told = setting.told().pop().unwrap();
                    let says_why = matches!(&told.outcome, Outcome::Refused(why) if why.contains("has a body"));
                    assert_eq!(says_why, !passes, "{told:?}");
                }
            }
            assert_answered(&judged).await;
        });
    }
}

/// What HTTP/1.1 has in its first line and of fields is the same for a request that comes in HTTP/2.
#[test]
fn n9_methods_targets_and_fields_are_those_of_http_1() {
    for outside in [HTTP1, HTTP2] {
        in_time(async {
            let setting = Setting::without_rule(outside).await;
            let authority = format!("127.0.0.1:{}", setting.port);
            let ask = async |method: &str, path: &str, more: &[(&str, &str)]| {
                let mut fields = vec![
                    (":method", method),
                    (":scheme", "https"),
                    (":authority", authority.as_str()),
                    (":path", path),
                ];
                fields.extend(more);
                let met = setting.met.requests.get();
                let mut stream = begun(&setting).await;
                stream.write_all(&request(1, END_STREAM, &fields)).await.unwrap();
                let answer = first(&mut stream, &[HEADERS, RST_STREAM, GOAWAY]).await.unwrap();
                let passes = answer.kind == HEADERS && answer.payload.first() == Some(&OK);
                assert_eq!(setting.met.requests.get() - met, usize::from(passes), "{method} {path}");
                passes
            };
            let cookies = [("cookie", "a=1"); 150];
            for (method, path, more) in [
                ("GET", "/any/x?y={z}", &[][..]),
                ("PROPFIND", "/", &[]),
                ("VERSION-CONTROL", "/", &[]),
                ("GET", "/", &[("x", "y"); 80]),
                ("GET", "/", &cookies),
            ] {
                assert!(
                    ask(method, path, more).await,
                    "the control: {method} {path}: {}",
                    more.len()
                );
            }
            let long = "M".repeat(33);
            for (method, path, why) in [
                ("get", "/", "a method that is not"),
                ("refused", "/", "a method that is not"),
                ("G!#$", "/", "a method that is not"),
                (long.as_str(), "/", "a method that is not"),
                ("GET", "/v1\\x", "a malformed request target"),
                ("GET", "/v1/\u{e9}", "a malformed request target"),
                ("GET", "?x", "a malformed request target"),
                ("GET", "*", "a malformed request target"),
            ] {
                assert!(!ask(method, path, &[]).await, "{method} {path}");
                let told = setting.told().pop().unwrap();
                let says_why = matches!(&told.outcome, Outcome::Refused(reason) if reason.contains(why));
                assert!(says_why, "{method} {path}: {told:?}");
            }
            assert!(!ask("GET", "/", &[("x", "y"); 100]).await);
            let told = setting.told().pop().unwrap();
            let says_why = matches!(&told.outcome, Outcome::Refused(reason) if reason.contains("more than 100 fields"));
            assert!(says_why, "{told:?}");
        });
    }
}
