//! The native REST, as far as it needs no sandbox.

use serde_json::json;

use crate::client::ask;
use crate::server::{Server, WITHOUT_BROWSER};

#[test]
fn the_document_needs_no_key_and_names_every_route() {
    let server = Server::start_with(WITHOUT_BROWSER, &[]);
    let answer = ask(server.address, "GET /v1/openapi.json", &[], "");
    assert_eq!(answer.status, 200);
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");
    let key = server.key(&["--scope", "admin"]);
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let line = format!(
                "{} {}",
                method.to_uppercase(),
                path.replace("{id}", "i1").replace("{context}", "c1")
            );
            let answer = server.ask(&key, &line, "");
            assert_ne!(answer.status, 405, "{line}: {answer:?}");
            let nothing = answer.status == 404 && answer.body.contains("no such route");
            assert!(!nothing, "{line}: {answer:?}");
            count += 1;
        }
    }
    assert!(count >= 26, "{count}");
}

#[test]
fn an_admin_works_with_keys() {
    let server = Server::start();
    let admin = server.key(&["--scope", "admin"]);
    let made = server.ask(
        &admin,
        "POST /v1/keys",
        r#"{"name":"ci","scopes":["read"],"quota":{"sandboxes":3}}"#,
    );
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let key = made["key"].as_str().unwrap();
    assert_eq!(server.ask(key, "GET /v1/usage", "").json()["quota"]["sandboxes"], 3);
    assert_eq!(made["about"]["scopes"], json!(["read"]));
    let listed = server.ask(&admin, "GET /v1/keys", "");
    assert!(!listed.body.contains(key), "{listed:?}");
    let id = made["about"]["id"].as_str().unwrap();
    let revoke = format!("DELETE /v1/keys/{id}");
    assert_eq!(server.ask(&admin, &revoke, "").status, 204);
    server.ask(key, "GET /v1/usage", "").assert_refused(401);
    server.ask(&admin, &revoke, "").assert_refused(404);
    for body in [
        r#"{"name":""}"#,
        r#"{"name":"a\nb"}"#,
        r#"{"name":"x","scopes":["root"]}"#,
        r#"{"name":"x","scopes":[]}"#,
        r#"{"nam":"x"}"#,
    ] {
        server.ask(&admin, "POST /v1/keys", body).assert_refused(400);
    }
}

#[test]
fn commands_that_make_no_sense_make_no_sandbox() {
    let server = Server::start();
    let key = server.key(&[]);
    for body in [
        r#"{}"#,
        r#"{"command":{}}"#,
        r#"{"command":{"argv":[]}}"#,
        r#"{"command":{"argv":["true"],"shell":"true"}}"#,
        r#"{"command":{"argv":["a\u0000b"]}}"#,
        r#"{"command":{"shell":"true","env":{"A=B":"c"}}}"#,
        r#"{"command":{"shell":"true"},"sandbox":{"memory":3}}"#,
        r#"{"command":{"shell":"true"},"sandbox":{"limits":{"cpus":-1}}}"#,
        r#"{"command":{"shell":"true"},"sandbox":{"limits":{"memory_mib":18446744073709551615}}}"#,
        r#"{"command":{"shell":"true"},"sandbox":{"policy":{"allow":["a.test"]}}}"#,
    ] {
        server.ask(&key, "POST /v1/run", body).assert_refused(400);
    }
    assert_eq!(server.ask(&key, "GET /v1/sandboxes", "").json()["sandboxes"], json!([]));
}

#[test]
fn a_command_that_is_not_there_has_the_exit_code_of_a_shell() {
    let server = Server::start();
    let key = server.key(&[]);
    for (program, code) in [("nosuch", 127), ("/etc/hostname", 126)] {
        let body = json!({ "command": { "argv": [program] } }).to_string();
        let answer = server.ask(&key, "POST /v1/run", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let result = answer.json();
        assert_eq!(result["exit_code"], code, "{result}");
        assert!(result["stderr"].as_str().unwrap().starts_with("offleash: "), "{result}");
    }
    let nowhere = r#"{"command":{"argv":["true"],"cwd":"/nowhere"}}"#;
    assert_eq!(server.ask(&key, "POST /v1/run", nowhere).status, 400);
}

/// Neither archives (A5) nor layers of images (A6) are taken by anything so far.
#[test]
fn a6_what_comes_later_says_so_and_that_asking_again_is_no_use() {
    let server = Server::start();
    let key = server.key(&[]);
    for line in [
        "POST /templates",
        "POST /templates/x/builds/y",
        "GET /templates/x/tags/groups",
        "GET /default-templates",
    ] {
        let answer = server.ask(&key, line, "{}");
        answer.assert_refused(501);
        assert_eq!(answer.header("should-retry"), Some("false"), "{line}");
    }
    assert_eq!(
        server.ask(&key, "GET /templates/aliases/base", "").json()["public"],
        true
    );
    server.ask(&key, "GET /templates/aliases/other", "").assert_refused(404);
}

#[test]
fn forks_are_made_each_or_not() {
    let server = Server::start();
    let key = server.key(&["--max-sandboxes", "3"]);
    let made = server.ask(&key, "POST /v1/sandboxes", "{}");
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let answer = server.ask(&key, &format!("POST /v1/sandboxes/{id}/fork"), r#"{"count":3}"#);
    assert_eq!(answer.status, 201, "{answer:?}");
    let answer = answer.json();
    let forks = answer["forks"].as_array().unwrap();
    assert_eq!(forks.len(), 3);
    for made in &forks[..2] {
        assert!(made["sandbox"]["id"].is_string() && made["error"].is_null(), "{made}");
        assert_ne!(
            made["sandbox"]["access_token"],
            server.ask(&key, &format!("GET /v1/sandboxes/{id}"), "").json()["access_token"]
        );
    }
    assert_eq!(
        (&forks[2]["sandbox"], &forks[2]["error"]["code"]),
        (&serde_json::Value::Null, &429.into())
    );
    let answer = server.ask(&key, &format!("POST /sandboxes/{id}/fork"), "{}");
    answer.assert_refused(429);
    for (body, status) in [
        (r#"{"count":0}"#, 400),
        (r#"{"count":21}"#, 400),
        (r#"{"timeout":0}"#, 400),
    ] {
        server
            .ask(&key, &format!("POST /sandboxes/{id}/fork"), body)
            .assert_refused(status);
    }
    server
        .ask(&key, "POST /sandboxes/inobody/fork", "{}")
        .assert_refused(404);
}
