//! What became of a certificate that a server showed.

use std::io;

/// Whether a connection failed because the server showed none, or one that is not its own: that does not pass by itself.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
    )
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
pub(crate) mod tests;
