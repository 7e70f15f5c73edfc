//! TLS with a collector: its certificate is checked, and nothing is said to one that shows another.

use std::fmt;
use std::io;
use std::path::PathBuf;

use offleash_daemon::{ImageError, client_tls};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::collector::ExportError;
use crate::http::certificates;

/// Whom a collector is vouched for by.
#[derive(Clone)]
pub struct CollectorTls(TlsConnector);

impl fmt::Debug for CollectorTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CollectorTls")
    }
}

impl CollectorTls {
    /// The machine's authorities, and those of these files, PEM.
    ///
    /// # Errors
    /// For a file that cannot be read or has no certificate.
    pub fn new(authorities: &[PathBuf]) -> Result<Self, ImageError> {
        client_tls(authorities).map(Self)
    }

    /// Begins TLS with the collector of that name.
    pub(super) async fn begin(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, ExportError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| ExportError::Tls(io::Error::other(error)))?;
        self.0.connect(name, stream).await.map_err(failed)
    }
}

/// A certificate that is none of its own is told from everything else: it does not pass by itself.
fn failed(error: io::Error) -> ExportError {
    match certificates::is_refused(&error) {
        true => ExportError::Untrusted(error),
        false => ExportError::Tls(error),
    }
}

#[cfg(test)]
#[path = "encryption_tests.rs"]
mod tests;
