//! The way out: names are resolved here, and only addresses that were checked are dialled.
//!
//! Where a network has a proxy of its own, names are left to that, which alone can resolve them there: what they lead to
//! is for it to judge. Addresses are checked here all the same.

mod proxy;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use offleash_core::network::upstream_proxy::UpstreamProxy;
use offleash_core::network::{DomainName, Host};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long one address may take to answer.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one resolver may take to answer, how often each is asked again, and how long all of it may take.
const ANSWER: Duration = Duration::from_secs(3);
const QUESTIONS: usize = 1;
const RESOLVE: Duration = Duration::from_secs(10);
/// How many answers are remembered: a sandbox may ask for any name below a wildcard, and an answer may have 64 KiB.
const REMEMBERED: u64 = 256;
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

/// Says whether an address may be dialled, and why not.
pub(crate) trait Judge: Fn(IpAddr) -> Result<(), String> {}

impl<F: Fn(IpAddr) -> Result<(), String>> Judge for F {}

/// Resolves and dials.
#[derive(Debug)]
pub(crate) struct Upstream {
    resolver: TokioResolver,
    proxy: Option<UpstreamProxy>,
}

/// A connection that was made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) stream: TcpStream,
    /// Where it leads, unless a proxy has resolved the name.
    pub(crate) address: Option<IpAddr>,
}

impl Upstream {
    pub(crate) fn new(resolvers: &Resolvers, proxy: Option<UpstreamProxy>) -> io::Result<Self> {
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
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.timeout = ANSWER;
        options.attempts = QUESTIONS;
        options.cache_size = REMEMBERED;
        Ok(Self {
            resolver: builder.build().map_err(io::Error::other)?,
            proxy,
        })
    }

    /// Connects to `host`: its addresses are judged first, and only those that passed are dialled.
    pub(crate) async fn connect(&self, host: &Host, port: u16, judge: &impl Judge) -> Result<Made, Unreachable> {
        match self.proxy.as_ref().filter(|proxy| !proxy.spares(host)) {
            Some(proxy) => self.connect_through(proxy, host, port, judge).await,
            None => self.connect_directly(host, port, judge).await,
        }
    }

    /// Has the proxy connect.
    async fn connect_through(
        &self,
        proxy: &UpstreamProxy,
        host: &Host,
        port: u16,
        judge: &impl Judge,
    ) -> Result<Made, Unreachable> {
        let address = match host {
            Host::Address(address) => {
                judge(*address).map_err(Unreachable::Refused)?;
                Some(*address)
            }
            // What it means is a matter of the machine that is asked, and that is another one.
            Host::Name(name) if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") => {
                return Err(Unreachable::Refused(format!("`{name}` is the upstream proxy itself")));
            }
            Host::Name(_) => None,
        };
        let failed = |reason: String| Unreachable::Failed(format!("the proxy of `--upstream-proxy` {reason}"));
        let addresses = match &proxy.host {
            Host::Address(address) => vec![*address],
            // With the search domains of the machine: names of proxies are often short.
            Host::Name(name) => match timeout(RESOLVE, self.resolver.lookup_ip(name.as_str())).await {
                Ok(Ok(found)) => found.iter().collect(),
                _ => return Err(failed("has a name that cannot be resolved".to_owned())),
            },
        };
        let mut last = failed("has no address".to_owned());
        for own in addresses.into_iter().take(ATTEMPTS) {
            last = match timeout(CONNECT, TcpStream::connect((own, proxy.port))).await {
                Ok(Ok(stream)) => {
                    let stream = proxy::ask(proxy, stream, host, port).await.map_err(failed)?;
                    return Ok(Made { stream, address });
                }
                Ok(Err(error)) => failed(format!("cannot be reached: {error}")),
                Err(_) => failed("cannot be reached: it took too long".to_owned()),
            };
        }
        Err(last)
    }

    async fn connect_directly(&self, host: &Host, port: u16, judge: &impl Judge) -> Result<Made, Unreachable> {
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolve(name).await?,
        };
        let mut allowed = Vec::new();
        let mut refusal = None;
        for address in addresses {
            match judge(address) {
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
                Ok(Ok(stream)) => {
                    return Ok(Made {
                        stream,
                        address: Some(address),
                    });
                }
                Ok(Err(error)) => Unreachable::Failed(format!("connecting to {address} port {port}: {error}")),
                Err(_) => Unreachable::Failed(format!("connecting to {address} port {port} took too long")),
            };
        }
        Err(last)
    }

    async fn resolve(&self, name: &DomainName) -> Result<Vec<IpAddr>, Unreachable> {
        // The dot at the end keeps search domains out.
        let why = match timeout(RESOLVE, self.resolver.lookup_ip(format!("{name}."))).await {
            Ok(Ok(found)) => return Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_nx_domain() => "there is no such name".to_owned(),
            Ok(Err(error)) if error.is_no_records_found() => "it has no address".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        Err(Unreachable::Failed(format!("resolving `{name}`: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::UdpSocket;

    use super::*;

    async fn resolved(server: SocketAddr) -> String {
        let upstream = Upstream::new(&Resolvers::At(vec![server]), None).unwrap();
        match upstream.resolve(&"slow.example".parse().unwrap()).await {
            Err(Unreachable::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_name_without_addresses_is_a_failure_in_plain_words() {
        assert_eq!(answered(3).await, "resolving `slow.example`: there is no such name");
        assert_eq!(answered(0).await, "resolving `slow.example`: it has no address");
    }

    #[tokio::test]
    async fn a_resolver_that_refuses_is_a_failure_that_names_the_host() {
        let reason = answered(5).await;
        assert!(reason.starts_with("resolving `slow.example`: "), "{reason}");
    }

    /// What comes of a resolver that answers with this code and no more.
    async fn answered(code: u8) -> String {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let answering = async {
            let mut question = [0; 512];
            loop {
                let (length, peer) = server.recv_from(&mut question).await.unwrap();
                question[2] |= 0x80;
                question[3] = code;
                server.send_to(&question[..length], peer).await.unwrap();
            }
        };
        tokio::select! {
            reason = resolved(address) => reason,
            () = answering => unreachable!(),
        }
    }

    #[tokio::test]
    async fn a_resolver_that_is_not_there_is_one_too() {
        // A port that was free a moment ago, of an address that nobody else uses.
        let server = UdpSocket::bind(("127.42.7.9", 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        drop(server);
        let reason = resolved(address).await;
        assert!(reason.starts_with("resolving `slow.example`: "), "{reason}");
    }

    #[tokio::test]
    async fn a_resolver_that_does_not_answer_is_given_up() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let reason = resolved(address).await;
        assert!(reason.starts_with("resolving `slow.example`: "), "{reason}");
    }
}
