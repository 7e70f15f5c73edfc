//! What the SDKs ask of the services of a sandbox, asked without them.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::client;
use crate::server::Server;
use crate::support::processes::TIMEOUT;

/// A sandbox, as its creator was told of it.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    token: String,
}

impl Sandbox {
    /// Asks for one.
    ///
    /// # Errors
    /// With the status of any other answer than 201, or 0 where the server was cut down.
    pub(crate) fn create(address: SocketAddr, key: &str) -> Result<Self, (u16, String)> {
        let body = br#"{"templateID":"base","timeout":3600}"#;
        let (status, body) =
            client::ask(address, key, "POST /v2/sandboxes", "", body).map_err(|error| (0, error.to_string()))?;
        if status != 201 {
            return Err((status, String::from_utf8_lossy(&body).into_owned()));
        }
        let answer = client::json(&body);
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            id: text("sandboxID"),
            token: text("envdAccessToken"),
        })
    }

    fn headers(&self) -> String {
        let Self { id, token } = self;
        format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {token}\r\n")
    }

    /// Asks its services; 0 is the status where there was no answer.
    pub(crate) fn ask(&self, address: SocketAddr, request: &str, content: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let headers = format!("{}Content-Type: {content}\r\n", self.headers());
        client::ask(address, "", request, &headers, body).unwrap_or_else(|error| (0, error.to_string().into_bytes()))
    }

    /// Writes a file; whether that was answered well.
    pub(crate) fn write(&self, address: SocketAddr, path: &str, contents: &str) -> bool {
        let request = format!("POST /files?path={path}");
        self.ask(address, &request, "application/octet-stream", contents.as_bytes())
            .0
            == 200
    }

    /// The contents of a file.
    pub(crate) fn read(&self, server: &Server, path: &str) -> String {
        let (status, body) = self.ask(server.address, &format!("GET /files?path={path}"), "text/plain", b"");
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(status, 200, "{self:?}: {body}");
        body
    }

    /// Starts a line of a shell, and leaves it alone once it runs; answers its number.
    pub(crate) fn start(&self, address: SocketAddr, line: &str) -> std::io::Result<u32> {
        let mut stream = self.stream(address, line)?;
        let mut seen = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece)?;
            if read == 0 {
                return Err(std::io::Error::other(String::from_utf8_lossy(&seen).into_owned()));
            }
            seen.extend_from_slice(&piece[..read]);
            let text = String::from_utf8_lossy(&seen);
            let number = text.split_once("\"pid\":").map(|(_, rest)| rest);
            if let Some((digits, _)) = number.and_then(|rest| rest.split_once('}')) {
                return digits.trim().parse().map_err(std::io::Error::other);
            }
        }
    }

    /// A stream of what a line of a shell writes.
    pub(crate) fn stream(&self, address: SocketAddr, line: &str) -> std::io::Result<TcpStream> {
        let message = json!({"process": {"cmd": "/bin/bash", "args": ["-c", line]}, "stdin": false}).to_string();
        let length = u32::try_from(message.len()).map_err(std::io::Error::other)?;
        let frame = [&[0], &length.to_be_bytes()[..], message.as_bytes()].concat();
        let head = format!(
            "POST /process.Process/Start HTTP/1.1\r\nHost: {address}\r\n{}Content-Type: application/connect+json\r\n\
             Connect-Protocol-Version: 1\r\nContent-Length: {}\r\n\r\n",
            self.headers(),
            frame.len()
        );
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(&[head.as_bytes(), &frame].concat())?;
        Ok(stream)
    }

    /// What a line of a shell writes, which must succeed.
    pub(crate) fn output(&self, address: SocketAddr, line: &str) -> String {
        let mut stream = self.stream(address, line).unwrap();
        let mut answer = BufReader::new(&mut stream);
        assert!(head(&mut answer).starts_with("HTTP/1.1 200"), "{line}");
        let body = client::chunked(&mut answer, line);
        let mut output = Vec::new();
        let mut rest = body.as_slice();
        let mut succeeded = false;
        while let [_, a, b, c, d, after @ ..] = rest {
            let (message, after) = after.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
            rest = after;
            let event = &client::json(message)["event"];
            if let Some(piece) = event["data"]["stdout"].as_str() {
                output.extend(data_encoding::BASE64.decode(piece.as_bytes()).unwrap());
            }
            // Zero is left out.
            succeeded |= event["end"]["exited"] == true && event["end"].get("exitCode").is_none_or(|code| code == 0);
        }
        assert!(succeeded, "{line}");
        String::from_utf8(output).unwrap()
    }

    /// Reads a file to nowhere; answers how many bytes it had.
    pub(crate) fn download(&self, address: SocketAddr, path: &str) -> std::io::Result<u64> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let headers = self.headers();
        let request =
            format!("GET /files?path={path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = BufReader::with_capacity(1 << 20, stream);
        let head = head(&mut answer);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        std::io::copy(&mut answer, &mut std::io::sink())
    }

    /// Writes a file of that many zeros; answers the status.
    pub(crate) fn upload(&self, address: SocketAddr, path: &str, size: u64) -> std::io::Result<u16> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        // Closing the file may write all of it to the disk.
        stream.set_read_timeout(Some(2 * TIMEOUT))?;
        let headers = self.headers();
        let request = format!(
            "POST /files?path={path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Type: application/octet-stream\r\n\
             Connection: close\r\nContent-Length: {size}\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let piece = vec![0; 1 << 20];
        let mut left = size;
        while left > 0 {
            let length = usize::try_from(left.min(1 << 20)).map_err(std::io::Error::other)?;
            // A server that says no need not read the rest.
            if stream.write_all(&piece[..length]).is_err() {
                break;
            }
            left -= length as u64;
        }
        let head = head(&mut BufReader::new(stream));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        status.ok_or_else(|| std::io::Error::other(head))
    }

    /// The numbers of the commands that run.
    pub(crate) fn processes(&self, server: &Server) -> Vec<u64> {
        let (status, body) = self.ask(server.address, "POST /process.Process/List", "application/json", b"{}");
        assert_eq!(status, 200, "{self:?}: {}", String::from_utf8_lossy(&body));
        let answer = client::json(&body);
        let all = answer["processes"].as_array().cloned().unwrap_or_default();
        all.iter()
            .filter_map(|process| Value::as_u64(&process["pid"]))
            .collect()
    }

    /// Asks for its end; the status, 0 where there was no answer.
    pub(crate) fn kill(&self, address: SocketAddr, key: &str) -> u16 {
        let request = format!("DELETE /sandboxes/{}", self.id);
        client::ask(address, key, &request, "", b"").map_or(0, |(status, _)| status)
    }
}

/// The head of an answer.
fn head(answer: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && answer.read_line(&mut head).unwrap() > 0 {}
    head
}
