//! Sandboxes of a real daemon: whose they are, how their ports are reached, how they end.

use std::io::{Read as _, Write as _};

use offleash_api::route_summaries;
use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::client::{Answer, ask, connect, finish_sending, parse, read_all};
use crate::server::{QUIET, Server};
use crate::support::processes::{eventually, is_gateway, program};
use crate::support::skip;

/// Makes a sandbox; answers its id.
pub(crate) fn made(server: &Server, key: &str, fields: &serde_json::Value) -> String {
    let mut body = json!({ "templateID": "base", "timeout": 120 });
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    let answer = server.ask(key, "POST /v2/sandboxes", &body.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["sandboxID"].as_str().unwrap().to_owned()
}

/// Runs a line in a sandbox; it must succeed. Answers what it wrote.
pub(crate) fn run(server: &Server, key: &str, id: &str, line: &str) -> String {
    let answer = server.ask(
        key,
        &format!("POST /v1/sandboxes/{id}/run"),
        &json!({ "shell": line }).to_string(),
    );
    let result = answer.json();
    assert_eq!(result["exit_code"], 0, "{answer:?}");
    result["stdout"].as_str().unwrap().to_owned()
}

/// What every route of Daytona's takes that has a body.
const DAYTONA_BODY: &str = r#"{"command":"true","code":"1","sessionId":"s","labels":{},"name":"n","path":"p","paths":["p"],
    "files":["p"],"pattern":"p","newValue":"","key":"k","value":"v","url":"u","author":"a","email":"e","data":"","id":"t","cols":80,"rows":24}"#;

#[test]
fn a7_another_keys_sandbox_does_not_exist_on_any_route() {
    let server = Server::start();
    let (owner, other, admin) = (server.key(&[]), server.key(&[]), server.key(&["--scope", "admin"]));
    let id = made(&server, &owner, &json!({ "metadata": { "a": "b" } }));
    for (line, body) in [
        ("GET /sandboxes/ID", ""),
        ("GET /sandboxes/ID/metrics", ""),
        ("GET /sandboxes/ID/logs", ""),
        ("GET /v2/sandboxes/ID/logs", ""),
        ("GET /v1/sandboxes/ID", ""),
        ("GET /v1/sandboxes/ID/usage", ""),
        ("GET /v1/sandboxes/ID/policy", ""),
        ("GET /v1/sandboxes/ID/changes", ""),
        ("GET /v1/sandboxes/ID/changes/diff?path=/a", ""),
        ("GET /v1/sandboxes/ID/reached", ""),
        ("GET /v1/sandboxes/ID/processes", ""),
        (
            "POST /v1/sandboxes/ID/processes/2/signal",
            "{\"signal\":\"SIGTERM\",\"started\":1}",
        ),
        ("POST /sandboxes/ID/timeout", "{\"timeout\":1}"),
        ("POST /sandboxes/ID/refreshes", "{\"duration\":1}"),
        ("POST /sandboxes/ID/pause", "{}"),
        ("POST /sandboxes/ID/resume", "{}"),
        ("POST /sandboxes/ID/connect", "{}"),
        ("POST /v2/sandboxes/ID/connect", "{}"),
        ("PUT /sandboxes/ID/network", "{}"),
        ("PUT /v1/sandboxes/ID/policy", "{}"),
        ("PUT /v1/sandboxes/ID/metadata", "{\"metadata\":{}}"),
        ("POST /v1/sandboxes/ID/run", "{\"shell\":\"true\"}"),
        ("POST /v1/sandboxes/ID/execute", "{\"code\":\"1\"}"),
        ("GET /v1/sandboxes/ID/contexts", ""),
        ("POST /v1/sandboxes/ID/contexts", "{}"),
        ("GET /v1/sandboxes/ID/contexts/c1", ""),
        ("DELETE /v1/sandboxes/ID/contexts/c1", ""),
        ("POST /v1/sandboxes/ID/contexts/c1/restart", ""),
        ("POST /v1/sandboxes/ID/contexts/c1/interrupt", ""),
        ("POST /v1/sandboxes/ID/contexts/c1/execute", "{\"code\":\"1\"}"),
        ("DELETE /v1/sandboxes/ID", ""),
        ("DELETE /sandboxes/ID", ""),
    ] {
        server.ask(&other, &line.replace("ID", &id), body).assert_refused(404);
    }
    // Daytona's door has many routes of a sandbox.
    for route in route_summaries() {
        if !route.path.starts_with("/api/") || !route.path.contains("{id}") {
            continue;
        }
        let others = [
            "{minutes}",
            "{port}",
            "{session}",
            "{command}",
            "{terminal}",
            "{context}",
        ];
        let path = others
            .iter()
            .fold(route.path.replace("{id}", &id), |path, other| path.replace(other, "1"));
        let body = if route.max_body.is_some() { DAYTONA_BODY } else { "" };
        let answer = server.ask(&other, &format!("{} {path}", route.method), body);
        answer.assert_refused(404);
        assert!(!answer.body.contains("no such route"), "{path}: {answer:?}");
    }
    let events = server.ask(&other, &format!("GET /events/sandboxes/{id}"), "");
    assert!(events.status == 404 || events.json() == json!([]), "{events:?}");
    for line in [
        "GET /sandboxes",
        "GET /v2/sandboxes",
        "GET /v2/sandboxes?metadata=a%3Db",
        "GET /events/sandboxes",
    ] {
        assert_eq!(server.ask(&other, line, "").json(), json!([]), "{line}");
    }
    assert_eq!(server.ask(&other, "GET /v1/audit", "").json()["events"], json!([]));
    for key in [&owner, &admin] {
        assert_eq!(
            server.ask(key, &format!("GET /sandboxes/{id}"), "").json()["metadata"]["a"],
            "b"
        );
    }
}

#[test]
fn a14_a_sandbox_is_killed_once_and_is_gone_on_every_way() {
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({}));
    let kill = format!("DELETE /sandboxes/{id}");
    let answers = std::thread::scope(|scope| {
        // It is killed while a command runs in it, by two at a time.
        let command = scope.spawn(|| {
            server.ask(
                &key,
                &format!("POST /v1/sandboxes/{id}/run"),
                r#"{"shell":"sleep 600"}"#,
            )
        });
        eventually("the command", || {
            let usage = server.ask(&key, &format!("GET /v1/sandboxes/{id}/usage"), "").json();
            (usage["pids"].as_u64()? > 1).then_some(())
        });
        let kills = [(); 2].map(|()| scope.spawn(|| server.ask(&key, &kill, "").status));
        let mut statuses = kills.map(|kill| kill.join().unwrap());
        statuses.sort_unstable();
        assert_eq!(statuses[0], 204, "{statuses:?}");
        assert!([204, 404, 409].contains(&statuses[1]), "{statuses:?}");
        command.join().unwrap()
    });
    assert!(
        answers.status >= 400 || answers.json()["exit_code"].is_null(),
        "{answers:?}"
    );
    answers.assert_silent();
    server.ask(&key, &kill, "").assert_refused(404);
    for head in [
        vec![("E2b-Sandbox-Id", id.as_str())],
        vec![("E2b-Sandbox-Id", id.as_str()), ("E2b-Sandbox-Port", "80")],
    ] {
        let answer = ask(server.address, "GET /health", &head, "");
        assert_eq!(
            (answer.status, answer.json()["sandboxId"].as_str()),
            (502, Some(id.as_str())),
            "{answer:?}"
        );
    }
}

#[test]
fn a_template_that_is_not_there_is_not_found() {
    let server = Server::start();
    let key = server.key(&[]);
    for (line, body) in [
        ("POST /v2/sandboxes", json!({ "templateID": "code\u{1b}-x" })),
        ("POST /sandboxes", json!({ "templateID": "" })),
        ("POST /v1/sandboxes", json!({ "template": "../base" })),
        (
            "POST /v1/run",
            json!({ "command": { "shell": "true" }, "sandbox": { "template": "other" } }),
        ),
        ("GET /templates/aliases/other", json!(null)),
        ("GET /templates/x", json!(null)),
        ("PATCH /v2/templates/x", json!({ "public": true })),
        ("GET /templates/x/builds/y/status", json!(null)),
        ("POST /v2/templates/x/builds/y", json!({ "fromImage": "python" })),
        ("POST /templates/tags", json!({ "target": "x:y", "tags": ["z"] })),
    ] {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = server.ask(&key, line, &body);
        answer.assert_refused(404);
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with("template `") && message.contains("not found"),
            "{message}"
        );
    }
    // What cannot be done with templates at all is another matter.
    for line in ["POST /templates", "POST /templates/x"] {
        server.ask(&key, line, "{}").assert_refused(501);
    }
}

#[test]
fn a_sandbox_whose_guest_does_not_answer_is_not_paused_if_that_is_asked() {
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({}));
    let pause = |body: &str| server.ask(&key, &format!("POST /sandboxes/{id}/pause"), body);
    let healthy = r#"{"requireHealthyGuest":true}"#;
    assert_eq!(pause(healthy).status, 204);
    let paused = pause(healthy);
    paused.assert_refused(409);
    assert_eq!(paused.json().get("error_code"), None, "{paused:?}");
    let connect = server.ask(&key, &format!("POST /v2/sandboxes/{id}/connect"), "{}");
    assert_eq!(connect.status, 201, "{connect:?}");

    // The first process of the sandbox, which is the supervisor's child; the supervisor alone can stop it.
    let guest = Guest::stopped(&server);
    let refused = pause(healthy);
    refused.assert_refused(409);
    assert_eq!(
        refused.json()["error_code"],
        "sandbox_snapshot_guest_agent_unresponsive"
    );
    let detail = server.ask(&key, &format!("GET /sandboxes/{id}"), "").json();
    assert_eq!(detail["state"], "running");
    drop(guest);
    assert_eq!(pause(healthy).status, 204);
}

/// The first process of the one sandbox that a server has, stopped until this is dropped.
struct Guest(i32);

impl Guest {
    fn stopped(server: &Server) -> Self {
        let supervisor = children(i32::try_from(server.child().id()).unwrap());
        let children = supervisor.into_iter().flat_map(children);
        let guests: Vec<i32> = children.filter(|pid| !is_gateway(*pid)).collect();
        let [guest] = guests[..] else { panic!("{guests:?}") };
        Self::signal(guest, Signal::STOP);
        Self(guest)
    }

    fn signal(pid: i32, signal: Signal) {
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        Self::signal(self.0, Signal::CONT);
    }
}

/// The processes whose parent is `pid`.
fn children(pid: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |child: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        parent.is_some_and(|parent| parent == pid.to_string())
    };
    all.filter(is_child).collect()
}

#[test]
fn a10_a_client_that_goes_away_leaves_no_sandbox() {
    let server = Server::start();
    let key = server.key(&[]);
    let body = r#"{"command":{"shell":"sleep 1"}}"#;
    let mut stream = connect(server.address);
    let length = body.len();
    let head = format!(
        "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {key}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let listed = || server.ask(&key, "GET /sandboxes", "").json();
    eventually("the sandbox", || (listed() != json!([])).then_some(()));
    drop(stream);
    eventually("the end of the sandbox", || (listed() == json!([])).then_some(()));
}

/// Answers with the head of the request, and with its body; or becomes an echo.
const PROGRAM: &str = r#"
import socket, threading
def serve(c):
    data = b""
    while b"\r\n\r\n" not in data: data += c.recv(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    if b"/unasked" in head:
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\nmine alone")
        return c.close()
    if b"upgrade: echo" in head.lower():
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        while (piece := c.recv(65536)): c.sendall(piece)
        return c.close()
    answer = head
    c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
    c.close()
s = socket.create_server(("127.0.0.1", 8000)); print("ready", flush=True)
while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()
"#;

/// Starts the program in a sandbox and waits until it listens.
fn start_program(server: &Server, key: &str, id: &str) {
    let line = format!(
        "cat >/tmp/p.py <<'END'\n{PROGRAM}END\n(setsid python3 /tmp/p.py >/tmp/out 2>&1 </dev/null &)\nuntil grep -q ready /tmp/out; do sleep 0.05; done"
    );
    run(server, key, id, &line);
}

#[test]
fn ports_are_reached_by_header_host_and_path() {
    if program("python3").is_none() {
        return skip("no python3");
    }
    let server = Server::start_with(QUIET, &["--domain", "box.test:9000"]);
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({ "network": { "allowPublicTraffic": false } }));
    let view = server.ask(&key, &format!("GET /v1/sandboxes/{id}"), "").json();
    let token = view["traffic_token"].as_str().unwrap();
    start_program(&server, &key, &id);
    let host = format!("8000-{id}.box.test:9000");
    let path = format!("GET /_port/{id}/8000/a/b?c=d");
    let ways: [(&str, Vec<(&str, &str)>); 3] = [
        (
            "GET /a/b?c=d",
            vec![("E2b-Sandbox-Id", id.as_str()), ("E2b-Sandbox-Port", "8000")],
        ),
        ("GET /a/b?c=d", vec![("Host", host.as_str())]),
        (path.as_str(), vec![]),
    ];
    let bearing = format!("Bearer {key}");
    for (line, head) in &ways {
        ask(server.address, line, head, "").json();
        assert_eq!(ask(server.address, line, head, "").status, 403, "{line} {head:?}");
        let mut head = head.clone();
        head.extend([
            ("E2b-Traffic-Access-Token", token),
            ("X-API-KEY", &key),
            ("Authorization", &bearing),
            ("X-Mine", "kept"),
        ]);
        let answer: Answer = ask(server.address, line, &head, "");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.starts_with("GET /a/b?c=d HTTP/1.1\r\n"), "{answer:?}");
        assert!(
            !answer.body.contains(&key) && !answer.body.contains(token),
            "{answer:?}"
        );
        let seen = answer.body.to_ascii_lowercase();
        assert!(
            seen.contains("x-mine: kept") && seen.contains("x-forwarded-for: 127.0.0.1"),
            "{answer:?}"
        );
        assert_eq!(
            (answer.header("x-kept"), answer.header("x-hop")),
            (Some("2"), None),
            "{answer:?}"
        );
        assert_eq!(
            answer.header("content-security-policy").is_some(),
            line.contains("/_port/"),
            "{answer:?}"
        );
    }
    let closed = [
        ("E2b-Sandbox-Id", id.as_str()),
        ("E2b-Sandbox-Port", "8001"),
        ("E2b-Traffic-Access-Token", token),
    ];
    let answer = ask(server.address, "GET /", &closed, "");
    assert_eq!(
        (answer.status, answer.json()["port"].as_u64()),
        (502, Some(8001)),
        "{answer:?}"
    );
    assert_eq!(answer.json()["message"], "The sandbox is running but port is not open");
    becomes_only_what_was_asked_for(&server, &id, token);
    becomes_an_echo(&server, &id, token);
}

fn becomes_only_what_was_asked_for(server: &Server, id: &str, token: &str) {
    let line = format!("GET /_port/{id}/8000/unasked");
    let token = ("E2b-Traffic-Access-Token", token);
    let asking = [token, ("Connection", "Upgrade"), ("Upgrade", "echo")];
    for head in [&[token][..], &asking] {
        let answer = ask(server.address, &line, head, "");
        assert_eq!(
            (answer.status, answer.body.contains("mine")),
            (502, false),
            "{answer:?}"
        );
    }
}

/// How many connections of clients there are, this one not counted.
fn connections(server: &Server) -> u64 {
    let page = ask(server.address, "GET /metrics", &[], "").body;
    let count = page
        .lines()
        .find_map(|line| line.strip_prefix("offleash_http_connections "));
    count.unwrap().parse::<u64>().unwrap() - 1
}

/// A connection that becomes something else carries it both ways.
fn becomes_an_echo(server: &Server, id: &str, token: &str) {
    let mut stream = connect(server.address);
    let head = format!(
        "GET /_port/{id}/8000/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\nE2b-Traffic-Access-Token: {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert_eq!(parse(&String::from_utf8(answer).unwrap()).status, 101);
    // It has its place as long as it lasts.
    eventually("the end of other connections", || {
        (connections(server) == 1).then_some(())
    });
    let sent = vec![b'x'; 256 * 1024];
    let mut writer = stream.try_clone().unwrap();
    let expected = sent.len();
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        finish_sending(&writer);
    });
    assert_eq!(read_all(&mut stream).len(), expected);
    writing.join().unwrap();
    eventually("its end", || (connections(server) == 0).then_some(()));
}

#[test]
fn a7_whoever_has_no_right_resumes_nothing() {
    let server = Server::start();
    let key = server.key(&[]);
    let wanted = json!({
        "autoPause": true,
        "autoResume": { "enabled": true },
        "network": { "allowPublicTraffic": false },
    });
    let id = made(&server, &key, &wanted);
    let view = server.ask(&key, &format!("GET /v1/sandboxes/{id}"), "").json();
    let token = view["access_token"].as_str().unwrap().to_owned();
    let paused = server.ask(&key, &format!("POST /sandboxes/{id}/pause"), "{}");
    if paused.status == 501 {
        return skip("sandboxes cannot be paused here");
    }
    assert_eq!(paused.status, 204, "{paused:?}");
    let services = |line: &str, fields: &[(&str, &str)]| {
        let mut head = vec![("E2b-Sandbox-Id", id.as_str())];
        head.extend_from_slice(fields);
        ask(server.address, line, &head, "").status
    };
    let wrong = ("X-Access-Token", "wrong");
    let call = ("Content-Type", "application/json");
    let stream = ("Content-Type", "application/connect+json");
    for (line, fields, status) in [
        ("GET /health", &[][..], 502),
        ("GET /health", &[("X-Access-Token", token.as_str())], 502),
        ("GET /envs", &[wrong], 401),
        ("GET /metrics", &[], 401),
        ("GET /files?path=/etc/passwd", &[wrong], 401),
        ("GET /files?path=/etc/passwd&signature=v1_x", &[], 401),
        ("POST /filesystem.Filesystem/Stat", &[wrong, call], 401),
        ("POST /process.Process/List", &[call], 401),
        // A stream says so in its last frame.
        ("POST /process.Process/Start", &[wrong, stream], 200),
        ("GET /nowhere", &[("X-Access-Token", token.as_str())], 404),
        ("GET /", &[("E2b-Sandbox-Port", "80")], 403),
        ("GET /contexts", &[("E2b-Sandbox-Port", "49999")], 403),
    ] {
        assert_eq!(services(line, fields), status, "{line} {fields:?}");
        let state = server.ask(&key, &format!("GET /sandboxes/{id}"), "").json();
        assert_eq!(state["state"], "paused", "{line} {fields:?}");
    }
    // Those that have the traffic token, which every visitor of a port has, may not run code.
    let traffic = view["traffic_token"].as_str().unwrap().to_owned();
    let code = [
        ("E2b-Sandbox-Port", "49999"),
        ("E2b-Traffic-Access-Token", traffic.as_str()),
    ];
    let right = ("X-Access-Token", token.as_str());
    for (line, more, status) in [
        ("GET /health", &[][..], 502),
        ("GET /health", &[right], 502),
        ("GET /contexts", &[], 502),
        ("GET /contexts", &[wrong], 502),
        ("POST /contexts", &[], 502),
        ("DELETE /contexts/c", &[], 502),
        ("POST /contexts/c/restart", &[], 502),
        ("POST /execute", &[wrong], 401),
        ("POST /%65xecute", &[right], 404),
        ("GET /nonsense", &[right], 404),
        ("OPTIONS /contexts", &[right], 405),
    ] {
        let fields = [&code, more].concat();
        assert_eq!(services(line, &fields), status, "{line} {more:?}");
        let state = server.ask(&key, &format!("GET /sandboxes/{id}"), "").json();
        assert_eq!(state["state"], "paused", "{line} {more:?}");
    }
    assert_eq!(services("GET /contexts", &[&code[..], &[right]].concat()), 200);
    assert_eq!(services("GET /health", &code), 200);
    assert_eq!(services("GET /envs", &[("X-Access-Token", &token)]), 200);
    assert_eq!(services("GET /health", &[]), 204);
    let state = server.ask(&key, &format!("GET /sandboxes/{id}"), "").json();
    assert_eq!(state["state"], "running");
}

#[test]
fn quotas_answer_with_too_many_requests() {
    let server = Server::start();
    let key = server.key(&["--max-sandboxes", "1"]);
    made(&server, &key, &json!({}));
    let answer = server.ask(&key, "POST /v2/sandboxes", r#"{"templateID":"base"}"#);
    answer.assert_refused(429);
    assert_eq!(answer.header("should-retry"), Some("false"));
}

#[test]
fn debuggers_are_refused_with_403_and_what_would_allow_them() {
    let server = Server::start();
    let key = server.key(&[]);
    let body = |word: &str| {
        json!({ "templateID": "base", "timeout": 120, "metadata": { "offleash.allow_ptrace": word } }).to_string()
    };
    for line in ["POST /sandboxes", "POST /v2/sandboxes"] {
        let refused = server.ask(&key, line, &body("true"));
        assert_eq!(refused.status, 403, "{refused:?}");
        let told = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(told.contains("`sandboxes.allow_ptrace = true`"), "{told}");
        assert_eq!(server.ask(&key, line, &body("perhaps")).status, 400);
    }
}
