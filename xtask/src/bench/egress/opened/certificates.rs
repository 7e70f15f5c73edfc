//! A certificate authority that only this benchmark trusts, and the certificate of its server.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::error::TaskError;

/// What the server called `name` is configured with; who has `authority`, which is written, trusts it. The keys are in
/// the memory of this process alone.
///
/// # Errors
/// `File`.
pub(super) fn certify(name: &'static str, authority: &Path) -> Result<ServerConfig, TaskError> {
    let (config, pem) = make(name)
        .map_err(std::io::Error::other)
        .map_err(TaskError::file("making a certificate for", name))?;
    std::fs::write(authority, pem).map_err(TaskError::file("writing", authority))?;
    config
        .map_err(std::io::Error::other)
        .map_err(TaskError::file("taking a certificate for", name))
}

type Made = (Result<ServerConfig, rustls::Error>, String);

fn make(name: &str) -> Result<Made, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "benchmark");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);

    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());

    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key.into())
        });
    Ok((config, pem))
}
