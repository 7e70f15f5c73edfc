//! The one form of a request that is signed.

use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use http::header::HOST;
use http::request::Parts;
use ring::digest;

use super::request::Signed;
use crate::secrets::query;

/// How the path of a request is written in the form that is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paths {
    /// As it is sent: Amazon S3.
    AsSent,
    /// Encoded once more, dots resolved: every other service.
    EncodedResolved,
    /// Encoded once more.
    Encoded,
    /// Encoded once, whatever of it is encoded as it is sent.
    EncodedOnce,
}

impl Paths {
    pub(super) const ALL: [Self; 4] = [Self::AsSent, Self::EncodedResolved, Self::Encoded, Self::EncodedOnce];
}

/// What is signed in place of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload(Vec<String>);

impl Payload {
    /// What the request says, or what follows from how it is signed; `None` when the body itself is covered.
    ///
    /// # Errors
    /// The body is in signed chunks, or what is said is nothing known.
    pub(super) fn of(parts: &Parts, in_query: bool) -> Result<Option<Self>, String> {
        if let Some(value) = parts.headers.get("x-amz-content-sha256") {
            let text = value.to_str().unwrap_or_default();
            let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_unsigned = matches!(text, "UNSIGNED-PAYLOAD" | "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
            return if is_digest || is_unsigned {
                Ok(Some(Self(vec![text.to_owned()])))
            } else if text.starts_with("STREAMING-") {
                Err("its body is in signed chunks, which cannot be signed anew; have the client sign the whole body, or none of it".to_owned())
            } else {
                Err("its `x-amz-content-sha256` cannot be read".to_owned())
            };
        }
        if in_query {
            let empty = Self::body(b"").0;
            return Ok(Some(Self([vec!["UNSIGNED-PAYLOAD".to_owned()], empty].concat())));
        }
        Ok(None)
    }

    /// The digest of a body.
    pub(super) fn body(body: &[u8]) -> Self {
        Self(vec![HEXLOWER.encode(digest::digest(&digest::SHA256, body).as_ref())])
    }

    pub(super) fn spellings(&self) -> &[String] {
        &self.0
    }
}

/// A request in the form that is signed, but for its path, which has several, and its body.
#[derive(Debug)]
pub(super) struct Request {
    method: String,
    path: String,
    query: String,
    headers: String,
    names: String,
}

impl Request {
    /// # Errors
    /// A signed header that is not there, or is no text.
    pub(super) fn of(parts: &Parts, signed: &Signed, authority: &str) -> Result<Self, String> {
        let mut headers = String::new();
        for name in &signed.headers {
            let value =
                header(parts, name, authority).ok_or_else(|| format!("its signed header `{name}` cannot be read"))?;
            // Writing to a string cannot fail.
            let _written = writeln!(headers, "{name}:{value}");
        }
        Ok(Self {
            method: parts.method.as_str().to_owned(),
            path: match parts.uri.path() {
                "" => "/".to_owned(),
                path => path.to_owned(),
            },
            query: canonical_query(parts.uri.query().unwrap_or_default()),
            headers,
            names: signed.headers.join(";"),
        })
    }

    pub(super) fn text(&self, path: &Paths, payload: &str) -> String {
        let path = match path {
            Paths::AsSent => self.path.clone(),
            Paths::Encoded => encoded(self.path.as_bytes()),
            Paths::EncodedResolved => encoded(resolved(&self.path).as_bytes()),
            Paths::EncodedOnce => encoded(&query::decoded(&self.path)),
        };
        let Self {
            method,
            query,
            headers,
            names,
            ..
        } = self;
        format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{payload}")
    }
}

/// The values of a header, joined, with single spaces.
fn header(parts: &Parts, name: &str, authority: &str) -> Option<String> {
    let mut values = Vec::new();
    for value in parts.headers.get_all(name) {
        let text = String::from_utf8(value.as_bytes().to_vec()).ok()?;
        values.push(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "));
    }
    // In HTTP/2 the host is no header.
    if values.is_empty() && name == HOST.as_str() {
        values.push(authority.to_owned());
    }
    (!values.is_empty()).then(|| values.join(","))
}

/// Parameters in order, each encoded in the same way.
fn canonical_query(text: &str) -> String {
    let mut parameters: Vec<(String, String)> = query::parameters(text)
        .filter(|(name, value)| !(name.is_empty() && value.is_none()))
        .map(|(name, value)| {
            let again = |text: &str| query::encoded(&query::decoded(text));
            (again(name), again(value.unwrap_or_default()))
        })
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    parameters.sort();
    let parameters: Vec<String> = parameters
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    parameters.join("&")
}

fn encoded(path: &[u8]) -> String {
    query::encoded(path).replace("%2F", "/")
}

/// The path without empty segments and dots (RFC 3986, 5.2.4).
fn resolved(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let end = if path.ends_with('/') && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{end}", segments.join("/"))
}
