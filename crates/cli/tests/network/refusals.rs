//! How a program learns that a connection is refused.

use crate::support::{Site, skip};
use crate::world::world;

/// Whether this kernel can hold first packets; a counted skip if it cannot.
fn are_refused_at_once() -> bool {
    let found = Site::new().offleash(["doctor"]).output().unwrap();
    let at_once = String::from_utf8_lossy(&found.stdout).contains("refused before it is made");
    if !at_once {
        skip("this kernel cannot refuse a connection before it is made");
    }
    at_once
}

const REFUSED: &str = r#"
def address(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with dial_address(family, (host, port)):
        return "connected"
attempt("name", dial, "www.example.com", 8443)
attempt("address", address, "93.184.216.34", 443)
attempt("address 6", address, "2606:2800:220:1::5", 443)
attempt("private", address, "10.0.0.5", 22)
attempt("nobody", address, "198.18.200.1", 443)
"#;

#[test]
fn n1_what_no_rule_can_allow_is_refused_by_connect() {
    let Some(world) = world() else { return };
    if !are_refused_at_once() {
        return;
    }
    let flags = ["--allow", "*.example.com:7,443", "--deny-host", "api.example.com"];
    let attempts = format!("{REFUSED}\nattempt(\"allowed\", echoed, \"www.example.com\")");
    let seen = world.inside(&flags, &attempts);
    for name in ["name", "address", "address 6", "private", "nobody"] {
        assert!(
            seen.refused(name).starts_with("ECONNREFUSED"),
            "{name}: {}",
            seen.refused(name)
        );
    }
    assert_eq!(seen.done("allowed"), "True");
    let refused = seen.connections("www.example.com");
    let refused: Vec<_> = refused.iter().filter(|one| one["verdict"] == "refused").collect();
    assert_eq!(refused.len(), 1, "{:#}", seen.record["network"]);
    assert_eq!(refused[0]["port"], 8443);
    assert!(seen.connections("10.0.0.5")[0]["reason"].is_string());
    world.assert_untouched("10.0.0.5");
}

#[test]
fn a_refusal_that_can_be_explained_still_is() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &["--allow", "www.example.com:443"],
        "attempt(\"page\", get, \"www.example.com\")",
    );
    assert!(seen.refused("page").contains("403"), "{}", seen.refused("page"));
}

#[test]
fn n12_a_loop_of_refused_connections_fills_no_record() {
    let Some(world) = world() else { return };
    let attempts = r#"
def refused():
    for _ in range(12000):
        with socket.socket() as connection:
            connection.settimeout(TIMEOUT)
            try:
                connection.connect(("93.184.216.34", 443))
                connection.recv(1)
            except ConnectionError:
                pass
attempt("loop", refused)
attempt("afterwards", echoed, "www.example.com")
"#;
    let seen = world.inside(&["--allow", "www.example.com:7"], attempts);
    seen.all_done();
    let network = &seen.record["network"];
    let told: Vec<u64> = network["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["times"].as_u64().unwrap())
        .collect();
    // A first packet that is sent again, because the machine is slow, may count twice.
    assert!(told.len() == 2 && told[0] >= 12_000 && told[1] == 1, "{told:?}");
    assert_eq!(network["more_connections"], 0);
}
