//! A sandbox with a server of its own, and requests to its services.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::client::connect;
use crate::server::{QUIET, Server};

/// A sandbox and its server.
pub(crate) struct Sandbox {
    server: Server,
    key: String,
    id: String,
    token: String,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as its head announced.
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The frames of a stream: flags and message.
    pub(crate) fn frames(&self) -> Vec<(u8, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut rest = self.body.as_slice();
        while let [flags, a, b, c, d, after @ ..] = rest {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            frames.push((*flags, after[..length].to_vec()));
            rest = &after[length..];
        }
        frames
    }

    /// The messages of a stream in JSON, the last frame among them.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let frames = self.frames();
        frames
            .iter()
            .map(|(_, message)| serde_json::from_slice(message).unwrap())
            .collect()
    }
}

/// A message in its frame.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self::configured("")
    }

    /// One of a server whose configuration says this, too.
    pub(crate) fn configured(config: &str) -> Self {
        let server = Server::start_with(&format!("{QUIET}{config}"), &[]);
        let key = server.key(&[]);
        let made = server.ask(
            &key,
            "POST /v2/sandboxes",
            r#"{"templateID":"base","timeout":600,"secure":true}"#,
        );
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.json();
        Self {
            server,
            key,
            id: made["sandboxID"].as_str().unwrap().to_owned(),
            token: made["envdAccessToken"].as_str().unwrap().to_owned(),
        }
    }

    /// Ends it.
    pub(crate) fn kill(&self) {
        let killed = self
            .server
            .ask(&self.key, &format!("DELETE /sandboxes/{}", self.id), "");
        assert_eq!(killed.status, 204, "{killed:?}");
    }

    /// Begins a request, with the token if that is asked.
    pub(crate) fn send(&self, line: &str, with_token: bool, fields: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let (id, address) = (&self.id, self.server.address);
        let mut head = format!("{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nE2b-Sandbox-Id: {id}\r\n");
        if with_token {
            head.push_str(&format!("X-Access-Token: {}\r\n", self.token));
        }
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut stream = connect(address);
        stream.write_all(head.as_bytes()).unwrap();
        // A server that has refused the head need not read the rest.
        let _sent = stream.write_all(body);
        stream
    }

    pub(crate) fn ask(&self, line: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        received(self.send(line, true, fields, body))
    }

    pub(crate) fn ask_without_token(&self, line: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        received(self.send(line, false, fields, body))
    }

    /// A unary call.
    pub(crate) fn call(&self, method: &str, message: &str) -> Answer {
        let json = [("Content-Type", "application/json")];
        self.ask(&format!("POST /{method}"), &json, message.as_bytes())
    }

    /// A call that yields a stream.
    pub(crate) fn stream(&self, method: &str, fields: &[(&str, &str)], message: &str) -> Answer {
        let mut all = vec![("Content-Type", "application/connect+json")];
        all.extend_from_slice(fields);
        self.ask(&format!("POST /{method}"), &all, &frame(message.as_bytes()))
    }
}

/// Reads everything until the server closes.
pub(crate) fn received(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let raw = &bytes[end + 4..];
    let (body, is_whole) = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        dechunked(raw)
    } else {
        (raw.to_vec(), true)
    };
    Answer {
        status,
        head,
        body,
        is_whole,
    }
}

fn dechunked(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut whole = Vec::new();
    loop {
        let Some(end) = raw.windows(2).position(|two| two == b"\r\n") else {
            return (whole, false);
        };
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).unwrap(), 16).unwrap();
        raw = &raw[end + 2..];
        if size == 0 {
            return (whole, true);
        }
        if raw.len() < size + 2 {
            whole.extend_from_slice(&raw[..raw.len().min(size)]);
            return (whole, false);
        }
        whole.extend_from_slice(&raw[..size]);
        raw = &raw[size + 2..];
    }
}
