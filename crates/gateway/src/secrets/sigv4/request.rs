//! How a request says by whom it is signed, and for what.

use std::fmt;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use http::request::Parts;
use offleash_core::network::secret::NamedSecret;

use crate::secrets::{put, query};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TOKEN_HEADER: &str = "x-amz-security-token";
const TOKEN_PARAMETER: &str = "X-Amz-Security-Token";

/// Day, region, service and `aws4_request`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope([String; 4]);

/// What a request says of its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signed {
    place: Place,
    pub(super) scope: Scope,
    /// The names of the headers that are covered, in small letters.
    pub(super) headers: Vec<String>,
    /// As in `20130524T000000Z`.
    pub(super) date: String,
    pub(super) signature: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Header,
    Query,
}

impl Scope {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<String> = text.split('/').map(str::to_owned).collect();
        let parts: [String; 4] = parts.try_into().ok()?;
        let plain = |part: &String| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        (parts.iter().all(plain) && parts[3] == "aws4_request").then_some(Self(parts))
    }

    pub(super) fn parts(&self) -> &[String; 4] {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// What `parts` says of its signature; `None` when it is not signed with the placeholder of `id`.
///
/// # Errors
/// It is signed in a way that is not done here.
pub(super) fn read(parts: &Parts, id: &NamedSecret) -> Result<Option<Signed>, String> {
    let mut values = parts.headers.get_all(AUTHORIZATION).iter();
    let value = values.next().map(|value| value.to_str().unwrap_or_default());
    if values.next().is_some() {
        return Err("it has two `Authorization`".to_owned());
    }
    let query = parts.uri.query().unwrap_or_default();
    let in_query = query::value_of(query, "X-Amz-Algorithm");
    match (value, in_query) {
        (Some(value), None) if value.contains(id.placeholder.as_str()) => of_header(parts, value, id).map(Some),
        (None, Some(algorithm)) => of_query(query, &algorithm, id),
        (Some(_), Some(_)) => Err("it is signed twice".to_owned()),
        _ => Ok(None),
    }
}

fn of_header(parts: &Parts, value: &str, id: &NamedSecret) -> Result<Signed, String> {
    let (algorithm, rest) = value.split_once(' ').unwrap_or((value, ""));
    check_algorithm(algorithm)?;
    let unreadable = || "its `Authorization` cannot be read".to_owned();
    let (mut credential, mut headers, mut signature) = (None, None, None);
    for part in rest.split(',') {
        let (name, value) = part.trim().split_once('=').ok_or_else(unreadable)?;
        let slot = match name {
            "Credential" => &mut credential,
            "SignedHeaders" => &mut headers,
            "Signature" => &mut signature,
            _ => return Err(unreadable()),
        };
        if slot.replace(value).is_some() {
            return Err(unreadable());
        }
    }
    let date = parts.headers.get("x-amz-date").and_then(|date| date.to_str().ok());
    assemble(
        Place::Header,
        [
            credential.ok_or_else(unreadable)?,
            headers.ok_or_else(unreadable)?,
            signature.ok_or_else(unreadable)?,
            date.ok_or("it has no `x-amz-date`")?,
        ],
        id,
    )
}

fn of_query(query: &str, algorithm: &[u8], id: &NamedSecret) -> Result<Option<Signed>, String> {
    let text = |name: &str| {
        let value = query::value_of(query, name).ok_or_else(|| format!("it has no `{name}`"))?;
        String::from_utf8(value).map_err(|_| format!("its `{name}` cannot be read"))
    };
    let credential = text("X-Amz-Credential")?;
    if !credential.starts_with(id.placeholder.as_str()) {
        return Ok(None);
    }
    check_algorithm(&String::from_utf8_lossy(algorithm))?;
    let parts = [
        &credential,
        &text("X-Amz-SignedHeaders")?,
        &text("X-Amz-Signature")?,
        &text("X-Amz-Date")?,
    ];
    assemble(Place::Query, parts.map(String::as_str), id).map(Some)
}

fn check_algorithm(algorithm: &str) -> Result<(), String> {
    match algorithm {
        ALGORITHM => Ok(()),
        other if other.starts_with("AWS4-") => {
            Err("it is signed in an asymmetric way, which is not done here".to_owned())
        }
        _ => Err(format!("it is signed otherwise than with {ALGORITHM}")),
    }
}

fn assemble(
    place: Place,
    [credential, headers, signature, date]: [&str; 4],
    id: &NamedSecret,
) -> Result<Signed, String> {
    let scope = credential
        .strip_prefix(id.placeholder.as_str())
        .and_then(|rest| rest.strip_prefix('/'))
        .and_then(Scope::parse)
        .ok_or("its credential cannot be read")?;
    let is_date = date.len() == 16 && date.bytes().all(|byte| byte.is_ascii_digit() || b"TZ".contains(&byte));
    if !is_date || !date.starts_with(scope.0[0].as_str()) {
        return Err("its date cannot be read, or is not that of its credential".to_owned());
    }
    let headers: Vec<String> = headers.split(';').map(str::to_owned).collect();
    if headers
        .iter()
        .any(|name| name.is_empty() || name.bytes().any(|byte| byte.is_ascii_uppercase()))
    {
        return Err("the list of its signed headers cannot be read".to_owned());
    }
    Ok(Signed {
        place,
        scope,
        headers,
        date: date.to_owned(),
        signature: signature.to_owned(),
    })
}

impl Signed {
    pub(super) fn in_query(&self) -> bool {
        self.place == Place::Query
    }

    /// Puts the id of the key, and the token of its session, where their placeholders are.
    pub(super) fn put_keys(
        &mut self,
        parts: &mut Parts,
        id: &NamedSecret,
        token: Option<&NamedSecret>,
    ) -> Result<(), String> {
        if let (Some(token), Some(value)) = (token, parts.headers.get_mut(TOKEN_HEADER)) {
            let with_value = put::replaced(value.as_bytes(), token, token.value.expose());
            *value = sensitive(&with_value)?;
        }
        match self.place {
            // The signature is put in afterwards, with all of the header.
            Place::Header => {
                let credential = put::replaced(authorization(parts), id, id.value.expose());
                let value = sensitive(&credential)?;
                parts.headers.insert(AUTHORIZATION, value);
                Ok(())
            }
            Place::Query => rewrite(parts, |name, value| {
                let secret = match name {
                    "X-Amz-Credential" => Some(id),
                    TOKEN_PARAMETER => token,
                    _ => None,
                }?;
                let decoded = query::decoded(value);
                Some(query::encoded(&put::replaced(&decoded, secret, secret.value.expose())))
            }),
        }
    }

    /// Puts the signature where the sandbox's was.
    pub(super) fn put_signature(&self, parts: &mut Parts, signature: &str) -> Result<(), String> {
        match self.place {
            Place::Header => {
                let value = String::from_utf8_lossy(authorization(parts)).replace(&self.signature, signature);
                let value = sensitive(value.as_bytes())?;
                parts.headers.insert(AUTHORIZATION, value);
                Ok(())
            }
            Place::Query => rewrite(parts, |name, _| {
                (name == "X-Amz-Signature").then(|| signature.to_owned())
            }),
        }
    }
}

fn authorization(parts: &Parts) -> &[u8] {
    parts.headers.get(AUTHORIZATION).map_or(b"", HeaderValue::as_bytes)
}

fn sensitive(bytes: &[u8]) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_bytes(bytes).map_err(|_| "its value does not fit into a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Puts other values into parameters of the query.
fn rewrite(parts: &mut Parts, value_for: impl Fn(&str, &str) -> Option<String>) -> Result<(), String> {
    let text = parts.uri.query().unwrap_or_default();
    let parameters: Vec<String> = query::parameters(text)
        .map(|(name, value)| match value {
            Some(value) => {
                let own = value_for(name, value);
                format!("{name}={}", own.as_deref().unwrap_or(value))
            }
            None => name.to_owned(),
        })
        .collect();
    if query::replace(&mut parts.uri, &parameters.join("&")) {
        Ok(())
    } else {
        Err("its value does not fit into the query".to_owned())
    }
}
