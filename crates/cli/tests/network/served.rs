//! Sandboxes of a server that reach the internet: whose requests get headers, and whose connections are cut.

use serde_json::{Value, json};

use crate::server::Served;
use crate::support::processes::eventually;
use crate::world::world;

const API: &str = "api.opened.example.net";
const OTHER: &str = "other.opened.example.net";

impl Served {
    /// The headers with which a request arrives that says itself that its team is `mine`.
    fn headers(&self, id: &str, host: &str) -> Vec<(String, String)> {
        let told = self.python(id, &format!("{FETCH}\nprint(fetch({host:?}))"));
        let told: Value = serde_json::from_str(&told).unwrap();
        serde_json::from_value(told["fields"].clone()).unwrap()
    }

    /// The value of one of those; `None` unless it is there once.
    fn header(&self, id: &str, host: &str, name: &str) -> Option<String> {
        let mut found = self.headers(id, host).into_iter().filter(|(own, _)| own == name);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Some(value),
            _ => None,
        }
    }
}

const FETCH: &str = r#"
import http.client, json, ssl
def fetch(host, tls=True, path="/a/path"):
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    connection = kind(host, timeout=60)
    connection.request("GET", path, headers={"X-Team": "mine"})
    answer = connection.getresponse()
    assert answer.status == 200, (answer.status, answer.read())
    return answer.read().decode()
"#;

/// What may be reached, and which headers are set.
fn opened(rules: &Value) -> Value {
    json!({ "allowOut": ["*.opened.example.net"], "denyOut": ["0.0.0.0/0"], "rules": rules })
}

fn sets(name: &str, value: &str) -> Value {
    json!([{ "transform": { "headers": { name: value } } }])
}

#[test]
fn headers_of_the_rules_are_set_over_tls_and_replaced_while_it_runs() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let rules = json!({ API: sets("X-Team", "agents"), "*.opened.example.net": sets("X-Wide", "wide") });
    let id = served.made(&opened(&rules));
    assert_eq!(
        served.ask(&format!("GET /sandboxes/{id}"), &json!({})).1["network"]["rules"],
        rules
    );
    assert_eq!(served.header(&id, API, "x-team").as_deref(), Some("agents"));
    // Hosts stand apart: what is said of a wider one does not count.
    assert_eq!(served.header(&id, API, "x-wide"), None);
    assert_eq!(served.header(&id, OTHER, "x-wide").as_deref(), Some("wide"));
    assert_eq!(served.header(&id, OTHER, "x-team").as_deref(), Some("mine"));
    // In the clear, nothing is set, and nothing is refused.
    served.python(&id, &format!("{FETCH}\nfetch({API:?}, tls=False)"));

    let reached = eventually("what was reached to be told", || {
        let (status, told) = served.ask(&format!("GET /v1/sandboxes/{id}/reached"), &json!({}));
        assert_eq!(status, 200, "{told}");
        let is_api = |one: &&Value| one["host"] == API && one["port"] == 443;
        told["hosts"].as_array().unwrap().iter().find(is_api).cloned()
    });
    assert_eq!(reached["methods"], json!(["GET"]), "{reached}");
    assert!(
        reached["rule"]
            .as_str()
            .is_some_and(|rule| rule.contains("opened.example.net")),
        "{reached}"
    );
    assert!(
        reached["sent"].as_u64().unwrap() > 0 && reached["received"].as_u64().unwrap() > 0,
        "{reached}"
    );
    assert_eq!(reached["failure"], Value::Null, "{reached}");

    served.keep_connection(&id, "kept", &format!("https://{API}/a/kept"));
    served.set_network(&id, &opened(&json!({ API: sets("X-Team", "others") })));
    served.eventually_says(&id, "kept", "cut");
    assert_eq!(served.header(&id, API, "x-team").as_deref(), Some("others"));
    assert_eq!(served.header(&id, OTHER, "x-wide"), None);
    // What is not said again does not hold any more.
    served.set_network(&id, &opened(&json!({})));
    assert_eq!(served.header(&id, API, "x-team").as_deref(), Some("mine"));
    let (status, answer) = served.ask(
        &format!("PUT /sandboxes/{id}/network"),
        &opened(&json!({ API: sets("Host", "x") })),
    );
    assert_eq!((status, answer["code"].as_u64()), (400, Some(400)), "{answer}");
}

#[test]
fn headers_are_set_where_everything_public_is_reached_and_other_protocols_are_left_alone() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let id = served.made(&json!({ "rules": { API: sets("X-Team", "agents") } }));
    assert_eq!(served.header(&id, API, "x-team").as_deref(), Some("agents"));
    // What speaks no TLS at another port of the same host is carried as it is.
    let echoed = format!(
        "import socket\nc = socket.create_connection(({API:?}, 7), 60)\nc.sendall(b'hello')\nprint(c.recv(5).decode())"
    );
    assert_eq!(served.python(&id, &echoed), "hello\n");
}

#[test]
fn a_sandbox_without_rules_gets_them_and_trusts_its_gateway() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let id = served.made(&opened(&json!({})));
    assert_eq!(
        served.run(
            &id,
            "echo \"[$NODE_EXTRA_CA_CERTS]\"; ls /etc/ssl/certs/offleash.pem 2>/dev/null || true"
        ),
        "[]\n"
    );
    for team in ["agents", "others"] {
        served.set_network(&id, &opened(&json!({ API: sets("X-Team", team) })));
        assert_eq!(served.header(&id, API, "x-team").as_deref(), Some(team));
        assert_eq!(served.header(&id, OTHER, "x-team").as_deref(), Some("mine"));
    }
    let named = served.run(&id, "cat \"$NODE_EXTRA_CA_CERTS\"");
    assert!(named.starts_with("-----BEGIN CERTIFICATE-----"), "{named}");
    assert_eq!(served.run(&id, "ls -A /etc/ssl/certs | grep offleash-new || true"), "");
}

/// What whoever has the superuser in a sandbox can do to its trust stores, and what undoes it.
const IN_THE_WAY: [(&str, &str); 3] = [
    (
        "rm -rf /etc/ssl/certs && echo x > /etc/ssl/certs",
        "rm /etc/ssl/certs && mkdir /etc/ssl/certs",
    ),
    (
        "rm -rf /etc/ssl/certs && ln -s certs /etc/ssl/certs",
        "rm /etc/ssl/certs && mkdir /etc/ssl/certs",
    ),
    (
        "f=/etc/ssl/certs/ca-certificates.crt; rm -rf $f && mkdir -p $f/x",
        "rm -r /etc/ssl/certs/ca-certificates.crt",
    ),
];

#[test]
fn who_broke_the_trust_stores_of_a_sandbox_is_told_so_and_can_mend_them() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let id = served.made(&opened(&json!({})));
    if served.run(&id, "sudo true 2>&1 && echo yes || true") != "yes\n" {
        eprintln!("SKIP: no superuser inside without subordinate ids");
        return;
    }
    let rules = opened(&json!({ API: sets("X-Team", "agents") }));
    for (breaks, mends) in IN_THE_WAY {
        served.run(&id, &format!("sudo sh -c '{breaks}'"));
        let (status, answer) = served.ask(&format!("PUT /sandboxes/{id}/network"), &rules);
        assert_eq!((status, &answer["code"]), (409, &json!(409)), "{breaks}: {answer}");
        let told = answer["message"].as_str().unwrap();
        let start = format!("sandbox `{id}` keeps its trust stores from being extended");
        assert!(told.starts_with(&start), "{told}");
        assert!(!told.contains(served.state().to_str().unwrap()), "{told}");
        // Nothing was changed by half.
        let shown = served.ask(&format!("GET /sandboxes/{id}"), &json!({})).1;
        assert_eq!(
            shown["network"]["rules"].as_object().map_or(0, |rules| rules.len()),
            0,
            "{shown}"
        );
        served.run(&id, &format!("sudo sh -c '{mends}'"));
        served.set_network(&id, &rules);
        assert_eq!(served.header(&id, API, "x-team").as_deref(), Some("agents"));
        served.set_network(&id, &opened(&json!({})));
    }
}

/// Has everything echoed by an address, at port 7, and says how often; `cut` when that ends.
const ECHOED: &str = r#"
import itertools, socket, time
connection = socket.create_connection(("ADDRESS", 7), timeout=600)
for number in itertools.count():
    try:
        connection.sendall(b"x")
        if not connection.recv(1):
            break
    except OSError:
        break
    print("up", number, flush=True)
    time.sleep(0.05)
print("cut", flush=True)
"#;

#[test]
fn connections_to_the_outside_end_with_a_pause_and_with_the_rules_that_allowed_them() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let (first, second) = ("93.184.216.34", "93.184.216.35");
    let reach = |addresses: &[&str]| json!({ "allowOut": addresses, "denyOut": ["0.0.0.0/0"] });
    let id = served.made(&reach(&[first, second]));
    let echoes = |name: &str, address: &str| {
        served.leave(&id, name, &ECHOED.replace("ADDRESS", address));
        served.eventually_says(&id, name, "up 1");
    };
    echoes("paused", first);
    for (line, expected) in [("pause", 204), ("resume", 201)] {
        let (status, answer) = served.ask(&format!("POST /sandboxes/{id}/{line}"), &json!({}));
        assert_eq!(status, expected, "{answer}");
    }
    served.eventually_says(&id, "paused", "cut");
    // A sandbox that was resumed connects anew.
    echoes("kept", second);
    echoes("denied", first);
    served.set_network(&id, &reach(&[second]));
    served.eventually_says(&id, "denied", "cut");
    let count = served.said(&id, "kept").lines().count();
    eventually("what is still allowed to go on", || {
        (served.said(&id, "kept").lines().count() > count + 2).then_some(())
    });
    assert!(!served.said(&id, "kept").contains("cut"));
    let refused = format!(
        "import socket\ntry:\n  socket.create_connection(({first:?}, 7), 60)\nexcept ConnectionRefusedError:\n  print('refused')"
    );
    assert_eq!(served.python(&id, &refused), "refused\n");
}

/// Asks a service that says again what it is told.
const ASKED: &str = r#"
import socket
try:
    connection = socket.create_connection(("ADDRESS", 7), 60)
    connection.sendall(b"x")
    print("reached" if connection.recv(1) == b"x" else "refused")
except OSError:
    print("refused")
"#;

#[test]
fn a_key_s_rules_open_neither_the_machine_nor_what_is_not_public_and_the_owner_s_do() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let key = served.key();
    // An address of the host, by its kind as public as any.
    let own = "151.101.64.2";
    let asked = |id: &str, address: &str| served.python(id, &ASKED.replace("ADDRESS", address));
    let reach = |hosts: &[&str]| json!({ "allowOut": hosts, "denyOut": ["0.0.0.0/0"] });
    let made = |network: &Value| {
        let body = json!({ "templateID": "base", "timeout": 600, "network": network });
        served.ask_as(&key, "POST /v2/sandboxes", &body)
    };
    let names = [own, "93.184.216.34:7"];
    let owners = served.made(&reach(&names));
    assert_eq!(asked(&owners, own), "reached\n");
    let (status, sandbox) = made(&reach(&names));
    assert_eq!(status, 201, "{sandbox}");
    let id = sandbox["sandboxID"].as_str().unwrap();
    assert_eq!(asked(id, own), "refused\n");
    assert_eq!(asked(id, "93.184.216.34"), "reached\n");

    let changed = |key: Option<&str>, id: &str, hosts: &[&str]| {
        let line = format!("PUT /sandboxes/{id}/network");
        match key {
            Some(key) => served.ask_as(key, &line, &reach(hosts)).0,
            None => served.ask(&line, &reach(hosts)).0,
        }
    };
    // Whoever said it last counts, and may be told of no other address than the keys' rules open.
    assert_eq!(changed(Some(&key), id, &["151.101.64.2:7"]), 204);
    assert_eq!(asked(id, own), "refused\n");
    assert_eq!(changed(None, id, &[own]), 204);
    assert_eq!(asked(id, own), "reached\n");
    assert_eq!(changed(None, id, &["168.63.129.16:7"]), 204);
    for special in [
        "168.63.129.16:7",
        "198.18.0.1:80",
        "[64:ff9b::a00:1]:443",
        "[::]/127:80",
    ] {
        assert_eq!(changed(Some(&key), id, &[special]), 400, "{special}");
        let (status, answer) = made(&reach(&["8.8.8.8", special]));
        assert_eq!(status, 400, "{special}: {answer}");
        let why = answer["message"].as_str().unwrap();
        assert!(why.contains("is not public"), "{why}");
    }
}
