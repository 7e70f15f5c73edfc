//! Signs requests to AWS anew: the sandbox signed them with placeholders.
//!
//! Signature Version 4 as described in
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>, in the header
//! `Authorization` and in the query. Services differ in how a path is written before it is signed; since the sandbox's
//! own signature must be right, too, it says which way was meant. Not done, and refused: Signature Version 2, the
//! asymmetric Version 4A, and bodies in signed chunks.

mod canonical;
mod request;
#[cfg(test)]
mod tests;

use data_encoding::HEXLOWER;
use http::request::Parts;
use offleash_core::network::Host;
use offleash_core::network::secret::{NamedSecret, SigningPart};
use ring::{digest, hmac};

use super::{Mask, Misused, Recipient, Secrets, Used, find, put};
use canonical::{Paths, Payload};
use request::{Scope, Signed};

/// A request that the sandbox signed, and the keys to sign it anew.
#[derive(Debug)]
pub(crate) struct Signing {
    secrets: Secrets,
    host: Host,
    port: u16,
    family: String,
    signed: Signed,
    /// What the sandbox's signature covers in place of the body; `None` until the body was read.
    payload: Option<Payload>,
    /// The request as it was signed.
    canonical: canonical::Request,
}

/// The parts of a key.
struct Key<'a> {
    id: &'a NamedSecret,
    key: &'a NamedSecret,
    token: Option<&'a NamedSecret>,
}

impl Signing {
    /// The signing of a request to `host`; `None` when it is not signed with a placeholder.
    pub(super) fn of(secrets: &Secrets, to: Recipient<'_>, parts: &Parts) -> Result<Option<Self>, Misused> {
        for id in secrets.for_host(to.host) {
            let Some((family, SigningPart::AccessKeyId)) = id.spec.signing_part() else {
                continue;
            };
            if !find::in_parts(id, parts) {
                continue;
            }
            let refuse = |reason: String| Misused::new(id, reason);
            let Some(signed) = request::read(parts, id).map_err(refuse)? else {
                return Err(Misused::place(id));
            };
            let payload = Payload::of(parts, signed.in_query()).map_err(refuse)?;
            let canonical = canonical::Request::of(parts, &signed, &to.authority()).map_err(refuse)?;
            return Ok(Some(Self {
                secrets: secrets.clone(),
                host: to.host.clone(),
                port: to.port,
                family: family.to_owned(),
                signed,
                payload,
                canonical,
            }));
        }
        Ok(None)
    }

    /// Whether the signature covers the body itself.
    pub(super) fn needs_body(&self) -> bool {
        self.payload.is_none()
    }

    /// Signs the request when its body was read, and tells if it is refused.
    ///
    /// # Errors
    /// As [`Self::signed`].
    pub(crate) fn finish(self, parts: &mut Parts, body: &[u8]) -> Result<Used, Misused> {
        let signed = self.signed(parts, body);
        self.secrets.refused(self.recipient(), signed)
    }

    fn recipient(&self) -> Recipient<'_> {
        Recipient {
            host: &self.host,
            port: self.port,
        }
    }

    /// Signs the request with the keys; `body` is all of it where the signature covers it.
    ///
    /// # Errors
    /// It is not signed with the placeholders, or in a way that is not known here.
    pub(super) fn signed(&self, parts: &mut Parts, body: &[u8]) -> Result<Used, Misused> {
        let Some(key) = self.key() else {
            return Ok(Used::nothing());
        };
        let payload = self.payload.clone().unwrap_or_else(|| Payload::body(body));
        let meant = self.signed_with(key.key.placeholder.as_str().as_bytes(), &payload);
        let Some((path, payload)) = meant else {
            let reason = "its signature is not made with that of the key, or covers the request in an unknown way";
            return Err(Misused::new(key.id, reason.to_owned()));
        };
        let mut put = put::Put::default();
        put.note(key.id);
        put.note(key.key);
        let refuse = |reason: String| Misused::new(key.id, reason);
        let with_token = key.token.filter(|token| find::in_parts(token, parts));
        let mut signed = self.signed.clone();
        signed.put_keys(parts, key.id, key.token).map_err(refuse)?;
        if let Some(token) = key.token.filter(|token| find::in_parts(token, parts)) {
            return Err(Misused::place(token));
        }
        if let Some(token) = with_token {
            put.note(token);
        }
        let canonical = canonical::Request::of(parts, &signed, &self.recipient().authority()).map_err(refuse)?;
        let text = canonical.text(&path, &payload);
        let signature = signature(key.key.value.expose(), &signed.scope, &signed.date, &text);
        signed.put_signature(parts, &signature).map_err(refuse)?;
        // Whoever has it can send the request again, from anywhere, until it expires.
        put.encoded.push(signature.into_bytes());
        let mut used = self.secrets.used(self.recipient(), parts, put)?;
        used.mask = used.mask.map(Mask::of_parts);
        Ok(used)
    }

    fn key(&self) -> Option<Key<'_>> {
        let part = |wanted: SigningPart| {
            let belongs = |secret: &&NamedSecret| secret.spec.signing_part() == Some((&self.family, wanted));
            self.secrets.for_host(&self.host).find(belongs)
        };
        Some(Key {
            id: part(SigningPart::AccessKeyId)?,
            key: part(SigningPart::SecretAccessKey)?,
            token: part(SigningPart::SessionToken),
        })
    }

    /// Which spelling of path and body the sandbox signed with `key`.
    fn signed_with(&self, key: &[u8], payload: &Payload) -> Option<(Paths, String)> {
        for path in Paths::ALL {
            for payload in payload.spellings() {
                let text = self.canonical.text(&path, payload);
                if signature(key, &self.signed.scope, &self.signed.date, &text) == self.signed.signature {
                    return Some((path, payload.clone()));
                }
            }
        }
        None
    }
}

/// The signature of a canonical request, in hexadecimal digits.
fn signature(key: &[u8], scope: &Scope, date: &str, canonical: &str) -> String {
    let digest = HEXLOWER.encode(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}");
    let mut current = zeroize::Zeroizing::new([b"AWS4", key].concat());
    for part in scope.parts() {
        *current = sign(&current, part.as_bytes());
    }
    HEXLOWER.encode(&sign(&current, text.as_bytes()))
}

fn sign(key: &[u8], text: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text).as_ref().to_vec()
}
