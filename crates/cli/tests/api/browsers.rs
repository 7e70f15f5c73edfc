//! Sessions of browsers: who gets to one, what is kept of it, how it ends. The browser is one of the test's own, in Python,
//! which says what hostile ones say; a real one is in `chromium`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::{Answer, ask, connect, parse};
use crate::server::{QUIET, Server};
use crate::support::processes::{eventually, program};
use crate::support::skip;

pub(crate) const FAKE: &str = include_str!("fake_browser.py");
/// How many entries its flood has.
const FLOOD: u64 = 1200;

/// A server whose sessions have the browser above, unless there is no Python here.
pub(crate) fn server() -> Option<Server> {
    if program("python3").is_none() {
        skip("`python3` is missing");
        return None;
    }
    Some(Server::start_with(&config(&["python3", "-c", FAKE]), &[]))
}

pub(crate) fn config(command: &[&str]) -> String {
    // A list of strings of JSON is one of TOML.
    format!("{QUIET}[sandboxes]\nbrowser_command = {}\n", json!(command))
}

pub(crate) fn create(server: &Server, key: &str, body: &Value) -> Value {
    let answer = server.ask(key, "POST /v1/sessions", &body.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()
}

pub(crate) fn get(server: &Server, key: &str, path: &str) -> Value {
    let answer = server.ask(key, &format!("GET {path}"), "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

pub(crate) fn release(server: &Server, key: &str, id: &str) -> Value {
    let answer = server.ask(key, &format!("POST /v1/sessions/{id}/release"), "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

pub(crate) fn id_of(session: &Value) -> String {
    session["id"].as_str().unwrap().to_owned()
}

/// The path of the address at which a session's browser is driven.
pub(crate) fn path_of(session: &Value) -> String {
    let url = session["connectUrl"].as_str().unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    rest[rest.find('/').unwrap()..].to_owned()
}

/// A client of a browser.
pub(crate) struct Driver {
    stream: TcpStream,
    last_id: u64,
}

/// Asks for a WebSocket; the answer, and the connection where that is one.
fn upgrade(server: &Server, path: &str, more: &str) -> (Answer, TcpStream) {
    let mut stream = connect(server.address);
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    (parse(&String::from_utf8(read).unwrap()), stream)
}

impl Driver {
    pub(crate) fn connect(server: &Server, session: &Value) -> Self {
        let (answer, stream) = upgrade(server, &path_of(session), "");
        assert_eq!(answer.status, 101, "{answer:?}");
        Self { stream, last_id: 0 }
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) {
        self.last_id += 1;
        let text = json!({ "id": self.last_id, "method": method, "params": params }).to_string();
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 126).unwrap();
        // A mask of zeros changes nothing.
        let mut frame = vec![0x81, 0x80 | length, 0, 0, 0, 0];
        frame.extend(text.as_bytes());
        self.stream.write_all(&frame).unwrap();
    }

    fn message(&mut self) -> Value {
        let mut exactly = |count: usize| {
            let mut bytes = vec![0; count];
            self.stream.read_exact(&mut bytes).unwrap();
            bytes
        };
        let length = match exactly(2)[1] & 127 {
            126 => u64::from(u16::from_be_bytes(exactly(2).try_into().unwrap())),
            127 => u64::from_be_bytes(exactly(8).try_into().unwrap()),
            length => u64::from(length),
        };
        serde_json::from_slice(&exactly(usize::try_from(length).unwrap())).unwrap()
    }

    pub(crate) fn call(&mut self, method: &str) -> Value {
        self.send(method, &json!({}));
        loop {
            let message = self.message();
            if message["id"] == self.last_id {
                return message["result"].clone();
            }
        }
    }
}

fn logs(server: &Server, key: &str, id: &str) -> Vec<Value> {
    get(server, key, &format!("/v1/sessions/{id}/logs"))["logs"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
fn a_session_is_driven_by_its_address_recorded_and_released() {
    let Some(server) = server() else { return };
    let key = server.key(&[]);
    let asked = json!({
        "timeout": 600, "userAgent": "mine/1", "locale": "de-DE", "timezone": "Asia/Tokyo", "userMetadata": { "team": "a" },
        "browserSettings": { "viewport": { "width": 800, "height": 600 }, "recordSession": true },
    });
    let session = create(&server, &key, &asked);
    let id = id_of(&session);
    assert_eq!(
        (&session["status"], &session["userMetadata"]["team"]),
        (&json!("RUNNING"), &json!("a"))
    );
    // Namespaces do not nest at level `process`, which is said.
    assert_eq!(session["browserSandbox"], false);
    let mut driver = Driver::connect(&server, &session);
    let state = driver.call("Fake.state");
    let arguments: Vec<&str> = state["arguments"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for word in [
        "--window-size=800,600",
        "--user-agent=mine/1",
        "--lang=de-DE",
        "--disable-extensions",
        "--no-sandbox",
    ] {
        assert!(arguments.contains(&word), "{word} in {arguments:?}");
    }
    assert_eq!(state["zone"], "Asia/Tokyo");
    // As many as there are: one client does not shut out another.
    Driver::connect(&server, &session).call("Fake.state");
    let entries = eventually("a log", || {
        Some(logs(&server, &key, &id)).filter(|entries| entries.len() >= 3)
    });
    assert_eq!(entries[0]["params"]["url"], "http://shop.test/");
    assert_eq!(entries[2]["params"]["text"], "\u{1b}[31m\u{202e}hostile");
    assert!(!json!(entries).to_string().contains("sesame"), "{entries:?}");
    let har = get(&server, &key, &format!("/v1/sessions/{id}/har"));
    let entry = &har["log"]["entries"][0];
    assert_eq!(
        (&entry["request"]["url"], &entry["response"]["_error"]),
        (&json!("http://shop.test/"), &json!("net::ERR_NAME_NOT_RESOLVED"))
    );
    assert!(!har.to_string().contains("sesame"), "{har}");
    let frames = get(&server, &key, &format!("/v1/sessions/{id}/recording"));
    assert_eq!(frames["frames"][0]["data"], "aGk=");
    let debug = get(&server, &key, &format!("/v1/sessions/{id}/debug"));
    assert_eq!(
        (debug["pages"].as_array().unwrap().len(), &debug["wsUrl"]),
        (1, &session["connectUrl"])
    );
    let running = get(&server, &key, "/v1/sessions?status=RUNNING");
    assert_eq!(running["sessions"][0]["id"], id.as_str());
    let released = release(&server, &key, &id);
    assert_eq!(
        (&released["success"], &released["status"]),
        (&json!(true), &json!("COMPLETED"))
    );
    // Its sandbox is gone; what is known of it, and its log, is not.
    server
        .ask(&key, &format!("GET /v1/sandboxes/{id}"), "")
        .assert_refused(404);
    let ended = get(&server, &key, &format!("/v1/sessions/{id}"));
    assert_eq!((&ended["status"], ended.get("connectUrl")), (&json!("COMPLETED"), None));
    assert!(logs(&server, &key, &id).len() >= 3);
    assert_eq!(upgrade(&server, &path_of(&session), "").0.status, 502);
    server
        .ask(&key, &format!("POST /v1/sessions/{id}/release"), "")
        .assert_refused(404);
}

#[test]
fn a7_nobody_gets_to_a_browser_without_its_token() {
    let Some(server) = server() else { return };
    let (key, other, reader) = (server.key(&[]), server.key(&[]), server.key(&["--scope", "read"]));
    let (session, theirs) = (create(&server, &key, &json!({})), create(&server, &other, &json!({})));
    let id = id_of(&session);
    let token = |session: &Value| path_of(session).split_once("token=").unwrap().1.to_owned();
    let status = |path: &str, more: &str| upgrade(&server, path, more).0.status;
    for wrong in [
        "".to_owned(),
        "?token=".to_owned(),
        "?token=x".to_owned(),
        format!("?token={}", token(&theirs)),
        format!("?token={key}"),
    ] {
        assert_eq!(status(&format!("/_browser/{id}{wrong}"), ""), 403, "{wrong}");
    }
    let path = path_of(&session);
    assert_eq!(status(&path, "Origin: https://evil.example\r\n"), 403);
    assert_eq!(
        status(&path, &format!("Origin: http://{}\r\nCookie: a=b\r\n", server.address)),
        101
    );
    // A name that points here.
    let host = [
        ("Host", "evil.example"),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
    ];
    assert_eq!(ask(server.address, &format!("GET {path}"), &host, "").status, 421);
    assert_eq!(ask(server.address, &format!("GET {path}"), &[], "").status, 426);
    assert_eq!(
        ask(server.address, &format!("GET /_port/{id}/9222/json/version"), &[], "").status,
        403
    );
    for route in ["", "/debug", "/logs", "/har", "/recording"] {
        server
            .ask(&other, &format!("GET /v1/sessions/{id}{route}"), "")
            .assert_refused(404);
    }
    server
        .ask(&other, &format!("POST /v1/sessions/{id}/release"), "")
        .assert_refused(404);
    assert_eq!(
        get(&server, &other, "/v1/sessions")["sessions"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // A key that may only look gets no token, and ends nothing.
    assert!(
        get(&server, &reader, "/v1/sessions")["sessions"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    server
        .ask(&reader, &format!("POST /v1/sessions/{id}/release"), "")
        .assert_refused(403);
    // What sessions are known by, nobody sets.
    let label = json!({ "metadata": { "offleash.browser": "{}" } }).to_string();
    server.ask(&key, "POST /v1/sandboxes", &label).assert_refused(400);
    // What runs in a fork is no browser, and no session.
    let forks = server.ask(&key, &format!("POST /v1/sandboxes/{id}/fork"), "{}").json();
    assert!(forks["forks"][0]["sandbox"]["id"].is_string(), "{forks}");
    assert_eq!(
        get(&server, &key, "/v1/sessions")["sessions"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_context_is_kept_encrypted_and_has_one_writer() {
    let Some(server) = server() else { return };
    let (key, other) = (server.key(&[]), server.key(&[]));
    let context = server.ask(&key, "POST /v1/contexts", r#"{"name": "shop"}"#);
    assert_eq!(context.status, 201, "{context:?}");
    let context = context.json()["id"].as_str().unwrap().to_owned();
    server
        .ask(&key, "POST /v1/contexts", r#"{"name": "shop"}"#)
        .assert_refused(409);
    let with = |persist: bool| json!({ "browserSettings": { "context": { "id": "shop", "persist": persist } } });
    let first = create(&server, &key, &with(true));
    assert_eq!(first["contextId"], context.as_str());
    server
        .ask(&key, "POST /v1/sessions", &with(true).to_string())
        .assert_refused(409);
    server
        .ask(&key, &format!("DELETE /v1/contexts/{context}"), "")
        .assert_refused(409);
    server
        .ask(&other, "POST /v1/sessions", &with(true).to_string())
        .assert_refused(404);
    Driver::connect(&server, &first).call("Fake.login");
    let released = release(&server, &key, &id_of(&first));
    assert!(
        !released["message"].as_str().unwrap().contains("not saved"),
        "{released}"
    );
    let kept = get(&server, &key, "/v1/contexts/shop");
    let bytes = kept["bytes"].as_u64().unwrap();
    // Caches are left out.
    assert!((512..64 * 1024).contains(&bytes), "{kept}");
    let directory = server.site.state().join("browser/contexts");
    let archive = std::fs::read(directory.join(format!("{context}.profile"))).unwrap();
    for secret in [&b"sesame"[..], b"visits", b"ustar"] {
        assert!(!archive.windows(secret.len()).any(|bytes| bytes == secret));
    }
    // Two that only read, and one that writes, at the same time.
    let readers = [create(&server, &key, &with(false)), create(&server, &key, &with(false))];
    let second = create(&server, &key, &with(true));
    for session in readers.iter().chain([&second]) {
        let state = Driver::connect(&server, session).call("Fake.state");
        assert_eq!(
            (&state["visits"], &state["cookies"][0]["value"]),
            (&json!(2), &json!("sesame")),
            "{state}"
        );
    }
    for session in readers.iter().chain([&second]) {
        release(&server, &key, &id_of(session));
    }
    // What readers left is nobody's.
    let third = create(&server, &key, &with(false));
    assert_eq!(Driver::connect(&server, &third).call("Fake.state")["visits"], 3);
    server
        .ask(&other, &format!("GET /v1/contexts/{context}"), "")
        .assert_refused(404);
    assert_eq!(
        server.ask(&key, &format!("DELETE /v1/contexts/{context}"), "").status,
        204
    );
    assert!(!directory.join(format!("{context}.profile")).exists());
}

#[test]
fn a_browser_that_ends_ends_its_session_and_says_how() {
    let Some(server) = server() else { return };
    let key = server.key(&[]);
    let ended = |id: &str| {
        let path = format!("/v1/sessions/{id}");
        let session = eventually("the end of a session", || {
            Some(get(&server, &key, &path)).filter(|session| session["status"] != "RUNNING")
        });
        let field = |name: &str| session[name].as_str().unwrap().to_owned();
        (field("status"), field("reason"))
    };
    let sessions = [(); 4].map(|()| create(&server, &key, &json!({})));
    let ids = sessions.each_ref().map(id_of);
    Driver::connect(&server, &sessions[0]).send("Fake.die", &json!({}));
    // Not the shell itself, whose line has it in another form.
    let line = "for place in /proc/[0-9]*; do grep -q 'devtools/browser/fake[-]1' $place/cmdline && kill -9 ${place#/proc/}; done; :";
    let line = json!({ "shell": line }).to_string();
    server.ask(&key, &format!("POST /v1/sandboxes/{}/run", ids[1]), &line);
    assert_eq!(
        server.ask(&key, &format!("DELETE /v1/sandboxes/{}", ids[2]), "").status,
        204
    );
    assert_eq!(
        ended(&ids[0]),
        ("ERROR".to_owned(), "its browser ended with exit code 3".to_owned())
    );
    assert_eq!(
        ended(&ids[1]),
        ("ERROR".to_owned(), "its browser was ended by signal 9".to_owned())
    );
    let (status, reason) = ended(&ids[2]);
    assert!(
        status == "COMPLETED" && reason.starts_with("by key `"),
        "{status}: {reason}"
    );
    let short = id_of(&create(&server, &key, &json!({ "timeout": 1 })));
    assert_eq!(ended(&short), ("TIMED_OUT".to_owned(), "its time was up".to_owned()));
    // Nothing of those is left, and the one beside goes on.
    let left = eventually("the end of sandboxes", || {
        let all = get(&server, &key, "/v1/sandboxes");
        Some(all["sandboxes"].as_array().unwrap().clone()).filter(|all| all.len() == 1)
    });
    assert_eq!(left[0]["id"], ids[3].as_str());
}

#[test]
fn a_browser_that_is_not_there_or_does_not_start_is_told_of() {
    let server = Server::start_with(&config(&["sh", "-c", "exit 127"]), &[]);
    let key = server.key(&[]);
    server.ask(&key, "POST /v1/sessions", "").assert_refused(501);
    drop(server);
    let server = Server::start_with(&config(&["sh", "-c", "echo not\u{1b} today >&2; exit 4"]), &[]);
    let key = server.key(&[]);
    let refused = server.ask(&key, "POST /v1/sessions", "");
    refused.assert_refused(503);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with(r"exit code 4: not\u{1b} today"), "{message}");
    for (body, status) in [
        (r#"{"timezone": "/etc/passwd"}"#, 400),
        (r#"{"timeout": 0}"#, 400),
        (r#"{"timeout": 86401}"#, 400),
        (r#"{"unknown": 1}"#, 400),
        (r#"{"template": "none"}"#, 404),
        (r#"{"proxies": true}"#, 501),
        (r#"{"browserSettings": {"context": {"id": "none"}}}"#, 404),
    ] {
        server.ask(&key, "POST /v1/sessions", body).assert_refused(status);
    }
    server.ask(&key, "POST /v1/extensions", "").assert_refused(501);
    eventually("the end of sandboxes", || {
        let all = get(&server, &key, "/v1/sandboxes");
        all["sandboxes"].as_array().unwrap().is_empty().then_some(())
    });
}

#[test]
fn what_a_hostile_browser_says_is_bounded_and_its_session_goes_on() {
    let Some(server) = server() else { return };
    let key = server.key(&[]);
    let session = create(&server, &key, &json!({}));
    let id = id_of(&session);
    let mut driver = Driver::connect(&server, &session);
    eventually("a log", || Some(()).filter(|()| logs(&server, &key, &id).len() >= 3));
    // It says that to everybody else who drives it: to what records.
    driver.call("Fake.flood");
    let with = |method: &str| {
        let all = logs(&server, &key, &id);
        all.iter().filter(|entry| entry["method"] == method).count()
    };
    // However many of them came within a second: what is not there is counted.
    eventually("an account of the whole flood", || {
        let all = logs(&server, &key, &id);
        let left_out = all.iter().filter(|entry| entry["method"] == "offleash.dropped");
        let left_out: u64 = left_out.map(|entry| entry["params"]["count"].as_u64().unwrap()).sum();
        let kept = all.iter().filter(|entry| entry["method"] == "Runtime.consoleAPICalled");
        Some(()).filter(|()| left_out + kept.count() as u64 >= FLOOD)
    });
    // Beyond a bound it is not listened to, and asked again.
    let before = with("Network.requestWillBeSent");
    driver.call("Fake.large");
    eventually("the next recorder", || {
        Some(()).filter(|()| with("Network.requestWillBeSent") > before)
    });
    assert_eq!(driver.call("Fake.state")["visits"], 1);
    assert_eq!(get(&server, &key, &format!("/v1/sessions/{id}"))["status"], "RUNNING");
    assert_eq!(release(&server, &key, &id)["status"], "COMPLETED");
}

#[test]
fn sessions_outlive_their_server() {
    let Some(mut server) = server() else { return };
    let key = server.key(&[]);
    server.ask(&key, "POST /v1/contexts", r#"{"name": "kept"}"#);
    let with = json!({ "timeout": 600, "browserSettings": { "context": { "id": "kept", "persist": true } } });
    let (session, gone) = (create(&server, &key, &with), create(&server, &key, &json!({})));
    Driver::connect(&server, &session).call("Fake.login");
    server.restart();
    let id = id_of(&session);
    let found = get(&server, &key, &format!("/v1/sessions/{id}"));
    assert_eq!(
        (&found["status"], path_of(&found)),
        (&json!("RUNNING"), path_of(&session))
    );
    let state = Driver::connect(&server, &found).call("Fake.state");
    assert_eq!(state["cookies"][0]["value"], "sesame");
    // It is still the one that writes, and what it ends with is still seen.
    server
        .ask(&key, "POST /v1/sessions", &with.to_string())
        .assert_refused(409);
    Driver::connect(&server, &gone).send("Fake.die", &json!({}));
    eventually("the end of a session", || {
        let session = get(&server, &key, &format!("/v1/sessions/{}", id_of(&gone)));
        (session["status"] == "ERROR").then_some(())
    });
    let released = release(&server, &key, &id);
    assert!(
        !released["message"].as_str().unwrap().contains("not saved"),
        "{released}"
    );
    assert!(get(&server, &key, "/v1/contexts/kept")["bytes"].as_u64().unwrap() > 0);
    server.restart();
    assert_eq!(get(&server, &key, &format!("/v1/sessions/{id}"))["status"], "COMPLETED");
}

#[test]
fn the_command_line_makes_lists_and_releases_sessions() {
    let Some(server) = server() else { return };
    let run = |arguments: &[&str]| {
        let words = ["browser"].iter().chain(arguments).copied().collect::<Vec<_>>();
        server.site.succeed(words)
    };
    let url = run(&["create", "--context", "mine", "--viewport", "640x480", "--label", "a=b"]);
    let id = url
        .split("/_browser/")
        .nth(1)
        .unwrap()
        .split('?')
        .next()
        .unwrap()
        .to_owned();
    assert!(url.starts_with(&format!("ws://{}/_browser/", server.address)), "{url}");
    assert_eq!(run(&["url", &id]), url);
    assert!(run(&["ls"]).contains("RUNNING"));
    let second = server
        .site
        .offleash(["browser", "create", "--context", "mine"])
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(crate::support::stderr(&second).contains(&id));
    eventually("a log", || run(&["logs", &id]).contains("\\u202ehostile").then_some(()));
    assert!(run(&["har", &id]).contains("\"version\": \"1.2\""));
    run(&["release", &id]);
    assert!(run(&["ls"]).contains("COMPLETED"));
    assert!(run(&["contexts"]).contains("mine"));
    run(&["forget", "mine"]);
    assert!(!run(&["contexts"]).contains("mine"));
    assert!(
        !server
            .site
            .offleash(["browser", "url", &id])
            .output()
            .unwrap()
            .status
            .success()
    );
}
