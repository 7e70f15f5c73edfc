//! What no library for HTTP/1.1 would send, or answer: requests and answers by hand.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::journal_entries::Outcome;

/// How long anything may take that should come at once.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Sends parts of bytes, each when the one before was taken, and takes all that is answered until the other side hangs up.
async fn said(setting: &Setting, parts: impl IntoIterator<Item = Vec<u8>>) -> String {
    let said = async {
        let mut stream = setting.stream(HTTP1).await;
        for part in parts {
            // It may have hung up before all of it was written.
            if stream.write_all(&part).await.is_err() || stream.flush().await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers).await;
        String::from_utf8(answers).unwrap()
    };
    tokio::time::timeout(TIMEOUT, said).await.unwrap()
}

/// The statuses of answers.
fn statuses(answers: &str) -> Vec<&str> {
    let beginnings = answers.match_indices("HTTP/1.1 ");
    let words = beginnings.map(|(at, _)| &answers[at + 9..at + 12]);
    words.filter(|word| word.parse::<u16>().is_ok()).collect()
}

fn request(setting: &Setting, line: &str, rest: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{rest}", setting.port)
}

/// Bytes in one piece, in two, and one by one.
fn cuts(bytes: &str) -> Vec<Vec<Vec<u8>>> {
    let (first, second) = bytes.as_bytes().split_at(bytes.len() / 2);
    vec![
        vec![bytes.into()],
        vec![first.into(), second.into()],
        bytes.bytes().map(|byte| vec![byte]).collect(),
    ]
}

const HIDDEN: &str = "GET /v1/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

/// Behind a first line and `Host`: what is refused, and the words that tell why.
const REFUSED_HEADS: [(&str, &str); 15] = [
    (
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "both `Content-Length` and",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "both `Content-Length` and",
    ),
    (
        "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "`content-length` twice",
    ),
    ("Content-Length: 0, 0\r\n\r\n", "a malformed `Content-Length`"),
    ("Content-Length: 00\r\n\r\n", "a malformed `Content-Length`"),
    (
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "a `Transfer-Encoding` other",
    ),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "`transfer-encoding` twice",
    ),
    ("Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", "unusual space around"),
    ("X: y\n\r\n", "an LF without CR"),
    ("X: y\r\n\n", "an LF without CR"),
    ("X: y\r\n z\r\n\r\n", "a folded line"),
    ("X : y\r\n\r\n", "a malformed field name"),
    ("Host: other.example\r\n\r\n", "`host` twice"),
    ("Connection: Content-Length\r\n\r\n", "a `Connection` that names"),
    ("Content_Length: 5\r\n\r\n", "imitates `content-length`"),
];

#[test]
fn n9_a_request_that_could_be_read_in_two_ways_is_refused_and_what_follows_it() {
    run(async {
        let setting = Setting::new(HTTP1, usize::MAX, 0).await;
        for (rest, why) in REFUSED_HEADS {
            let refused = request(&setting, "POST /v1/carrier", rest) + HIDDEN;
            let before = request(&setting, "POST /v1/before", "Content-Length: 3\r\n\r\nabc");
            for (bytes, expected) in [
                (refused.clone(), &["403"][..]),
                (before.clone() + &refused, &["200", "403"]),
                (before.repeat(2) + &refused, &["200", "200", "403"]),
            ] {
                let met = setting.met.requests.get();
                for cut in cuts(&bytes) {
                    let answers = said(&setting, cut).await;
                    assert_eq!(statuses(&answers), expected, "{bytes:?}: {answers}");
                    assert!(answers.contains("offleash: its request is ambiguous: "), "{answers}");
                    assert!(
                        answers.contains(why) && answers.contains("\nhint: "),
                        "{why}: {answers}"
                    );
                    assert!(answers.contains("connection: close\r\n"), "{answers}");
                }
                // The server has met those that are answered by it, and no other.
                assert_eq!(setting.met.requests.get() - met, 3 * (expected.len() - 1), "{bytes:?}");
            }
        }
        for told in setting.told() {
            assert_eq!((told.path.as_str(), told.status), ("/v1/before", Some(200)), "{told:?}");
        }
    });
}

#[test]
fn n9_what_is_no_http_1_is_refused() {
    run(async {
        let setting = Setting::new(HTTP1, usize::MAX, 0).await;
        for (bytes, why) in [
            ("\r\nGET /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "it is not HTTP"),
            ("GET /v1/x\r\n", "it is not HTTP"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "a version that is neither"),
            ("get /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "a method that is not"),
            // What stands for a refused request is one that no client can make.
            (
                "refused /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                "a method that is not",
            ),
        ] {
            let answers = said(&setting, [bytes.into()]).await;
            assert_eq!(statuses(&answers), ["403"], "{bytes:?}: {answers}");
            assert!(answers.contains(why), "{bytes:?}: {answers}");
        }
        assert_eq!(setting.met.connections.get(), 0);
    });
}

#[test]
fn n9_a_body_that_could_be_read_in_two_ways_breaks_off() {
    for protocol in [HTTP1, HTTP2] {
        run(async {
            let setting = Setting::new(protocol, usize::MAX, 0).await;
            let head = request(&setting, "POST /v1/carrier", "Transfer-Encoding: chunked\r\n\r\n");
            let good = said(
                &setting,
                [format!(
                    "{head}1\r\na\r\n0\r\n\r\n{}",
                    request(&setting, "GET /v1/last", "Connection: close\r\n\r\n")
                )
                .into()],
            );
            assert_eq!(statuses(&good.await), ["200", "200"], "the control");
            for (body, why) in [
                ("1;x=y\r\na\r\n0\r\n\r\n", "an extension of a chunk"),
                ("1\na\r\n0\r\n\r\n", "a malformed end of a line"),
                ("1\r\na\n0\r\n\r\n", "a malformed end of a line"),
                ("1\r\na\r\n0\r\n\n", "a malformed end of a line"),
                ("0x1\r\na\r\n0\r\n\r\n", "an extension of a chunk"),
                ("-1\r\na\r\n0\r\n\r\n", "not a hexadecimal number"),
                ("10000000000000000\r\na", "too large"),
                ("0\r\nContent-Length: 5\r\n\r\n", "a trailer that belongs in the head"),
            ] {
                let bytes = format!("{head}1\r\na\r\n{body}{HIDDEN}");
                for cut in cuts(&bytes) {
                    let answers = said(&setting, cut).await;
                    assert_eq!(statuses(&answers), ["403"], "{body:?}: {answers}");
                    assert!(answers.contains("the body of its request is ambiguous"), "{answers}");
                    assert!(
                        answers.contains(why) && answers.contains("\nhint: "),
                        "{body:?}: {answers}"
                    );
                    assert!(answers.contains("connection: close\r\n"), "{answers}");
                }
                let told = setting.told();
                let last = told.last().unwrap();
                assert_eq!((last.path.as_str(), last.status), ("/v1/carrier", Some(403)));
                assert!(
                    matches!(&last.outcome, Outcome::Refused(reason) if reason.contains(why)),
                    "{last:?}"
                );
            }
            assert!(setting.told().iter().all(|told| told.path != "/v1/smuggled"));
        });
    }
}

#[test]
fn a_client_waits_for_leave_to_send_its_body_and_goes_on() {
    run(async {
        let setting = Setting::new(HTTP1, usize::MAX, 0).await;
        let mut stream = setting.stream(HTTP1).await;
        for _ in 0..2 {
            let head = request(
                &setting,
                "POST /v1/x",
                "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n",
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut leave = [0; 25];
            stream.read_exact(&mut leave).await.unwrap();
            assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
            stream.write_all(b"abc").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"bytes=3 trailers=[]") {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
            }
        }
        stream.write_all(b"X\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(statuses(&answer), ["403"], "{answer}");
    });
}

/// A server of one connection: says `answer` to the first request on it, and then everything that it is sent.
async fn stubborn(internet: Arc<GatewayTrust>, answer: &'static str, met: Rc<Met>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let host: Host = "127.0.0.1".parse().unwrap();
    let config = authority::Leaves::new(internet).unwrap().config(&host).unwrap();
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![HTTP1.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    spawn_local(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let met = Rc::clone(&met);
            spawn_local(async move {
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut asked).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                met.heard.borrow_mut().extend(asked);
                let _ = stream.write_all(answer.as_bytes()).await;
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut piece).await {
                    met.heard.borrow_mut().extend(&piece[..length]);
                    if stream.write_all(&piece[..length]).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// A gateway before a server that says `answer`.
async fn before(answer: &'static str) -> Setting {
    let internet = Arc::new(GatewayTrust::with_roots(Vec::new()).unwrap());
    let root = internet.authority().der().clone();
    let met = Rc::<Met>::default();
    let port = stubborn(internet, answer, Rc::clone(&met)).await;
    gateway("* 127.0.0.1/v1/*", port, root, 0, met).await
}

#[test]
fn n9_what_follows_an_agreed_websocket_is_not_http() {
    run(async {
        let setting =
            before("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
        let ask = request(
            &setting,
            "GET /v1/socket",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        // What no request could hold, and more than is taken before it is answered.
        let early = "\n\0 no request\r".repeat(3_000);
        for cut in [
            vec![(ask.clone() + &early).into_bytes()],
            vec![ask.into(), early.clone().into()],
        ] {
            let mut stream = setting.stream(HTTP1).await;
            for part in cut {
                stream.write_all(&part).await.unwrap();
            }
            let mut answer = Vec::new();
            while answer.len() < early.len() || !answer.ends_with(early.as_bytes()) {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{answer:?}");
            }
            assert!(answer.starts_with(b"HTTP/1.1 101 "));
        }
    });
}

#[test]
fn n9_what_follows_a_declined_websocket_is_the_next_request() {
    run(async {
        let setting = Setting::new(HTTP1, usize::MAX, 0).await;
        let ask = request(
            &setting,
            "GET /v1/socket",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        let next = request(&setting, "GET /v1/next", "\r\n");
        let bad = request(&setting, "GET /v1/bad", "X: y\n\r\n");
        // Asked at once, when nothing waits, and twice.
        for (bytes, expected) in [
            (ask.clone() + &next + &bad, &["200", "200", "403"][..]),
            (ask.clone() + &ask + &next + &bad, &["200", "200", "200", "403"]),
            (ask + &bad, &["200", "403"]),
        ] {
            for cut in cuts(&bytes) {
                let answers = said(&setting, cut).await;
                assert_eq!(statuses(&answers), expected, "{bytes:?}: {answers}");
            }
        }
        // More than is taken before it is answered.
        let mut stream = setting.stream(HTTP1).await;
        let ask = request(
            &setting,
            "GET /v1/socket",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        let long = request(&setting, "GET /v1/long", &format!("X: {}\r\n\r\n", "y".repeat(40_000)));
        stream.write_all((ask + &long).as_bytes()).await.unwrap();
        let mut answers = Vec::new();
        while statuses(&String::from_utf8_lossy(&answers)) != ["200", "200"] {
            assert_ne!(stream.read_buf(&mut answers).await.unwrap(), 0);
        }
    });
}

#[test]
fn n9_what_follows_an_agreement_that_is_not_sent_on_is_the_next_request() {
    for answer in [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 01\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: another\r\n\r\n",
    ] {
        run(async {
            let setting = before(answer).await;
            let ask = request(
                &setting,
                "GET /v1/socket",
                "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            );
            let next = request(&setting, "GET /v1/next", "\r\n");
            let forbidden = request(&setting, "GET /forbidden", "Connection: close\r\n\r\n");
            for (bytes, expected) in [
                (ask.clone() + "\n\0 no request /forbidden", &["502", "403"][..]),
                (ask.clone() + &forbidden, &["502", "403"]),
                (ask.clone() + &next + &forbidden, &["502", "502", "403"]),
            ] {
                for cut in cuts(&bytes) {
                    let answers = said(&setting, cut).await;
                    assert_eq!(statuses(&answers), expected, "{answer:?}: {bytes:?}: {answers}");
                }
            }
            // One that hangs up instead of asking again has nothing carried either.
            let mut stream = setting.stream(HTTP1).await;
            stream.write_all((ask + "\n\0/forbidden").as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
            let heard = String::from_utf8(setting.met.heard.borrow().clone()).unwrap();
            assert!(heard.starts_with("GET /v1/socket HTTP/1.1\r\n"), "the control: {heard}");
            assert!(!heard.contains("forbidden"), "{answer:?}: {heard}");
        });
    }
}

#[test]
fn n9_a_body_that_a_server_may_leave_unread_is_refused_where_requests_are_judged() {
    for outside in [HTTP1, HTTP2] {
        run(async {
            let judged = Setting::new(outside, usize::MAX, 0).await;
            let plain = Setting::without_rule(outside).await;
            let length = format!("Content-Length: {}\r\n", HIDDEN.len());
            let chunk = format!("{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len());
            for (method, is_refused) in [
                ("GET", true),
                ("HEAD", true),
                ("DELETE", false),
                ("OPTIONS", true),
                ("POST", false),
                ("PROPFIND", false),
            ] {
                for (fields, body, is_empty) in [
                    ("", "", true),
                    ("Content-Length: 0\r\n", "", true),
                    (length.as_str(), HIDDEN, false),
                    ("Transfer-Encoding: chunked\r\n", chunk.as_str(), false),
                    ("Transfer-Encoding: chunked\r\n", "0\r\n\r\n", false),
                ] {
                    for (setting, is_judged) in [(&judged, true), (&plain, false)] {
                        let line = format!("{method} /v1/carrier");
                        let asked = request(setting, &line, &format!("{fields}Connection: close\r\n\r\n{body}"));
                        let met = setting.met.requests.get();
                        let answers = said(setting, [asked.clone().into()]).await;
                        let passes = !(is_refused && is_judged) || is_empty;
                        let expected = if passes { "200" } else { "403" };
                        assert_eq!(statuses(&answers), [expected], "{asked:?}: {answers}");
                        assert_eq!(setting.met.requests.get() - met, usize::from(passes), "{asked:?}");
                        let told = setting.told().pop().unwrap();
                        let says_why = matches!(&told.outcome, Outcome::Refused(why) if why.contains("has a body"));
                        assert_eq!(says_why, !passes, "{told:?}");
                    }
                }
            }
            assert!(judged.told().iter().all(|told| told.path == "/v1/carrier"));
        });
    }
}

#[test]
fn answers_that_could_be_read_in_two_ways_are_not_sent_on() {
    for (answer, why) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 299 Smuggled\r\n\r\n",
            "both `Content-Length` and `Transfer-Encoding`",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "a transfer coding other than `chunked`",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nabc",
            "a transfer coding other than `chunked`",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 05\r\n\r\nhello",
            "an ambiguous `Content-Length`",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "does not answer",
        ),
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "does not answer",
        ),
        ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", "does not answer"),
        ("HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nab", "does not answer"),
    ] {
        run(async {
            let setting = before(answer).await;
            for inside in [HTTP1, HTTP2] {
                let mut client = setting.client(inside).await;
                let (status, text) = client.ask(&setting, "GET", "/v1/x", 0).await;
                assert_eq!(status, 502, "{answer:?}: {text}");
                assert!(text.contains(why), "{answer:?}: {text}");
                let last = setting.told().pop().unwrap();
                assert_eq!(last.status, Some(502));
                assert!(matches!(last.outcome, Outcome::Failed(_)), "{last:?}");
            }
        });
    }
}

/// Lines that end with LF alone are read as lines; they are written with CR LF, and nothing else is made of them.
#[test]
fn answers_are_written_anew() {
    run(async {
        let setting = before("HTTP/1.1 200 OK\nContent-Length: 3\nContent-Length: 3\nX: y\n\nabc").await;
        let ask = request(&setting, "GET /v1/x", "Connection: close\r\n\r\n");
        let answer = said(&setting, [ask.into()]).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "abc");
        assert_eq!(head.matches('\n').count(), head.matches("\r\n").count(), "{head}");
        assert_eq!(head.matches("content-length: 3").count(), 1, "{head}");
    });
}
