//! Secrets that a server keeps for a key: its sandboxes' requests use them, and nobody sees a value.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use serde_json::{Value, json};

use crate::server::Served;
use crate::support::processes::eventually;
use crate::world::world;

const API: &str = "api.opened.example.net";
const FIRST: &str = "REAL0123456789-REAL0123456789-REAL0123456789";
const SECOND: &str = "REAL0123456789-REAL0123456789-REAL0123456789-REAL";
const PLACEHOLDER: &str = "${e2b.secrets.api-key}";

const ASK: &str = r#"
import http.client, json
connection = http.client.HTTPSConnection("api.opened.example.net", timeout=60)
connection.request("GET", "/a/path")
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"#;

struct Tenant<'a> {
    served: &'a Served,
    key: String,
}

impl Tenant<'_> {
    fn ask(&self, line: &str, body: &Value) -> (u16, Value) {
        self.served.ask_as(&self.key, line, body)
    }

    fn sandbox(&self) -> String {
        let rules = json!({ API: [{ "transform": { "headers": { "X-Key": format!("Key {PLACEHOLDER}") } } }] });
        let network = json!({ "allowOut": ["*.opened.example.net"], "denyOut": ["0.0.0.0/0"], "rules": rules });
        let body = json!({ "templateID": "base", "timeout": 600, "network": network });
        let (status, sandbox) = self.ask("POST /v2/sandboxes", &body);
        assert_eq!(status, 201, "{sandbox}");
        sandbox["sandboxID"].as_str().unwrap().to_owned()
    }
}

/// What a request of the sandbox is answered, by a server that repeats its headers.
fn answered(served: &Served, id: &str) -> String {
    let said = served.python(id, ASK);
    assert!(!said.contains("REAL"), "{said}");
    said
}

/// What stands in an answer in place of a value.
fn cover(value: &str) -> String {
    format!("\"Key {PLACEHOLDER:*<width$}\"", width = value.len())
}

#[test]
fn requests_use_the_secrets_of_their_key_and_nobody_sees_them() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let [own, other] = [(); 2].map(|()| Tenant {
        served: &served,
        key: served.key(),
    });
    let (status, made) = own.ask(
        "POST /secrets",
        &json!({ "name": "API-Key", "value": FIRST, "metadata": { "for": "x" } }),
    );
    assert_eq!(
        (status, &made["name"], &made["currentVersion"]),
        (201, &json!("api-key"), &json!(1)),
        "{made}"
    );
    assert_eq!(made["metadata"], json!({ "for": "x" }));
    let id = made["secretID"].as_str().unwrap();
    assert!(id.starts_with("sec_") && !made.to_string().contains("REAL"), "{made}");
    let sandbox = own.sandbox();
    let shown = own.ask(&format!("GET /sandboxes/{sandbox}"), &json!({})).1;
    assert!(
        shown.to_string().contains(PLACEHOLDER) && !shown.to_string().contains("REAL"),
        "{shown}"
    );
    assert!(answered(&served, &sandbox).contains(&cover(FIRST)));

    // Of another key, of which there is none, whatever it is called.
    assert_eq!(other.ask("GET /secrets", &json!({})), (200, json!([])));
    for line in [
        format!("GET /secrets/{id}"),
        "GET /secrets/api-key".into(),
        format!("DELETE /secrets/{id}"),
    ] {
        assert_eq!(other.ask(&line, &json!({})).0, 404, "{line}");
    }
    assert_eq!(served.ask("GET /secrets", &json!({})), (200, json!([])));
    let theirs = other.sandbox();
    let refused = answered(&served, &theirs);
    assert!(refused.contains("there is no such secret"), "{refused}");

    // Another value counts at once, on connections that are there, too.
    served.keep_connection(&sandbox, "kept", &format!("https://{API}/a/kept"));
    let (status, set) = own.ask("POST /secrets/api-key", &json!({ "value": SECOND }));
    assert_eq!(
        (status, &set["currentVersion"], &set["metadata"]),
        (200, &json!(2), &json!({ "for": "x" })),
        "{set}"
    );
    served.eventually_says(&sandbox, "kept", "cut");
    assert!(answered(&served, &sandbox).contains(&cover(SECOND)));

    // And when the sandbox goes on, if it waited meanwhile.
    assert_eq!(own.ask(&format!("POST /sandboxes/{sandbox}/pause"), &json!({})).0, 204);
    assert_eq!(own.ask("POST /secrets/api-key", &json!({ "value": FIRST })).0, 200);
    assert_eq!(
        own.ask(&format!("POST /v2/sandboxes/{sandbox}/connect"), &json!({})).0,
        201
    );
    assert!(answered(&served, &sandbox).contains(&cover(FIRST)));

    assert_eq!(own.ask(&format!("DELETE /secrets/{id}"), &json!({})).0, 204);
    assert_eq!(own.ask(&format!("DELETE /secrets/{id}"), &json!({})).0, 404);
    let refused = answered(&served, &sandbox);
    assert!(refused.contains("there is no such secret"), "{refused}");
    // What is gone is nowhere, and what there was was the owner's alone.
    let registry = served.state().join("registry.sqlite3");
    assert_eq!(std::fs::metadata(&registry).unwrap().mode() & 0o777, 0o600);
    let found = Command::new("grep")
        .args(["-rlaF", "REAL0123456789"])
        .arg(served.state())
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(
        found.lines().all(|file| file.ends_with("registry.sqlite3-wal")),
        "{found}"
    );
}

#[test]
fn secrets_go_with_their_key() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let own = Tenant {
        served: &served,
        key: served.key(),
    };
    assert_eq!(
        own.ask("POST /secrets", &json!({ "name": "api-key", "value": FIRST }))
            .0,
        201
    );
    let sandbox = own.sandbox();
    assert!(answered(&served, &sandbox).contains(&cover(FIRST)));
    let keys = served.ask("GET /v1/keys", &json!({})).1;
    let id = keys["keys"][0]["id"].as_str().unwrap();
    assert_eq!(served.ask(&format!("DELETE /v1/keys/{id}"), &json!({})).0, 204);
    // What is asked in the moment in which the secret goes is cut.
    let ask_anyway = format!(
        "import http.client\ntry:{}\nexcept (OSError, http.client.HTTPException) as error: print(error)",
        ASK.trim_end().replace('\n', "\n    ")
    );
    eventually("the end of its secrets", || {
        let said = served.python(&sandbox, &ask_anyway);
        assert!(!said.contains("REAL"), "{said}");
        said.contains("there is no such secret").then_some(())
    });
}

#[test]
fn what_is_no_secret_is_refused_and_says_why() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let make = |body: Value| served.ask("POST /secrets", &body);
    for (body, word) in [
        (json!({ "name": "a", "value": "short" }), "8 bytes"),
        (json!({ "name": "a", "value": "with\r\nX-Other: header" }), "line"),
        (json!({ "name": "a b", "value": FIRST }), "name"),
        (json!({ "name": "sec_a", "value": FIRST }), "ids"),
        (json!({ "value": FIRST }), "name"),
        (json!({ "name": "a" }), "value"),
        (
            json!({ "name": "a", "value": FIRST, "metadata": { "k": "v".repeat(1025) } }),
            "metadata",
        ),
    ] {
        let (status, answer) = make(body);
        let said = answer.to_string();
        assert!(
            status == 400 && said.contains(word) && !said.contains("REAL"),
            "{status} {said}"
        );
    }
    assert_eq!(make(json!({ "name": "a", "value": FIRST })).0, 201);
    assert_eq!(make(json!({ "name": "A", "value": FIRST })).0, 409);
    for number in 0..3 {
        assert_eq!(make(json!({ "name": format!("b{number}"), "value": FIRST })).0, 201);
    }
    let (status, page) = served.ask("GET /secrets?limit=3", &json!({}));
    assert_eq!((status, page.as_array().unwrap().len()), (200, 3), "{page}");
    for line in [
        "GET /secrets?limit=0",
        "GET /secrets?nextToken=!",
        "GET /secrets?limit=101",
    ] {
        assert_eq!(served.ask(line, &json!({})).0, 400, "{line}");
    }
    let rules = json!({ API: [{ "transform": { "headers": { "X": "${e2b.identity.tokens.aws}" } } }] });
    let (status, answer) = served.ask(
        "POST /v2/sandboxes",
        &json!({ "templateID": "base", "network": { "rules": rules } }),
    );
    assert_eq!(status, 501, "{answer}");
}
