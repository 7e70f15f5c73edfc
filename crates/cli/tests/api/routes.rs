//! The table of routes, as it is kept to: who may call each, by which method, and with how large a body.

use std::io::{Read as _, Write as _};

use offleash_api::{RouteSummary, route_summaries};

use crate::client::{ask, connect};
use crate::server::{Server, WITHOUT_BROWSER};

/// A request of a route, for things that nobody has.
pub(crate) fn line(route: &RouteSummary) -> String {
    let given = |segment: &str| match segment.strip_prefix('{') {
        Some(_) => "i1".to_owned(),
        None => segment.to_owned(),
    };
    let path: Vec<String> = route.path.split('/').map(given).collect();
    format!("{} {}", route.method, path.join("/"))
}

/// The routes that ask for a key, and the scope that each asks for.
pub(crate) fn keyed() -> Vec<(&'static str, RouteSummary)> {
    let all = route_summaries().into_iter();
    let keyed: Vec<_> = all.filter_map(|route| Some((route.scope?, route))).collect();
    assert!(keyed.len() > 50, "{}", keyed.len());
    keyed
}

#[test]
fn what_needs_no_key_is_the_document_alone() {
    let server = Server::start();
    let open: Vec<_> = route_summaries()
        .into_iter()
        .filter(|route| route.scope.is_none() && route.token.is_none())
        .collect();
    let lines: Vec<_> = open.iter().map(line).collect();
    assert_eq!(lines, ["GET /v1/openapi.json"]);
    assert_eq!(ask(server.address, &lines[0], &[], "").status, 200);
}

#[test]
fn every_route_is_answered_by_its_method_and_no_other() {
    let server = Server::start_with(WITHOUT_BROWSER, &[]);
    let key = server.key(&["--scope", "admin"]);
    let all = route_summaries();
    for route in &all {
        let line = line(route);
        let answer = server.ask(&key, &line, "");
        assert_ne!(answer.status, 405, "{line}: {answer:?}");
        assert!(!answer.body.contains("no such route"), "{line}: {answer:?}");
        // What begins as paths of templates do is told that more of that is not there, whatever the method.
        let expected = if route.path.starts_with("/templates") { 501 } else { 405 };
        let path = line.split_once(' ').unwrap().1;
        // What is at a path of a volume, a template and a webhook are changed by the usual one.
        let other = match route.path {
            path if path.starts_with("/templates") && path.contains("/files/") => "POST",
            path if path.ends_with("/path") || path.contains("templates") || path.contains("webhooks") => "PUT",
            _ => "PATCH",
        };
        server
            .ask(&key, &format!("{other} {path}"), "")
            .assert_refused(expected);
    }
}

#[test]
fn a9_a_body_is_as_large_as_its_route_lets_it_be() {
    let server = Server::start();
    let key = server.key(&["--scope", "admin"]);
    for route in route_summaries() {
        let Some(max_body) = route.max_body else { continue };
        // It is refused for what it announces, before any of it is there; where code is run or waits for an answer, the sandbox is
        // looked for first.
        let of_code = ["}/contexts", "/execute", "/tools/calls/"];
        let is_of_code = route.path.starts_with("/v1/") && of_code.iter().any(|part| route.path.contains(part));
        let expected = match (is_of_code, route.token) {
            (true, _) => 404,
            // No body is looked at before the token.
            (_, Some("volume")) => 401,
            (_, Some(_)) => 403,
            _ => 413,
        };
        let length = max_body + 1;
        let mut stream = connect(server.address);
        write!(
            stream,
            "{} HTTP/1.1\r\nHost: {}\r\nX-API-KEY: {key}\r\nContent-Length: {length}\r\n\r\n",
            line(&route),
            server.address
        )
        .unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&status),
            format!("HTTP/1.1 {expected}"),
            "{route:?}"
        );
    }
}

#[test]
fn a_key_registers_webhooks_as_e2b_has_them_and_their_secrets_are_told_to_nobody() {
    let mut server = Server::start();
    let (key, other, reader) = (server.key(&[]), server.key(&[]), server.key(&["--scope", "read"]));
    let webhook = serde_json::json!({
        "name": "mine",
        "url": "https://hooks.example/e2b?tenant=a",
        "enabled": true,
        "events": ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"],
        "signatureSecret": "a-secret-of-somebody",
    });
    let made = server.ask(&key, "POST /events/webhooks", &webhook.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    let shown = made.json();
    let at = format!("/events/webhooks/{}", shown["id"].as_str().unwrap());
    for field in ["name", "url", "enabled", "events"] {
        assert_eq!(shown[field], webhook[field], "{field}");
    }
    assert!(shown["createdAt"].is_string() && shown["teamID"].is_string(), "{shown}");
    let get = |key: &str, at: &str| server.ask(key, &format!("GET {at}"), "");
    assert_eq!(get(&key, &at).json(), shown);
    assert_eq!(get(&key, "/events/webhooks").json(), serde_json::json!([shown]));
    // Others have none, and who reads makes none.
    get(&other, &at).assert_refused(404);
    assert_eq!(get(&other, "/events/webhooks").json(), serde_json::json!([]));
    for line in [format!("PATCH {at}"), format!("DELETE {at}")] {
        server.ask(&other, &line, "{}").assert_refused(404);
        server.ask(&reader, &line, "{}").assert_refused(403);
    }
    server
        .ask(&reader, "POST /events/webhooks", &webhook.to_string())
        .assert_refused(403);
    for (field, wrong) in [
        ("url", serde_json::json!("http://127.0.0.1:3000/")),
        ("url", serde_json::json!("https://10.0.0.1/")),
        ("events", serde_json::json!(["sandbox.lifecycle.checkpointed"])),
        ("signatureSecret", serde_json::json!("short")),
    ] {
        let mut webhook = webhook.clone();
        webhook[field] = wrong;
        server
            .ask(&key, "POST /events/webhooks", &webhook.to_string())
            .assert_refused(400);
        let change = serde_json::json!({ field: webhook[field] }).to_string();
        server.ask(&key, &format!("PATCH {at}"), &change).assert_refused(400);
    }
    let changed = server.ask(
        &key,
        &format!("PATCH {at}"),
        r#"{"enabled": false, "url": "https://hooks.example/"}"#,
    );
    assert_eq!(
        (changed.status, &changed.json()["enabled"]),
        (200, &serde_json::json!(false)),
        "{changed:?}"
    );
    for _ in 1..10 {
        assert_eq!(
            server.ask(&key, "POST /events/webhooks", &webhook.to_string()).status,
            201
        );
    }
    server
        .ask(&key, "POST /events/webhooks", &webhook.to_string())
        .assert_refused(429);
    assert_eq!(server.ask(&key, &format!("DELETE {at}"), "").status, 200);
    get(&key, &at).assert_refused(404);
    let (_, said) = server.end();
    assert!(!said.contains("a-secret-of-somebody"), "{said}");
}
