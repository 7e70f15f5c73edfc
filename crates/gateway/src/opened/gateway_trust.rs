//! Whom a gateway trusts, and the key of the authority that its sandbox trusts.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::authority::Authority;

/// The authorities of the machine, and the authority that was made for the sandbox, with its key.
#[derive(Debug)]
pub(crate) struct GatewayTrust {
    authority: Arc<Authority>,
    roots: Vec<CertificateDer<'static>>,
}

impl GatewayTrust {
    pub(crate) fn new(authority: Arc<Authority>, roots: Vec<CertificateDer<'static>>) -> Self {
        Self { authority, roots }
    }

    /// These authorities, and a new one.
    #[cfg(test)]
    pub(crate) fn with_roots(roots: Vec<CertificateDer<'static>>) -> Result<Self, String> {
        let authority = Authority::new().map_err(|error| error.to_string())?;
        Ok(Self::new(Arc::new(authority), roots))
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(super) fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }
}
