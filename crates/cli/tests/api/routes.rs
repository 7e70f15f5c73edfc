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
        // What is at a path of a volume, and a template, is changed by the usual one.
        let other = match route.path {
            path if path.contains("/files/") => "POST",
            path if path.ends_with("/path") || path.contains("templates") => "PUT",
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
        let is_of_code = of_code.iter().any(|part| route.path.contains(part));
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
