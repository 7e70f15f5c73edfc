use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::super::collector::{Collector, ExportError};
use super::super::{SignalEndpoint, TelemetrySignal};
use super::*;
use crate::http::certificates::tests::self_signed;

/// A collector that shows a certificate of its own, which is its authority, too.
struct EncryptedCollector {
    directory: TempDir,
    acceptor: TlsAcceptor,
}

impl EncryptedCollector {
    fn new() -> Self {
        let (config, certificate) = self_signed("localhost");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), certificate).unwrap();
        Self {
            directory,
            acceptor: TlsAcceptor::from(config),
        }
    }

    fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Waits for one request; answers what it was, if TLS was agreed on.
    async fn listen(&self) -> (u16, JoinHandle<io::Result<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, acceptor) = (listener.local_addr().unwrap().port(), self.acceptor.clone());
        let heard = async move {
            let (stream, _) = listener.accept().await?;
            let mut stream = acceptor.accept(stream).await?;
            let mut read = Vec::new();
            while !read.ends_with(b"}") {
                if stream.read_buf(&mut read).await? == 0 {
                    break;
                }
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                .await?;
            stream.flush().await?;
            Ok(String::from_utf8_lossy(&read).into_owned())
        };
        (port, tokio::spawn(heard))
    }
}

/// Tells a collector at `port` something, as a server that trusts `authority` does.
async fn tell(port: u16, authority: PathBuf) -> Result<(), ExportError> {
    let base = format!("https://localhost:{port}");
    let collector = Collector {
        endpoint: SignalEndpoint::below(&base, TelemetrySignal::Logs).unwrap(),
        tls: Some(CollectorTls::new(&[authority]).unwrap()),
        timeout: Duration::from_secs(60),
        resource: Value::Null,
    };
    collector.send(&json!({ "told": "something" })).await
}

#[tokio::test]
async fn a_collector_that_is_vouched_for_is_told() {
    let server = EncryptedCollector::new();
    let (port, heard) = server.listen().await;
    tell(port, server.authority()).await.unwrap();
    let heard = heard.await.unwrap().unwrap();
    assert!(
        heard.starts_with("POST /v1/logs ") && heard.contains("something"),
        "{heard}"
    );
}

#[tokio::test]
async fn a_collector_that_shows_another_certificate_or_none_is_told_nothing() {
    let (server, other) = (EncryptedCollector::new(), EncryptedCollector::new());
    let (port, heard) = server.listen().await;
    let refused = tell(port, other.authority()).await.unwrap_err();
    assert!(matches!(refused, ExportError::Untrusted(_)), "{refused:?}");
    heard.await.unwrap().unwrap_err();

    // What is no TLS: not a word of it goes in the open.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        stream.read_buf(&mut read).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        // Until it hangs up, which it may do by a reset.
        let _ended = stream.read_to_end(&mut read).await;
        read
    });
    let refused = tell(port, server.authority()).await.unwrap_err();
    assert!(matches!(refused, ExportError::Tls(_)), "{refused:?}");
    let heard = heard.await.unwrap();
    assert!(!heard.windows(9).any(|word| word == b"something") && !heard.starts_with(b"POST"));
}

#[test]
fn a_file_without_a_certificate_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    CollectorTls::new(std::slice::from_ref(&path)).unwrap_err();
    std::fs::write(&path, "nothing").unwrap();
    CollectorTls::new(&[path]).unwrap_err();
}
