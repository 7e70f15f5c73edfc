//! One service of the host that a sandbox is given, and the rest of the host, which it is not.

use std::process::Child;

use serde_json::Value;

use crate::support::processes::{finish, read_until, start};
use crate::support::{Site, stderr};
use crate::world::{World, assert_refused_with_hints, world};

/// A service on the host's loopback, which ends with its input.
struct Service {
    child: Child,
    port: String,
}

impl Service {
    fn start(world: &World) -> Self {
        let text = r#"
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0), backlog=512)
def answer(connection):
    with connection:
        while True:
            read = connection.recv(1 << 16)
            if not read:
                return
            connection.sendall(read)
def loop():
    while True:
        threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
threading.Thread(target=loop, daemon=True).start()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"#;
        let mut command = world.command(std::path::Path::new("/"));
        command.args(["/usr/bin/python3", "-I", "-S", "-c", text]);
        let mut child = start(&mut command);
        let port = read_until(child.stdout.as_mut().unwrap(), "\n").trim().to_owned();
        Self { child, port }
    }

    fn end(self) {
        finish(self.child);
    }
}

#[test]
fn a_service_of_the_host_is_reached_on_the_sandboxs_own_loopback() {
    let Some(world) = world() else { return };
    let service = Service::start(world);
    let port = &service.port;
    let attempts = format!(
        r#"
for address in ["127.0.0.1", "::1", "localhost"]:
    attempt(address, echoed, address, {port})
def large():
    block = os.urandom(1 << 16)
    with dial("127.0.0.1", {port}) as connection:
        for _ in range(160):
            connection.sendall(block)
            back = bytearray()
            while len(back) < len(block):
                back += connection.recv(1 << 16) or bytes(1 << 16)
            if back != block:
                raise Ended("another block")
attempt("large", large)
"#
    );
    let seen = world.inside(&["--host-port", port], &attempts);
    seen.all_done();
    let connections = seen.connections("127.0.0.1");
    assert_eq!(connections.len(), 4, "{:#}", seen.record["network"]);
    for connection in &connections {
        assert_eq!(connection["port"].to_string(), *port);
        assert_eq!(connection["rule"], format!("network.host_ports: {port}"));
        assert_eq!(connection["address"], "127.0.0.1");
        assert_eq!(connection["verdict"], "allowed");
    }
    let total: u64 = connections.iter().map(|one| one["sent_bytes"].as_u64().unwrap()).sum();
    assert_eq!(total, (10 << 20) + 15);
    service.end();
}

#[test]
fn n2_a_rule_for_loopback_counts_for_names_that_lead_there_and_for_nothing_else() {
    let Some(world) = world() else { return };
    let service = Service::start(world);
    let port = &service.port;
    let attempts = format!(
        r#"
PORT = {port}
def tunnel():
    connection = socket.create_connection(("127.0.0.1", 1), timeout=TIMEOUT)
    connection.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (PORT, PORT))
    return answered(connection, b"HTTP/1.1 200")
def socks():
    connection = socket.create_connection(("127.0.0.1", 1), timeout=TIMEOUT)
    connection.sendall(bytes([5, 1, 0]))
    if connection.recv(2) != bytes([5, 0]):
        raise ValueError("no proxy")
    connection.sendall(bytes([5, 1, 0, 1, 127, 0, 0, 1]) + struct.pack(">H", PORT))
    return answered(connection, bytes([5, 0]))
def answered(connection, start):
    with connection:
        if not connection.recv(100).startswith(start):
            raise Refused("it was not made")
attempt("name", echoed, "loopback.example.com", PORT)
attempt("address", echoed, "127.0.0.1", PORT)
attempt("another", echoed, "127.0.0.2", PORT)
attempt("tunnel", tunnel)
attempt("socks", socks)
"#
    );
    let name = format!("loopback.example.com:{port}");
    let network = format!("127.0.0.0/8:{port}");
    let flags = ["--allow", &name, "--allow", &network];
    for seen in [
        world.inside(&flags, &attempts),
        crate::listeners::inside(world, &flags, &attempts),
    ] {
        seen.done("name");
        for name in ["address", "another", "tunnel", "socks"] {
            seen.refused(name);
        }
    }
    service.end();
}

#[test]
fn n2_one_service_is_given_and_nothing_else_of_the_host() {
    let Some(world) = world() else { return };
    let (given, other) = (Service::start(world), Service::start(world));
    let attempts = format!(
        r#"
attempt("given", echoed, "127.0.0.1", INSIDE)
attempt("its own port", echoed, "127.0.0.1", {given})
attempt("another", echoed, "127.0.0.1", {other})
attempt("the host's address", echoed, "151.101.64.2", {given})
attempt("the host's address, inside", echoed, "151.101.64.2", INSIDE)
attempt("another loopback address", echoed, "127.0.0.2", INSIDE)
attempt("any", echoed, "0.0.0.0", {other})
attempt("mapped", echoed, "::ffff:127.0.0.1", {other})
attempt("the internet", get, "www.example.com")
"#,
        given = given.port,
        other = other.port,
    );
    let control = format!(
        "attempt('given', echoed, '127.0.0.1', {})\nattempt('another', echoed, '127.0.0.1', {})",
        given.port, other.port
    );
    world.outside(&control).all_done();
    let flag = format!("{}:8434", given.port);
    let seen = world.inside(&["--host-port", &flag], &format!("INSIDE = 8434\n{attempts}"));
    seen.all_refused_but(&["given"]);
    let given_connections: Vec<&Value> = seen.connections("127.0.0.1");
    let rule = format!("network.host_ports: {flag}");
    let allowed: Vec<_> = given_connections
        .iter()
        .filter(|one| one["rule"] == rule.as_str())
        .collect();
    assert_eq!(allowed.len(), 1, "{given_connections:#?}");
    given.end();
    other.end();
}

#[test]
fn a_service_that_is_not_there_is_a_reset_and_in_the_record() {
    let Some(world) = world() else { return };
    let service = Service::start(world);
    let port = service.port.clone();
    service.end();
    let attempts = format!(
        r#"
def read():
    with dial("127.0.0.1", {port}) as connection:
        if not connection.recv(1):
            raise Ended("without a reset")
attempt("read", read)
"#
    );
    let seen = world.inside(&["--host-port", &port], &attempts);
    let said = seen.refused("read");
    assert!(said.contains("ECONNRESET"), "{said}");
    let connection = seen.connection("127.0.0.1");
    assert_eq!(connection["verdict"], "failed");
    let reason = connection["reason"].as_str().unwrap();
    assert!(reason.contains(&format!("port {port} of this machine")), "{reason}");
}

#[test]
fn code_inside_cannot_take_the_place_of_a_service() {
    let Some(world) = world() else { return };
    let service = Service::start(world);
    let attempts = format!(
        r#"
def taken(address, option):
    with socket.socket() as server:
        if option:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((address, {port}))
        server.listen()
for address in ["127.0.0.1", "0.0.0.0"]:
    for option in [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT]:
        attempt("%s %s" % (address, option), taken, address, option)
"#,
        port = service.port
    );
    let seen = world.inside(&["--host-port", &service.port], &attempts);
    seen.all_refused();
    service.end();
}

#[test]
fn a_policy_gives_a_service_and_one_in_the_workspace_does_not() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let service = Service::start(world);
    let text = format!("[network]\nhost_ports = [{}]\n", service.port);
    let policy = site.root().join("policy.toml");
    std::fs::write(&policy, &text).unwrap();
    let attempts = format!("attempt('echo', echoed, '127.0.0.1', {})", service.port);
    let seen = world.inside(&["--policy", policy.to_str().unwrap()], &attempts);
    seen.all_done();
    site.write("offleash.toml", &text);
    let output = finish(start(&mut world.sandboxed(&site, &[], &attempts)));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("network.host_ports"), "{said}");
    service.end();
}

#[test]
fn what_cannot_be_given_is_refused_with_a_hint() {
    assert_refused_with_hints(&[
        &["--host-port", "x"][..],
        &["--host-port", "0"],
        &["--host-port", "5432:53"],
        &["--host-port", "5432:1"],
        &["--host-port", "5432", "--host-port", "5433:5432"],
        &["--host-port", "5432", "--level", "process-landlock"],
    ]);
}

#[test]
fn explain_says_which_service_is_given() {
    let site = Site::new();
    let explain = |target: &str| {
        let arguments = ["explain", "connect", target, "--host-port", "5432:15432"];
        let output = site.offleash(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        explain("127.0.0.1:15432"),
        "127.0.0.1:15432: allowed, to port 5432 on this machine's loopback\nrule: network.host_ports: 5432:15432\n"
    );
    assert!(explain("127.0.0.1:5432").contains("refused"));
}
