//! Ports of a sandbox to which programs outside connect, and what that opens besides: nothing.

use std::process::Child;

use serde_json::{Value, json};

use crate::support::processes::{finish, read_until, start};
use crate::support::{Site, stderr};
use crate::world::{Seen, World, assert_refused_with_hints, world};

/// An echo at port 3000 that ends with its input.
const SERVER: &str = r#"
def answer(connection):
    with connection:
        while True:
            read = connection.recv(1 << 16)
            if not read:
                return
            connection.sendall(read)
def serve(address="127.0.0.1"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 3000), family=family, backlog=512)
    while True:
        threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
def serving(address="127.0.0.1"):
    threading.Thread(target=serve, args=[address], daemon=True).start()
    sys.stdin.read()
"#;

/// A sandbox that runs, and where its port 3000 is.
struct Running {
    child: Child,
    port: String,
    _site: Site,
}

impl Running {
    /// Starts `code`, which ends when its input does.
    fn start(world: &World, flags: &[&str], code: &str) -> Self {
        let site = Site::new();
        let flags = [&["--publish", "0:3000"], flags].concat();
        let mut child = start(&mut world.sandboxed(&site, &flags, &format!("{SERVER}\n{code}")));
        let errors = child.stderr.as_mut().unwrap();
        read_until(errors, "port 3000 is published at 127.0.0.1:");
        let port = read_until(errors, "\n").trim().to_owned();
        Self {
            child,
            port,
            _site: site,
        }
    }

    /// Runs attempts on the host, where `PORT` is the port and `knock()` a connection to a server that listens.
    fn outside(&self, world: &World, attempts: &str) -> Seen {
        let code = r#"
def knock():
    until = time.monotonic() + 60
    while True:
        try:
            connection = dial("127.0.0.1", PORT)
            connection.sendall(b"?")
            if connection.recv(1) == b"?":
                return connection
        except OSError:
            pass
        if time.monotonic() > until:
            raise Ended("nobody listens")
        time.sleep(0.05)
"#;
        world.outside(&format!("PORT = {}\n{code}\n{attempts}", self.port))
    }

    /// Its record, once its input has ended.
    fn finish(self) -> Value {
        crate::support::record_of(&finish(self.child))
    }
}

/// Those connections that a program in the sandbox accepted.
fn made(record: &Value) -> Vec<&Value> {
    let all = record["network"]["inbound"].as_array().unwrap().iter();
    all.filter(|inbound| inbound["verdict"] == "allowed").collect()
}

#[test]
fn programs_outside_connect_to_a_port_that_is_published() {
    let Some(world) = world() else { return };
    let running = Running::start(world, &[], "serving()");
    let seen = running.outside(
        world,
        r#"
def large():
    sent, received = hashlib.sha256(), hashlib.sha256()
    connection = knock()
    block = os.urandom(1 << 20)
    def send():
        for _ in range(20):
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send)
    sender.start()
    length = 0
    while True:
        read = connection.recv(1 << 16)
        if not read:
            break
        length += len(read)
        received.update(read)
    sender.join()
    for _ in range(20):
        sent.update(block)
    return length, sent.digest() == received.digest()
attempt("large", large)
"#,
    );
    assert_eq!(seen.done("large"), format!("({}, True)", 20 << 20));
    let port = running.port.clone();
    let record = running.finish();
    let host_address = format!("127.0.0.1:{port}");
    assert_eq!(
        record["network"]["published"],
        json!([{ "host_address": host_address, "port": 3000 }])
    );
    let [inbound] = made(&record)[..] else {
        panic!("{:#}", record["network"]);
    };
    let bytes = (20 << 20) + 1;
    assert_eq!(
        (&inbound["sent_bytes"], &inbound["received_bytes"]),
        (&bytes.into(), &bytes.into())
    );
    assert_eq!(
        (&inbound["host_address"], &inbound["port"]),
        (&host_address.into(), &3000.into())
    );
    assert!(inbound["peer"].as_str().unwrap().starts_with("127.0.0.9:"), "{inbound}");
}

#[test]
fn two_hundred_connections_from_outside_at_once_are_all_served() {
    let Some(world) = world() else { return };
    let running = Running::start(world, &[], "serving()");
    let seen = running.outside(
        world,
        r#"
def many():
    knock()
    connections = [dial("127.0.0.1", PORT) for _ in range(200)]
    for number, connection in enumerate(connections):
        connection.sendall(b"%03d" % number)
    return all(connection.recv(3, socket.MSG_WAITALL) == b"%03d" % number for number, connection in enumerate(connections))
attempt("many", many)
"#,
    );
    assert_eq!(seen.done("many"), "True");
    let record = running.finish();
    assert_eq!(made(&record).len(), 201, "{:#}", record["network"]);
}

#[test]
fn a_port_on_which_nobody_listens_is_a_reset_and_no_wait() {
    let Some(world) = world() else { return };
    let running = Running::start(world, &[], "sys.stdin.read()");
    let seen = running.outside(
        world,
        r#"
def read():
    with dial("127.0.0.1", PORT) as connection:
        if not connection.recv(1):
            raise Ended("without a reset")
attempt("read", read)
"#,
    );
    let said = seen.refused("read");
    assert!(said.contains("ECONNRESET"), "{said}");
    let record = running.finish();
    let inbound = &record["network"]["inbound"][0];
    assert_eq!(inbound["verdict"], "failed");
    let reason = inbound["reason"].as_str().unwrap();
    assert!(reason.contains("port 3000 in the sandbox"), "{reason}");
}

#[test]
fn a_server_that_listens_on_ipv6_only_is_reached() {
    let Some(world) = world() else { return };
    let running = Running::start(world, &[], "serving('::1')");
    running.outside(world, r#"attempt("echo", knock)"#).all_done();
    assert_eq!(made(&running.finish()).len(), 1);
}

#[test]
fn the_end_of_a_program_ends_its_connections_and_the_end_of_the_run_the_port() {
    let Some(world) = world() else { return };
    // The child serves; it is killed in the middle of a connection that waits for an answer.
    let code = r#"
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    serve()
sys.stdin.read(1)
os.kill(child, 9)
os.waitpid(child, 0)
sys.stdin.read()
"#;
    let mut running = Running::start(world, &[], code);
    let mut client = world.command(std::path::Path::new("/"));
    let text = format!(
        r#"
import socket, sys, time
until = time.monotonic() + 60
while True:
    try:
        connection = socket.create_connection(("127.0.0.1", {}), timeout=60)
        connection.sendall(b"?")
        if connection.recv(1) == b"?":
            break
    except OSError:
        pass
    if time.monotonic() > until:
        sys.exit("nobody listens")
    time.sleep(0.05)
print("connected", flush=True)
try:
    print("read", connection.recv(1))
except ConnectionResetError:
    print("read", b"")
"#,
        running.port
    );
    client.args(["/usr/bin/python3", "-I", "-S", "-c", &text]);
    let mut client = start(&mut client);
    read_until(client.stdout.as_mut().unwrap(), "connected\n");
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"x").unwrap();
    let output = finish(client);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "read b''\n",
        "{}",
        stderr(&output)
    );
    let port = running.port.clone();
    let record = running.finish();
    assert_eq!(made(&record).len(), 1, "{:#}", record["network"]);
    let after = world.outside(&format!("attempt('after', dial, '127.0.0.1', {port})"));
    assert!(after.refused("after").contains("ECONNREFUSED"));
}

#[test]
fn n1_a_port_that_is_published_is_no_way_out() {
    let Some(world) = world() else { return };
    let attempts = r#"
attempt("name", get, "www.example.com")
attempt("address", get, "93.184.216.34")
attempt("host", echoed, "151.101.64.2")
attempt("proxy", echoed, "127.0.0.1", 7)
attempt("datagram", datagram, "93.184.216.35")
"#;
    world.outside(attempts).all_done();
    let seen = world.inside(&["--publish", "0:3000"], attempts);
    seen.all_refused();
    let both = world.inside(
        &["--publish", "0:3000", "--allow", "www.example.com"],
        "attempt('name', get, 'www.example.com')",
    );
    both.all_done();
}

#[test]
fn n2_only_the_address_that_was_named_is_listened_on() {
    let Some(world) = world() else { return };
    let running = Running::start(world, &[], "serving()");
    let attempts = r#"
attempt("loopback", knock)
attempt("host", echoed, "151.101.64.2", PORT)
attempt("other", echoed, "127.0.0.2", PORT)
"#;
    let seen = running.outside(world, attempts);
    seen.done("loopback");
    seen.refused("host");
    seen.refused("other");
    running.finish();
}

/// Code inside has no way to keep others from the port, nor to be taken for them.
#[test]
fn n2_whoever_knocks_at_the_way_in_from_inside_gets_nothing_and_stops_nobody() {
    let Some(world) = world() else { return };
    let code = r#"
def bound(port):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
for port in [1, 2, 3]:
    attempt("bind %d" % port, bound, port)
def knocked():
    with dial("127.0.0.1", 2) as connection:
        if not connection.recv(1):
            raise Ended("hung up")
attempt("knock", knocked)
def flood():
    held = []
    while True:
        try:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", 2))
            held.append(connection)
        except OSError:
            pass
        if len(held) > 100:
            held.clear()
            time.sleep(0.001)
threading.Thread(target=flood, daemon=True).start()
serving()
"#;
    let running = Running::start(world, &[], code);
    let attempts = "for number in range(20):\n    attempt(str(number), knock)\n";
    running.outside(world, attempts).all_done();
    let seen = Seen::of_output(&finish(running.child));
    seen.all_refused();
}

#[test]
fn a_port_that_is_taken_is_told_before_anything_runs() {
    let Some(world) = world() else { return };
    let site = Site::new();
    // The host has a server there.
    let command = [
        "run",
        "--publish",
        "8080:3000",
        "--workspace",
        ".:rw",
        "--",
        "touch",
        "ran",
    ];
    let output = finish(start(&mut world.offleash(&site, &command)));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("--publish") && said.contains("127.0.0.1:8080"), "{said}");
    assert!(said.contains("\nhint: another program listens there"), "{said}");
    assert!(!site.workspace().join("ran").exists());
    let free = [
        "run",
        "--publish",
        "0:3000",
        "--workspace",
        ".:rw",
        "--",
        "touch",
        "ran",
    ];
    let output = finish(start(&mut world.offleash(&site, &free)));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(site.workspace().join("ran").exists());
}

#[test]
fn what_cannot_be_published_is_refused_with_a_hint() {
    assert_refused_with_hints(&[
        &["--publish", "x"][..],
        &["--publish", "80/udp"],
        &["--publish", "[::1]:8000:3000"],
        &["--publish", "8000:53"],
        &["--publish", "8000:3000", "--publish", "8000:3001"],
        &["--publish", "0:3000", "--host-port", "5432:3000"],
        &["--publish", "0:3000", "--level", "process-landlock"],
        &["--publish", "192.0.2.77:0:3000"],
    ]);
}

#[test]
fn a_policy_publishes_and_one_in_the_workspace_does_not() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let text = "[network]\npublish = [\"0:3000\"]\n";
    let policy = site.root().join("policy.toml");
    std::fs::write(&policy, text).unwrap();
    let flags = ["--policy", policy.to_str().unwrap()];
    let seen = Seen::of_output(&finish(start(&mut world.sandboxed(&site, &flags, ""))));
    assert_eq!(seen.record["network"]["published"][0]["port"], 3000);
    site.write("offleash.toml", text);
    let output = finish(start(&mut world.sandboxed(&site, &[], "")));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("network.publish"), "{said}");
}

#[test]
fn limits_hold_for_connections_from_outside_as_well() {
    let Some(world) = world() else { return };
    let running = Running::start(world, &["--net-bytes", "1M"], "serving()");
    let seen = running.outside(
        world,
        r#"
def upload():
    connection = knock()
    for _ in range(64):
        connection.sendall(b"x" * 65536)
        connection.recv(65536)
attempt("upload", upload)
def again():
    with dial("127.0.0.1", PORT) as connection:
        if not connection.recv(1):
            raise Ended("without a reset")
attempt("again", again)
"#,
    );
    seen.refused("upload");
    seen.refused("again");
    let record = running.finish();
    let hit = json!([{ "limit": "net_bytes", "value": 1 << 20, "effect": "cut" }]);
    assert_eq!(record["limits_hit"], hit);
    let all = record["network"]["inbound"].as_array().unwrap();
    let verdict = |name| all.iter().filter(|inbound| inbound["verdict"] == name).count();
    assert_eq!((verdict("cut"), verdict("refused")), (1, 1), "{all:#?}");
}
