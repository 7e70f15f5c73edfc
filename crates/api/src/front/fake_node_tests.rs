//! A node that answers by a table, in threads of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// How long a test waits for what has to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// What a node does with a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodeDoing {
    Answers(u16, &'static str),
    /// The same, and closes the connection without having said so.
    AnswersAndEnds(&'static str),
    /// The first body until something was asked for, the second one from then on.
    AnswersUntil(&'static str, &'static str, &'static str),
    /// Changes to a protocol of which it sends back all that comes.
    Echoes,
    Hangs,
    Drips,
    BreaksOff,
}

/// A node that answers by the first row whose text is in the request's first line.
pub(super) struct FakeNode {
    pub(super) address: SocketAddr,
    pub(super) scheme: &'static str,
    pub(super) connections: Arc<AtomicUsize>,
    pub(super) ended: Arc<AtomicUsize>,
    pub(super) asked: Arc<Mutex<Vec<String>>>,
    pub(super) is_stopped: Arc<AtomicBool>,
}

impl FakeNode {
    pub(super) fn start(rows: &'static [(&'static str, NodeDoing)]) -> Self {
        Self::speaking(None, rows)
    }

    /// One that speaks TLS.
    pub(super) fn encrypted(shown: &Arc<ServerConfig>, rows: &'static [(&'static str, NodeDoing)]) -> Self {
        Self::speaking(Some(Arc::clone(shown)), rows)
    }

    fn speaking(tls: Option<Arc<ServerConfig>>, rows: &'static [(&'static str, NodeDoing)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = Self {
            address: listener.local_addr().unwrap(),
            scheme: if tls.is_some() { "https" } else { "http" },
            connections: Arc::default(),
            ended: Arc::default(),
            asked: Arc::default(),
            is_stopped: Arc::default(),
        };
        let (connections, asked) = (Arc::clone(&node.connections), Arc::clone(&node.asked));
        let (is_stopped, ended) = (Arc::clone(&node.is_stopped), Arc::clone(&node.ended));
        thread::spawn(move || {
            for stream in listener.incoming() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (asked, is_stopped) = (Arc::clone(&asked), Arc::clone(&is_stopped));
                let (ended, tls) = (Arc::clone(&ended), tls.clone());
                thread::spawn(move || {
                    match tls {
                        None => serve(stream.unwrap(), rows, &asked, &is_stopped),
                        Some(tls) => {
                            let session = ServerConnection::new(tls).unwrap();
                            serve(StreamOwned::new(session, stream.unwrap()), rows, &asked, &is_stopped);
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        node
    }

    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// How often something was asked for.
    pub(super) fn count(&self, part: &str) -> usize {
        self.asked().iter().filter(|line| line.contains(part)).count()
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Reads requests and answers each.
fn serve(
    mut stream: impl Read + Write,
    rows: &[(&str, NodeDoing)],
    asked: &Mutex<Vec<String>>,
    is_stopped: &AtomicBool,
) {
    let mut read = Vec::new();
    let mut part = [0; 4096];
    loop {
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            match stream.read(&mut part) {
                Ok(1..) if is_stopped.load(Ordering::SeqCst) => thread::sleep(PATIENCE),
                Ok(count @ 1..) => read.extend_from_slice(&part[..count]),
                _ => return,
            }
            continue;
        };
        let head = String::from_utf8_lossy(&read[..end]).into_owned();
        let line = head.lines().next().unwrap().to_owned();
        let announced = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = announced.map_or(0, |length| length.parse::<usize>().unwrap());
        while read.len() < end + 4 + length {
            match stream.read(&mut part) {
                Ok(count @ 1..) => read.extend_from_slice(&part[..count]),
                _ => return,
            }
        }
        read.drain(..end + 4 + length);
        asked.lock().unwrap().push(match announced {
            Some(length) => format!("{line} with {length}"),
            None => line.clone(),
        });
        let row = rows.iter().find(|(part, _)| line.contains(part));
        match row.map_or(NodeDoing::Answers(404, "{}"), |(_, does)| *does) {
            NodeDoing::BreaksOff => return,
            NodeDoing::Hangs => thread::sleep(PATIENCE),
            NodeDoing::Answers(status, body) => {
                if stream.write_all(written(status, body).as_bytes()).is_err() {
                    return;
                }
            }
            NodeDoing::AnswersUntil(part, before, after) => {
                let was_asked = asked.lock().unwrap().iter().any(|line| line.contains(part));
                let body = if was_asked { after } else { before };
                if stream.write_all(written(200, body).as_bytes()).is_err() {
                    return;
                }
            }
            NodeDoing::AnswersAndEnds(body) => {
                let _told = stream.write_all(written(200, body).as_bytes());
                return;
            }
            NodeDoing::Echoes => {
                let told = b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
                let mut told = stream.write_all(told);
                while let (Ok(()), Ok(count @ 1..)) = (&told, stream.read(&mut part)) {
                    told = stream.write_all(&part[..count]);
                }
                return;
            }
            NodeDoing::Drips => {
                let mut told = stream.write_all(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n");
                while told.is_ok() {
                    told = stream.write_all(b"1\r\n \r\n");
                    thread::sleep(Duration::from_millis(200));
                }
                return;
            }
        }
    }
}

fn written(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}")
}
