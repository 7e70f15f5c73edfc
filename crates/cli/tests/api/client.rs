//! A client that sends what it is told to, however wrong, and reads what comes back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use crate::support::processes::TIMEOUT;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that this is an error of the shape that SDKs read, and that it says nothing of the machine.
    pub(crate) fn assert_refused(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        let body = self.json();
        assert_eq!(body["code"], status, "{self:?}");
        assert!(
            body["message"].as_str().is_some_and(|message| !message.is_empty()),
            "{self:?}"
        );
        self.assert_silent();
    }

    /// Checks that no path of this machine is in it (A15).
    pub(crate) fn assert_silent(&self) {
        let all = format!("{}{}", self.head, self.body);
        for word in [
            "/tmp/",
            "offleash-test-",
            "/proc/",
            "/home/",
            "/root",
            "supervisor.sock",
            "sandboxes/i",
            "os error",
            ".rs:",
        ] {
            assert!(!all.contains(word), "`{word}` in {self:?}");
        }
    }
}

/// Connects; nothing waits for ever.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends `request` and reads everything until the server closes; what cannot be sent any more is not.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    // A server that has refused the head need not read the rest.
    let _sent = stream.write_all(request);
    read_all(&mut stream)
}

/// Everything until the server closes.
pub(crate) fn read_all(stream: &mut impl Read) -> String {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
            // Closed with something unread.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// One answer of `text`.
pub(crate) fn parse(text: &str) -> Answer {
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Answer {
        status: status.unwrap_or_else(|| panic!("no status: {text:?}")),
        head: head.to_owned(),
        body: if chunked { dechunked(body) } else { body.to_owned() },
    }
}

fn dechunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}

/// A request on a connection of its own, with `head` as further lines of its head.
pub(crate) fn ask(address: SocketAddr, request_line: &str, head: &[(&str, &str)], body: &str) -> Answer {
    let mut text = format!("{request_line} HTTP/1.1\r\nConnection: close\r\n");
    if !head.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in head {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    parse(&exchange(address, text.as_bytes()))
}

/// Ends the client's half of a connection.
pub(crate) fn finish_sending(stream: &TcpStream) {
    // The server may have ended it already.
    let _ended = stream.shutdown(Shutdown::Write);
}
