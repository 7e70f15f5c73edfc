//! What a client of the API does, by the wire protocol of E2B's SDKs.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::http::{Answer, Connection};
use crate::error::TaskError;

/// A client with a key and one connection.
#[derive(Debug)]
pub(in crate::bench) struct Client {
    connection: Connection,
}

/// A sandbox, and what opens it.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Sandbox {
    id: String,
    token: String,
}

impl Client {
    pub(in crate::bench) fn new(server: SocketAddr, key: &str) -> Result<Self, TaskError> {
        let connection = Connection::open(server, key).map_err(TaskError::file("connecting to", server.to_string()))?;
        Ok(Self { connection })
    }

    pub(in crate::bench) fn create(&mut self, seconds: u32) -> Result<Sandbox, TaskError> {
        self.create_of("base", seconds)
    }

    pub(in crate::bench) fn create_of(&mut self, template: &str, seconds: u32) -> Result<Sandbox, TaskError> {
        let body = json!({ "templateID": template, "timeout": seconds }).to_string();
        let json = [("content-type", "application/json")];
        let answer = self.send("POST", "/v2/sandboxes", &json, body.as_bytes())?;
        let made: Value = parsed(&expect(answer, 201, "create")?)?;
        let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
        Ok(Sandbox {
            id: text("sandboxID"),
            token: text("envdAccessToken"),
        })
    }

    pub(in crate::bench) fn kill(&mut self, sandbox: &Sandbox) -> Result<(), TaskError> {
        let path = format!("/sandboxes/{}", sandbox.id);
        let answer = self.send("DELETE", &path, &[], &[])?;
        expect(answer, 204, "kill").map(drop)
    }

    pub(super) fn pause(&mut self, sandbox: &Sandbox) -> Result<(), TaskError> {
        let path = format!("/sandboxes/{}/pause", sandbox.id);
        let answer = self.send("POST", &path, &[("content-type", "application/json")], b"{}")?;
        expect(answer, 204, "pause").map(drop)
    }

    pub(super) fn resume(&mut self, sandbox: &Sandbox, seconds: u32) -> Result<(), TaskError> {
        let path = format!("/v2/sandboxes/{}/connect", sandbox.id);
        let body = json!({ "timeout": seconds }).to_string();
        let answer = self.send("POST", &path, &[("content-type", "application/json")], body.as_bytes())?;
        expect(answer, 201, "resume").map(drop)
    }

    /// Runs a command to its end.
    pub(in crate::bench) fn run(&mut self, sandbox: &Sandbox, argv: &[&str]) -> Result<(), TaskError> {
        let message = json!({ "process": { "cmd": argv[0], "args": &argv[1..] }, "stdin": false }).to_string();
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        frame.extend(message.into_bytes());
        let headers = sandbox.headers("application/connect+json");
        let answer = self.send("POST", "/process.Process/Start", &headers, &frame)?;
        let body = expect(answer, 200, "start")?;
        let text = String::from_utf8_lossy(&body);
        if text.contains("\"error\":{") || !text.contains("exit status 0") {
            return Err(answered("the command", text.into_owned()));
        }
        Ok(())
    }

    /// Runs a command to its end; what it took from the view of the process that holds the sandbox, ns.
    pub(super) fn run_natively(&mut self, sandbox: &Sandbox, argv: &[&str]) -> Result<u64, TaskError> {
        let path = format!("/v1/sandboxes/{}/run", sandbox.id);
        let body = json!({ "argv": argv }).to_string();
        let answer = self.send("POST", &path, &[("content-type", "application/json")], body.as_bytes())?;
        let told: Value = parsed(&expect(answer, 200, "run")?)?;
        match (&told["exit_code"], told["took_us"].as_u64()) {
            (code, Some(micros)) if code == 0 => Ok(micros.saturating_mul(1000)),
            _ => Err(answered("the command", told.to_string())),
        }
    }

    /// Whether contexts of Python in a sandbox are copies of an interpreter that is ready.
    pub(in crate::bench) fn is_forked(&mut self, sandbox: &Sandbox) -> Result<bool, TaskError> {
        let answer = self.send("GET", &format!("/v1/sandboxes/{}", sandbox.id), &[], b"")?;
        let told: Value = parsed(&expect(answer, 200, "inspect")?)?;
        Ok(told["interpreter"] == "forked")
    }

    /// Runs a cell of Python in the default context to its end.
    pub(in crate::bench) fn run_code(&mut self, sandbox: &Sandbox, code: &str) -> Result<(), TaskError> {
        let mut headers = sandbox.headers("application/json");
        headers[2] = ("e2b-sandbox-port", "49999");
        let body = json!({ "code": code }).to_string();
        let answer = self.send("POST", "/execute", &headers, body.as_bytes())?;
        let text = String::from_utf8_lossy(&expect(answer, 200, "execute")?).into_owned();
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let is = |kind: &str| events.iter().any(|event| event["type"] == kind);
        if is("error") || !is("result") || !is("end_of_execution") {
            return Err(answered("the cell", text));
        }
        Ok(())
    }

    pub(super) fn upload(&mut self, sandbox: &Sandbox, name: &str, length: u64) -> Result<(), TaskError> {
        let headers = sandbox.headers("application/octet-stream");
        let path = format!("/files?path=/home/user/{name}");
        match self.connection.upload(&path, &headers, length) {
            Ok(200) => Ok(()),
            Ok(status) => Err(answered("an upload", format!("status {status}"))),
            Err(error) => Err(TaskError::file("uploading", name)(error)),
        }
    }

    pub(super) fn download(&mut self, sandbox: &Sandbox, name: &str, length: u64) -> Result<(), TaskError> {
        let path = format!("/files?path=/home/user/{name}");
        match self.connection.download(&path, &sandbox.headers("")[1..]) {
            Ok((200, read)) if read == length => Ok(()),
            Ok((status, read)) => Err(answered("a download", format!("status {status}, {read} bytes"))),
            Err(error) => Err(TaskError::file("downloading", name)(error)),
        }
    }

    fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, TaskError> {
        let sent = self.connection.send(method, path, headers, body);
        sent.map_err(TaskError::file("asking for", path))
    }
}

impl Sandbox {
    fn headers<'a>(&'a self, kind: &'a str) -> [(&'a str, &'a str); 4] {
        [
            ("content-type", kind),
            ("e2b-sandbox-id", &self.id),
            ("e2b-sandbox-port", "49983"),
            ("x-access-token", &self.token),
        ]
    }
}

/// What the same command takes without a sandbox, ns.
pub(super) fn plain(program: &str) -> Result<u64, TaskError> {
    let started = Instant::now();
    let status = Command::new(program)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    status.map_err(TaskError::start(program))?;
    Ok(nanoseconds(started))
}

pub(in crate::bench) fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn expect(answer: Answer, status: u16, what: &str) -> Result<Vec<u8>, TaskError> {
    if answer.status == status {
        return Ok(answer.body);
    }
    let told = String::from_utf8_lossy(&answer.body).into_owned();
    Err(answered(
        "the daemon",
        format!("{what}: status {}: {told}", answer.status),
    ))
}

fn parsed(bytes: &[u8]) -> Result<Value, TaskError> {
    serde_json::from_slice(bytes).map_err(|error| answered("the daemon", error.to_string()))
}

pub(in crate::bench) fn answered(from: &'static str, why: String) -> TaskError {
    TaskError::Answer { from, why }
}
