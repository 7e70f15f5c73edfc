//! Where a daemon is: at a socket in its state directory, or at a URL.
//!
//! What is decided here is whom a key may be told: a host that TLS has proved, this machine, or whom the user takes for
//! certain (`is_insecure`). Deliberately not here: connections, which `transport` makes.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use offleash_core::error::{ErrorKind, Explained};
use offleash_daemon::{ApiKey, ImageError, client_tls};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

/// The address of a server: `https://HOST[:PORT]`, or with `http` where nothing has to be kept secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostUrl {
    is_tls: bool,
    host: String,
    port: u16,
}

/// Text that is no address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no address of a server: {reason}", .given.escape_debug())]
pub struct HostUrlError {
    given: String,
    reason: &'static str,
}

impl Explained for HostUrlError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some("write it as `https://HOST` or `https://HOST:PORT`".to_owned())
    }
}

impl HostUrl {
    /// Whether what is said there is encrypted.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether it is this machine by its very name.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.host == "localhost",
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Host and port as `host` in a request has them.
    pub(super) fn authority(&self) -> String {
        let usual = if self.is_tls { 443 } else { 80 };
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match self.port == usual {
            true => host,
            false => format!("{host}:{}", self.port),
        }
    }
}

impl fmt::Display for HostUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl FromStr for HostUrl {
    type Err = HostUrlError;

    fn from_str(given: &str) -> Result<Self, HostUrlError> {
        let wrong = |reason| HostUrlError {
            given: given.to_owned(),
            reason,
        };
        let uri: Uri = given.parse().map_err(|_| wrong("it is no URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return Err(wrong("it begins with neither `https://` nor `http://`")),
            None => return Err(wrong("it does not begin with `https://`")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(HostUrlError {
                // What stands there may be a secret.
                given: format!("{}://…@{}", if is_tls { "https" } else { "http" }, authority.host()),
                reason: "it has a user in it; keys are given by `OFFLEASH_API_KEY` or `offleash login`",
            });
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("something stands behind the host and port"));
        }
        let host = authority.host().to_ascii_lowercase();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.map(str::to_owned).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let port = match (authority.port(), authority.as_str().ends_with(':')) {
            (_, true) => return Err(wrong("its port is no number")),
            (None, _) => match authority.as_str().rsplit_once(':') {
                Some((_, port)) if !port.contains(']') => return Err(wrong("its port is no number from 1 to 65535")),
                _ => {
                    if is_tls {
                        443
                    } else {
                        80
                    }
                }
            },
            (Some(port), _) => port.as_u16(),
        };
        if port == 0 {
            return Err(wrong("its port is no number from 1 to 65535"));
        }
        Ok(Self { is_tls, host, port })
    }
}

/// How a server at a URL is spoken to.
#[derive(Debug, Clone, Default)]
pub struct RemoteSettings {
    /// The key that is shown to it.
    pub key: Option<ApiKey>,
    /// A file with authorities (PEM) that are trusted beside those of the system.
    pub authorities: Option<PathBuf>,
    /// Whether keys may be sent without TLS to others than this machine.
    pub is_insecure: bool,
}

/// Why a server is not spoken to.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Nothing keeps the key and all else secret on the way.
    #[error("`{url}` is not encrypted, and others could read the key and everything else that is sent there")]
    Plain {
        /// The server.
        url: HostUrl,
    },
    /// The file with authorities cannot be used.
    #[error(transparent)]
    Authorities(ImageError),
    /// The host is no name that a certificate can have.
    #[error("`{url}` cannot be spoken to by TLS: {reason}")]
    Tls {
        /// The server.
        url: HostUrl,
        /// Why not.
        reason: String,
    },
}

impl Explained for EndpointError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Plain { .. } => ErrorKind::Denied,
            Self::Authorities(_) | Self::Tls { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Plain { .. } => Some(
                "serve with `--tls-cert` and `--tls-key`, or through `ssh -L`; `--insecure` sends it all the same"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Where a daemon is.
#[derive(Debug, Clone)]
pub struct Endpoint(pub(super) Arc<EndpointKind>);

#[derive(Debug)]
pub(super) enum EndpointKind {
    /// The socket of its owner.
    Socket(PathBuf),
    /// A server that is known by a key.
    Host(RemoteHost),
}

/// A server at a URL.
#[derive(Debug)]
pub(super) struct RemoteHost {
    pub(super) url: HostUrl,
    pub(super) settings: RemoteSettings,
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Endpoint {
    /// The daemon that listens at `socket`.
    pub fn socket(socket: &Path) -> Self {
        Self(Arc::new(EndpointKind::Socket(socket.to_owned())))
    }

    /// The server at `url`; nothing is connected to yet.
    ///
    /// # Errors
    /// `Plain` where a key would be sent to others than this machine without TLS and that was not allowed; `Authorities`, `Tls`.
    pub fn host(url: HostUrl, settings: RemoteSettings) -> Result<Self, EndpointError> {
        if !url.is_tls && !url.is_loopback() && !settings.is_insecure {
            return Err(EndpointError::Plain { url });
        }
        let tls = match url.is_tls {
            true => Some(encryption(&url, settings.authorities.as_deref())?),
            false => None,
        };
        Ok(Self(Arc::new(EndpointKind::Host(RemoteHost { url, settings, tls }))))
    }

    /// The URL, if it is at one.
    pub fn url(&self) -> Option<&HostUrl> {
        match &*self.0 {
            EndpointKind::Socket(_) => None,
            EndpointKind::Host(host) => Some(&host.url),
        }
    }
}

fn encryption(
    url: &HostUrl,
    authorities: Option<&Path>,
) -> Result<(Arc<ClientConfig>, ServerName<'static>), EndpointError> {
    let name = ServerName::try_from(url.host.clone()).map_err(|error| EndpointError::Tls {
        url: url.clone(),
        reason: error.to_string(),
    })?;
    let authorities: Vec<PathBuf> = authorities.map(Path::to_owned).into_iter().collect();
    let connector = client_tls(&authorities).map_err(EndpointError::Authorities)?;
    Ok((Arc::clone(connector.config()), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_port() {
        for (given, shown, is_loopback) in [
            ("https://box.example", "https://box.example", false),
            ("https://Box.Example:443/", "https://box.example", false),
            ("https://box.example:8443", "https://box.example:8443", false),
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000", true),
            ("http://127.9.9.9:3000", "http://127.9.9.9:3000", true),
            ("http://localhost", "http://localhost", true),
            ("http://[::1]:3000", "http://[::1]:3000", true),
            ("http://localhost.example:80", "http://localhost.example", false),
            ("http://127.0.0.1.example", "http://127.0.0.1.example", false),
        ] {
            let url: HostUrl = given.parse().unwrap();
            assert_eq!(
                (url.to_string().as_str(), url.is_loopback()),
                (shown, is_loopback),
                "{given}"
            );
        }
        for given in [
            "",
            "box.example",
            "box.example:443",
            "/path",
            "ftp://box.example",
            "https://",
            "https://box.example/path",
            "https://box.example/?a=b",
            "https://box.example:0",
            "https://box.example:99999",
            "https://box.example:",
            "https://box example",
        ] {
            assert!(given.parse::<HostUrl>().is_err(), "{given}");
        }
        let secret = "https://user:e2b_secret@box.example".parse::<HostUrl>().unwrap_err();
        assert!(!secret.to_string().contains("e2b_secret"), "{secret}");
    }

    #[test]
    fn what_is_not_encrypted_goes_to_this_machine_alone() {
        let open = |url: &str, is_insecure| {
            let settings = RemoteSettings {
                is_insecure,
                ..RemoteSettings::default()
            };
            Endpoint::host(url.parse().unwrap(), settings)
        };
        for url in ["http://box.example", "http://10.0.0.1:3000", "http://127.0.0.1.example"] {
            assert!(matches!(open(url, false), Err(EndpointError::Plain { .. })), "{url}");
            assert!(open(url, true).is_ok(), "{url}");
        }
        for url in [
            "http://127.0.0.1:3000",
            "http://[::1]",
            "http://localhost:3000",
            "https://box.example",
        ] {
            assert!(open(url, false).is_ok(), "{url}");
        }
    }

    #[test]
    fn authorities_that_cannot_be_read_are_told_of() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        let open = || {
            let settings = RemoteSettings {
                authorities: Some(path.clone()),
                ..RemoteSettings::default()
            };
            Endpoint::host("https://box.example".parse().unwrap(), settings)
        };
        assert!(matches!(open(), Err(EndpointError::Authorities(_))));
        std::fs::write(&path, "nothing").unwrap();
        assert!(matches!(open(), Err(EndpointError::Authorities(_))));
        let made = rcgen::generate_simple_self_signed(["box.example".to_owned()]).unwrap();
        std::fs::write(&path, made.cert.pem()).unwrap();
        assert!(open().is_ok());
    }
}
