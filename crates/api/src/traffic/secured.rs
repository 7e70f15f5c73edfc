//! TLS with programs in a sandbox, for ports of which its creator says that they speak it.
//!
//! Their certificates are not looked at: the way there leads through the machine alone, and who answers is the sandbox
//! whatever it shows.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long the program may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// By what name a program is called that serves several.
const NAME: &str = "localhost";

/// Begins TLS on a connection to a program.
///
/// # Errors
/// When the program does not speak it, or not in time.
pub(super) async fn begin(stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    static CONNECTOR: OnceLock<Option<TlsConnector>> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(connector).as_ref();
    let connector = connector.ok_or_else(|| io::Error::other("TLS cannot be spoken here"))?;
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    timeout(HANDSHAKE, connector.connect(name, stream)).await?
}

fn connector() -> Option<TlsConnector> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Some(TlsConnector::from(Arc::new(config)))
}

/// Takes whatever certificate there is, and checks that the other side has the key of it.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
