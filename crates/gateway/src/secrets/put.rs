//! Puts values in place of placeholders.

use data_encoding::BASE64;
use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;
use memchr::memmem;
use offleash_core::network::Host;
use offleash_core::network::secret::{NamedSecret, SecretPlace};

use super::{Misused, Secrets, find, query};

/// What was put into a request.
#[derive(Debug, Default)]
pub(super) struct Put {
    /// The names of the secrets, each once.
    pub(super) names: Vec<String>,
    /// Credentials in which a value is encoded, as they are sent, so that they can be found in an answer.
    pub(super) encoded: Vec<Vec<u8>>,
}

impl Put {
    pub(super) fn note(&mut self, secret: &NamedSecret) {
        if !self.names.contains(&secret.spec.name) {
            self.names.push(secret.spec.name.clone());
        }
    }
}

/// Puts the secrets for `host` where their placeholders are, if they may stand there.
///
/// # Errors
/// A placeholder at another place.
pub(super) fn into(secrets: &Secrets, host: &Host, parts: &mut Parts) -> Result<Put, Misused> {
    let mut put = Put::default();
    sign_in(secrets, host, parts, &mut put)?;
    for (name, value) in &mut parts.headers {
        into_header(secrets, host, name, value, &mut put)?;
    }
    into_query(secrets, host, parts, &mut put)?;
    Ok(put)
}

/// Signs in to a host by Basic authentication (RFC 7617), where a secret is for that: whatever credentials the sandbox sent
/// are replaced, so it needs none, and cannot choose others.
fn sign_in(secrets: &Secrets, host: &Host, parts: &mut Parts, put: &mut Put) -> Result<(), Misused> {
    let Some((secret, encoded)) = secrets.signing_in(host) else {
        return Ok(());
    };
    let mut value = HeaderValue::from_static("");
    set(&mut value, secret, format!("Basic {encoded}").as_bytes())?;
    parts.headers.insert(AUTHORIZATION, value);
    put.note(secret);
    put.encoded.push(encoded.into_bytes());
    Ok(())
}

/// What a secret that signs in is sent as; `None` for one that does not.
pub(super) fn sign_in_credentials(secret: &NamedSecret) -> Option<String> {
    let user = secret.spec.signs_in_as()?;
    let credentials = zeroize::Zeroizing::new([user.as_bytes(), b":", secret.value.expose()].concat());
    Some(BASE64.encode(&credentials))
}

fn into_header(
    secrets: &Secrets,
    host: &Host,
    name: &HeaderName,
    value: &mut HeaderValue,
    put: &mut Put,
) -> Result<(), Misused> {
    let name = name.as_str();
    let credentials = find::basic_credentials(value.as_bytes()).or_else(|| find::unencoded_basic(value.as_bytes()));
    if let Some(mut credentials) = credentials {
        let mut found = None;
        for secret in secrets.for_host(host) {
            if !find::contains(&credentials, secret) {
                continue;
            }
            if !may_be_basic(secret, name) {
                return Err(Misused::place(secret));
            }
            credentials = replaced(&credentials, secret, secret.value.expose());
            put.note(secret);
            found = Some(secret);
        }
        if let Some(secret) = found {
            let encoded = BASE64.encode(&credentials);
            set(value, secret, format!("Basic {encoded}").as_bytes())?;
            put.encoded.push(encoded.into_bytes());
        }
        return Ok(());
    }
    for secret in secrets.for_host(host) {
        if !find::contains(value.as_bytes(), secret) {
            continue;
        }
        if !may_stand(secret, name, value.as_bytes()) {
            return Err(Misused::place(secret));
        }
        let with_value = replaced(value.as_bytes(), secret, secret.value.expose());
        set(value, secret, &with_value)?;
        put.note(secret);
    }
    Ok(())
}

fn may_be_basic(secret: &NamedSecret, header: &str) -> bool {
    let credentials = ["authorization", "proxy-authorization"].contains(&header);
    let named = |place: &SecretPlace| match place {
        SecretPlace::Basic => credentials,
        SecretPlace::Header(name) => name == header,
        SecretPlace::BasicAs(_) | SecretPlace::Bearer | SecretPlace::Query(_) | SecretPlace::SigV4 => false,
    };
    if secret.spec.places.is_empty() {
        SecretPlace::is_usual_header(header)
    } else {
        secret.spec.places.iter().any(named)
    }
}

fn may_stand(secret: &NamedSecret, header: &str, value: &[u8]) -> bool {
    let bearer = value
        .get(..7)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    let named = |place: &SecretPlace| match place {
        SecretPlace::Bearer => header == "authorization" && bearer,
        SecretPlace::Header(name) => name == header,
        SecretPlace::Basic | SecretPlace::BasicAs(_) | SecretPlace::Query(_) | SecretPlace::SigV4 => false,
    };
    if secret.spec.places.is_empty() {
        SecretPlace::is_usual_header(header)
    } else {
        secret.spec.places.iter().any(named)
    }
}

fn set(value: &mut HeaderValue, secret: &NamedSecret, bytes: &[u8]) -> Result<(), Misused> {
    let mut with_value = HeaderValue::from_bytes(bytes)
        .map_err(|_| Misused::new(secret, "its value does not fit into a header".to_owned()))?;
    // HTTP/2 then keeps it out of its tables.
    with_value.set_sensitive(true);
    *value = with_value;
    Ok(())
}

/// Puts secrets into parameters of the query.
fn into_query(secrets: &Secrets, host: &Host, parts: &mut Parts, put: &mut Put) -> Result<(), Misused> {
    let Some(text) = parts.uri.query() else {
        return Ok(());
    };
    let mut query = String::with_capacity(text.len());
    let mut last = None;
    for (number, (name, value)) in query::parameters(text).enumerate() {
        if number > 0 {
            query.push('&');
        }
        query.push_str(name);
        let Some(value) = value else { continue };
        query.push('=');
        let mut value = value.to_owned();
        for secret in secrets.for_host(host) {
            if !find::contains(value.as_bytes(), secret) {
                continue;
            }
            let is_place = |place: &SecretPlace| match place {
                SecretPlace::Query(own) => own.as_bytes() == query::decoded(name),
                _ => false,
            };
            if !secret.spec.places.iter().any(is_place) {
                return Err(Misused::place(secret));
            }
            value = value.replace(secret.placeholder.as_str(), &query::encoded(secret.value.expose()));
            put.note(secret);
            last = Some(secret);
        }
        query.push_str(&value);
    }
    match last {
        Some(secret) if !query::replace(&mut parts.uri, &query) => {
            Err(Misused::new(secret, "its value does not fit into the query".to_owned()))
        }
        _ => Ok(()),
    }
}

/// `text` with the value of `secret` in place of its placeholder.
pub(super) fn replaced(text: &[u8], secret: &NamedSecret, value: &[u8]) -> Vec<u8> {
    let placeholder = secret.placeholder.as_str().as_bytes();
    let mut replaced = Vec::with_capacity(text.len() + value.len());
    let mut from = 0;
    for at in memmem::find_iter(text, placeholder) {
        replaced.extend_from_slice(text.get(from..at).unwrap_or_default());
        replaced.extend_from_slice(value);
        from = at + placeholder.len();
    }
    replaced.extend_from_slice(text.get(from..).unwrap_or_default());
    replaced
}
