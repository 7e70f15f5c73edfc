//! Who may call (A7).

use serde_json::json;

use crate::client::ask;
use crate::routes::{keyed, line};
use crate::sandboxes::made;
use crate::server::{Server, WITHOUT_BROWSER};
use crate::support::processes::eventually;
use crate::support::{Site, stderr, stdout};

#[test]
fn keys_are_listed_and_removed_by_their_names() {
    let site = Site::new();
    let state = site.root().join("new");
    let flags = ["key", "ls", "--state", state.to_str().unwrap()];
    let told = site.refuse(flags);
    assert!(told.contains("new` does not exist"), "{told}");
    assert!(!state.exists(), "looking for keys has made a state directory");

    for _ in 0..2 {
        site.succeed(["key", "create", "--name", "twice"]);
    }
    let listed = site.succeed(["key", "ls"]);
    let ids: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(ids.len(), 2, "{listed}");
    let told = site.refuse(["key", "rm", "twice"]);
    assert!(ids.iter().all(|id| told.contains(id)), "{told}");
    assert_eq!(site.succeed(["key", "rm", ids[0]]).trim(), ids[0]);
    assert_eq!(site.succeed(["key", "rm", "twice"]).trim(), ids[1]);
    let told = site.refuse(["key", "rm", "twice"]);
    assert!(told.contains("no valid key is called `twice`"), "{told}");
    for flag in ["--max-sandboxes", "--max-cpus", "--max-memory", "--max-disk"] {
        let output = site.offleash(["key", "create", flag, "0"]).output().unwrap();
        assert!(!output.status.success(), "{flag}");
    }
}

#[test]
fn a7_without_a_valid_key_nothing_is_said_on_any_route() {
    let server = Server::start();
    let key = server.key(&[]);
    let bad = [
        String::new(),
        "e2b_".to_owned(),
        key[..key.len() - 1].to_owned(),
        format!("{key}0"),
        key.to_uppercase(),
        format!("e2b_{}", "0".repeat(40)),
        "' OR 1=1 --".to_owned(),
    ];
    let routes = keyed().iter().map(|(_, route)| line(route)).collect::<Vec<_>>();
    let nowhere = ["GET /nowhere", "POST /v3/templates", "POST /v1/openapi.json"].map(str::to_owned);
    for route in routes.iter().chain(&nowhere) {
        ask(server.address, route, &[], "").assert_refused(401);
        ask(server.address, route, &[("X-API-KEY", &bad[2])], "").assert_refused(401);
    }
    for bad in &bad {
        ask(server.address, "GET /sandboxes", &[("X-API-KEY", bad)], "").assert_refused(401);
        let bearing = format!("Bearer {bad}");
        ask(server.address, "GET /sandboxes", &[("Authorization", &bearing)], "").assert_refused(401);
    }
    let twice = [("X-API-KEY", key.as_str()), ("X-API-KEY", &bad[5])];
    ask(server.address, "GET /sandboxes", &twice, "").assert_refused(401);
    let bearing = format!("Bearer {key}");
    assert_eq!(
        ask(server.address, "GET /sandboxes", &[("Authorization", &bearing)], "").status,
        200
    );
}

#[test]
fn a7_a_key_may_do_what_its_scopes_say() {
    let server = Server::start_with(WITHOUT_BROWSER, &[]);
    let read = server.key(&["--scope", "read"]);
    let create = server.key(&["--scope", "create"]);
    let admin = server.key(&["--scope", "admin"]);
    let overview = server.key(&["--scope", "overview"]);
    for (scope, route) in keyed() {
        let route = line(&route);
        // Without a body most are refused as they stand; what counts is that they get so far.
        let status = |key: &str| server.ask(key, &route, "").status;
        assert_ne!(status(&admin), 403, "{route}");
        assert_eq!(status(&read) == 403, scope != "read", "{route}");
        assert_eq!(
            status(&create) == 403,
            ["admin", "overview"].contains(&scope),
            "{route}"
        );
        assert_eq!(status(&overview) == 403, scope != "overview", "{route}");
    }
    // One route is its own, and no other door opens for it.
    let ids = server.ask(&overview, "GET /v1/overview/ids", "");
    assert_eq!((ids.status, &ids.json()["draining"]), (200, &json!(false)), "{ids:?}");
    let upgraded = [
        ("X-API-KEY", overview.as_str()),
        ("Connection", "upgrade"),
        ("Upgrade", "offleash-tcp"),
    ];
    for line in ["POST /mcp", "GET /mcp", "GET /v1/sandboxes/i1/ports/80"] {
        ask(server.address, line, &upgraded, "").assert_refused(403);
    }
}

#[test]
fn a7_a_revoked_key_is_refused_at_once() {
    let server = Server::start();
    let key = server.key(&["--name", "short-lived"]);
    assert_eq!(server.ask(&key, "GET /sandboxes", "").status, 200);
    let listed = server.site.succeed(["key", "ls"]);
    assert!(
        listed.contains("short-lived") && listed.contains(&key[..12]),
        "{listed}"
    );
    assert!(!listed.contains(&key), "{listed}");
    server.site.succeed(["key", "rm", "short-lived"]);
    server.ask(&key, "GET /sandboxes", "").assert_refused(401);
    assert!(!server.site.succeed(["key", "ls"]).contains("short-lived"));
}

#[test]
fn it_is_said_how_many_sandboxes_a_removed_key_leaves_and_they_can_be_ended() {
    let server = Server::start();
    let (key, other) = (server.key(&["--name", "gone"]), server.key(&[]));
    let (first, second) = (made(&server, &key, &json!({})), made(&server, &key, &json!({})));
    let stays = made(&server, &other, &json!({}));
    let remove = |arguments: &[&str]| {
        let output = server.site.offleash(["key", "rm"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (stdout(&output).trim().to_owned(), stderr(&output))
    };
    let (id, told) = remove(&["gone"]);
    assert!(told.contains("2 sandboxes of the key live on"), "{told}");
    assert!(told.contains(&format!("key rm --stop-sandboxes {id}")), "{told}");
    let alive = || {
        let ids = server.site.succeed(["ls", "--quiet"]);
        [&first, &second, &stays].map(|id| ids.lines().any(|line| line == id))
    };
    assert_eq!(alive(), [true; 3]);
    assert_eq!(remove(&["--stop-sandboxes", &id]), (id, String::new()));
    assert_eq!(alive(), [false, false, true]);
    let told = server.site.refuse(["key", "rm", "--stop-sandboxes", "gone"]);
    assert!(told.contains("no valid key is called `gone`"), "{told}");
}

#[test]
fn a_key_is_removed_with_its_sandboxes_over_the_api() {
    let server = Server::start();
    let (admin, key) = (server.key(&["--scope", "admin"]), server.key(&["--name", "gone"]));
    let id = made(&server, &key, &json!({}));
    let keys = server.ask(&admin, "GET /v1/keys", "").json();
    let row = keys["keys"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "gone")
        .unwrap();
    let path = format!("/v1/keys/{}", row["id"].as_str().unwrap());
    server
        .ask(&admin, &format!("DELETE {path}?stop_sandboxes=maybe"), "")
        .assert_refused(400);
    assert_eq!(server.ask(&admin, &format!("DELETE {path}"), "").status, 204);
    assert_eq!(server.site.succeed(["ls", "--quiet"]).trim(), id);
    // What was removed before can still be made to end its sandboxes, and not be removed again.
    server.ask(&admin, &format!("DELETE {path}"), "").assert_refused(404);
    let ended = server.ask(&admin, &format!("DELETE {path}?stop_sandboxes=true"), "");
    assert_eq!(ended.status, 204, "{}", ended.body);
    eventually("the sandbox's end", || {
        server.site.succeed(["ls", "--quiet"]).is_empty().then_some(())
    });
    server
        .ask(&admin, "DELETE /v1/keys/k0?stop_sandboxes=true", "")
        .assert_refused(404);
}

#[test]
fn keys_are_made_without_a_server() {
    let site = crate::support::Site::new();
    let key = site.succeed(["key", "create"]);
    assert_eq!(key.trim().len(), 44, "{key}");
    let told = site.refuse(["key", "create", "--scope", "everything"]);
    assert!(told.contains("everything"), "{told}");
    let server = Server::start_on(site, crate::server::QUIET, &[]);
    assert_eq!(server.ask(key.trim(), "GET /sandboxes", "").status, 200);
}
