//! TLS of the server: a certificate chain and its key, from files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The files of a server's certificate.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate and those that lead to its authority, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM of the kind that it must be.
    #[error("reading {what} in `{}`", .path.display())]
    Read {
        /// `the certificate` or `its key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Certificate and key do not fit.
    #[error("the certificate in `{}` cannot be used", .path.display())]
    Use {
        /// The certificate's file.
        path: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
}

/// What the handshakes of a server need.
pub(crate) fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(unreadable("its key", &files.key))?;
    let unusable = |source| TlsError::Use {
        path: files.certificate.clone(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "the certificate";
    let all = CertificateDer::pem_file_iter(path).map_err(unreadable(what, path))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(unreadable(what, path))?;
    if all.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "no certificate is in it");
        let path = path.to_owned();
        return Err(TlsError::Read { what, path, source });
    }
    Ok(all)
}

fn unreadable(what: &'static str, path: &Path) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError {
    move |error| {
        let source = match error {
            rustls::pki_types::pem::Error::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        };
        let path = path.to_owned();
        TlsError::Read { what, path, source }
    }
}
