//! Contexts of code by the native REST.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::{Answer, connect, exchange, parse};
use crate::sandboxes::made;
use crate::server::{QUIET, Server};
use crate::support::processes::eventually;

/// A server whose first sandbox may take as long as its root takes to be made.
fn patient_server() -> Server {
    Server::start_with(&format!("{QUIET}[sandboxes]\ncreate_timeout_seconds = 600\n"), &[])
}

/// The contexts of a sandbox, as their owner asks for them.
struct Contexts<'a> {
    server: &'a Server,
    key: String,
    id: String,
}

impl<'a> Contexts<'a> {
    /// Those of a new sandbox of a new key.
    fn of(server: &'a Server) -> Self {
        let key = server.key(&[]);
        let id = made(server, &key, &json!({ "timeout": 3600 }));
        Self { server, key, id }
    }

    /// Asks for what is at `rest` below the sandbox.
    fn ask(&self, method: &str, rest: &str, body: &Value) -> Answer {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let line = format!("{method} /v1/sandboxes/{}/{rest}", self.id);
        self.server.ask(&self.key, &line, &body)
    }

    /// Makes a context; answers its id.
    fn make(&self, fields: &Value) -> String {
        let answer = self.ask("POST", "contexts", fields);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    fn list(&self) -> Vec<Value> {
        let answer = self.ask("GET", "contexts", &Value::Null);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["contexts"].as_array().unwrap().clone()
    }

    /// Runs a cell in a context; answers what happened to it.
    fn run(&self, context: &str, cell: &Value) -> Vec<Value> {
        told(&self.ask("POST", &format!("contexts/{context}/execute"), cell))
    }

    /// Runs a cell in a context; answers the text of its value.
    fn value(&self, context: &str, code: &str) -> String {
        let told = self.run(context, &json!({ "code": code }));
        let result = told.iter().find(|event| event["kind"] == "result");
        let result = result.unwrap_or_else(|| panic!("{told:?}"));
        result["result"]["forms"]["text/plain"].as_str().unwrap().to_owned()
    }

    /// Begins a cell in a context, and waits until it has written a line.
    fn begin(&self, context: &str, code: &str) -> Begun {
        let address = self.server.address;
        let mut stream = connect(address);
        let body = json!({ "code": code }).to_string();
        write!(
            stream,
            "POST /v1/sandboxes/{}/contexts/{context}/execute HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.id,
            self.key,
            body.len()
        )
        .unwrap();
        let mut lines = BufReader::new(stream);
        wait_for(&mut lines, "\"stdout\"");
        Begun { lines }
    }
}

/// A cell that runs.
struct Begun {
    lines: BufReader<TcpStream>,
}

impl Begun {
    /// Waits for its end.
    fn end(mut self) -> Value {
        serde_json::from_str(&wait_for(&mut self.lines, "\"end\"")).unwrap()
    }
}

/// Reads lines until one has `word`, and answers that.
fn wait_for(lines: &mut BufReader<TcpStream>, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "no {word}");
        if line.contains(word) {
            return line;
        }
    }
}

/// What happened to a cell, but for signs of life.
fn told(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let events = answer.body.lines().map(|line| serde_json::from_str(line).unwrap());
    let events: Vec<Value> = events.filter(|event: &Value| event["kind"] != "keepalive").collect();
    assert_eq!(events.last().unwrap()["kind"], "end", "{answer:?}");
    events
}

#[test]
fn a_context_keeps_its_state_and_tells_what_happens() {
    let server = patient_server();
    let contexts = Contexts::of(&server);
    assert_eq!(contexts.list(), Vec::<Value>::new());
    let id = contexts.make(&json!({ "cwd": "/tmp" }));
    let code = "import os, sys\nx = 1\nprint(os.getcwd(), os.environ['MINE'])\nprint('e', file=sys.stderr)\n[x]";
    let mut events = contexts.run(&id, &json!({ "code": code, "env": { "MINE": "v" } }));
    for event in &mut events {
        if let Some(at) = event.as_object_mut().unwrap().remove("at") {
            assert!(at.as_str().unwrap().ends_with('Z'), "{at}");
        }
    }
    assert_eq!(
        events,
        [
            json!({ "kind": "begin", "count": 1 }),
            json!({ "kind": "stdout", "text": "/tmp v\n" }),
            json!({ "kind": "stderr", "text": "e\n" }),
            json!({ "kind": "result", "result": { "is_main": true, "forms": { "text/plain": "[1]" }, "omitted": {} } }),
            json!({ "kind": "end", "outcome": "done" }),
        ]
    );
    let failed = contexts.run(&id, &json!({ "code": "x / 0" }));
    let error = &failed[1]["error"];
    assert_eq!(
        (&failed[1]["kind"], &error["name"]),
        (&json!("error"), &json!("ZeroDivisionError"))
    );
    assert!(error["traceback"].as_str().unwrap().contains("x / 0"), "{error}");
    let shown = contexts.ask("GET", &format!("contexts/{id}"), &Value::Null).json();
    let expected = json!({
        "id": id, "language": "python", "cwd": "/tmp", "is_default": false, "state": "idle", "count": 2,
    });
    assert_eq!((&shown, contexts.list()), (&expected, vec![expected.clone()]));
    // One by default for each language, which is made when it is first asked for.
    let execute = |cell: &Value| told(&contexts.ask("POST", "execute", cell));
    execute(&json!({ "code": "x=2", "language": "bash" }));
    let events = execute(&json!({ "code": "echo $x", "language": "bash" }));
    assert_eq!(events[1]["text"], "2\n");
    let listed = contexts.list();
    assert_eq!(
        (&listed[1]["language"], &listed[1]["is_default"]),
        (&json!("bash"), &json!(true))
    );
}

#[test]
fn cells_are_interrupted_and_contexts_restarted_and_removed() {
    let server = patient_server();
    let contexts = Contexts::of(&server);
    let id = contexts.make(&json!({}));
    let order = |method: &str, rest: &str| {
        let answer = contexts.ask(method, &format!("contexts/{id}{rest}"), &Value::Null);
        assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{method} {rest}");
    };
    // Nothing runs that could be interrupted, and that is no error.
    order("POST", "/interrupt");
    let forever = "x = 1\nprint('on', flush=True)\nimport time\nwhile True: time.sleep(1)";
    let begun = contexts.begin(&id, forever);
    assert_eq!(contexts.list()[0]["state"], "busy");
    order("POST", "/interrupt");
    assert_eq!(begun.end()["outcome"], "interrupted");
    let events = contexts.run(&id, &json!({ "code": forever, "timeout_ms": 500 }));
    assert_eq!(
        events.last().unwrap(),
        &json!({ "kind": "end", "outcome": "timed_out" })
    );
    // A client that goes away.
    drop(contexts.begin(&id, forever));
    assert_eq!(contexts.value(&id, "x"), "1");
    let begun = contexts.begin(&id, forever);
    order("POST", "/restart");
    assert_eq!(
        begun.end(),
        json!({ "kind": "end", "outcome": "died", "reason": "it was restarted" })
    );
    assert_eq!(
        contexts.run(&id, &json!({ "code": "x" }))[1]["error"]["name"],
        "NameError"
    );
    let events = contexts.run(&id, &json!({ "code": "import os; os._exit(3)" }));
    let end = events.last().unwrap();
    assert_eq!(
        (&end["outcome"], &end["reason"]),
        (&json!("died"), &json!("its process exited with status 3"))
    );
    let process = contexts.value(&id, "__import__('os').getpid()");
    // It ends when the cell is over.
    let later = "import os, threading, time\n\
                 def end():\n  while not os.path.exists('/tmp/gate'): time.sleep(0.01)\n  os._exit(4)\n\
                 threading.Thread(target=end).start()";
    let events = contexts.run(&id, &json!({ "code": later }));
    assert_eq!(events.last().unwrap()["outcome"], "done", "{events:?}");
    server.say(&["exec", &contexts.id, "touch", "/tmp/gate"]);
    let is_there = format!("kill -0 {process} 2>/dev/null && echo there || echo gone");
    eventually("the end of the process", || {
        let said = server.say(&["exec", &contexts.id, "sh", "-c", &is_there]);
        (said.trim() == "gone").then_some(())
    });
    // It comes back by itself, and the next cell is told so, once.
    let events = contexts.run(&id, &json!({ "code": "1" }));
    assert_eq!(
        events,
        [json!({ "kind": "end", "outcome": "not_run", "reason": "its process exited with status 4" })]
    );
    assert_eq!(contexts.value(&id, "1"), "1");
    order("DELETE", "");
    for (method, rest) in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/restart"),
        ("POST", "/interrupt"),
    ] {
        let answer = contexts.ask(method, &format!("contexts/{id}{rest}"), &Value::Null);
        answer.assert_refused(404);
    }
    assert_eq!(contexts.list(), Vec::<Value>::new());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = patient_server();
    let contexts = Contexts::of(&server);
    let id = contexts.make(&json!({}));
    let execute = format!("contexts/{id}/execute");
    for (rest, body) in [
        ("contexts", json!({ "language": "cobol" })),
        ("contexts", json!({ "cwd": "" })),
        ("contexts", json!({ "cwd": "/nowhere/at/all" })),
        ("contexts", json!({ "directory": "/" })),
        ("execute", json!({ "code": "1", "language": "cobol" })),
        ("execute", json!({ "code": "1", "context": id })),
        ("execute", json!({})),
        (&execute, json!({ "code": 1 })),
        (&execute, json!({ "code": "1", "language": "python" })),
        (&execute, json!({ "code": "1", "timeout_ms": -1 })),
        (&execute, json!({ "code": "1", "timeout_ms": 0 })),
        ("execute", json!({ "code": "1", "timeout_ms": 0 })),
        ("run", json!({ "shell": "true", "timeout_ms": 0 })),
        (&execute, json!({ "code": "1", "env": { "A=B": "c" } })),
        (&execute, json!({ "code": "1", "env": { "A": "\0" } })),
        (&execute, json!({ "code": "#".repeat(17 * 1024 * 1024) })),
    ] {
        let answer = contexts.ask("POST", rest, &body);
        assert_eq!(
            answer.status,
            400,
            "{rest} {}: {answer:?}",
            &body.to_string()[..body.to_string().len().min(80)]
        );
        assert_eq!(answer.json()["code"], 400);
    }
    // Neither bytes nor escapes that are no text.
    for code in [&b"\xff"[..], b"\\ud800", b"\xed\xa0\x80"] {
        let body = [b"{\"code\":\"", code, b"\"}"].concat();
        let head = format!(
            "POST /v1/sandboxes/{}/{execute} HTTP/1.1\r\nHost: {}\r\nX-API-KEY: {}\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n",
            contexts.id,
            server.address,
            contexts.key,
            body.len()
        );
        parse(&exchange(server.address, &[head.as_bytes(), &body].concat())).assert_refused(400);
    }
    let large = json!({ "code": "#".repeat(33 * 1024 * 1024) });
    contexts.ask("POST", &execute, &large).assert_refused(413);
    // A context is one of its sandbox alone.
    let other = made(&server, &contexts.key, &json!({}));
    for (method, rest) in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/restart"),
        ("POST", "/interrupt"),
        ("POST", "/execute"),
    ] {
        let line = format!("{method} /v1/sandboxes/{other}/contexts/{id}{rest}");
        let body = if rest == "/execute" { r#"{"code":"1"}"# } else { "" };
        server.ask(&contexts.key, &line, body).assert_refused(404);
    }
    assert_eq!(contexts.value(&id, "1 + 1"), "2");
}

#[test]
fn a_cell_that_does_not_react_to_its_end_loses_its_context() {
    let server = patient_server();
    let contexts = Contexts::of(&server);
    // What a cell of Python blocks stays blocked, so that no interrupt comes too early.
    let before = "import signal, time\nblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nx = 1";
    let shell = "trap '' INT\nwhile :; do sleep 1; done";
    for (language, before, code, timeout_ms, next) in [
        ("python", before, "while True: time.sleep(1)", 500, "x"),
        ("bash", "x=1", shell, 5000, "echo $x"),
    ] {
        let id = contexts.make(&json!({ "language": language }));
        contexts.run(&id, &json!({ "code": before }));
        let events = contexts.run(&id, &json!({ "code": code, "timeout_ms": timeout_ms }));
        let reason = "the time of the cell was over and it did not react to an interrupt";
        assert_eq!(
            events.last().unwrap(),
            &json!({ "kind": "end", "outcome": "died", "reason": reason })
        );
        let events = contexts.run(&id, &json!({ "code": next }));
        assert_eq!(events[0], json!({ "kind": "begin", "count": 1 }));
    }
}

#[test]
fn looking_at_contexts_resumes_nothing() {
    let server = patient_server();
    let contexts = Contexts::of(&server);
    let id = contexts.make(&json!({}));
    contexts.run(&id, &json!({ "code": "x = 5" }));
    let sandbox = &contexts.id;
    let pause = server.ask(&contexts.key, &format!("POST /sandboxes/{sandbox}/pause"), "{}");
    assert_eq!(pause.status, 204, "{pause:?}");
    for rest in ["contexts".to_owned(), format!("contexts/{id}")] {
        contexts.ask("GET", &rest, &Value::Null).assert_refused(409);
    }
    contexts
        .ask("POST", &format!("contexts/{id}/execute"), &json!({ "code": "x" }))
        .assert_refused(409);
    let connect = format!("POST /v2/sandboxes/{sandbox}/connect");
    assert_eq!(server.ask(&contexts.key, &connect, "{}").status, 201);
    assert_eq!(contexts.value(&id, "x"), "5");
}

#[test]
fn a_language_that_the_sandbox_has_not_is_told_with_what_would_bring_it() {
    let server = patient_server();
    let contexts = Contexts::of(&server);
    for (language, package) in [
        ("typescript", "--npm typescript@5"),
        ("javascript", "nodejs"),
        ("r", "r-base-core"),
        ("java", "default-jdk-headless"),
    ] {
        let made = contexts.ask("POST", "contexts", &json!({ "language": language }));
        let cell = contexts.ask("POST", "execute", &json!({ "language": language, "code": "1" }));
        if made.status == 201 {
            crate::support::skip(&format!("{language} is installed"));
            continue;
        }
        for answer in [made, cell] {
            assert_eq!(answer.status, 501, "{answer:?}");
            let told = answer.json()["message"].as_str().unwrap().to_owned();
            assert!(
                told.contains(&format!("{language} is not installed in the sandbox")),
                "{told}"
            );
            assert!(
                told.contains("offleash template build") && told.contains(package),
                "{told}"
            );
        }
    }
}
