//! What is looked at from outside: changes of runs and sandboxes, processes, the audit log.

use serde_json::{Value, json};

use crate::sandboxes::made;
use crate::server::{QUIET, Server};
use crate::support::processes::eventually;
use crate::support::{id_of, skip};

impl Server {
    /// What an admin is told by that route.
    fn told(&self, key: &str, line: &str, body: &str) -> Value {
        let answer = self.ask(key, line, body);
        assert_eq!(answer.status, 200, "{line}: {answer:?}");
        answer.json()
    }

    /// Runs a line for the shell in a sandbox.
    fn shell(&self, key: &str, id: &str, line: &str) {
        let body = json!({ "argv": ["bash", "-c", line], "env": { "LC_ALL": "C.UTF-8" } });
        let told = self.told(key, &format!("POST /v1/sandboxes/{id}/run"), &body.to_string());
        assert_eq!(told["exit_code"], 0, "{told}");
    }
}

/// The changes in a list, as `KIND PATH`.
fn changes(list: &Value) -> Vec<String> {
    let all = list["changes"].as_array().unwrap().iter();
    all.map(|one| format!("{} {}", one["kind"].as_str().unwrap(), one["path"].as_str().unwrap()))
        .collect()
}

#[test]
fn changes_of_a_run_are_shown_and_applied_file_by_file() {
    let server = Server::start();
    let (admin, plain) = (server.key(&["--scope", "admin"]), server.key(&[]));
    let host = server.site.write("kept", "one\n");
    let script = "echo two >> kept; echo new > added; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; \
                  printf x > \"$(printf 'no\\377text')\"";
    let run = id_of(&server.site.record(&[], script));
    for line in [
        "GET /v1/runs",
        "GET /v1/runs/RUN/changes",
        "POST /v1/runs/RUN/apply",
        "POST /v1/runs/RUN/discard",
    ] {
        server.ask(&plain, &line.replace("RUN", &run), "{}").assert_refused(403);
    }
    let runs = server.told(&admin, "GET /v1/runs", "");
    let listed = runs["runs"].as_array().unwrap();
    assert!(
        listed.iter().any(|one| one["id"] == run && one["state"] == "kept"),
        "{runs}"
    );

    let path = format!("/v1/runs/{run}");
    let list = server.told(&admin, &format!("GET {path}/changes"), "");
    let named = changes(&list);
    for expected in [
        "modified kept",
        "added added",
        "added .git/hooks/pre-commit",
        "added no\u{fffd}text",
    ] {
        assert!(named.iter().any(|one| one == expected), "{expected}: {named:?}");
    }
    let diff = server.told(&admin, &format!("GET {path}/changes/diff?path=kept"), "");
    assert!(diff["patch"].as_str().unwrap().contains(" one\n+two\n"), "{diff}");
    let diff = server.told(&admin, &format!("GET {path}/changes/diff?path=no%FFtext"), "");
    assert_eq!(diff["added_lines"], 1, "{diff}");
    for other in [
        "",
        "?path=",
        "?path=nothing",
        "?path=..%2f..%2fetc%2fpasswd",
        "?path=%2Fetc%2Fpasswd",
    ] {
        let answer = server.ask(&admin, &format!("GET {path}/changes/diff{other}"), "");
        assert!(matches!(answer.status, 400 | 404), "{other}: {answer:?}");
    }

    let apply = |body: &Value| server.ask(&admin, &format!("POST {path}/apply"), &body.to_string());
    for (body, status) in [
        (json!({ "paths": [] }), 400),
        (json!({ "paths": ["nothing"] }), 404),
        (json!({ "paths": ["../outside"] }), 404),
        (json!({ "path": "added" }), 400),
    ] {
        assert_eq!(apply(&body).status, status, "{body}");
    }
    let done = apply(&json!({ "paths": ["added"], "paths_base64": ["bm//dGV4dA=="] })).json();
    assert_eq!(done["applied"], json!(["added", "no\u{fffd}text"]), "{done}");
    assert!(server.site.workspace().join("added").exists());
    assert_eq!(std::fs::read_to_string(&host).unwrap(), "one\n");
    // A protected name is applied when that is said, and not before.
    let hook = json!({ "paths": [".git/hooks/pre-commit", ".git"] });
    let done = apply(&hook).json();
    assert!(!done["refused"].as_array().unwrap().is_empty(), "{done}");
    assert!(!server.site.workspace().join(".git/hooks/pre-commit").exists());
    // It is not for whoever names what is above it.
    let done = apply(&json!({ "paths": [".git"], "held_back": true })).json();
    assert!(!done["refused"].as_array().unwrap().is_empty(), "{done}");
    let meant = json!({ "paths": [".git/hooks/pre-commit"], "exactly": true, "held_back": true });
    assert_eq!(apply(&meant).json()["refused"], json!([]));
    assert!(server.site.workspace().join(".git/hooks/pre-commit").exists());
    // Nothing is written over what somebody changed meanwhile.
    std::fs::write(&host, "of somebody else\n").unwrap();
    assert_eq!(apply(&json!({})).status, 409);
    assert_eq!(std::fs::read_to_string(&host).unwrap(), "of somebody else\n");
    let discard = format!("POST {path}/discard");
    assert_eq!(server.ask(&admin, &discard, "{}").status, 204);
    assert_eq!(server.ask(&admin, &discard, "{}").status, 404);
    assert_eq!(server.ask(&admin, "GET /v1/runs/none/changes", "").status, 404);
    let log = server.site.succeed(["audit", "show"]);
    assert!(log.contains("changes_applied") && log.contains(&run), "{log}");
}

#[test]
fn changes_of_a_sandbox_are_compared_with_what_it_was_made_of() {
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({}));
    server.shell(
        &key,
        &id,
        "cd /tmp && sudo mkdir -m 755 /srv/w && sudo chmod 777 /srv/w && cd /srv/w && printf 'a\\nb\\n' > file \
         && ln -s /etc/shadow out && touch $'up\\u202efdp' && sudo sh -c 'echo x:x:9:9::/:/bin/false >> /etc/passwd' \
         && sudo rm /usr/bin/env",
    );
    let path = format!("/v1/sandboxes/{id}/changes");
    let check = || {
        let list = server.told(&key, &format!("GET {path}"), "");
        let named = changes(&list);
        for expected in [
            "added /srv/w/file",
            "added /srv/w/out",
            "added /srv/w/up\u{202e}fdp",
            "modified /etc/passwd",
            "deleted /usr/bin/env",
        ] {
            assert!(named.iter().any(|one| one == expected), "{expected}: {named:?}");
        }
        let diff = server.told(&key, &format!("GET {path}/diff?path=/etc/passwd"), "");
        assert!(
            diff["patch"].as_str().unwrap().contains("\n+x:x:9:9::/:/bin/false\n"),
            "{diff}"
        );
        // What a link leads to is the sandbox's to know.
        let diff = server.told(&key, &format!("GET {path}/diff?path=/srv/w/out"), "");
        assert!(diff["patch"].as_str().unwrap().contains("+/etc/shadow\n"), "{diff}");
        for other in ["/srv/w/out/x", "/etc/hosts/..", "/../../etc/shadow", "/srv", "relative"] {
            let answer = server.ask(&key, &format!("GET {path}/diff?path={other}"), "");
            assert!(matches!(answer.status, 400 | 404), "{other}: {answer:?}");
        }
    };
    check();
    assert_eq!(
        server.ask(&key, &format!("POST /v1/sandboxes/{id}/pause"), "{}").status,
        200
    );
    check();
}

#[test]
fn processes_of_a_sandbox_are_seen_from_outside_and_end_one_by_one() {
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({}));
    let path = format!("/v1/sandboxes/{id}/processes");
    let first = server.ask(&key, &format!("GET {path}"), "");
    if first.json()["seen_by"] != "kernel" {
        skip("this level shows no processes outside");
        return;
    }
    server.shell(
        &key,
        &id,
        "(exec -a $'\\e[2J<img src=x onerror=alert(1)>' sleep 600) >/dev/null 2>&1 & sleep 601 >/dev/null 2>&1 &",
    );
    let find = |argument: &str| {
        let list = server.told(&key, &format!("GET {path}"), "");
        let has = |one: &&Value| one["command"].as_array().unwrap().iter().any(|word| word == argument);
        list["processes"].as_array().unwrap().iter().find(has).cloned()
    };
    let hostile = eventually("a process with a hostile name", || find("600"));
    let name = hostile["command"][0].as_str().unwrap();
    assert!(!name.chars().any(char::is_control) && name.contains("<img"), "{name:?}");
    let other = eventually("another process", || find("601"));
    assert!(
        other["memory_bytes"].as_u64().unwrap() > 0 && other["name"] == "sleep",
        "{other}"
    );
    let signal = |process: &Value, signal: &str, started: u64| {
        let body = json!({ "signal": signal, "started": started });
        let line = format!("POST {path}/{}/signal", process["pid"]);
        server.ask(&key, &line, &body.to_string()).status
    };
    let started = other["started"].as_u64().unwrap();
    assert_eq!(signal(&other, "SIGNOTHING", started), 400);
    assert_eq!(signal(&other, "SIGKILL", started + 1), 404);
    assert_eq!(signal(&json!({ "pid": 1 }), "SIGKILL", started), 400);
    assert_eq!(signal(&json!({ "pid": 4_000_000_000_u32 }), "SIGKILL", started), 404);
    assert_eq!(signal(&other, "SIGKILL", started), 204);
    eventually("its end", || find("601").is_none().then_some(()));
    assert!(find("600").is_some());
}

#[test]
fn where_the_kernel_has_no_processes_commands_are_shown_and_end() {
    let server = Server::start_with(&format!("{QUIET}[sandboxes]\nlevel = \"simulated\"\n"), &[]);
    let (key, other) = (server.key(&[]), server.key(&[]));
    let id = made(&server, &key, &json!({}));
    let path = format!("/v1/sandboxes/{id}/processes");
    let list = || server.told(&key, &format!("GET {path}"), "");
    assert_eq!(
        (&list()["seen_by"], &list()["processes"]),
        (&json!("commands"), &json!([]))
    );
    let signal = |key: &str, pid: &Value| {
        let body = json!({ "signal": "SIGKILL", "started": 0 }).to_string();
        server.ask(key, &format!("POST {path}/{pid}/signal"), &body).status
    };
    let body = json!({ "shell": "sleep 600" }).to_string();
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| server.ask(&key, &format!("POST /v1/sandboxes/{id}/run"), &body).json());
        let seen = eventually("the command", || list()["processes"].get(0).cloned());
        assert!(seen["command"].to_string().contains("sleep 600"), "{seen}");
        assert_eq!((seen.get("memory_bytes"), &seen["started"]), (None, &json!(0)));
        assert_eq!(signal(&key, &json!(4_000_000_000_u32)), 404);
        assert_eq!(signal(&other, &seen["pid"]), 404);
        assert_eq!(signal(&key, &seen["pid"]), 204);
        let ended = ran.join().unwrap();
        assert_eq!(ended["signal"], 9, "{ended}");
    });
    assert_eq!(list()["processes"], json!([]));
}

#[test]
fn the_audit_log_is_verified_for_admins_and_a_changed_line_is_found() {
    let server = Server::start();
    let (admin, plain) = (server.key(&["--scope", "admin"]), server.key(&[]));
    for _ in 0..3 {
        server.site.record(&[], "true");
    }
    let line = "GET /v1/audit/verification";
    server.ask(&plain, line, "").assert_refused(403);
    let told = server.told(&admin, line, "");
    assert_eq!(
        (&told["unbroken"], &told["first_bad"]),
        (&json!(true), &Value::Null),
        "{told}"
    );
    assert!(told["lines"].as_u64().unwrap() >= 2, "{told}");
    let log = server.site.state().join("audit.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("\"seq\":2,", "\"seq\":9,", 1)).unwrap();
    let told = server.told(&admin, line, "");
    assert_eq!(
        (&told["unbroken"], &told["first_bad"]),
        (&json!(false), &json!(2)),
        "{told}"
    );
    assert!(!told["why"].as_str().unwrap().is_empty(), "{told}");
}
