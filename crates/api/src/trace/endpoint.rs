//! Where a collector is.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};

/// What the address of a collector is completed with (OTLP/HTTP).
const PATH: &str = "/v1/traces";
const PORT: u16 = 4318;

/// A collector of traces, by its base address as in `http://127.0.0.1:4318`; it is sent OTLP over HTTP, in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesEndpoint {
    pub(super) authority: Authority,
    pub(super) path: String,
}

/// The address is not one that traces can be sent to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no address of a collector: {reason}", .given.escape_debug())]
pub struct BadEndpoint {
    given: String,
    reason: &'static str,
}

impl TracesEndpoint {
    /// Host and port, to connect to.
    pub(super) fn address(&self) -> (&str, u16) {
        let host = self.authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        (host, self.authority.port_u16().unwrap_or(PORT))
    }
}

impl FromStr for TracesEndpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |reason| BadEndpoint {
            given: text.to_owned(),
            reason,
        };
        let uri: Uri = text.trim().parse().map_err(|_| bad("it is no URL"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(bad(
                "it must begin with `http://`; a collector on this machine can pass on over TLS",
            ));
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must name no user"));
        }
        if uri.query().is_some() {
            return Err(bad("it must have no query"));
        }
        let path = format!("{}{PATH}", uri.path().trim_end_matches('/'));
        let authority = authority.clone();
        Ok(Self { authority, path })
    }
}

impl fmt::Display for TracesEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_completed_and_what_is_none_is_refused() {
        for (given, url, address) in [
            (
                "http://127.0.0.1:4318",
                "http://127.0.0.1:4318/v1/traces",
                ("127.0.0.1", 4318),
            ),
            (
                "http://collector/base/",
                "http://collector/base/v1/traces",
                ("collector", 4318),
            ),
            ("http://[::1]:9", "http://[::1]:9/v1/traces", ("::1", 9)),
        ] {
            let endpoint: TracesEndpoint = given.parse().unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.address()), (url, address));
        }
        for given in [
            "",
            "127.0.0.1:4318",
            "https://collector:4318",
            "http://u:p@host",
            "http://host/?a=b",
            "/x",
        ] {
            let parsed: Result<TracesEndpoint, _> = given.parse();
            assert!(parsed.is_err(), "{given}");
        }
    }
}
