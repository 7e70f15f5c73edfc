//! What a sandbox may use of the network in all: bytes, bytes in a second, connections.

use serde_json::{Value, json};

use crate::support::processes::{finish, start};
use crate::support::{Site, stderr};
use crate::world::{Seen, times, world};

#[track_caller]
fn assert_hit(seen: &Seen, limit: &str, value: u64, effect: &str) {
    let hit = json!({ "limit": limit, "value": value, "effect": effect });
    assert_eq!(seen.record["limits_hit"], json!([hit]), "{:#}", seen.record["network"]);
    // A limit of the network ends connections and no run.
    assert_eq!(seen.record["exit_code"], 0);
}

fn bytes(connection: &Value) -> u64 {
    connection["sent_bytes"].as_u64().unwrap() + connection["received_bytes"].as_u64().unwrap()
}

#[test]
fn n13_bytes_of_all_connections_together_are_bounded_and_what_is_open_is_cut() {
    let Some(world) = world() else { return };
    let attempts = r#"
idle = dial("api.example.com", 7)
idle.sendall(b"1")
assert idle.recv(1) == b"1"
def upload():
    with dial("www.example.com", 9) as connection:
        for _ in range(64):
            connection.sendall(b"x" * 65536)
        connection.shutdown(socket.SHUT_WR)
        if not connection.recv(100, socket.MSG_WAITALL):
            raise Ended("no answer")
def idled():
    if LIMITED:
        idle.recv(1)
attempt("upload", upload)
attempt("idle", idled)
attempt("more", echoed, "www.example.com")
attempt("page", get, "www.example.com")
"#;
    let flags = ["--allow", "www.example.com:7,9,80", "--allow", "api.example.com:7"];
    world.inside(&flags, &format!("LIMITED = False{attempts}")).all_done();
    let limited = [&flags[..], &["--net-bytes", "1M"]].concat();
    let cut = world.inside(&limited, &format!("LIMITED = True{attempts}"));
    for name in ["upload", "idle", "more"] {
        cut.refused(name);
    }
    let said = cut.refused("page");
    assert!(said.contains("429") && said.contains("--net-bytes"), "{said}");
    assert_hit(&cut, "net_bytes", 1 << 20, "cut");
    let all = cut.record["network"]["connections"].as_array().unwrap();
    let carried: u64 = all.iter().map(bytes).sum();
    // All that may pass passes, and nothing more.
    assert_eq!(carried, 1 << 20, "{all:#?}");
    let verdicts = |host| -> Vec<&str> {
        let found = cut.connections(host).into_iter();
        found
            .map(|connection| connection["verdict"].as_str().unwrap())
            .collect()
    };
    assert_eq!(verdicts("api.example.com"), ["cut"]);
    assert_eq!(verdicts("www.example.com"), ["cut", "refused", "refused"]);
}

#[test]
fn n13_a_budget_that_suffices_is_not_hit() {
    let Some(world) = world() else { return };
    let attempts = r#"
for number in range(4):
    attempt("%d" % number, echoed, "www.example.com", 7, b"x" * 1000)
"#;
    let flags = |bytes| {
        [
            "--allow",
            "www.example.com:7",
            "--net-connections",
            "4",
            "--net-bytes",
            bytes,
        ]
    };
    let enough = world.inside(&flags("8000"), attempts);
    enough.all_done();
    assert_eq!(enough.record["limits_hit"], json!([]));
    let short = world.inside(&flags("7999"), attempts);
    for name in ["0", "1", "2"] {
        short.done(name);
    }
    short.refused("3");
    assert_hit(&short, "net_bytes", 7999, "cut");
}

#[test]
fn connections_in_all_are_bounded() {
    let Some(world) = world() else { return };
    let attempts = r#"
for number in range(5):
    attempt("%d" % number, echoed, "www.example.com")
attempt("page", get, "www.example.com")
attempt("another", echoed, "api.example.com")
"#;
    let flags = ["--allow", "www.example.com:7,80", "--net-connections", "3"];
    let seen = world.inside(&flags, attempts);
    for name in ["0", "1", "2"] {
        seen.done(name);
    }
    for name in ["3", "4"] {
        seen.refused(name);
    }
    let said = seen.refused("page");
    assert!(
        said.contains("429") && said.contains("`net_connections` of 3"),
        "{said}"
    );
    // Not by the limit: what no rule allows counts for nothing.
    seen.refused("another");
    assert_hit(&seen, "net_connections", 3, "refused");
    let all = seen.connections("www.example.com");
    let reasons: Vec<&str> = all
        .iter()
        .filter_map(|connection| connection["reason"].as_str())
        .collect();
    // Two of three refusals are alike.
    assert_eq!((times(all.iter().copied()), reasons.len()), (6, 2), "{all:#?}");
    assert!(
        reasons.iter().all(|reason| reason.contains("--net-connections")),
        "{reasons:?}"
    );
}

#[test]
fn connections_at_once_are_bounded_and_places_become_free() {
    let Some(world) = world() else { return };
    let attempts = r#"
def held():
    connection = dial("www.example.com", 7)
    connection.sendall(b"1")
    if connection.recv(1) != b"1":
        raise Ended("held")
    return connection
first, second = held(), held()
attempt("third", echoed, "www.example.com")
first.close()
def until_free():
    # The gateway hears of the end when the server has ended, too.
    until = time.monotonic() + 60
    while True:
        try:
            return echoed("www.example.com")
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
attempt("again", until_free)
"#;
    let seen = world.inside(&["--allow", "www.example.com:7", "--net-at-once", "2"], attempts);
    seen.refused("third");
    seen.done("again");
    assert_hit(&seen, "net_at_once", 2, "refused");
}

#[test]
fn a_rate_slows_down_and_loses_nothing() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &["--allow", "www.example.com:9", "--net-rate", "1M"],
        r#"
# A first byte of TLS would be taken for that on a port that may speak anything.
block = b"x" + os.urandom((1 << 20) - 1)
def upload():
    begun = time.monotonic()
    with dial("www.example.com", 9) as connection:
        connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(100, socket.MSG_WAITALL).decode()
    # Never faster than the rate, less what may pass at once.
    fast = time.monotonic() - begun < 0.85
    return fast, answer == "%d %s" % (len(block), hashlib.sha256(block).hexdigest())
attempt("upload", upload)
"#,
    );
    assert_eq!(seen.done("upload"), "(False, True)");
    assert_hit(&seen, "net_rate", 1 << 20, "slowed");
}

#[test]
fn a_limit_that_was_hit_is_told_on_standard_error() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let script = "python3 -c 'import socket\nfor n in range(3):\n try: socket.create_connection((\"www.example.com\", 7)).recv(0)\n except OSError: pass'";
    let flags = ["--allow", "www.example.com:7", "--net-connections", "1"];
    let command = [&["run"], &flags[..], &["-c", script]].concat();
    let output = finish(start(&mut world.offleash(&site, &command)));
    let said = stderr(&output);
    assert!(
        said.contains("connections were refused: the limit `net_connections` is 1; raise it with `--net-connections`"),
        "{said}"
    );
}

#[test]
fn a_policy_sets_limits_of_the_network_and_one_in_the_workspace_only_lower_ones() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
for number in range(3):
    attempt("%d" % number, echoed, "www.example.com")
"#;
    let flags = ["--allow", "www.example.com:7"];
    site.write("offleash.toml", "[limits]\nnet_connections = 2\n");
    let seen = Seen::of_output(&finish(start(&mut world.sandboxed(&site, &flags, attempts))));
    seen.done("1");
    seen.refused("2");
    assert_hit(&seen, "net_connections", 2, "refused");
    for (key, value) in [
        ("net_bytes", "\"1T\""),
        ("net_connections", "\"unlimited\""),
        ("net_at_once", "100000"),
    ] {
        site.write("offleash.toml", format!("[limits]\n{key} = {value}\n"));
        let output = finish(start(&mut world.sandboxed(&site, &flags, attempts)));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(&format!("limits.{key}")), "{said}");
    }
}
