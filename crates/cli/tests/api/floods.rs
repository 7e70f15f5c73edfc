//! More clients than there is room for, and clients that go away (A10).

use std::io::Write as _;
use std::net::TcpStream;

use crate::client::{ask, connect, parse, read_all};
use crate::server::{QUIET, Server};
use crate::support::processes::eventually;

#[test]
fn a10_clients_that_are_too_many_are_told_so() {
    let server = Server::start_with(&format!("max_connections = 3\n{QUIET}"), &[]);
    let held: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = connect(server.address);
            // The answer says that it has its place.
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let mut seen = [0; 12];
            std::io::Read::read_exact(&mut stream, &mut seen).unwrap();
            stream
        })
        .collect();
    let mut stream = connect(server.address);
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    parse(&read_all(&mut stream)).assert_refused(503);
    drop(held);
    eventually("room for another client", || {
        let mut stream = connect(server.address);
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .ok()?;
        read_all(&mut stream).starts_with("HTTP/1.1 204").then_some(())
    });
}

#[test]
fn a10_clients_that_go_away_leave_nothing() {
    let server = Server::start();
    let key = server.key(&[]);
    for piece in [
        "G",
        "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\n",
        "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        "\u{16}\u{3}\u{1}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        for _ in 0..20 {
            connect(server.address).write_all(piece.as_bytes()).unwrap();
        }
    }
    let open = eventually("the end of every other connection", || {
        let page = ask(server.address, "GET /metrics", &[], "").body;
        page.contains("offleash_http_connections 1\n").then_some(page)
    });
    assert!(open.contains("offleash_sandboxes{state=\"running\"} 0"), "{open}");
    assert_eq!(server.ask(&key, "GET /sandboxes", "").status, 200);
}

#[test]
fn a10_heads_are_bounded() {
    let server = Server::start();
    let many: String = (0..200).map(|number| format!("X-{number}: y\r\n")).collect();
    let long = format!("X: {}\r\n", "y".repeat(128 * 1024));
    for head in [many, long] {
        let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{head}\r\n");
        let answer = crate::client::exchange(server.address, request.as_bytes());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    let target = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(70_000));
    let answer = crate::client::exchange(server.address, target.as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
}
