//! The client that is measured: a program of its own, because it also runs in a sandbox. It says its times as JSON.

use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use crate::error::TaskError;

/// How much is given to the kernel, or asked of it, in one go.
pub(super) const BLOCK: usize = 256 * 1024;
/// What a request is answered with.
pub(super) const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What is done and timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Work {
    /// One stream of so many bytes from the server
    Download,
    /// One stream of so many bytes to the server
    Upload,
    /// So many connections, one after the other, each for one byte there and back
    Connect,
    /// So many requests, one after the other, on one connection
    Requests,
}

impl Work {
    /// The first byte of each, by which the server knows what is wanted; a request has its method's.
    pub(super) const DOWNLOAD: u8 = b'd';
    pub(super) const UPLOAD: u8 = b'u';
    pub(super) const ECHO: u8 = b'e';
}

/// Arguments of the client.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientOptions {
    work: Work,
    /// The server
    server: SocketAddr,
    /// Bytes, connections or requests
    amount: u64,
    /// A proxy that is asked by CONNECT
    #[arg(long)]
    via: Option<SocketAddr>,
}

/// Does the work and prints what each part of it took, in nanoseconds.
///
/// # Errors
/// `Answer` when the server or who is in between does not do his part.
pub(crate) fn run(options: &ClientOptions) -> Result<(), TaskError> {
    let times = measure(options).map_err(|error| TaskError::Answer {
        from: "the server",
        why: error.to_string(),
    })?;
    println!("{}", serde_json::json!(times));
    Ok(())
}

fn measure(options: &ClientOptions) -> io::Result<Vec<u64>> {
    match options.work {
        Work::Download => {
            let mut connection = connect(options)?;
            let start = Instant::now();
            ask(&mut connection, Work::DOWNLOAD, options.amount)?;
            let mut block = vec![0; BLOCK];
            let mut read = 0;
            loop {
                match connection.read(&mut block)? {
                    0 => break,
                    part => read += part as u64,
                }
            }
            expect(read == options.amount)?;
            Ok(vec![nanoseconds(start)])
        }
        Work::Upload => {
            let mut connection = connect(options)?;
            let start = Instant::now();
            ask(&mut connection, Work::UPLOAD, options.amount)?;
            let block = vec![0x5a; BLOCK];
            let mut left = options.amount;
            while left > 0 {
                let part = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                connection.write_all(block.get(..part).unwrap_or_default())?;
                left -= part as u64;
            }
            connection.read_exact(&mut [0])?;
            Ok(vec![nanoseconds(start)])
        }
        Work::Connect => (0..options.amount)
            .map(|_| {
                let start = Instant::now();
                let mut connection = connect(options)?;
                connection.write_all(&[Work::ECHO])?;
                connection.read_exact(&mut [0])?;
                Ok(nanoseconds(start))
            })
            .collect(),
        Work::Requests => {
            let mut connection = connect(options)?;
            let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", options.server);
            let mut answer = vec![0; ANSWER.len()];
            (0..options.amount)
                .map(|_| {
                    let start = Instant::now();
                    connection.write_all(request.as_bytes())?;
                    connection.read_exact(&mut answer)?;
                    expect(answer == ANSWER)?;
                    Ok(nanoseconds(start))
                })
                .collect()
        }
    }
}

fn connect(options: &ClientOptions) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect(options.via.unwrap_or(options.server))?;
    connection.set_nodelay(true)?;
    if options.via.is_some() {
        let server = options.server;
        write!(connection, "CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n")?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte)?;
            answer.push(byte[0]);
        }
        expect(answer.split(|byte| *byte == b' ').nth(1) == Some(b"200"))?;
    }
    Ok(connection)
}

fn ask(connection: &mut TcpStream, kind: u8, amount: u64) -> io::Result<()> {
    let mut wish = vec![kind];
    wish.extend(amount.to_be_bytes());
    connection.write_all(&wish)
}

fn expect(held: bool) -> io::Result<()> {
    if held {
        Ok(())
    } else {
        Err(io::Error::other("it answered something else"))
    }
}

fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
