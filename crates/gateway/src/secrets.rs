//! What becomes of secrets: the sandbox sends a placeholder, and the value is put in here, for the named hosts alone.
//!
//! The value goes only into requests over TLS that was opened, at the places that the owner named; a placeholder that
//! is sent anywhere else is refused. Of answers, the value is taken out again, so that no server can tell it to the
//! sandbox that asked.
//!
//! Deliberately not here: the connections themselves, and what is answered when a request is refused.

mod find;
mod mask;
mod put;
mod query;
mod sigv4;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use http::HeaderValue;
use http::header::HeaderName;
use http::request::Parts;
use offleash_core::network::Host;
use offleash_core::network::secret::NamedSecret;

use crate::journal::Journal;
use crate::journal_entries::SecretUse;

pub(crate) use mask::{Mask, Masker};
pub(crate) use sigv4::Signing;

/// The secrets of one sandbox. Whatever becomes of one is told to the journal here.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets {
    all: Arc<[NamedSecret]>,
    journal: Journal,
}

/// Whom a request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipient<'a> {
    pub(crate) host: &'a Host,
    pub(crate) port: u16,
}

/// A placeholder that stands where it may not, so that the request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misused {
    /// The name of the secret.
    pub(crate) secret: String,
    /// What is wrong.
    pub(crate) reason: String,
}

/// What is to be done with a request.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// It has its secrets, and goes on.
    Ready(Used),
    /// Its signature depends on its body, which has to be read first.
    NeedsBody(Box<Signing>),
}

/// What was put into a request.
#[derive(Debug, Clone)]
pub(crate) struct Used {
    /// The names of the secrets.
    pub(crate) names: Vec<String>,
    /// What is to be taken out of the answer; `None` when there is nothing that could be in it.
    pub(crate) mask: Option<Mask>,
}

impl Recipient<'_> {
    /// As it stands in requests over TLS.
    fn authority(&self) -> String {
        match self.port {
            443 => self.host.to_string(),
            port => format!("{}:{port}", self.host),
        }
    }
}

impl Secrets {
    pub(crate) fn new(all: Arc<[NamedSecret]>, journal: Journal) -> Self {
        Self { all, journal }
    }

    /// Whether any secret is for `host`, so that its TLS has to be opened.
    pub(crate) fn concern(&self, host: &Host) -> bool {
        self.all.iter().any(|secret| secret.spec.is_for(host))
    }

    /// Whether those for `host` are the same as `others` has.
    pub(crate) fn are_as(&self, others: &Self, host: &Host) -> bool {
        let values = |secrets: &Self| -> Vec<(String, Vec<u8>)> {
            let of_host = secrets.for_host(host);
            of_host
                .map(|one| (one.spec.name.clone(), one.value.expose().to_vec()))
                .collect()
        };
        Arc::ptr_eq(&self.all, &others.all) || values(self) == values(others)
    }

    fn for_host<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = &'a NamedSecret> {
        self.all.iter().filter(|secret| secret.spec.is_for(host))
    }

    /// The secret with which requests to `host` sign in, and what is sent for it; that of the most specific host counts.
    fn signing_in<'a>(&'a self, host: &'a Host) -> Option<(&'a NamedSecret, String)> {
        let specificity = |secret: &&NamedSecret| {
            let about = secret.spec.hosts.iter().filter(|pattern| pattern.matches(host));
            about.map(|pattern| pattern.specificity()).max()
        };
        let all = self.for_host(host).filter(|secret| secret.spec.signs_in_as().is_some());
        let secret = all.max_by_key(specificity)?;
        Some((secret, put::sign_in_credentials(secret)?))
    }

    /// Checks the head of a request that is sent as it is, without TLS.
    ///
    /// # Errors
    /// It has a placeholder in it.
    pub(crate) fn check_plain(&self, to: Recipient<'_>, head: &[u8]) -> Result<(), Misused> {
        let found = find::in_head(&self.all, head);
        self.refused(to, found.map_or(Ok(()), |secret| Err(Misused::in_the_clear(secret))))
    }

    /// Checks a request that is sent on without TLS.
    ///
    /// # Errors
    /// It has a placeholder in it.
    pub(crate) fn check_clear(&self, to: Recipient<'_>, parts: &Parts) -> Result<(), Misused> {
        let found = self.all.iter().find(|secret| find::in_parts(secret, parts));
        self.refused(to, found.map_or(Ok(()), |secret| Err(Misused::in_the_clear(secret))))
    }

    /// What is to be taken out of the answer to a request without TLS, which has no values, to a host that knows them.
    pub(crate) fn mask_in_the_clear(&self, host: &Host, parts: &mut Parts) -> Option<Mask> {
        let mask = Mask::new(self.for_host(host), &[])?;
        mask::ask_for_all(parts);
        Some(mask)
    }

    /// Whether a field behind a body has a placeholder in it, which it must not have for any host.
    pub(crate) fn misused_behind<'a>(
        &self,
        to: Recipient<'_>,
        name: &HeaderName,
        values: impl IntoIterator<Item = &'a HeaderValue>,
    ) -> bool {
        if self.all.is_empty() {
            return false;
        }
        let values: Vec<&HeaderValue> = values.into_iter().collect();
        let misused = self.all.iter().find(|secret| {
            let in_value = |value: &&HeaderValue| find::in_field(secret, name, value);
            values.iter().any(in_value)
        });
        let refused = misused.map_or(Ok(()), |secret| Err(Misused::behind(secret)));
        self.refused(to, refused).is_err()
    }

    /// Whether a question for a name has a placeholder in it; whoever answers for that name would learn it.
    pub(crate) fn misused_in_question(&self, question: &[u8]) -> bool {
        find::in_name(&self.all, question).is_some()
    }

    /// Puts secrets into a request to `host` over TLS that was opened; `has_body` says whether anything follows the head.
    ///
    /// Whatever a request to a host with secrets accepts, its answer must be readable: the only encoding that is asked
    /// for is none.
    ///
    /// # Errors
    /// A placeholder that stands where it may not: of a secret that is for other hosts, or at another place.
    pub(crate) fn prepare(&self, to: Recipient<'_>, parts: &mut Parts, has_body: bool) -> Result<Prepared, Misused> {
        if self.all.is_empty() {
            return Ok(Prepared::Ready(Used::nothing()));
        }
        self.refused(to, self.put(to, parts, has_body))
    }

    fn put(&self, to: Recipient<'_>, parts: &mut Parts, has_body: bool) -> Result<Prepared, Misused> {
        let host = to.host;
        self.check_hosts(host, parts)?;
        if !self.concern(host) {
            return Ok(Prepared::Ready(Used::nothing()));
        }
        if let Some(signing) = Signing::of(self, to, parts)? {
            // What is asked for is signed, and the clients of S3 fetch what is large in parts, which they would take all
            // of it for. It does not help to refuse that: S3 makes other objects of parts.
            mask::ask_for_no_encoding(parts);
            return if signing.needs_body() && has_body {
                Ok(Prepared::NeedsBody(Box::new(signing)))
            } else {
                signing.signed(parts, b"").map(Prepared::Ready)
            };
        }
        mask::ask_for_all(parts);
        let put = put::into(self, host, parts)?;
        self.used(to, parts, put).map(Prepared::Ready)
    }

    /// Refuses placeholders of secrets that are for other hosts.
    fn check_hosts(&self, host: &Host, parts: &Parts) -> Result<(), Misused> {
        let others = self.all.iter().filter(|secret| !secret.spec.is_for(host));
        for secret in others {
            if find::in_parts(secret, parts) {
                let reason = match secret.spec.hosts.as_slice() {
                    [] => "there is no such secret".to_owned(),
                    _ => format!("it is for {} alone", secret.spec.hosts_text()),
                };
                return Err(Misused::new(secret, reason));
            }
        }
        Ok(())
    }

    /// Tells of a placeholder that was refused.
    fn refused<T>(&self, to: Recipient<'_>, result: Result<T, Misused>) -> Result<T, Misused> {
        if let Err(misused) = &result {
            self.note(to, &misused.secret, Some(misused.reason.clone()));
        }
        result
    }

    fn note(&self, to: Recipient<'_>, secret: &str, refused: Option<String>) {
        self.journal.secret(SecretUse {
            secret: secret.to_owned(),
            host: to.host.to_string(),
            port: to.port,
            refused,
        });
    }

    /// The account of a request that has its secrets; one that still has a placeholder is refused.
    fn used(&self, to: Recipient<'_>, parts: &Parts, put: put::Put) -> Result<Used, Misused> {
        if let Some(secret) = self.all.iter().find(|secret| find::in_parts(secret, parts)) {
            return Err(Misused::place(secret));
        }
        for secret in &put.names {
            self.note(to, secret, None);
        }
        Ok(Used {
            mask: Mask::new(self.for_host(to.host), &put.encoded),
            names: put.names,
        })
    }
}

impl Used {
    fn nothing() -> Self {
        Self {
            names: Vec::new(),
            mask: None,
        }
    }
}

impl Misused {
    fn new(secret: &NamedSecret, reason: String) -> Self {
        Self {
            secret: secret.spec.name.clone(),
            reason: format!(
                "it carries the placeholder of the secret `{}`, and {reason}",
                secret.spec.name
            ),
        }
    }

    fn in_the_clear(secret: &NamedSecret) -> Self {
        Self::new(secret, "it is sent over TLS alone".to_owned())
    }

    fn behind(secret: &NamedSecret) -> Self {
        Self::new(secret, "its place is not behind the body".to_owned())
    }

    /// It stands at a place where the secret may not.
    fn place(secret: &NamedSecret) -> Self {
        let places: Vec<String> = secret.spec.places.iter().map(ToString::to_string).collect();
        let reason = if places.is_empty() {
            "it belongs into a header in which credentials are sent".to_owned()
        } else {
            format!("its place is {}", places.join(" or "))
        };
        Self::new(secret, reason)
    }
}
