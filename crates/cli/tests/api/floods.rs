//! More clients than there is room for, and clients that go away (A10).

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketType};

use crate::client::{ask, connect, parse, read_all};
use crate::server::{QUIET, Server};
use crate::support::processes::{TIMEOUT, eventually};

#[test]
fn a10_clients_that_are_too_many_are_told_so() {
    let server = Server::start_with(&format!("max_connections = 3\n{QUIET}"), &[]);
    let held = [(); 3].map(|()| hold(connect(server.address)));
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

/// Takes a place: asks, and keeps the connection.
fn hold(mut stream: TcpStream) -> TcpStream {
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    // The answer says that it has its place.
    let mut seen = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut seen).unwrap();
    assert_eq!(&seen, b"HTTP/1.1 204");
    stream
}

#[test]
fn a10_the_owner_is_not_kept_out() {
    let server = Server::start_with(&format!("max_connections = 2\n{QUIET}"), &[]);
    let _held = [(); 2].map(|()| hold(connect(server.address)));
    let mut stream = connect(server.address);
    parse(&read_all(&mut stream)).assert_refused(503);
    let mut owner = UnixStream::connect(server.socket()).unwrap();
    owner.set_read_timeout(Some(TIMEOUT)).unwrap();
    owner
        .write_all(b"GET /v1/keys HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer = parse(&read_all(&mut owner));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Connects from an address of this machine.
fn connect_from(local: &str, server: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let local: SocketAddr = format!("{local}:0").parse().unwrap();
    rustix::net::bind(&socket, &local).unwrap();
    rustix::net::connect(&socket, &server).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

#[test]
fn a10_one_address_cannot_take_all_places() {
    let config = format!("max_connections = 8\nmax_connections_per_address = 2\n{QUIET}");
    let server = Server::start_with(&config, &[]);
    let _held = [(); 2].map(|()| hold(connect(server.address)));
    let answer = parse(&read_all(&mut connect(server.address)));
    answer.assert_refused(429);
    assert_eq!(answer.header("retry-after"), Some("1"));
    hold(connect_from("127.0.0.2", server.address));
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
