//! A server on the host, whose sandboxes reach the internet.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::Site;
use crate::support::processes::{TIMEOUT, eventually, signal, wait};
use crate::world::World;

/// A server on the host, asked by the socket of its owner.
pub(crate) struct Served {
    site: Site,
    child: Child,
    /// Where it listens, as the host calls it.
    url: String,
}

impl Served {
    pub(crate) fn start(world: &World) -> Self {
        Self::start_trusting(world, "ca.pem")
    }

    /// One whose gateways trust the authority in that file of the internet.
    pub(crate) fn start_trusting(world: &World, authority: &str) -> Self {
        let site = Site::sharing_templates();
        let config = site.write("serve.toml", "[pool]\nmin = 0\nmax = 0\n");
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        let mut command = world.offleash(&site, &arguments);
        command.env("SSL_CERT_FILE", world.file(authority));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut told = BufReader::new(child.stdout.take().unwrap());
        told.read_line(&mut line).unwrap();
        let (_, url) = line.trim().split_once('=').unwrap_or_else(|| panic!("{line}"));
        assert!(url.contains("://"), "{line}");
        Self {
            site,
            child,
            url: url.to_owned(),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    pub(crate) fn state(&self) -> std::path::PathBuf {
        self.site.state()
    }

    /// The status and the body of an answer to the owner.
    pub(crate) fn ask(&self, line: &str, body: &Value) -> (u16, Value) {
        self.ask_with("", line, body)
    }

    /// The same to whoever shows this key.
    pub(crate) fn ask_as(&self, key: &str, line: &str, body: &Value) -> (u16, Value) {
        self.ask_with(&format!("X-API-KEY: {key}\r\n"), line, body)
    }

    /// A key of everything.
    pub(crate) fn key(&self) -> String {
        let output = self.site.offleash(["key", "create"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn ask_with(&self, fields: &str, line: &str, body: &Value) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.site.state().join("api.sock")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = body.to_string();
        let length = body.len();
        // In one piece: a request may be answered, and its connection closed, before its body has been read.
        let request = format!(
            "{line} HTTP/1.1\r\nHost: x\r\n{fields}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(!head.to_ascii_lowercase().contains("chunked"), "{head}");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    pub(crate) fn made(&self, network: &Value) -> String {
        let body = json!({ "templateID": "base", "timeout": 600, "network": network });
        let (status, sandbox) = self.ask("POST /v2/sandboxes", &body);
        assert_eq!(status, 201, "{sandbox}");
        sandbox["sandboxID"].as_str().unwrap().to_owned()
    }

    pub(crate) fn set_network(&self, id: &str, network: &Value) {
        let (status, answer) = self.ask(&format!("PUT /sandboxes/{id}/network"), network);
        assert_eq!(status, 204, "{answer}");
    }

    /// What a line of shell writes; it must succeed.
    pub(crate) fn run(&self, id: &str, line: &str) -> String {
        let (status, result) = self.ask(&format!("POST /v1/sandboxes/{id}/run"), &json!({ "shell": line }));
        assert_eq!((status, &result["exit_code"]), (200, &json!(0)), "{line}: {result}");
        result["stdout"].as_str().unwrap().to_owned()
    }

    pub(crate) fn python(&self, id: &str, program: &str) -> String {
        self.run(id, &format!("exec /usr/bin/python3 -I -S - <<'END'\n{program}\nEND"))
    }

    /// Starts a program that goes on, and says what happens to it in `/tmp/NAME`.
    pub(crate) fn leave(&self, id: &str, name: &str, program: &str) {
        self.run(
            id,
            &format!(
                "cat >/tmp/{name}.py <<'END'\n{program}\nEND\n\
                 (setsid /usr/bin/python3 -I -S /tmp/{name}.py >/tmp/{name} 2>&1 </dev/null &)"
            ),
        );
    }

    /// Has the sandbox keep a connection over which it has asked for `url`, and say `cut` in `/tmp/NAME` when it is closed.
    pub(crate) fn keep_connection(&self, id: &str, name: &str, url: &str) {
        self.leave(id, name, &KEPT.replace("URL", url));
        self.eventually_says(id, name, "up");
    }

    pub(crate) fn said(&self, id: &str, name: &str) -> String {
        self.run(id, &format!("cat /tmp/{name} 2>/dev/null || true"))
    }

    pub(crate) fn eventually_says(&self, id: &str, name: &str, word: &str) {
        eventually(&format!("`{word}` of `{name}`"), || {
            self.said(id, name).contains(word).then_some(())
        });
    }
}

/// Says `up` once it has asked, keeps its connection, and says `cut` when that is closed.
const KEPT: &str = r#"
import http.client, urllib.parse
url = urllib.parse.urlsplit("URL")
kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
connection = kind(url.netloc, timeout=600)
connection.request("GET", url.path)
connection.getresponse().read()
print("up", flush=True)
try:
    connection.sock.recv(1)
except OSError:
    pass
print("cut", flush=True)
"#;

impl Drop for Served {
    fn drop(&mut self) {
        let ids = self.site.offleash(["ls", "--quiet"]).output().unwrap();
        for id in String::from_utf8_lossy(&ids.stdout).split_whitespace() {
            let _killed = self.site.offleash(["rm", "--force", id]).output();
        }
        signal(&self.child, Signal::TERM);
        wait(&mut self.child);
    }
}
