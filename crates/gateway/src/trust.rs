//! Whom the two sides of an opened connection trust: the sandbox an authority of its own, the gateway those of the
//! machine. What a supervisor has of that.

use std::io;
use std::sync::{Mutex, PoisonError};

use rustls::pki_types::CertificateDer;

use crate::gateway_process::GatewayProcess;
use crate::key_store;
use crate::opened::COMMON_NAME;

/// How files of certificates end their lines.
const LINES: pem::EncodeConfig = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);

/// The certificate authorities of the machine, and the certificate of one that was made for a sandbox: what its supervisor
/// has, and puts into it. The key is in the process of the gateway alone.
#[derive(Debug)]
pub struct Trust {
    certificate: CertificateDer<'static>,
    roots: Vec<CertificateDer<'static>>,
    /// The process that made the key, until it is started.
    process: Mutex<Option<GatewayProcess>>,
}

/// Why connections cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// No authority of the machine can be read, so that no server could be trusted.
    #[error("no certificate authority of this machine can be read: {0}")]
    NoRoots(String),
    /// What `SSL_CERT_FILE` or `SSL_CERT_DIR` names cannot be read as a whole.
    #[error("the certificate authorities that SSL_CERT_FILE or SSL_CERT_DIR name cannot be read: {0}")]
    Named(String),
    /// The authority of the sandbox cannot be made.
    #[error("making a certificate authority for the sandbox: {0}")]
    Own(String),
}

impl Trust {
    /// Reads the authorities of the machine, those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name if they are set, and
    /// makes a new one.
    ///
    /// # Errors
    /// [`TrustError`] names the file that cannot be read.
    pub fn of_this_machine() -> Result<Self, TrustError> {
        Self::made_by(GatewayProcess::start(), Self::machine)
    }

    fn machine() -> Result<Vec<CertificateDer<'static>>, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        if named && !errors.is_empty() {
            return Err(TrustError::Named(errors.join("; ")));
        }
        if found.certs.is_empty() {
            return Err(TrustError::NoRoots(match errors.is_empty() {
                true => "none is installed".to_owned(),
                false => errors.join("; "),
            }));
        }
        Ok(found.certs)
    }

    /// These authorities, and a new one.
    ///
    /// # Errors
    /// [`TrustError::Own`].
    pub fn with_roots(roots: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        Self::made_by(GatewayProcess::start(), || Ok(roots))
    }

    /// Has the authority made while the others are found.
    fn made_by(
        process: io::Result<GatewayProcess>,
        find: impl FnOnce() -> Result<Vec<CertificateDer<'static>>, TrustError>,
    ) -> Result<Self, TrustError> {
        let own = |error: io::Error| TrustError::Own(error.to_string());
        let mut process = process.map_err(own)?;
        process.ask_for_authority().map_err(own)?;
        let roots = find()?;
        let certificate = process.authority().map_err(own)?;
        Ok(Self {
            certificate: certificate.into(),
            roots,
            process: Mutex::new(Some(process)),
        })
    }

    /// The authorities of the machine, and the authority of this certificate, which a gateway has that serves already.
    pub(crate) fn of_gateway(certificate: Vec<u8>) -> Result<Self, TrustError> {
        Ok(Self {
            certificate: certificate.into(),
            roots: Self::machine()?,
            process: Mutex::new(None),
        })
    }

    /// The process that has the key, if nobody has started it.
    pub(crate) fn take_process(&self) -> Option<GatewayProcess> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The authorities of the machine, in DER.
    pub(crate) fn roots(&self) -> Vec<Vec<u8>> {
        self.roots.iter().map(|root| root.to_vec()).collect()
    }

    /// The certificate of the sandbox's own authority, in DER.
    pub fn own_der(&self) -> &[u8] {
        &self.certificate
    }

    /// The same in PEM.
    pub fn own_pem(&self) -> String {
        pem::encode_config(&pem::Pem::new("CERTIFICATE", self.own_der()), LINES)
    }

    /// All authorities in PEM, the sandbox's own last.
    pub fn bundle(&self) -> String {
        let machine = self
            .roots
            .iter()
            .map(|root| pem::Pem::new("CERTIFICATE", root.as_ref()));
        let machine: Vec<pem::Pem> = machine.collect();
        let mut bundle = pem::encode_many_config(&machine, LINES);
        bundle.push('\n');
        bundle.push_str(&self.own_pem());
        bundle
    }

    /// All authorities as a key store of Java, under its usual password.
    pub fn java_key_store(&self) -> Vec<u8> {
        let own = std::iter::once(&self.certificate);
        key_store::write(own.chain(&self.roots).map(AsRef::as_ref))
    }

    /// By what name OpenSSL looks for the sandbox's authority in a directory of certificates.
    pub fn hashed_name(&self) -> String {
        format!("{:08x}.0", key_store::hash_of_common_name(COMMON_NAME))
    }
}
