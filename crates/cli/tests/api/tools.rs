//! Tools in sandboxes of a server: who has which, who answers for them, and that what was used up stays so.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Answer, connect};
use crate::server::{QUIET, Server};
use crate::support::Site;
use crate::support::processes::eventually;

/// Notes what it is called with, and answers it.
const PAY: &str = "#!/bin/sh\nread -r line; echo \"$line\" >>'@notes'; echo \"{\\\"paid\\\": $line}\"\n";

/// A server whose owner declares `pay`, and `ask`, about which a person is asked.
fn server() -> Server {
    let site = Site::sharing_templates();
    let root = site.root().display().to_string();
    executable(
        &site.root().join("pay"),
        &PAY.replace("@notes", &format!("{root}/notes")),
    );
    let policy = format!(
        r#"
[[tool]]
name = "pay"
description = "Pays somebody."
program = ["{root}/pay"]
where = "amount <= 1000"
calls = 3
[tool.parameters]
type = "object"
required = ["amount"]
properties = {{ amount = {{ type = "number" }} }}
[[tool]]
name = "ask"
program = ["{root}/pay"]
ask = true
"#
    );
    std::fs::write(site.root().join("tools.toml"), policy).unwrap();
    let template = "templates = { base = [\"pay where amount < 10 calls 2\"] }";
    let config = format!(
        "{QUIET}[sandboxes]\ncreate_timeout_seconds = 600\n[tools]\npolicy = \"{root}/tools.toml\"\n{template}\n"
    );
    Server::start_on(site, &config, &[])
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn notes(site: &Site) -> usize {
    std::fs::read_to_string(site.root().join("notes"))
        .unwrap_or_default()
        .lines()
        .count()
}

fn make(server: &Server, key: &str, body: &Value) -> Answer {
    server.ask(key, "POST /v1/sandboxes", &body.to_string())
}

fn made(server: &Server, key: &str, body: &Value) -> String {
    let answer = make(server, key, body);
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// What a line for the shell writes.
fn run(server: &Server, key: &str, id: &str, shell: &str) -> String {
    let body = json!({ "command": { "shell": shell } }).to_string();
    let body = serde_json::from_str::<Value>(&body).unwrap()["command"].to_string();
    let answer = server.ask(key, &format!("POST /v1/sandboxes/{id}/run"), &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = answer.json();
    format!(
        "{}{}",
        told["stdout"].as_str().unwrap(),
        told["stderr"].as_str().unwrap()
    )
}

#[test]
fn a_key_gets_what_it_was_granted_and_a_request_narrows_that() {
    let server = server();
    let (granted, plain) = (
        server.key(&["--tool-grant", "pay where amount < 100 calls 3"]),
        server.key(&[]),
    );
    for (key, grants) in [
        (&granted, json!(["pay where amount < 101 calls 1"])),
        (
            &granted,
            json!(["pay where amount < 5 calls 2", "pay where amount < 5 calls 2"]),
        ),
        (&granted, json!(["ask"])),
        (&plain, json!(["pay calls 1"])),
    ] {
        let refused = make(&server, key, &json!({ "tools": { "grants": grants } }));
        refused.assert_refused(403);
        assert!(
            refused.body.contains("is not shown to be within what is granted"),
            "{refused:?}"
        );
    }
    make(&server, &granted, &json!({ "tools": { "grants": ["pay where"] } })).assert_refused(400);
    // The label, at the door of E2B's SDKs.
    let body = json!({ "templateID": "base", "metadata": { "offleash.tools": "pay where amount < 5 calls 1" } });
    let answer = server.ask(&granted, "POST /v2/sandboxes", &body.to_string());
    let id = answer.json()["sandboxID"].as_str().unwrap().to_owned();
    let said = run(&server, &granted, &id, "pay 4; pay 6; echo $?; pay 4; echo $?");
    assert!(said.starts_with("{\"paid\":{\"amount\":4}}\n126\n126\n"), "{said}");
    // What the owner says of the template is all that a key of which nothing is said has.
    let id = made(&server, &plain, &json!({}));
    let python = "python3 -c 'from offleash_tools import pay; print(pay(amount=9))'";
    let said = run(
        &server,
        &plain,
        &id,
        &format!("{python}; pay 11; echo $?; ask; echo $?"),
    );
    assert!(said.starts_with("{'paid': {'amount': 9}}\n126\n127\n"), "{said}");
    assert_eq!(notes(&server.site), 2);
    let log = server.ask(&plain, &format!("GET /sandboxes/{id}/logs"), "").body;
    assert!(
        log.contains("tool `pay` was called with {\\\"amount\\\":9}: it answered"),
        "{log}"
    );
}

/// What was used up stays so in forks, after a pause that keeps files alone, and with another server.
#[test]
fn calls_that_were_used_up_stay_so() {
    let mut server = server();
    let key = server.key(&["--tool-grant", "pay"]);
    let id = made(&server, &key, &json!({}));
    assert!(run(&server, &key, &id, "pay 1").contains("paid"));
    let forked = server.ask(&key, &format!("POST /v1/sandboxes/{id}/fork"), "{}").json();
    let fork = forked["forks"][0]["sandbox"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{forked}"))
        .to_owned();
    assert!(run(&server, &key, &fork, "pay 1").contains("paid"));
    let paused = server.ask(
        &key,
        &format!("POST /v1/sandboxes/{id}/pause"),
        r#"{"mode":"filesystem"}"#,
    );
    assert_eq!(paused.status, 200, "{paused:?}");
    server.restart();
    let resumed = server.ask(&key, &format!("POST /v1/sandboxes/{id}/resume"), "{}");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert!(run(&server, &key, &id, "pay 1").contains("paid"));
    for id in [&id, &fork] {
        assert!(run(&server, &key, id, "pay 1").contains("its 3 calls are used up"));
    }
    assert_eq!(notes(&server.site), 3);
}

/// A client that hears of calls.
struct Calls(BufReader<TcpStream>);

impl Calls {
    fn of(server: &Server, key: &str, id: &str) -> Self {
        let mut stream = connect(server.address);
        let address = server.address;
        write!(
            stream,
            "GET /v1/sandboxes/{id}/tools/calls HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\n\r\n"
        )
        .unwrap();
        let mut calls = Self(BufReader::new(stream));
        // From here on it hears of calls.
        calls.until(": calls of tools");
        calls
    }

    fn until(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.until("data: ")).unwrap()
    }
}

#[test]
fn a_client_answers_calls_of_its_own_tools() {
    let server = server();
    let (key, other) = (server.key(&[]), server.key(&[]));
    let schema = json!({ "type": "object", "required": ["q"], "properties": { "q": { "type": "string" } } });
    let tool = json!({ "name": "look-up", "parameters": schema, "timeout_ms": 60000, "grant": "where q prefix \"a\" calls 4" });
    let id = made(&server, &key, &json!({ "tools": { "grants": [], "answered": [tool] } }));
    let said = run(&server, &key, &id, "look-up abc; echo $?");
    assert!(said.contains("125") && said.contains("no client is there"), "{said}");
    let path = format!("/v1/sandboxes/{id}/tools/calls");
    for line in [format!("GET {path}"), format!("POST {path}/1")] {
        server
            .ask(&other, &line, if line.starts_with("POST") { "{}" } else { "" })
            .assert_refused(404);
    }
    let mut calls = Calls::of(&server, &key, &id);
    std::thread::scope(|scope| {
        let said = scope.spawn(|| {
            run(
                &server,
                &key,
                &id,
                "look-up abc; look-up xyz; echo $?; look-up abd; echo $?",
            )
        });
        let call = calls.next();
        assert_eq!(
            (&call["kind"], &call["tool"], &call["parameters"]),
            (&json!("call"), &json!("look-up"), &json!({ "q": "abc" }))
        );
        let answer = |number: &Value, body: Value| {
            server
                .ask(&key, &format!("POST {path}/{number}"), &body.to_string())
                .status
        };
        assert_eq!(answer(&call["id"], json!({ "result": 1, "error": "x" })), 400);
        assert_eq!(answer(&json!(77), json!({})), 404);
        assert_eq!(answer(&call["id"], json!({ "result": { "found": 7 } })), 204);
        assert_eq!(answer(&call["id"], json!({ "result": 8 })), 404);
        let call = calls.next();
        assert_eq!(answer(&call["id"], json!({ "error": "no such thing" })), 204);
        let said = said.join().unwrap();
        assert!(
            said.starts_with("{\"found\":7}\n126\n1\n") && said.contains("look-up: no such thing"),
            "{said}"
        );
    });
    // One that leaves has its calls fail.
    std::thread::scope(|scope| {
        let mut calls = Calls::of(&server, &key, &id);
        let said = scope.spawn(|| run(&server, &key, &id, "look-up abc"));
        calls.next();
        drop(calls);
        let said = said.join().unwrap();
        assert!(said.contains("the client that answers this tool left"), "{said}");
    });
}

#[test]
fn a_person_answers_at_the_api_and_at_the_command_line() {
    let server = server();
    let (key, other) = (server.key(&["--tool-grant", "ask"]), server.key(&[]));
    let id = made(&server, &key, &json!({}));
    let open = |key: &str| {
        let list = server.ask(key, "GET /v1/approvals", "").json();
        list["approvals"].as_array().unwrap().clone()
    };
    let decide = |key: &str, approval: &Value, how: &str, body: &str| {
        let id = approval["id"].as_str().unwrap();
        server.ask(key, &format!("POST /v1/approvals/{id}/{how}"), body).status
    };
    let next = |amount: u64| {
        eventually("a question", || {
            open(&key).into_iter().find(|one| one["parameters"]["amount"] == amount)
        })
    };
    std::thread::scope(|scope| {
        let script = "for n in 1 2 3 4 5; do ask \"{\\\"amount\\\": $n}\"; echo $?; done";
        let said = scope.spawn(|| run(&server, &key, &id, script));
        let first = next(1);
        assert_eq!((&first["tool"], &first["sandbox"]), (&json!("ask"), &json!(id)));
        assert!(open(&other).is_empty());
        assert_eq!(decide(&other, &first, "approve", "{}"), 404);
        // A tool is no host; the question stays open.
        assert_eq!(decide(&key, &first, "approve", r#"{"scope": "always"}"#), 501);
        assert_eq!(decide(&key, &first, "approve", "{}"), 204);
        assert_eq!(decide(&key, &first, "approve", "{}"), 404);
        assert_eq!(decide(&key, &next(2), "deny", "{}"), 204);
        // The owner, at the command line of the machine.
        let third = next(3);
        let listed = server.site.succeed(["approvals"]);
        assert!(
            listed.contains(third["id"].as_str().unwrap()) && listed.contains("{\"amount\":3}"),
            "{listed}"
        );
        server
            .site
            .succeed(["approvals", "deny", third["id"].as_str().unwrap()]);
        let fourth = next(4);
        server
            .site
            .succeed(["approvals", "approve", "--for-sandbox", fourth["id"].as_str().unwrap()]);
        let said = said.join().unwrap();
        let statuses: Vec<&str> = said.lines().filter(|line| line.len() < 4).collect();
        assert_eq!(statuses, ["0", "126", "126", "0", "0"], "{said}");
    });
    assert_eq!(notes(&server.site), 3);
    let log = server.ask(&key, &format!("GET /sandboxes/{id}/logs"), "").body;
    assert!(
        log.contains("approval 1 is asked for: tool ask") && log.contains("approval 2: the answer was to deny it"),
        "{log}"
    );
    let audit = server.site.succeed(["audit", "show"]);
    let decided: Vec<&str> = audit.lines().filter(|line| line.contains("approval_decided")).collect();
    assert_eq!(decided.len(), 4, "{audit}");
    assert!(
        decided[3].contains("tool ask") && decided[3].contains("\"run\""),
        "{audit}"
    );
    assert_eq!(server.site.succeed(["approvals", "allowed"]).lines().count(), 1);
    let forgotten = server.site.offleash(["approvals", "forget", "hnone"]).output().unwrap();
    let told = String::from_utf8_lossy(&forgotten.stderr);
    assert!(
        !forgotten.status.success() && told.contains("allowed host `hnone` not found"),
        "{told}"
    );
}
