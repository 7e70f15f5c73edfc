//! TLS of the server: a certificate chain and its key, from files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

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

/// A server's certificate, which can be renewed while the server runs.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    pub(crate) fn read(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let current = RwLock::new(certified(&files)?);
        Ok(Arc::new(Self { files, current }))
    }

    /// Reads the files again; handshakes from then on are made with what is in them now.
    ///
    /// # Errors
    /// When they cannot be used; the certificate stays the one before.
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = certified(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// What the handshakes of a server need.
pub(crate) fn config(certificate: Arc<Certificate>) -> Result<Arc<ServerConfig>, TlsError> {
    let unusable = unusable(&certificate.files);
    let provider = Arc::new(default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certified(files: &TlsFiles) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(unreadable("its key", &files.key))?;
    let certified = CertifiedKey::from_der(chain, key, &default_provider());
    Ok(Arc::new(certified.map_err(unusable(files))?))
}

fn unusable(files: &TlsFiles) -> impl Fn(rustls::Error) -> TlsError + use<> {
    let path = files.certificate.clone();
    move |source| {
        let path = path.clone();
        TlsError::Use { path, source }
    }
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

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, generate_simple_self_signed};

    use super::*;

    /// Writes a new certificate and its key.
    fn renew(files: &TlsFiles) {
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&files.certificate, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_certificate_is_renewed_while_the_server_runs() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: directory.path().join("certificate"),
            key: directory.path().join("key"),
        };
        renew(&files);
        let certificate = Certificate::read(files.clone()).unwrap();
        let first = certificate.current();
        renew(&files);
        assert_eq!(certificate.current().cert, first.cert);
        certificate.reload().unwrap();
        let second = certificate.current();
        assert_ne!(second.cert, first.cert);
        // What cannot be used replaces nothing.
        std::fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert!(matches!(certificate.reload(), Err(TlsError::Use { .. })));
        std::fs::write(&files.certificate, "").unwrap();
        assert!(matches!(certificate.reload(), Err(TlsError::Read { .. })));
        assert_eq!(certificate.current().cert, second.cert);
    }
}
