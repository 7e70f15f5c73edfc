//! What browsers are told about every file of the dashboard.

use data_encoding::BASE64;
use http::HeaderMap;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};

/// Bytes of a nonce.
const NONCE_BYTES: usize = 18;

const FIXED: [(HeaderName, HeaderValue); 7] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("permissions-policy"),
        HeaderValue::from_static("camera=(), microphone=(), geolocation=(), usb=(), serial=(), payment=()"),
    ),
];

/// What the page may load and do. `'self'` would be too much for scripts and styles: what programs in sandboxes answer is at
/// the same address, below `/_port/`.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
    form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A number that nobody can guess, in base64; `None` if the kernel gives none.
pub(super) fn nonce() -> Option<String> {
    let mut bytes = [0; NONCE_BYTES];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    (filled == Ok(NONCE_BYTES)).then(|| BASE64.encode(&bytes))
}

/// Tells the browser how to treat an answer; scripts and styles that have `nonce` are taken, others never.
pub(super) fn tell(told: &mut HeaderMap, nonce: Option<&str>) {
    for (name, value) in FIXED {
        told.insert(name, value);
    }
    let policy = match nonce {
        Some(nonce) => format!("{POLICY}; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"),
        None => POLICY.to_owned(),
    };
    if let Ok(policy) = HeaderValue::try_from(policy) {
        told.insert(CONTENT_SECURITY_POLICY, policy);
    }
}
