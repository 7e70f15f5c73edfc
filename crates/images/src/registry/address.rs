//! Addresses of registries and of what they lead to.

use std::net::IpAddr;

use http::Uri;
use offleash_core::network::{AddressClass, classify};

/// An address with `http` or `https`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryAddress {
    is_encrypted: bool,
    /// In lower case; an address of IPv6 without brackets.
    host: String,
    port: u16,
    /// With the query.
    path: String,
}

impl RegistryAddress {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| format!("`{}` is no address", shown(text)))?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("`{}` is no address with http or https", shown(text))),
        };
        let authority = uri
            .authority()
            .ok_or_else(|| format!("`{}` names no host", shown(text)))?;
        if authority.as_str().contains('@') {
            return Err("an address may not hold credentials".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(format!("`{}` names no host", shown(text)));
        }
        Ok(Self {
            is_encrypted,
            host: host.trim_end_matches('.').to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// Where a redirect from here leads.
    pub(crate) fn resolve(&self, location: &str) -> Result<Self, String> {
        if location.starts_with('/') && !location.starts_with("//") {
            location
                .parse::<Uri>()
                .map_err(|_| "a redirect to what is no address".to_owned())?;
            return Ok(Self {
                path: location.to_owned(),
                ..self.clone()
            });
        }
        Self::parse(location)
    }

    /// Something below it.
    pub(crate) fn join(&self, path: &str) -> Self {
        Self {
            path: format!("{}/{path}", self.path.trim_end_matches('/')),
            ..self.clone()
        }
    }

    /// With another query.
    pub(crate) fn with_query(&self, query: &str) -> Self {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        Self {
            path: format!("{}{separator}{query}", self.path),
            ..self.clone()
        }
    }

    /// Whether it is asked over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path with the query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Host and port as they are written, the port only where it is not the usual one.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.is_encrypted, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Whether what is for the other may be told this one.
    pub(crate) fn is_same_host(&self, other: &Self) -> bool {
        (self.is_encrypted, &self.host, self.port) == (other.is_encrypted, &other.host, other.port)
    }

    /// Whether nothing in it says that it is on this machine or a private network; where its name leads is another question, which
    /// [`Connector::to_public`](super::Connector::to_public) answers.
    pub fn may_be_public(&self) -> bool {
        let is_public = |address: IpAddr| classify(address) == AddressClass::Public;
        !self.is_loopback() && self.host.parse::<IpAddr>().map_or(true, is_public)
    }

    /// Whether it is on this machine by its name alone.
    pub fn is_loopback(&self) -> bool {
        let is_name = self.host == "localhost" || self.host.ends_with(".localhost");
        is_name || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say_and_hosts_are_told_apart() {
        let base = RegistryAddress::parse("https://Registry.Example/").unwrap();
        assert_eq!((base.authority().as_str(), base.port()), ("registry.example", 443));
        assert_eq!(base.join("v2/a").path(), "/v2/a");
        assert_eq!(base.resolve("/x?y=z").unwrap().path(), "/x?y=z");
        assert!(base.resolve("/x").unwrap().is_same_host(&base));
        for other in [
            "https://registry.example:444/",
            "http://registry.example/",
            "https://other.example/",
            "https://a.registry.example/",
        ] {
            assert!(!base.resolve(other).unwrap().is_same_host(&base), "{other}");
        }
        for wrong in [
            "//other.example/x",
            "ftp://a/",
            "x",
            "",
            "https://",
            "https://user:password@a/",
            "/\u{7f} ",
        ] {
            assert!(base.resolve(wrong).is_err(), "{wrong}");
        }
        for (text, is_loopback) in [
            ("http://localhost:5000", true),
            ("http://[::1]/", true),
            ("http://127.0.0.2", true),
            ("http://localhost.example", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(
                RegistryAddress::parse(text).unwrap().is_loopback(),
                is_loopback,
                "{text}"
            );
        }
    }

    #[test]
    fn what_says_itself_that_it_is_here_or_private_is_not_public() {
        for (url, expected) in [
            ("https://hooks.example/", true),
            ("https://1.1.1.1/", true),
            ("https://localhost/", false),
            ("https://a.localhost/", false),
            ("https://127.0.0.1/", false),
            ("https://192.168.0.1/", false),
            ("https://[fe80::1]/", false),
            ("https://[2606:4700::1111]/", true),
        ] {
            assert_eq!(RegistryAddress::parse(url).unwrap().may_be_public(), expected, "{url}");
        }
    }
}
