//! The least of a client: for what is asked while SDKs are not there, and in numbers that they are too slow for.

use std::io::{BufRead, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::support::processes::TIMEOUT;

/// The status and the body of an answer, or why there is none: the server may be dead or dying.
pub(crate) fn ask(
    address: SocketAddr,
    key: &str,
    request: &str,
    headers: &str,
    body: &[u8],
) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    // A hundred may be answered one after the other.
    stream.set_read_timeout(Some(6 * TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let cut = || std::io::Error::other("the answer was cut");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(cut)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(std::io::Error::other)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(cut)?;
    let body = answer[end + 4..].to_vec();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.parse::<usize>().ok())?
    });
    match length {
        Some(length) if body.len() < length => Err(cut()),
        _ => Ok((status, body)),
    }
}

/// Reads a body that comes in chunks; `what` is said where it is cut.
pub(crate) fn chunked(answer: &mut impl BufRead, what: &str) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let size = text_line(answer);
        let size = usize::from_str_radix(&size, 16).unwrap_or_else(|error| panic!("{what}: {error}: {size:?}"));
        if size == 0 {
            return body;
        }
        let begin = body.len();
        body.resize(begin + size, 0);
        answer.read_exact(&mut body[begin..]).unwrap();
        assert_eq!(text_line(answer), "", "{what}");
    }
}

fn text_line(answer: &mut impl BufRead) -> String {
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    line.trim_end_matches(['\r', '\n']).to_owned()
}

/// The body of an answer, as JSON.
pub(crate) fn json(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(body)))
}
