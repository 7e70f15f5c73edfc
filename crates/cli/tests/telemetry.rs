//! What a server tells a collector: spans, numbers and lines, and what it never does.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "api/client.rs"]
mod client;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "api/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use client::ask;
use server::{QUIET, Server};
use support::processes::{TIMEOUT, eventually};

/// A word that is in everything that must not be told.
const SECRET: &str = "told-to-nobody";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector: what it was sent, as far as it came.
#[derive(Clone, Default)]
struct Collector {
    /// With the path that each came to.
    messages: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Collector {
    /// One that listens, and where.
    fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Self::default();
        let taken = collector.clone();
        // Ends with the process: nothing of it is to be cleaned up.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                taken.take(stream.unwrap());
            }
        });
        (collector, address)
    }

    fn take(&self, mut stream: TcpStream) {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = Vec::new();
        let mut piece = [0; 65536];
        loop {
            let length = stream.read(&mut piece).unwrap();
            assert!(length > 0, "a message was cut");
            bytes.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&bytes);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let head = head.to_ascii_lowercase();
            let path = head
                .strip_prefix("post /v1/")
                .and_then(|rest| rest.split_once(" http/1.1\r\n"));
            let (path, _) = path.unwrap_or_else(|| panic!("{head}"));
            assert!(["traces", "metrics", "logs"].contains(&path), "{head}");
            assert!(head.contains("content-type: application/json"), "{head}");
            let announced = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= announced.unwrap().parse::<usize>().unwrap() {
                let message = (path.to_owned(), serde_json::from_str(body).unwrap());
                self.messages.lock().unwrap().push(message);
                break;
            }
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            .unwrap();
    }

    /// Everything that it was sent.
    fn text(&self) -> String {
        let messages = self.messages.lock().unwrap();
        messages.iter().map(|(_, message)| message.to_string()).collect()
    }

    /// What it was told of one signal, one by one.
    fn told(&self, path: &str, resources: &str, scopes: &str, items: &str) -> Vec<Value> {
        let messages = self.messages.lock().unwrap();
        let of_signal = messages.iter().filter(|(at, _)| at == path);
        let all = of_signal.flat_map(|(_, message)| {
            let resource = &message[resources][0];
            assert_eq!(
                resource["resource"]["attributes"][0]["value"]["stringValue"], "told",
                "{message}"
            );
            resource[scopes][0][items].as_array().unwrap().clone()
        });
        all.collect()
    }

    /// The lines that it was told.
    fn lines(&self) -> Vec<Value> {
        self.told("logs", "resourceLogs", "scopeLogs", "logRecords")
    }

    /// The latest of a number's points.
    fn points(&self, name: &str) -> Option<Value> {
        let metrics = self.told("metrics", "resourceMetrics", "scopeMetrics", "metrics");
        metrics.into_iter().rfind(|metric| metric["name"] == name)
    }

    /// The spans of a trace; of all without one.
    fn spans(&self, trace: Option<&str>) -> Vec<Value> {
        let spans = self.told("traces", "resourceSpans", "scopeSpans", "spans").into_iter();
        spans
            .filter(|span| trace.is_none_or(|trace| span["traceId"] == trace))
            .collect()
    }
}

/// A server that tells a collector at `address` of loopback, which it knows by its name.
fn server(address: SocketAddr) -> Server {
    let port = address.port();
    let told = format!("endpoint = \"http://localhost:{port}\"\nservice_name = \"told\"\ninterval_seconds = 1\n");
    Server::start_with(&format!("{QUIET}[telemetry]\n{told}"), &[])
}

/// The attributes of a span, their values as text.
fn facts(span: &Value) -> BTreeMap<String, String> {
    let facts = span["attributes"].as_array().unwrap().iter();
    let pair = |fact: &Value| {
        let value = &fact["value"];
        let value = value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap();
        (fact["key"].as_str().unwrap().to_owned(), value.to_owned())
    };
    facts.map(pair).collect()
}

fn nanoseconds(span: &Value, key: &str) -> u128 {
    span[key].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_run_is_told_as_its_request_and_what_was_done_for_it() {
    let (collector, address) = Collector::start();
    let mut server = server(address);
    let key = server.key(&[]);
    let body = json!({
        "command": { "shell": format!("echo {SECRET}; exit 3"), "env": { "A": SECRET } },
        "sandbox": { "metadata": { "a": SECRET } },
    });
    let caller = format!("00-{TRACE}-{PARENT}-01");
    let fields = [
        ("X-API-KEY", key.as_str()),
        ("traceparent", &caller),
        ("X-Other", SECRET),
    ];
    let answer = ask(
        server.address,
        &format!("POST /v1/run?a={SECRET}"),
        &fields,
        &body.to_string(),
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.json()["sandbox"].as_str().unwrap().to_owned();
    // Nobody's trace, and of a path and a method that are the caller's text.
    ask(
        server.address,
        &format!("{} /{SECRET}", SECRET.replace('-', "").to_uppercase()),
        &[],
        "",
    );
    // Who does not record is not recorded.
    let unsampled = format!("00-{}-{PARENT}-00", "5".repeat(32));
    ask(server.address, "GET /healthz", &[("traceparent", &unsampled)], "");
    let (status, log) = server.end();
    assert!(status.success(), "{status}: {log}");

    // Whatever waited was sent before the end.
    let spans = collector.spans(Some(TRACE));
    let named = |name: &str| {
        let mut found = spans.iter().filter(|span| span["name"] == name);
        let span = found.next().unwrap_or_else(|| panic!("no `{name}` in {spans:?}"));
        assert!(found.next().is_none(), "{name}: {spans:?}");
        span
    };
    let (request, create) = (named("POST /v1/run"), named("sandbox.create"));
    let (exec, kill) = (named("sandbox.exec"), named("sandbox.kill"));
    assert_eq!(spans.len(), 4, "{spans:?}");
    assert_eq!(
        (&request["parentSpanId"], &request["kind"]),
        (&json!(PARENT), &json!(2))
    );
    let told = facts(request);
    assert_eq!(
        (
            told["http.request.method"].as_str(),
            told["http.response.status_code"].as_str()
        ),
        ("POST", "200")
    );
    assert_eq!(
        (told["http.route"].as_str(), told["offleash.destination"].as_str()),
        ("/v1/run", "control")
    );
    for span in [create, exec, kill] {
        assert_eq!((&span["parentSpanId"], &span["kind"]), (&request["spanId"], &json!(1)));
        assert_eq!(facts(span)["offleash.sandbox"], id);
        assert_eq!(span["status"]["code"], 1, "{span}");
        assert!(
            nanoseconds(span, "startTimeUnixNano") >= nanoseconds(request, "startTimeUnixNano"),
            "{span}"
        );
    }
    for span in [request, create, exec, kill] {
        assert!(
            nanoseconds(span, "endTimeUnixNano") > nanoseconds(span, "startTimeUnixNano"),
            "{span}"
        );
    }
    let others = collector.spans(None);
    let other = others.iter().find(|span| span["traceId"] != TRACE).unwrap();
    assert_eq!(
        (&other["parentSpanId"], facts(other)["http.request.method"].as_str()),
        (&Value::Null, "_OTHER")
    );
    let text = collector.text();
    assert!(!text.contains(&"5".repeat(32)), "{text}");
    for hidden in [
        SECRET,
        &key,
        "/v1/run?",
        "traceparent",
        server.site.root().to_str().unwrap(),
    ] {
        assert!(
            !text.to_lowercase().contains(&hidden.to_lowercase()),
            "`{hidden}` is in {text}"
        );
    }
}

#[test]
fn commands_and_pauses_of_the_sdks_are_told() {
    let (collector, address) = Collector::start();
    let server = server(address);
    let key = server.key(&[]);
    let made = server.ask(&key, "POST /v2/sandboxes", r#"{"templateID":"base","secure":false}"#);
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    assert_eq!(
        server.ask(&key, &format!("POST /sandboxes/{id}/pause"), "{}").status,
        204
    );
    assert_eq!(
        server.ask(&key, &format!("POST /sandboxes/{id}/resume"), "{}").status,
        201
    );
    let message = json!({"process": {"cmd": "/bin/sh", "args": ["-c", format!("exit 3 # {SECRET}")]}}).to_string();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let frame = [&[0], &length[..], message.as_bytes()].concat();
    let fields = [
        ("E2b-Sandbox-Id", id.as_str()),
        ("E2b-Sandbox-Port", "49983"),
        ("Content-Type", "application/connect+json"),
    ];
    let answer = ask(
        server.address,
        "POST /process.Process/Start",
        &fields,
        str::from_utf8(&frame).unwrap(),
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = |name: &str| {
        let spans = collector.spans(None);
        let mine = |span: &&Value| span["name"] == name && facts(span).get("offleash.sandbox") == Some(&id);
        spans.iter().find(mine).cloned()
    };
    for (name, code) in [
        ("sandbox.create", 1),
        ("sandbox.pause", 1),
        ("sandbox.resume", 1),
        ("sandbox.exec", 2),
        ("POST", 0),
    ] {
        let span = eventually(name, || told(name));
        assert_eq!(span["status"]["code"].as_u64().unwrap_or(0), code, "{span}");
    }
    assert!(!collector.text().contains(SECRET));
}

#[test]
fn numbers_and_lines_are_told_of_what_happens_to_sandboxes() {
    let (collector, address) = Collector::start();
    let mut server = server(address);
    let key = server.key(&[]);
    let body = format!("{{\"metadata\": {{\"a\": \"{SECRET}\"}}}}");
    let made = server.ask(&key, "POST /v1/sandboxes", &body);
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let running = || {
        let sandboxes = collector.points("offleash.sandboxes")?;
        let points = sandboxes["gauge"]["dataPoints"].as_array()?.clone();
        let mut running = points
            .iter()
            .filter(|point| facts(point)["offleash.state"] == "running");
        (running.next()?["asInt"] == "1").then_some(())
    };
    eventually("a running sandbox among the numbers", running);
    assert_eq!(server.ask(&key, &format!("DELETE /v1/sandboxes/{id}"), "").status, 204);
    let (status, log) = server.end();
    assert!(status.success(), "{status}: {log}");

    // What is told at the end is the last of it.
    let creates = collector.points("offleash.creates").unwrap();
    let point = creates["sum"]["dataPoints"].as_array().unwrap().iter();
    let scratch = point
        .clone()
        .find(|point| facts(point)["offleash.from"] == "scratch")
        .unwrap();
    assert_eq!(
        (&scratch["asInt"], &creates["sum"]["isMonotonic"]),
        (&json!("1"), &json!(true))
    );
    let durations = collector.points("http.server.request.duration").unwrap();
    let points = durations["histogram"]["dataPoints"].as_array().unwrap();
    let created = points
        .iter()
        .find(|point| facts(point)["http.response.status_code"] == "201")
        .unwrap();
    assert_eq!(
        (facts(created)["http.request.method"].as_str(), &created["count"]),
        ("POST", &json!("1"))
    );
    let lines = collector.lines();
    let of_sandbox: Vec<&str> = lines
        .iter()
        .filter(|line| facts(line).get("offleash.sandbox") == Some(&id))
        .map(|line| line["eventName"].as_str().unwrap())
        .collect();
    assert_eq!(
        of_sandbox,
        ["offleash.sandbox.created", "offleash.sandbox.killed"],
        "{lines:?}"
    );
    assert!(lines.iter().all(|line| line["severityText"] == "INFO"), "{lines:?}");
    let text = collector.text();
    assert!(!text.contains(SECRET) && !text.contains(&key), "{text}");
}

#[test]
fn a_collector_that_takes_nothing_holds_up_nobody() {
    // One that is not there, one that accepts and never answers, and one whose answer never ends.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = gone.local_addr().unwrap();
    drop(gone);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let liar = TcpListener::bind("127.0.0.1:0").unwrap();
    let lies = liar.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in liar.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut said = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while said.is_ok() {
                    said = stream.write_all(&[b'x'; 4096]);
                }
            });
        }
    });
    for address in [nowhere, silent.local_addr().unwrap(), lies] {
        let mut server = server(address);
        // More than can wait.
        for _ in 0..4200 / 25 {
            let asked: Vec<_> = (0..25)
                .map(|_| ask(server.address, "GET /healthz", &[], "").status)
                .collect();
            assert!(asked.iter().all(|status| *status == 204), "{asked:?}");
        }
        let (status, log) = server.end();
        assert!(status.success(), "{status}: {log}");
        let complaints = log.lines().filter(|line| line.contains("traces are lost")).count();
        assert!(complaints <= 1, "{log}");
    }
}

#[test]
fn what_is_no_address_of_a_collector_is_refused() {
    let site = support::Site::new();
    let file = site.write("serve.toml", "[telemetry]\nendpoint = \"ftp://collector.example\"\n");
    let check = ["serve", "--config-check", "--config", file.to_str().unwrap()];
    let told = site.refuse(check);
    assert!(
        told.contains("no address of a collector") && told.contains("telemetry.endpoint"),
        "{told}"
    );
    for endpoint in ["http://127.0.0.1:4318", "https://collector.example"] {
        let good = site.write("good.toml", format!("[telemetry]\nendpoint = {endpoint:?}\n"));
        site.succeed(["serve", "--config-check", "--config", good.to_str().unwrap()]);
    }
}
