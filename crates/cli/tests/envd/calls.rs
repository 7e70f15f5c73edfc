//! Calls of the services: who may make them, in which forms, and what becomes of those that are wrong.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::sandbox::{Sandbox, frame, received};
use crate::support::processes::eventually;

const JSON: (&str, &str) = ("Content-Type", "application/json");
const STREAM: (&str, &str) = ("Content-Type", "application/connect+json");

fn shell(script: &str) -> String {
    json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": false}).to_string()
}

#[test]
fn a7_only_health_is_told_without_the_token() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ask_without_token("GET /health", &[], b"").status, 204);
    for line in ["GET /envs", "GET /metrics", "GET /files?path=/etc/passwd"] {
        let answer = sandbox.ask_without_token(line, &[], b"");
        assert_eq!(
            (answer.status, answer.json()["code"].as_u64()),
            (401, Some(401)),
            "{answer:?}"
        );
    }
    let answer = sandbox.ask_without_token("POST /filesystem.Filesystem/Stat", &[JSON], br#"{"path":"/"}"#);
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (401, Some("unauthenticated"))
    );
    // A stream fails within itself: clients take another status for a broken connection.
    let answer = sandbox.ask_without_token("POST /process.Process/Start", &[STREAM], &frame(shell("id").as_bytes()));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.messages()[0]["error"]["code"], "unauthenticated");
    let wrong = [JSON, ("X-Access-Token", "wrong")];
    let answer = sandbox.ask_without_token("POST /process.Process/List", &wrong, b"{}");
    assert_eq!(answer.status, 401);
    assert_eq!(sandbox.call("process.Process/List", "{}").status, 200);
    let envs = sandbox.ask("GET /envs", &[], b"");
    assert!(envs.status == 200 && envs.json().is_object(), "{envs:?}");
    let metrics = sandbox.ask("GET /metrics", &[], b"").json();
    for name in ["ts", "cpu_count", "mem_total", "mem_used"] {
        assert!(metrics[name].as_u64().unwrap() > 0, "{name}: {metrics}");
    }
}

#[test]
fn what_is_no_service_is_refused() {
    let sandbox = Sandbox::new();
    for (line, status) in [
        ("POST /init", 404),
        ("POST /freeze", 404),
        ("POST /files/compose", 404),
        ("POST /process.Process/Nothing", 404),
        ("POST /process.Other/List", 404),
        ("GET /process.Process/List", 405),
        ("PUT /files", 405),
    ] {
        let answer = sandbox.ask(line, &[JSON], b"{}");
        assert_eq!(answer.status, status, "{line}: {answer:?}");
    }
    let wrong_kinds = [("process.Process/Start", JSON), ("process.Process/List", STREAM)];
    for (method, content) in wrong_kinds {
        let answer = sandbox.ask(&format!("POST /{method}"), &[content], b"{}");
        assert_eq!(answer.status, 415, "{method}: {answer:?}");
        assert!(answer.header("accept-post").is_some(), "{answer:?}");
    }
}

#[test]
fn a_command_tells_what_happens_to_it() {
    let sandbox = Sandbox::new();
    let answer = sandbox.stream(
        "process.Process/Start",
        &[],
        &shell("printf out; printf err >&2; exit 3"),
    );
    let messages = answer.messages();
    assert!(
        messages[0]["event"]["start"]["pid"].as_u64().unwrap() > 1,
        "{messages:?}"
    );
    let of = |stream: &str| {
        messages
            .iter()
            .filter_map(|message| message["event"]["data"][stream].as_str())
            .collect::<String>()
    };
    assert_eq!((of("stdout").as_str(), of("stderr").as_str()), ("b3V0", "ZXJy"));
    let end = &messages[messages.len() - 2]["event"]["end"];
    let expected = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!(end, &expected);
    assert_eq!(answer.frames().last().unwrap(), &(2, b"{}".to_vec()));
}

#[test]
fn the_binary_form_says_the_same() {
    let sandbox = Sandbox::new();
    // 1: {1: "/bin/echo", 2: "hi"}, 4: false
    let message = b"\x0a\x0f\x0a\x09/bin/echo\x12\x02hi\x20\x00";
    let content = [("Content-Type", "application/connect+proto")];
    let answer = sandbox.ask("POST /process.Process/Start", &content, &frame(message));
    assert_eq!(answer.header("content-type"), Some("application/connect+proto"));
    let frames = answer.frames();
    // 1: {2: {1: "hi\n"}}
    assert!(
        frames.contains(&(0, b"\x0a\x07\x12\x05\x0a\x03hi\n".to_vec())),
        "{frames:?}"
    );
    assert_eq!(frames.last().unwrap().0, 2);
    let content = [("Content-Type", "application/proto")];
    let answer = sandbox.ask("POST /filesystem.Filesystem/Stat", &content, b"\x0a\x04/etc");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.windows(4).any(|four| four == b"/etc"), "{answer:?}");
}

#[test]
fn a_command_ends_with_its_timeout_and_the_stream_says_so() {
    let sandbox = Sandbox::new();
    let answer = sandbox.stream(
        "process.Process/Start",
        &[("Connect-Timeout-Ms", "300")],
        &shell("sleep 1000"),
    );
    let messages = answer.messages();
    assert_eq!(
        messages.last().unwrap()["error"]["code"],
        "deadline_exceeded",
        "{messages:?}"
    );
    let listed = |sandbox: &Sandbox| {
        sandbox.call("process.Process/List", "{}").json()["processes"]
            .as_array()
            .map_or(0, Vec::len)
    };
    eventually("the command ends", || (listed(&sandbox) == 0).then_some(()));
}

#[test]
fn keepalives_are_sent() {
    let sandbox = Sandbox::new();
    let answer = sandbox.stream(
        "process.Process/Start",
        &[("Keepalive-Ping-Interval", "1")],
        &shell("sleep 2.5"),
    );
    let messages = answer.messages();
    assert!(
        messages.iter().any(|message| message["event"]["keepalive"].is_object()),
        "{messages:?}"
    );
}

#[test]
fn a9_what_is_no_message_is_refused() {
    let sandbox = Sandbox::new();
    let code = |body: &[u8]| {
        let answer = sandbox.ask("POST /process.Process/List", &[JSON], body);
        (answer.status, answer.json()["code"].as_str().unwrap().to_owned())
    };
    let invalid = || (400, "invalid_argument".to_owned());
    assert_eq!(code(b"["), invalid());
    assert_eq!(code(b"{} {}"), invalid());
    assert_eq!(code(b"\xff"), invalid());
    let large = vec![b' '; 5 << 20];
    assert_eq!(code(&large), (429, "resource_exhausted".to_owned()));
    let stream = |body: &[u8]| {
        let answer = sandbox.ask("POST /process.Process/Start", &[STREAM], body);
        (
            answer.status,
            answer.messages()[0]["error"]["code"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(
        stream(&[0, 0xff, 0xff, 0xff, 0xff]),
        (200, "resource_exhausted".to_owned())
    );
    assert_eq!(stream(&[1, 0, 0, 0, 0]), (200, "unimplemented".to_owned()));
    assert_eq!(stream(&[0, 0, 0]), (200, "invalid_argument".to_owned()));
    assert_eq!(stream(b""), (200, "invalid_argument".to_owned()));
    assert_eq!(stream(&frame(b"{}")), (200, "invalid_argument".to_owned()));
    assert_eq!(sandbox.call("process.Process/List", "{}").status, 200);
}

#[test]
fn a10_a_client_that_goes_leaves_the_command_alone() {
    let sandbox = Sandbox::new();
    let mut stream = sandbox.send(
        "POST /process.Process/Start",
        true,
        &[STREAM],
        &frame(shell("sleep 1000").as_bytes()),
    );
    let mut begun = [0; 512];
    assert!(stream.read(&mut begun).unwrap() > 0);
    drop(stream);
    let processes = sandbox.call("process.Process/List", "{}").json();
    assert_eq!(processes["processes"].as_array().unwrap().len(), 1, "{processes}");
    let pid = processes["processes"][0]["pid"].as_u64().unwrap();
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}).to_string();
    assert_eq!(sandbox.call("process.Process/SendSignal", &kill).status, 200);
    // It is told for a while how a command has ended.
    let answer = sandbox.stream(
        "process.Process/Connect",
        &[],
        &json!({"process": {"pid": pid}}).to_string(),
    );
    let messages = answer.messages();
    assert_eq!(
        messages[messages.len() - 2]["event"]["end"]["status"],
        "signal: killed",
        "{messages:?}"
    );
    let stop = json!({"process": {"pid": pid}, "signal": 19}).to_string();
    let answer = sandbox.call("process.Process/SendSignal", &stop);
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (501, Some("unimplemented"))
    );
}

#[test]
fn a14_a_stream_is_cut_when_its_sandbox_ends() {
    let sandbox = Sandbox::new();
    let mut stream = sandbox.send(
        "POST /process.Process/Start",
        true,
        &[STREAM],
        &frame(shell("sleep 1000").as_bytes()),
    );
    stream.flush().unwrap();
    let started = || {
        sandbox.call("process.Process/List", "{}").json()["processes"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    };
    eventually("the command runs", || started().then_some(()));
    sandbox.kill();
    let answer = received(stream);
    assert!(!answer.is_whole, "a stream without an end looks whole: {answer:?}");
    for line in ["GET /health", "GET /files?path=/x", "POST /process.Process/List"] {
        let answer = sandbox.ask(line, &[JSON], b"{}");
        assert_eq!(
            (answer.status, answer.json()["message"].as_str()),
            (502, Some("The sandbox was not found"))
        );
    }
}

#[test]
fn watchers_are_bounded_and_removed() {
    let sandbox = Sandbox::new();
    let watch = json!({"path": "/tmp"}).to_string();
    let make = || sandbox.call("filesystem.Filesystem/CreateWatcher", &watch);
    let made: Vec<_> = (0..24).map(|_| make().json()["watcherId"].clone()).collect();
    assert!(made.iter().all(Value::is_string), "{made:?}");
    let refused = make();
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (429, Some("resource_exhausted"))
    );
    let said = refused.json()["message"].to_string();
    assert!(said.contains("24 watchers") && said.contains("remove one"), "{said}");
    let first = json!({"watcherId": made[0]}).to_string();
    assert_eq!(sandbox.call("filesystem.Filesystem/RemoveWatcher", &first).status, 200);
    assert_eq!(
        sandbox.call("filesystem.Filesystem/GetWatcherEvents", &first).status,
        404
    );
    let again = make();
    assert_eq!(again.status, 200, "{again:?}");
}

#[test]
fn watches_that_the_kernel_has_no_room_for_are_told_as_that() {
    let sandbox = Sandbox::new();
    let hold = "import ctypes, time\nc = ctypes.CDLL(None)\nwhile c.inotify_init() >= 0: pass\nopen('/tmp/full', 'x')\ntime.sleep(1000)";
    let start = json!({"process": {"cmd": "/usr/bin/python3", "args": ["-c", hold]}}).to_string();
    let mut stream = sandbox.send("POST /process.Process/Start", true, &[STREAM], &frame(start.as_bytes()));
    stream.flush().unwrap();
    let full = json!({"path": "/tmp/full"}).to_string();
    eventually("no instance is left", || {
        (sandbox.call("filesystem.Filesystem/Stat", &full).status == 200).then_some(())
    });
    let watch = json!({"path": "/tmp"}).to_string();
    let refused = sandbox.call("filesystem.Filesystem/CreateWatcher", &watch);
    let said = refused.json();
    assert_eq!(
        (refused.status, said["code"].as_str()),
        (429, Some("resource_exhausted"))
    );
    assert!(said["message"].as_str().unwrap().contains("32 watches"), "{said}");
}
