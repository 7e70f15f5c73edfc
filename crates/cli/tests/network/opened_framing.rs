//! Connections that the gateway opens: where a message ends is read there as everybody reads it.

use crate::opened::{API, FLAGS, asked, inside};
use crate::world::world;

#[test]
fn n9_requests_cannot_be_smuggled_past_the_rules() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
HIDDEN = "GET /smuggled HTTP/1.1\r\nHost: api.opened.example.net\r\n\r\n"
BEFORE = "POST /v1/before HTTP/1.1\r\nHost: %s\r\nContent-Length: 3\r\n\r\nabc" % API
def send(head, body, before=""):
    """All that is answered until the other side hangs up."""
    with tunnel() as connection:
        connection.sendall(("%sPOST /v1/carrier HTTP/1.1\r\nHost: %s\r\n%s\r\n%s" % (before, API, head, body)).encode())
        answers = b""
        try:
            while read := connection.recv(1 << 16):
                answers += read
        except TimeoutError:
            raise AssertionError("it waits for more: %s" % answers)
        return answers.decode()

chunked = "Transfer-Encoding: chunked\r\n"
attempt("the control", send, "Content-Length: 3\r\nConnection: close\r\n", "abc", BEFORE)
attempt("an upgrade", send, "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings, close\r\nHTTP2-Settings: AAE\r\n"
        "Content-Length: %d\r\n" % len(HIDDEN), HIDDEN, BEFORE)
for name, head, body in [
    ("CL.TE", "Content-Length: %d\r\n%s" % (5 + len(HIDDEN), chunked), "0\r\n\r\n" + HIDDEN),
    ("TE.CL", "%sContent-Length: 4\r\n" % chunked, "%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN) + "X"),
    ("two lengths", "Content-Length: 0\r\nContent-Length: %d\r\n" % len(HIDDEN), HIDDEN + "X: "),
    ("the same length twice", "Content-Length: 0\r\n" * 2, HIDDEN),
    ("a list of lengths", "Content-Length: 0, %d\r\n" % len(HIDDEN), HIDDEN),
    ("a signed length", "Content-Length: +%d\r\n" % len(HIDDEN), HIDDEN),
    ("another coding", "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n" + HIDDEN),
    ("two codings", chunked + chunked, "0\r\n\r\n" + HIDDEN),
    ("a coding in tabs", "Transfer-Encoding:\tchunked\x0b\r\n", "0\r\n\r\n" + HIDDEN),
    ("a bare line feed", "X: y\nContent-Length: %d\r\n" % len(HIDDEN), HIDDEN),
    ("a folded line", "X: y\r\n Content-Length: %d\r\n" % len(HIDDEN), HIDDEN),
    ("a named length", "Connection: Content-Length\r\nContent-Length: %d\r\n" % len(HIDDEN), HIDDEN),
    ("a chunk's extension", chunked, "0;\n\r\n" + HIDDEN),
    ("a chunk's length", chunked, "0x0\r\n\r\n" + HIDDEN),
    ("a chunk's line feed", chunked, "1\nA\r\n0\r\n\r\n" + HIDDEN),
    ("a length behind the body", chunked, "0\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN),
]:
    attempt("refused: " + name, send, head, body, BEFORE)
"#,
    );
    seen.all_done();
    assert_eq!(asked(world, "smuggled").len(), 0);
    let mut refusals = 0;
    for name in seen.names() {
        let answers = seen.done(name);
        let count = |status: &str| answers.matches(&format!("HTTP/1.1 {status} ")).count();
        if name.starts_with("refused: ") {
            // What came before was answered, and what follows was not even read.
            assert_eq!((count("200"), count("403")), (1, 1), "{name}: {answers}");
            assert!(
                answers.contains("is ambiguous: ") && answers.contains("hint: "),
                "{name}: {answers}"
            );
            refusals += 1;
        } else {
            assert_eq!((count("200"), count("403")), (2, 0), "{name}: {answers}");
        }
    }
    assert_eq!(refusals, 16);
    let connections = seen.connections(API);
    let refused = connections.iter().filter(|one| one["verdict"] == "refused");
    let reasons: Vec<&str> = refused.map(|one| one["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), refusals, "{connections:#?}");
    assert!(
        reasons.iter().all(|reason| reason.contains("is ambiguous: ")),
        "{reasons:#?}"
    );
    for entry in asked(world, "carrier") {
        let fields = entry["fields"].as_array().unwrap();
        let count = |wanted: &str| fields.iter().filter(|field| field[0] == wanted).count();
        assert_eq!(count("content-length") + count("transfer-encoding"), 1, "{entry:#}");
        assert_eq!(count("upgrade") + count("http2-settings"), 0, "{entry:#}");
    }
}

#[test]
fn n9_no_request_hides_in_a_body_that_a_server_may_leave_unread() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &["--allow-method", "* api.opened.example.net/v1/*"],
        r#"
HIDDEN = b"POST /hidden HTTP/1.1\r\nHost: api.opened.example.net\r\n\r\n"
attempt("the control", fetch, "/v1/hiding-control", "POST", body=HIDDEN)
attempt("no body", fetch, "/v1/hiding-control", body=b"")
for method in ["GET", "OPTIONS"]:
    attempt("refused: " + method, refused, "/v1/hiding-it", method, body=HIDDEN)
"#,
    );
    seen.all_done();
    assert_eq!(asked(world, "hiding-control").len(), 2);
    assert_eq!(asked(world, "hiding-it").len() + asked(world, "hidden").len(), 0);
    let refused: Vec<_> = seen
        .connections(API)
        .iter()
        .map(|one| one["requests"][0].clone())
        .filter(|request| request["verdict"] == "refused")
        .collect();
    assert_eq!(refused.len(), 2, "{refused:#?}");
    for request in &refused {
        assert_eq!(request["status"], 403, "{request:#}");
        assert!(
            request["reason"].as_str().unwrap().contains("has a body"),
            "{request:#}"
        );
    }
    for name in seen.names().filter(|name| name.starts_with("refused: ")) {
        assert!(seen.done(name).contains("hint: "), "{}", seen.done(name));
    }
}

#[test]
fn n9_answers_that_two_clients_would_read_differently_are_not_sent_on() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
def ask(kind):
    """The whole of what is answered, with what is answered to the next request on the connection."""
    with tunnel() as connection:
        head = " HTTP/1.1\r\nHost: %s\r\n" % API
        connection.sendall(("GET /v1/ambiguous/" + kind + head + "\r\n"
                            "GET /v1/after-" + kind + head + "Connection: close\r\n\r\n").encode())
        answers = b""
        while read := connection.recv(1 << 16):
            answers += read
        return answers.decode()

for kind in ["CL.TE", "TE.CL", "lengths", "list", "coding", "folded", "space", "lines", "again"]:
    attempt(kind, ask, kind)
"#,
    );
    seen.all_done();
    for name in seen.names() {
        let answers = seen.done(name);
        let (first, second) = answers.split_once("HTTP/1.1 200 OK\r\n").unwrap();
        if ["lines", "again"].contains(&name) {
            // They are read in one way by everybody, and are written as they should have been.
            let (plain, second) = second.split_once("HTTP/1.1 200 OK\r\n").unwrap();
            assert_eq!(first, "");
            assert_eq!(plain, "content-length: 5\r\n\r\nplain", "{name}");
            assert!(second.contains("/v1/after-"), "{name}: {second}");
        } else {
            assert!(first.starts_with("HTTP/1.1 502 "), "{name}: {answers}");
            assert!(second.contains("/v1/after-"), "{name}: {answers}");
            assert!(!answers.contains("smuggled"), "{name}: {answers}");
        }
    }
    for connection in seen.connections(API) {
        assert_eq!(connection["requests"][1]["status"], 200, "{connection:#}");
    }
}
