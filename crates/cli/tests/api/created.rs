//! What `offleash create` can say of a sandbox: its name, its limits, what it may reach.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::server::{QUIET, Server};
use crate::support::{stderr, stdout};

#[test]
fn a_name_stands_for_the_id_and_is_one_sandboxes_alone() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create", "--name", "my-box.1", "--timeout", "10m"]);
    let id = id.trim();
    // Among the runs it is told apart from those that a person started.
    let runs = server.say(&["runs", "--all"]);
    assert!(runs.contains("[sandbox of the daemon] "), "{runs}");
    let row = server.say(&["ls"]);
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..2], [id, "my-box.1"]);
    assert_eq!(
        server.say(&["exec", "my-box.1", "sh", "-c", "echo here > /tmp/a; cat /tmp/a"]),
        "here\n"
    );
    assert_eq!(server.say(&["cp", "my-box.1:/tmp/a", "-"]), "here\n");
    assert!(server.say(&["inspect", "my-box.1"]).contains(id));
    assert!(server.say(&["logs", "my-box.1"]).contains("created by"));
    assert!(server.say(&["stats", "my-box.1"]).contains(id));
    assert!(
        server
            .say(&["port", "my-box.1", "8080"])
            .contains(&format!("/_port/{id}/8080/"))
    );

    let again = server.say_anyway(&["create", "--name", "my-box.1"]);
    let told = stderr(&again);
    assert!(
        !again.status.success() && told.contains("is called `my-box.1` already") && told.contains(id),
        "{told}"
    );
    // Another key may call one of its own the same.
    let key = server.key(&[]);
    let other = server.ask(&key, "POST /v1/sandboxes", r#"{"name":"my-box.1"}"#).json();
    let other = other["id"].as_str().unwrap();
    let taken = server.ask(&key, "POST /v1/sandboxes", r#"{"name":"my-box.1"}"#);
    assert_eq!(taken.status, 409, "{}", taken.body);
    assert_eq!(
        server.ask(&key, "GET /v1/names/my-box.1", "").json(),
        json!({ "id": other, "others": [] })
    );
    assert_eq!(server.say(&["exec", "my-box.1", "cat", "/tmp/a"]), "here\n");
    server.say(&["rm", "-f", other]);

    assert_eq!(server.say(&["pause", "my-box.1"]), "my-box.1\n");
    assert_eq!(server.say(&["resume", "my-box.1"]), "my-box.1\n");
    assert_eq!(server.say(&["stop", "my-box.1"]), "my-box.1\n");
    // It is free again.
    let next = server.say(&["create", "--name", "my-box.1"]);
    assert_ne!(next.trim(), id);
    server.say(&["rm", "-f", "my-box.1"]);
}

#[test]
fn a_name_stands_for_ones_own_sandbox_only() {
    let server = Server::start_with(QUIET, &[]);
    let keys = [server.key(&[]), server.key(&[])];
    let made = keys.each_ref().map(|key| {
        let made = server.ask(key, "POST /v1/sandboxes", r#"{"name":"web"}"#).json();
        made["id"].as_str().unwrap().to_owned()
    });
    let answer = |key: &str, query: &str| server.ask(key, &format!("GET /v1/names/web{query}"), "").json();
    let refused = |verb: &[&str], ids: &[String]| {
        let refused = server.say_anyway(verb);
        let told = stderr(&refused);
        assert!(!refused.status.success(), "{told}");
        assert!(told.contains("no sandbox of yours is called `web`"), "{told}");
        assert!(ids.iter().all(|id| told.contains(id)), "{told}");
    };
    let inspected = |name: &str| {
        let told: Vec<Value> = serde_json::from_str(&server.say(&["inspect", name])).unwrap();
        told[0].clone()
    };
    refused(&["pause", "web"], &made);
    refused(&["inspect", "web"], &made);
    assert_eq!(answer(&keys[0], "?ended=true"), json!({ "id": made[0], "others": [] }));
    server.say(&["rm", "-f", &made[1]]);
    refused(&["exec", "web", "true"], &made[..1]);
    let own = server.say(&["create", "--name", "web"]);
    let own = own.trim();
    assert_eq!(inspected("web")["sandboxID"], own);
    // Nobody gets what was meant for the owner's own once that has ended.
    server.say(&["stop", "web"]);
    for verb in [&["exec", "web", "true"][..], &["stop", "web"], &["pause", "web"]] {
        let refused = server.say_anyway(verb);
        let told = stderr(&refused);
        assert!(!refused.status.success(), "{told}");
        assert!(told.contains(own) && told.contains("has ended: by the owner"), "{told}");
    }
    let told = inspected("web");
    assert_eq!((&told["sandboxID"], &told["state"]), (&json!(own), &json!("ended")));
    assert_eq!(told["metadata"]["offleash.name"], "web");
    assert!(server.say(&["logs", "web"]).contains("killed: by the owner"), "{told}");
    assert!(server.say(&["ls", "-a"]).contains(" web "));
    server.say(&["rm", "-f", &made[0]]);
    assert!(!server.say_anyway(&["pause", "web"]).status.success());
    assert_eq!(answer(&keys[1], ""), json!({ "id": null, "others": [] }));
    assert_eq!(answer(&keys[1], "?ended=true"), json!({ "id": made[1], "others": [] }));
    for (query, status) in [("web?ended=perhaps", 400), ("No%20Name", 400)] {
        let answer = server.ask(&keys[0], &format!("GET /v1/names/{query}"), "");
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[test]
fn a_name_is_taken_at_once_by_one_of_those_who_want_it() {
    let server = Server::start_with(QUIET, &[]);
    let key = server.key(&[]);
    let made: Vec<u16> = std::thread::scope(|scope| {
        let ask = || server.ask(&key, "POST /v1/sandboxes", r#"{"name":"one"}"#).status;
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let count = |status| made.iter().filter(|made| **made == status).count();
    assert_eq!((count(201), count(409)), (1, 3), "{made:?}");
    for (body, why) in [
        (r#"{"name":"A b"}"#, "name: `A b` is not a name"),
        (r#"{"name":"i1234567890123456789"}"#, "looks like the id of a sandbox"),
        (r#"{"metadata":{"offleash.name":"b"}}"#, "is what `name` sets"),
    ] {
        let refused = server.ask(&key, "POST /v1/sandboxes", body);
        assert!(refused.status == 400 && refused.body.contains(why), "{}", refused.body);
    }
}

#[test]
fn limits_are_asked_for_with_flags() {
    let server = Server::start_with(QUIET, &[]);
    let flags = ["--memory", "300M", "--cpus", "1", "--disk", "200M", "--pids", "77"];
    let mut create = vec!["create"];
    create.extend(flags);
    let id = server.say(&create);
    let shown = ["inspect", id.trim()];
    let detail: serde_json::Value = serde_json::from_str(&server.say(&shown)).unwrap();
    // Whole MiB, and no less than what was asked for.
    let at_least = 300_000_000_u64.div_ceil(1 << 20);
    let memory = detail[0]["memoryMB"].as_u64().unwrap();
    assert!(memory == at_least || memory == 300, "{detail}");
    assert_eq!(
        (&detail[0]["cpuCount"], detail[0]["diskSizeMB"].as_u64().is_some()),
        (&1.into(), true),
        "{detail}"
    );
    for (flag, value) in [
        ("--memory", "1"),
        ("--cpus", "1000"),
        ("--disk", "900T"),
        ("--pids", "1"),
        ("--timeout", "100h"),
    ] {
        let refused = server.say_anyway(&["create", flag, value]);
        let told = stderr(&refused);
        assert!(
            !refused.status.success() && told.contains(&format!("error: {flag}: ")),
            "{told}"
        );
    }
}

#[test]
fn a_full_server_tells_its_owner_what_would_make_room_and_nobody_else() {
    let server = Server::start_with(&format!("{QUIET}[sandboxes]\nmax = 1\n"), &[]);
    server.say(&["create", "--timeout", "10m"]);
    let full = server.say_anyway(&["create"]);
    let told = stderr(&full);
    assert!(!full.status.success(), "{told}");
    assert!(
        told.contains("there is no place for another sandbox") && told.contains("`sandboxes.max`"),
        "{told}"
    );
    for (scope, is_told) in [("admin", true), ("create", false)] {
        let answer = server.ask(&server.key(&["--scope", scope]), "POST /v1/sandboxes", "{}");
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains("no place for another sandbox"), "{}", answer.body);
        assert_eq!(answer.body.contains("sandboxes.max"), is_told, "{}", answer.body);
        assert_eq!(answer.header("retry-after"), Some("5"));
    }
}

#[test]
fn what_is_wrong_with_a_flag_is_said_of_that_flag() {
    let server = Server::start_with(QUIET, &[]);
    for (flags, told) in [
        (
            &["--allow", "a.test"][..],
            "error: `--allow a.test` opens nothing that is not open",
        ),
        (&["--allow", "10.0.0.1"], "error: --allow: `10.0.0.1` is not public"),
        (
            &["--allow", "a_b:c", "--no-internet"],
            "error: --allow: network rule `a_b:c`",
        ),
        (
            &["--allow", "9.9.9.9:443"],
            "error: `--allow 9.9.9.9:443` opens nothing that is not open",
        ),
        (
            &["--allow", "9.9.9.9:443", "--deny-host", "9.9.9.0/24"],
            "has a port, and those open something only where everything else is closed",
        ),
        (&["--memory", "512"], "error: --memory: 1 MiB is not between 64 and "),
        (
            &["--memory", "512"],
            "hint: sizes are such as 512M or 2G: units K, M, G and T",
        ),
        (&["--disk", "9000T"], "hint: sizes are such as"),
        (
            &["--deny-host", "a.test"],
            "error: --deny-host: `a.test` is not an address or a network",
        ),
        (&["--env", "=b"], "`--env =b`"),
    ] {
        let mut arguments = vec!["create"];
        arguments.extend(flags);
        let refused = server.say_anyway(&arguments);
        assert!(stderr(&refused).contains(told), "{flags:?}: {}", stderr(&refused));
        assert_eq!(stdout(&refused), "");
    }
    let allowed = server.say(&[
        "create",
        "--no-internet",
        "--allow",
        "a.test",
        "--allow",
        "9.9.9.9",
        "--allow",
        "1.1.1.1:443",
    ]);
    let shown = server.ask(
        &server.key(&["--scope", "admin"]),
        &format!("GET /v1/sandboxes/{}/policy", allowed.trim()),
        "",
    );
    let policy = shown.json();
    assert_eq!(policy["internet"], false, "{policy}");
    assert_eq!(
        policy["allow"],
        serde_json::json!(["a.test", "9.9.9.9", "1.1.1.1:443"]),
        "{policy}"
    );
}

#[test]
fn a_resumed_sandbox_has_the_time_that_it_had_left() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create", "--timeout", "5h"]);
    let id = id.trim();
    let left_s = || {
        let detail: serde_json::Value = serde_json::from_str(&server.say(&["inspect", id])).unwrap();
        let end = offleash_api::client::unix_ms(detail[0]["endAt"].as_str().unwrap()).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        (end - i64::try_from(now).unwrap()) / 1000
    };
    server.say(&["pause", id]);
    server.say(&["resume", id]);
    // Whatever this took, it is neither five minutes nor the default.
    assert!((4 * 3600..=5 * 3600).contains(&left_s()), "{}", left_s());
    // One that runs keeps its time, and is given more only where that is said.
    server.say(&["resume", id]);
    assert!((4 * 3600..=5 * 3600).contains(&left_s()), "{}", left_s());
    server.say(&["resume", "--timeout", "10h", id]);
    assert!(left_s() > 9 * 3600, "{}", left_s());
    // A time that is given is what it has.
    server.say(&["pause", id]);
    server.say(&["resume", "--timeout", "2h", id]);
    assert!((3600..=2 * 3600).contains(&left_s()), "{}", left_s());
    // E2B's own call gives five minutes to who says nothing.
    server.say(&["pause", id]);
    let key = server.key(&["--scope", "admin"]);
    server.ask(&key, &format!("POST /sandboxes/{id}/resume"), "{}");
    assert!((1..=300).contains(&left_s()), "{}", left_s());
}
