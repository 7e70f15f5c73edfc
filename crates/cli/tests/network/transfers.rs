//! What is carried arrives whole, and what was carried is in the record.

use crate::support::Site;
use crate::support::processes::{finish, start};
use crate::world::{Seen, world};

#[test]
fn fifty_megabytes_arrive_whole_both_ways() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &[
            "--allow",
            "www.example.com",
            "--allow",
            "www.example.com:9",
            "--memory",
            "1G",
        ],
        r#"
SIZE = 50 << 20
# A first byte of TLS would be taken for that on a port that may speak anything.
block = b"x" + os.urandom((1 << 20) - 1)
expected = hashlib.sha256(block * 50).hexdigest()
def fetched():
    with dial("www.example.com", 80) as connection:
        connection.sendall(b"GET /big/%d HTTP/1.1\r\nHost: www.example.com\r\n\r\n" % SIZE)
        seen = hashlib.sha256(response(connection)[1]).hexdigest()
        return seen == hashlib.sha256(b"0123456789abcdef" * (SIZE // 16)).hexdigest()
def posted():
    with dial("www.example.com", 80) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: %d\r\n\r\n" % SIZE)
        for _ in range(50):
            connection.sendall(block)
        return json.loads(response(connection)[1])["sha256"] == expected
def half_closed():
    with dial("www.example.com", 9) as connection:
        for _ in range(50):
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100, socket.MSG_WAITALL).decode() == "%d %s" % (SIZE, expected)
for action in [fetched, posted, half_closed]:
    attempt(action.__name__, action)
"#,
    );
    for name in ["fetched", "posted", "half_closed"] {
        assert_eq!(seen.done(name), "True", "{name}");
    }
    let size = 50_u64 << 20;
    let [fetched, posted, half_closed] = seen.connections("www.example.com")[..] else {
        panic!("{:#}", seen.record["network"]);
    };
    assert!(fetched["received_bytes"].as_u64().unwrap() > size && posted["sent_bytes"].as_u64().unwrap() > size);
    assert_eq!(half_closed["sent_bytes"].as_u64().unwrap(), size);
    assert_eq!(half_closed["received_bytes"].as_u64().unwrap(), 73);
}

#[test]
fn two_hundred_connections_at_once_are_all_served() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &["--allow", "www.example.com:7"],
        r#"
def many():
    connections = [dial("www.example.com", 7) for _ in range(200)]
    for number, connection in enumerate(connections):
        connection.sendall(b"%03d" % number)
    return all(connection.recv(3, socket.MSG_WAITALL) == b"%03d" % number for number, connection in enumerate(connections))
attempt("many", many)
"#,
    );
    assert_eq!(seen.done("many"), "True");
    assert_eq!(seen.connections("www.example.com").len(), 200);
}

/// Holds more connections than offleash may have files open; those that get no place wait for one.
const HOLD: &str = r#"
holder = os.fork()
if holder == 0:
    os.closerange(0, 3)
    held = [dial("www.example.com", 7) for _ in range(200)]
    time.sleep(600)
time.sleep(0.3)
"#;

#[test]
fn r4_connections_leave_the_supervisor_what_it_needs_to_see_that_limits_hold() {
    let Some(world) = world() else { return };
    let site = Site::new();
    // It takes some seconds, in which a watcher that can open nothing sees nothing.
    let flood = r#"
for number in range(100):
    with open("%d" % number, "wb") as file:
        file.write(b"x" * (1 << 20))
    time.sleep(0.06)
"#;
    let flags = ["--allow", "www.example.com:7", "--workspace-size", "10M"];
    let mut command = world.sandboxed_with_files(&site, 200, &flags, &format!("{HOLD}{flood}"));
    let record = crate::support::record_of(&finish(start(&mut command)));
    assert_eq!(record["outcome"]["limit"], "workspace", "{:#}", record["outcome"]);
    let written = record["usage"]["workspace_bytes"].as_u64().unwrap();
    assert!(written < 90 << 20, "it was seen only at the end: {written}");
}

#[test]
fn r4_connections_that_wait_for_a_place_get_one_when_others_end() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = "os.kill(holder, 9)\nos.waitpid(holder, 0)\nattempt(\"afterwards\", echoed, \"www.example.com\")";
    let flags = ["--allow", "www.example.com:7"];
    let mut command = world.sandboxed_with_files(&site, 200, &flags, &format!("{HOLD}{attempts}"));
    let seen = Seen::of_output(&finish(start(&mut command)));
    assert_eq!(seen.done("afterwards"), "True");
    let failed = seen
        .connections("www.example.com")
        .iter()
        .filter(|one| one["verdict"] != "allowed")
        .count();
    assert_eq!(failed, 0, "{:#}", seen.record["network"]);
}

#[test]
fn an_answer_that_comes_before_everything_was_sent_arrives() {
    let Some(world) = world() else { return };
    let attempts = r#"
def early():
    with dial("api.example.com", 10) as connection:
        try:
            for _ in range(200):
                connection.sendall(b"x" * 65536)
        except OSError:
            pass
        return connection.recv(100)
for time_ in range(20):
    attempt("time %02d" % time_, early)
"#;
    let seen = world.inside(&["--allow", "api.example.com:10"], attempts);
    for name in seen.names() {
        assert_eq!(seen.done(name), "b'too long'", "{name}");
    }
}

#[test]
fn the_record_tells_name_address_port_verdict_rule_and_bytes() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &[
            "--allow",
            "*.example.com:7",
            "--deny-host",
            "api.example.com:7",
            "--allow",
            "api.example.com:9",
        ],
        r#"
attempt("allowed", echoed, "www.example.com", 7, b"12345678")
attempt("denied", echoed, "api.example.com")
attempt("failed", echoed, "api.example.com", 9, b"")
"#,
    );
    seen.done("allowed");
    seen.refused("denied");
    let allowed = seen.connection("www.example.com");
    assert_eq!((&allowed["port"], &allowed["verdict"]), (&7.into(), &"allowed".into()));
    assert_eq!(allowed["address"], "93.184.216.34");
    assert_eq!(allowed["rule"], "network.allow: *.example.com:7");
    assert_eq!(
        (&allowed["sent_bytes"], &allowed["received_bytes"]),
        (&8.into(), &8.into())
    );
    assert_eq!(allowed["reason"], serde_json::Value::Null);
    let denied = seen.connections("api.example.com")[0];
    assert_eq!((&denied["port"], &denied["verdict"]), (&7.into(), &"refused".into()));
    assert_eq!(denied["rule"], "network.deny: api.example.com:7");
    assert_eq!(denied["address"], serde_json::Value::Null);
}

#[test]
fn n13_what_was_sent_is_in_the_record_even_when_the_connection_was_never_ended() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
connection = dial("www.example.com", 7)
connection.sendall(b"secret")
connection.recv(6, socket.MSG_WAITALL)
silent = dial("www.example.com", 11)
silent.sendall(b"secret")
# Whatever began after it has been carried: then it has been, too.
for _ in range(30):
    with dial("www.example.com", 7) as later:
        later.sendall(b"secret")
        later.recv(6, socket.MSG_WAITALL)
if os.fork() == 0:
    os.close(1)
    os.close(2)
    time.sleep(3600)
"#;
    let mut command = world.sandboxed(&site, &["--allow", "www.example.com:7,11"], attempts);
    let record = crate::support::record_of(&finish(start(&mut command)));
    let connections = record["network"]["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 32, "{:#}", record["network"]);
    for connection in connections {
        assert_eq!(
            (&connection["sent_bytes"], &connection["verdict"]),
            (&6.into(), &"allowed".into())
        );
    }
}
