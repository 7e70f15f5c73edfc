//! Where a collector is.

use std::fmt;

use http::Uri;
use http::header::{HeaderName, HeaderValue};
use http::uri::{Authority, Scheme};

/// Where collectors listen, unless by TLS.
const PORT: u16 = 4318;
const TLS_PORT: u16 = 443;

/// What a collector is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TelemetrySignal {
    /// What requests took.
    Traces,
    /// Numbers.
    Metrics,
    /// What happens.
    Logs,
}

impl TelemetrySignal {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// Its word, which a collector's address is completed with, too (OTLP/HTTP).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

impl fmt::Display for TelemetrySignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a collector takes one signal: OTLP over HTTP, in JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct SignalEndpoint {
    pub(super) is_encrypted: bool,
    pub(super) authority: Authority,
    pub(super) path: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for SignalEndpoint {
    /// Without the values of headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignalEndpoint({self}, {} headers)", self.headers.len())
    }
}

/// The address is not one that signals can be sent to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no address of a collector: {reason}", .given.escape_debug())]
pub struct BadEndpoint {
    given: String,
    reason: &'static str,
}

/// What is to be said in headers cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeaders {
    /// It is no list of headers. What is in it is not shown: it may be a secret.
    #[error("it is no list of `NAME=VALUE` with commas between them")]
    Text,
    /// Everybody on the way could read them.
    #[error("headers would be sent in the open to a collector that is not on this machine")]
    InTheOpen,
}

impl SignalEndpoint {
    /// The place of `signal` below the base address of a collector, as in `http://127.0.0.1:4318`.
    ///
    /// # Errors
    /// When the address is none.
    pub fn below(base: &str, signal: TelemetrySignal) -> Result<Self, BadEndpoint> {
        let mut endpoint = Self::parse(base)?;
        endpoint.path = format!("{}/v1/{signal}", endpoint.path.trim_end_matches('/'));
        Ok(endpoint)
    }

    /// The place itself, with its path.
    ///
    /// # Errors
    /// When the address is none.
    pub fn parse(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |reason| BadEndpoint {
            given: text.to_owned(),
            reason,
        };
        let uri: Uri = text.trim().parse().map_err(|_| bad("it is no URL"))?;
        let is_encrypted = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(bad("it must begin with `https://` or `http://`")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must name no user"));
        }
        if uri.query().is_some() {
            return Err(bad("it must have no query"));
        }
        Ok(Self {
            is_encrypted,
            authority: authority.clone(),
            path: uri.path().to_owned(),
            headers: Vec::new(),
        })
    }

    /// The same with headers, as `OTEL_EXPORTER_OTLP_HEADERS` has them: `a=b,c=d`, percent-encoded.
    ///
    /// # Errors
    /// When they are none, or would be sent in the open.
    pub fn with_headers(mut self, list: &str) -> Result<Self, BadHeaders> {
        for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(BadHeaders::Text)?;
            let value = percent_encoding::percent_decode_str(value.trim());
            let value = value.decode_utf8().map_err(|_| BadHeaders::Text)?;
            let name: HeaderName = name.trim().parse().map_err(|_| BadHeaders::Text)?;
            let mut value = HeaderValue::from_str(&value).map_err(|_| BadHeaders::Text)?;
            value.set_sensitive(true);
            self.headers.push((name, value));
        }
        match self.headers.is_empty() || self.is_encrypted || self.is_here() {
            true => Ok(self),
            false => Err(BadHeaders::InTheOpen),
        }
    }

    /// Whether it is spoken to by TLS.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether it is on this machine.
    fn is_here(&self) -> bool {
        let (host, _) = self.address();
        let address: Result<std::net::IpAddr, _> = host.parse();
        host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    }

    /// Host and port, to connect to.
    pub(super) fn address(&self) -> (&str, u16) {
        let host = self.authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let usual = if self.is_encrypted { TLS_PORT } else { PORT };
        (host, self.authority.port_u16().unwrap_or(usual))
    }
}

impl fmt::Display for SignalEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
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
            ("https://collector", "https://collector/v1/traces", ("collector", 443)),
        ] {
            let endpoint = SignalEndpoint::below(given, TelemetrySignal::Traces).unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.address()), (url, address));
        }
        assert_eq!(
            SignalEndpoint::parse("http://c/own/path").unwrap().to_string(),
            "http://c/own/path"
        );
        for given in [
            "",
            "127.0.0.1:4318",
            "grpc://collector:4317",
            "http://u:p@host",
            "http://host/?a=b",
            "/x",
        ] {
            assert!(SignalEndpoint::parse(given).is_err(), "{given}");
        }
    }

    #[test]
    fn headers_are_read_and_go_in_the_open_to_this_machine_alone() {
        let here = SignalEndpoint::parse("http://127.0.0.1:4318/v1/logs").unwrap();
        let told = here.clone().with_headers("api-key=s%20ecret, b = c,").unwrap();
        let read: Vec<_> = told
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(read, [("api-key", "s ecret"), ("b", "c")]);
        assert!(!format!("{told:?}").contains("ecret"));
        for bad in ["a", "a b=c", "a=%0a"] {
            assert_eq!(here.clone().with_headers(bad), Err(BadHeaders::Text), "{bad}");
        }
        let away = SignalEndpoint::parse("http://collector:4318/v1/logs").unwrap();
        assert_eq!(away.clone().with_headers("a=b"), Err(BadHeaders::InTheOpen));
        assert_eq!(away.clone().with_headers(" , "), Ok(away));
        let encrypted = SignalEndpoint::parse("https://collector/v1/logs").unwrap();
        assert_eq!(encrypted.with_headers("a=b").unwrap().headers.len(), 1);
    }
}
