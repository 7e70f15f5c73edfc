//! Ids that are none (A1, A7, A11).

use crate::client::{Answer, ask};
use crate::server::Server;

/// Segments of a path that no id is made of.
const BAD: [&str; 14] = [
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2fetc",
    "%00",
    "i1%00",
    "i%0d%0aX:%20y",
    "I1",
    "-",
    "i1-x",
    "%c3%a9",
    "%ff",
    "*",
    "%1b%5d52;c;eA%07",
];

#[test]
fn a1_what_is_no_id_names_no_sandbox() {
    let server = Server::start();
    let key = server.key(&[]);
    let long = "i".repeat(4096);
    for id in BAD.iter().copied().chain([long.as_str()]) {
        for route in [
            format!("GET /sandboxes/{id}"),
            format!("DELETE /sandboxes/{id}"),
            format!("GET /sandboxes/{id}/metrics"),
            format!("GET /v1/sandboxes/{id}"),
            format!("GET /v1/sandboxes/{id}/changes"),
            format!("GET /events/sandboxes/{id}"),
        ] {
            server.ask(&key, &route, "").assert_refused(404);
        }
        server
            .ask(&key, &format!("POST /sandboxes/{id}/pause"), "{}")
            .assert_refused(404);
        server
            .ask(&key, &format!("GET /_port/{id}/80/"), "")
            .assert_refused(400);
    }
    server.ask(&key, "GET /sandboxes/a/b", "").assert_refused(404);
    server.ask(&key, "GET /sandboxes/", "").assert_refused(404);
}

#[test]
fn a7_headers_name_one_sandbox_or_none() {
    let server = Server::start();
    let ask_for = |head: &[(&str, &str)]| -> Answer { ask(server.address, "GET /health", head, "") };
    for id in ["", "../x", "i1 i2", "i1,i2", "I1", "é"] {
        ask_for(&[("E2b-Sandbox-Id", id)]).assert_refused(400);
    }
    for port in ["", "0", "-1", "65536", "80x", "+80", "8 0"] {
        ask_for(&[("E2b-Sandbox-Id", "i1"), ("E2b-Sandbox-Port", port)]).assert_refused(400);
    }
    ask_for(&[("E2b-Sandbox-Id", "i1"), ("E2b-Sandbox-Id", "i2")]).assert_refused(400);
}

#[test]
fn a7_a_guessed_id_is_as_good_as_none() {
    let server = Server::start();
    let guessed = "i0123456789abcdefghi";
    for head in [
        vec![("E2b-Sandbox-Id", guessed)],
        vec![("E2b-Sandbox-Id", guessed), ("E2b-Sandbox-Port", "8000")],
    ] {
        let answer = ask(server.address, "GET /health", &head, "");
        assert_eq!(answer.status, 502);
        let body = answer.json();
        assert_eq!(body["code"], 502);
        assert_eq!(body["sandboxId"], guessed);
        assert_eq!(body["message"], "The sandbox was not found");
        answer.assert_silent();
    }
}

#[test]
fn a11_the_log_is_one_line_for_each_request() {
    let mut server = Server::start_with(crate::server::QUIET, &["--log", "requests"]);
    let key = server.key(&[]);
    server.ask(&key, "GET /sandboxes/%1b%5d0;x%07?secret=1", "");
    ask(server.address, "GET /\u{9b}2J\u{202e}", &[("X-API-KEY", &key)], "");
    let (_, log) = server.end();
    assert!(!log.contains(&key) && !log.contains("secret"), "{log}");
    assert!(
        !log.chars().any(|character| character.is_control() && character != '\n'),
        "{log:?}"
    );
    assert!(!log.contains('\u{202e}'), "{log:?}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["at_ms"].is_u64(), "{line}");
    }
}
