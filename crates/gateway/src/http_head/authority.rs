//! Whom a request is for: host and port.

use std::net::Ipv6Addr;

use super::Scheme;

/// The longest host name, with a last dot (RFC 1035, 2.3.4), and its longest label.
const MAX_NAME: usize = 254;
const MAX_LABEL: usize = 63;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// In lower case: labels of letters, digits, `-` and `_` with single dots between them and perhaps one behind the
    /// last, or an IPv6 address in its brackets. May look like an IPv4 address in any spelling.
    pub host: String,
    /// The port named, or the scheme's.
    pub port: u16,
}

impl Authority {
    /// Reads `host` or `host:port` (RFC 9110, 7.2) without user, percent forms, zone, empty port or leading zeros.
    pub(crate) fn parse(text: &[u8], scheme: Scheme) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (host, port) = split_port(text);
        let is_host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().is_ok(),
            None => is_name(host),
        };
        let port = match port {
            Some(port) => parse_port(port)?,
            None => scheme.default_port(),
        };
        is_host.then(|| Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        // The last colon of an address without port stands inside its brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn parse_port(port: &str) -> Option<u16> {
    let plain = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
    plain.then(|| port.parse().ok()).flatten()
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= MAX_NAME && name.strip_suffix('.').unwrap_or(name).split('.').all(is_label)
}
