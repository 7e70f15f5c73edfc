//! The certificate authority of one sandbox, and the certificates that it makes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use offleash_core::network::Host;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};

use super::gateway_trust::GatewayTrust;

/// Whom certificates name as their issuer.
pub(crate) const COMMON_NAME: &str = "offleash sandbox";
/// How long before now they are valid, for clocks that are set while a sandbox runs.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
/// How long from now. Some programs refuse certificates of servers that are valid for more than 398 days.
const AFTER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How many certificates are kept; a sandbox may ask for any name below a wildcard.
const LEAVES: usize = 256;

/// Signs certificates that nobody but one sandbox trusts. Its key is in the memory of this process alone.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params(COMMON_NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    #[cfg(test)]
    pub(super) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate that says that the owner of `key` is `host`.
    fn leaf(&self, host: &Host, key: &KeyPair) -> Result<CertificateDer<'static>, rcgen::Error> {
        let (name, alternative) = match host {
            Host::Name(name) => (name.to_string(), SanType::DnsName(name.as_str().try_into()?)),
            Host::Address(address) => (address.to_string(), SanType::IpAddress(*address)),
        };
        // A common name has 64 characters at most (RFC 5280, upper bounds); it is for people.
        let common = if name.len() <= 64 { name.as_str() } else { COMMON_NAME };
        let mut params = params(common);
        params.subject_alt_names = vec![alternative];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.der().clone())
    }
}

impl fmt::Debug for Authority {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

fn params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = SystemTime::now();
    params.not_before = now.checked_sub(BEFORE).unwrap_or(now).into();
    params.not_after = now.checked_add(AFTER).unwrap_or(now).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

/// How to be each server that the sandbox connects to. All of them have the same key, which is this process's alone.
pub(super) struct Leaves {
    trust: Arc<GatewayTrust>,
    key: KeyPair,
    signing: Arc<dyn SigningKey>,
    made: HashMap<Host, Arc<ServerConfig>>,
    in_order: VecDeque<Host>,
}

impl Leaves {
    pub(super) fn new(trust: Arc<GatewayTrust>) -> io::Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(io::Error::other)?;
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(Self {
            trust,
            signing: ring::sign::any_ecdsa_type(&der).map_err(io::Error::other)?,
            key,
            made: HashMap::new(),
            in_order: VecDeque::new(),
        })
    }

    /// How to be `host`.
    pub(super) fn config(&mut self, host: &Host) -> Result<Arc<ServerConfig>, String> {
        if let Some(made) = self.made.get(host) {
            return Ok(Arc::clone(made));
        }
        let config = Arc::new(self.make(host)?);
        if self.in_order.len() == LEAVES
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.made.remove(&oldest);
        }
        self.in_order.push_back(host.clone());
        self.made.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, String> {
        let failed = |error: &dyn fmt::Display| format!("making a certificate for `{host}`: {error}");
        let leaf = self
            .trust
            .authority()
            .leaf(host, &self.key)
            .map_err(|error| failed(&error))?;
        let own = CertifiedKey::new(vec![leaf], Arc::clone(&self.signing));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A handshake costs less than the memory that a sandbox could fill with sessions.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl fmt::Debug for Leaves {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaves")
            .field("made", &self.made.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_kept_within_bounds() {
        let mut leaves = Leaves::new(Arc::new(GatewayTrust::with_roots(Vec::new()).unwrap())).unwrap();
        let host = |number: usize| format!("n{number}.example.com").parse::<Host>().unwrap();
        let first = leaves.config(&host(0)).unwrap();
        assert!(Arc::ptr_eq(&first, &leaves.config(&host(0)).unwrap()));
        for number in 1..=LEAVES {
            leaves.config(&host(number)).unwrap();
        }
        assert_eq!((leaves.made.len(), leaves.in_order.len()), (LEAVES, LEAVES));
        assert!(!leaves.made.contains_key(&host(0)));
    }

    #[test]
    fn keys_are_shown_nowhere() {
        let trust = Arc::new(GatewayTrust::with_roots(Vec::new()).unwrap());
        let leaves = Leaves::new(Arc::clone(&trust)).unwrap();
        assert_eq!(format!("{trust:?} {leaves:?}").matches("rivate").count(), 0);
        assert!(!trust.authority().pem().contains("PRIVATE"));
    }
}
