//! The way out: names are resolved here, and only addresses that were checked are dialled.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use offleash_core::network::{DomainName, Host};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::policy::Policy;

/// How long one address may take to answer.
const CONNECT: Duration = Duration::from_secs(10);
/// How many addresses of a name are tried.
const ATTEMPTS: usize = 4;

/// Whom to ask for the addresses of names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resolvers {
    /// Those of the machine, from `/etc/resolv.conf`.
    #[default]
    System,
    /// These.
    At(Vec<SocketAddr>),
}

/// Why a connection was not made.
#[derive(Debug)]
pub(crate) enum Unreachable {
    /// Where it leads may not be dialled.
    Refused(String),
    /// It could not be made.
    Failed(String),
}

/// Resolves and dials.
#[derive(Debug)]
pub(crate) struct Upstream {
    resolver: TokioResolver,
}

impl Upstream {
    pub(crate) fn new(resolvers: &Resolvers) -> io::Result<Self> {
        let builder = match resolvers {
            Resolvers::System => TokioResolver::builder_tokio().map_err(io::Error::other)?,
            Resolvers::At(servers) => {
                let servers = servers.iter().map(|server| {
                    let mut config = NameServerConfig::udp_and_tcp(server.ip());
                    for connection in &mut config.connections {
                        connection.port = server.port();
                    }
                    config
                });
                let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        let mut builder = builder;
        builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        Ok(Self {
            resolver: builder.build().map_err(io::Error::other)?,
        })
    }

    /// Connects to `host`: its addresses are checked first, and only those that passed are dialled.
    pub(crate) async fn connect(&self, host: &Host, port: u16, policy: &Policy) -> Result<TcpStream, Unreachable> {
        let (name, addresses) = match host {
            Host::Address(address) => (None, vec![*address]),
            Host::Name(name) => (Some(name), self.resolve(name).await?),
        };
        let mut allowed = Vec::new();
        let mut refusal = None;
        for address in addresses {
            match policy.check(name, address, port) {
                Ok(()) => allowed.push(address),
                Err(reason) => refusal = Some(reason),
            }
        }
        // One address that leads inside is enough to distrust the name: it may be asked again at any time.
        if let Some(reason) = refusal {
            return Err(Unreachable::Refused(reason));
        }
        let mut last = Unreachable::Failed(format!("`{host}` has no address"));
        for address in allowed.into_iter().take(ATTEMPTS) {
            last = match timeout(CONNECT, TcpStream::connect((address, port))).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => Unreachable::Failed(format!("connecting to {address} port {port}: {error}")),
                Err(_) => Unreachable::Failed(format!("connecting to {address} port {port} took too long")),
            };
        }
        Err(last)
    }

    async fn resolve(&self, name: &DomainName) -> Result<Vec<IpAddr>, Unreachable> {
        // The dot at the end keeps search domains out.
        match self.resolver.lookup_ip(format!("{name}.")).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) => Err(Unreachable::Failed(format!("resolving `{name}`: {error}"))),
        }
    }
}
