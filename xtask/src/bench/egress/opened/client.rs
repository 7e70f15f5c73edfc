//! The client over TLS. It says as JSON how long all requests took together.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{CLIENT_TRUSTS, PORT};
use crate::error::TaskError;

/// What every request is answered with.
const BODY: &[u8] = b"ok";
/// How long an answer may take, so that a benchmark of what hangs ends.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of the client over TLS.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsClientOptions {
    /// The server's name
    name: String,
    /// How many connections at the same time
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Requests on each of them, one after the other
    requests: u32,
}

/// Makes the connections, with one request on each, and then times the others, in nanoseconds.
///
/// # Errors
/// `Answer` when the server or who is in between does not do his part.
pub(crate) fn run(options: &TlsClientOptions) -> Result<(), TaskError> {
    let time = measure(options).map_err(|error| TaskError::Answer {
        from: "the server",
        why: error.to_string(),
    })?;
    println!("{}", serde_json::json!(time));
    Ok(())
}

fn measure(options: &TlsClientOptions) -> io::Result<u64> {
    let trusted = std::env::var_os(CLIENT_TRUSTS);
    let trusted = trusted.ok_or_else(|| io::Error::other(format!("{CLIENT_TRUSTS} is not set")))?;
    let config = Arc::new(config(Path::new(&trusted))?);
    let connect = |_| Connection::open(&options.name, Arc::clone(&config));
    let connections: Vec<Connection> = (0..options.connections).map(connect).collect::<Result<_, _>>()?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let spawn = |mut connection: Connection| {
            scope.spawn(move || (0..options.requests).try_for_each(|_| connection.request()))
        };
        let threads: Vec<_> = connections.into_iter().map(spawn).collect();
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn config(trusted: &Path) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(trusted).map_err(io::Error::other)? {
        roots
            .add(certificate.map_err(io::Error::other)?)
            .map_err(io::Error::other)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A kept connection.
struct Connection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    request: Vec<u8>,
    /// What of the answers has come.
    waiting: Vec<u8>,
}

impl Connection {
    /// Connects and has one request answered, so that whoever is in between is connected, too.
    fn open(name: &str, config: Arc<ClientConfig>) -> io::Result<Self> {
        let connection = TcpStream::connect((name, PORT))?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        let server = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(config, server).map_err(io::Error::other)?;
        let mut connection = Self {
            stream: StreamOwned::new(session, connection),
            request: format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes(),
            waiting: Vec::new(),
        };
        connection.request()?;
        Ok(connection)
    }

    /// One request and its answer.
    fn request(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.request)?;
        let mut part = [0; 4096];
        loop {
            if let Some(length) = answered(&self.waiting)? {
                self.waiting.drain(..length);
                return Ok(());
            }
            let read = self.stream.read(&mut part)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.waiting.extend_from_slice(part.get(..read).unwrap_or_default());
        }
    }
}

/// How long the answer is that `bytes` begin with, when all of it is there.
///
/// # Errors
/// When it is another one than the server's. Whoever is in between may add headers.
fn answered(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = bytes.get(..head).unwrap_or_default();
    let body = bytes.get(head + 4..).unwrap_or_default();
    let other = || {
        let said = String::from_utf8_lossy(bytes).into_owned();
        io::Error::other(format!("it answered something else: {said}"))
    };
    let length = text.split(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().to_owned())
    });
    let is_ours = text.starts_with(b"HTTP/1.1 200 ") && length == Some(BODY.len().to_string());
    if !is_ours {
        return Err(other());
    }
    match body.get(..BODY.len()) {
        None => Ok(None),
        Some(BODY) => Ok(Some(head + 4 + BODY.len())),
        Some(_) => Err(other()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::egress::client::ANSWER;

    #[test]
    fn an_answer_is_known_when_all_of_it_is_there() {
        for length in 0..ANSWER.len() {
            assert_eq!(answered(&ANSWER[..length]).unwrap(), None, "{length}");
        }
        assert_eq!(answered(ANSWER).unwrap(), Some(ANSWER.len()));
        let two = [ANSWER, ANSWER].concat();
        assert_eq!(answered(&two).unwrap(), Some(ANSWER.len()));
    }

    #[test]
    fn headers_may_be_added_and_spelt_otherwise() {
        let bytes = b"HTTP/1.1 200 OK\r\nvia: 1.1 somebody\r\ncontent-length:2\r\n\r\nok";
        assert_eq!(answered(bytes).unwrap(), Some(bytes.len()));
    }

    #[test]
    fn another_answer_is_an_error() {
        for text in [
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
            "HTTP/1.1 200 OK\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        ] {
            let error = answered(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
