//! One connection for each request, encrypted or, to this machine alone, not.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hickory_resolver::TokioResolver;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use offleash_core::network::upstream_proxy::UpstreamProxy;
use offleash_core::network::{AddressClass, Host, classify};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::RegistryAddress;
use super::proxy;
use super::settings::RegistrySettings;
use crate::error::ImageError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(15);
/// How many addresses of a name are tried.
const MAX_ADDRESSES: usize = 4;
const MAX_AUTHORITIES: u64 = 4 << 20;
const AGENT: HeaderValue = HeaderValue::from_static(concat!("offleash/", env!("CARGO_PKG_VERSION")));

/// Makes connections. Names are asked of the machine's DNS servers and its `hosts`, never of the C library.
pub struct Connector {
    resolver: Result<TokioResolver, String>,
    encryption: TlsConnector,
    proxy: Option<UpstreamProxy>,
    stall_timeout: Duration,
    only_public: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Connector {
    /// Makes connections as `settings` say.
    ///
    /// # Errors
    /// `Setting` for authorities or a proxy that cannot be used.
    pub fn new(settings: &RegistrySettings) -> Result<Self, ImageError> {
        let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        Ok(Self {
            resolver: resolver.map_err(|error| error.to_string()),
            encryption: client_tls(&settings.authorities)?,
            proxy: proxy::of_settings(settings)?,
            stall_timeout: settings.stall_timeout,
            only_public: false,
        })
    }

    /// The same for addresses that others name: it connects to public ones alone, wherever a name leads at that moment.
    #[must_use]
    pub fn to_public(self) -> Self {
        Self {
            only_public: true,
            ..self
        }
    }

    /// Sends a request, and answers when the head of the answer is there.
    ///
    /// # Errors
    /// `Unreachable`, `Stalled`.
    pub async fn send(
        &self,
        address: &RegistryAddress,
        mut request: Request<Bytes>,
        registry: &str,
    ) -> Result<Response<Incoming>, ImageError> {
        let unreachable = |reason: String| ImageError::Unreachable {
            registry: address.authority(),
            reason,
        };
        let stream = self.connect(address).await.map_err(|failure| match failure {
            ConnectFailure::NoTls => ImageError::NoTls {
                registry: address.authority(),
                is_here: address.is_loopback(),
            },
            ConnectFailure::Other(reason) => unreachable(reason),
        })?;
        let host = HeaderValue::from_str(&address.authority()).map_err(|error| unreachable(error.to_string()))?;
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(USER_AGENT, AGENT);
        let answered = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // It ends with the body of the answer, whose reader is told what went wrong.
            tokio::spawn(async move {
                let _ended = connection.await;
            });
            sender.send_request(request.map(Full::new)).await
        };
        match timeout(self.stall_timeout, answered).await {
            Ok(answered) => answered.map_err(|error| unreachable(words(&error))),
            Err(_) => Err(self.stalled(registry)),
        }
    }

    /// The next bytes of an answer; `None` at its end.
    ///
    /// # Errors
    /// `Stalled`.
    pub async fn next(
        &self,
        body: &mut Incoming,
        registry: &str,
    ) -> Result<Option<Result<Bytes, hyper::Error>>, ImageError> {
        loop {
            let frame = timeout(self.stall_timeout, body.frame()).await;
            match frame.map_err(|_| self.stalled(registry))? {
                None => return Ok(None),
                Some(Err(error)) => return Ok(Some(Err(error))),
                Some(Ok(frame)) => {
                    // Trailers say nothing that we need.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(Ok(data)));
                    }
                }
            }
        }
    }

    /// The whole body of a short answer.
    ///
    /// # Errors
    /// `Unreachable`, `Stalled`; `TooLarge` beyond `limit`.
    pub async fn read(&self, response: Response<Incoming>, limit: u64, registry: &str) -> Result<Vec<u8>, ImageError> {
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(data) = self.next(&mut body, registry).await? {
            let data = data.map_err(|error| ImageError::Unreachable {
                registry: registry.to_owned(),
                reason: words(&error),
            })?;
            bytes.extend_from_slice(&data);
            if bytes.len() as u64 > limit {
                return Err(ImageError::TooLarge {
                    what: "an answer of the registry",
                    found: bytes.len() as u64,
                    limit,
                });
            }
        }
        Ok(bytes)
    }

    fn stalled(&self, registry: &str) -> ImageError {
        ImageError::Stalled {
            registry: registry.to_owned(),
            seconds: self.stall_timeout.as_secs(),
        }
    }

    async fn connect(&self, address: &RegistryAddress) -> Result<Box<dyn Stream>, ConnectFailure> {
        let stream = match self.proxy.as_ref().filter(|proxy| proxy::is_for(proxy, address)) {
            Some(proxy) => {
                let host = match &proxy.host {
                    Host::Address(address) => address.to_string(),
                    Host::Name(name) => name.to_string(),
                };
                let mut stream = self.dial(&host, proxy.port).await?;
                let asked = timeout(CONNECT_TIMEOUT, proxy::ask(proxy, &mut stream, address)).await;
                asked.map_err(|_| "the proxy does not answer".to_owned())??;
                stream
            }
            None => self.dial(address.host(), address.port()).await?,
        };
        if !address.is_encrypted() {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(address.host().to_owned());
        let name = name.map_err(|_| format!("`{}` is no name of a server", address.host()))?;
        match timeout(CONNECT_TIMEOUT, self.encryption.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) if is_no_tls(&error) => Err(ConnectFailure::NoTls),
            Ok(Err(error)) => Err(format!("TLS: {error}").into()),
            Err(_) => Err("TLS: it took too long".to_owned().into()),
        }
    }

    async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let mut last = format!("`{host}` has no address");
        for address in self.addresses(host).await?.into_iter().take(MAX_ADDRESSES) {
            if self.only_public && classify(address) != AddressClass::Public {
                last = format!("`{host}` leads to no public address");
                continue;
            }
            match timeout(CONNECT_TIMEOUT, TcpStream::connect(SocketAddr::new(address, port))).await {
                Ok(Ok(stream)) => {
                    // Only speed depends on it.
                    let _set = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = format!("connecting to {address} port {port}: {error}"),
                Err(_) => last = format!("connecting to {address} port {port} took too long"),
            }
        }
        Err(last)
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![address]);
        }
        if host == "localhost" || host.ends_with(".localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let resolver = self.resolver.as_ref();
        let resolver = resolver.map_err(|error| format!("names cannot be resolved: {error}"))?;
        match timeout(RESOLVE_TIMEOUT, resolver.lookup_ip(host)).await {
            Ok(Ok(found)) => Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_nx_domain() => Err("there is no such name".to_owned()),
            Ok(Err(error)) => Err(format!("resolving its name: {error}")),
            Err(_) => Err("resolving its name took too long".to_owned()),
        }
    }
}

/// Why there is no connection.
enum ConnectFailure {
    NoTls,
    Other(String),
}

impl From<String> for ConnectFailure {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// Whether what came is of another protocol.
fn is_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

/// An error of HTTP with its cause, which says more.
pub(super) fn words(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// What begins TLS with a server, whose certificate one of the machine's authorities vouches for, or one of these files.
///
/// # Errors
/// `Setting` for a file that cannot be read or has no certificate.
pub fn client_tls(authorities: &[PathBuf]) -> Result<TlsConnector, ImageError> {
    let wrong = |reason: String| ImageError::Setting {
        what: "certificate authorities",
        reason,
    };
    let mut roots = RootCertStore::empty();
    // Those that cannot be read are not trusted; which that are is seen when nothing can be verified.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for path in authorities {
        let shown = path.display();
        let text = crate::store::read_up_to(path, MAX_AUTHORITIES);
        let text = text.map_err(|error| wrong(format!("reading `{shown}`: {error}")))?;
        let found = pem::parse_many(&text).map_err(|error| wrong(format!("`{shown}`: {error}")))?;
        let certificates: Vec<_> = found.into_iter().filter(|found| found.tag() == "CERTIFICATE").collect();
        if certificates.is_empty() {
            return Err(wrong(format!("there is no certificate in `{shown}`")));
        }
        for certificate in certificates {
            let added = roots.add(CertificateDer::from(certificate.into_contents()));
            added.map_err(|error| wrong(format!("`{shown}`: {error}")))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// What makes reading an answer worth another attempt.
pub(super) fn is_broken_off(error: &ImageError) -> bool {
    match error {
        ImageError::Unreachable { .. } | ImageError::Stalled { .. } => true,
        ImageError::Status { status, .. } => matches!(status, 429 | 500 | 502..=504),
        _ => false,
    }
}

/// For who has no other error at hand.
pub(super) fn broken_off(registry: &str, error: &hyper::Error) -> ImageError {
    ImageError::Unreachable {
        registry: registry.to_owned(),
        reason: io::Error::other(words(error)).to_string(),
    }
}
