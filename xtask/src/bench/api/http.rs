//! As much of HTTP/1.1 as a client needs that keeps its connection, so that no library's cost is in the figures.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};

/// A connection that is used for one request after another.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    key: String,
}

/// An answer whose body was read.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Connection {
    pub(super) fn open(server: SocketAddr, key: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::with_capacity(256 << 10, stream),
            key: key.to_owned(),
        })
    }

    /// Sends a request with a body that is at hand.
    pub(super) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        self.begin(method, path, headers, body.len() as u64)?;
        self.stream.get_mut().write_all(body)?;
        let mut kept = Vec::new();
        let status = self.receive(&mut |piece| kept.extend_from_slice(piece))?;
        Ok(Answer { status, body: kept })
    }

    /// Sends `length` bytes, the same piece over and over.
    pub(super) fn upload(&mut self, path: &str, headers: &[(&str, &str)], length: u64) -> io::Result<u16> {
        self.begin("POST", path, headers, length)?;
        let piece = vec![0x5a; 256 << 10];
        let mut left = length;
        while left > 0 {
            let now = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.stream.get_mut().write_all(&piece[..now])?;
            left -= now as u64;
        }
        self.receive(&mut |_| {})
    }

    /// Reads a body and keeps nothing of it; answers its length.
    pub(super) fn download(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<(u16, u64)> {
        self.begin("GET", path, headers, 0)?;
        let mut length = 0;
        let status = self.receive(&mut |piece| length += piece.len() as u64)?;
        Ok((status, length))
    }

    fn begin(&mut self, method: &str, path: &str, headers: &[(&str, &str)], length: u64) -> io::Result<()> {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {}\r\ncontent-length: {length}\r\n",
            self.key
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.stream.get_mut().write_all(head.as_bytes())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<u16> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status: u16 = status.ok_or(io::ErrorKind::InvalidData)?;
        let (mut length, mut is_chunked) = (0_u64, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            is_chunked |= line.starts_with("transfer-encoding:") && line.ends_with("chunked");
        }
        if !is_chunked {
            self.body(length, take)?;
            return Ok(status);
        }
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default();
            let size = u64::from_str_radix(size, 16).map_err(io::Error::other)?;
            self.body(size, take)?;
            self.line()?;
            if size == 0 {
                return Ok(status);
            }
        }
    }

    fn body(&mut self, mut left: u64, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        while left > 0 {
            let held = self.stream.fill_buf()?;
            if held.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = held.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            take(&held[..now]);
            self.stream.consume(now);
            left -= now as u64;
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        // A head is a few hundred bytes.
        let read = self.stream.by_ref().take(64 << 10).read_line(&mut line)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
