//! The way out: names are resolved here, and only addresses that were checked are dialled.
//!
//! Where a network has a proxy of its own, names are left to that, which alone can resolve them there: what they lead to
//! is for it to judge. Addresses are checked here all the same, and names are resolved here where the proxy is to be asked
//! for addresses.

mod proxy;
mod socks;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{Hosts, TokioResolver};
use offleash_core::network::upstream_proxy::{ProxyKind, UpstreamProxy};
use offleash_core::network::{DomainName, Host};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long one address may take to answer.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one resolver may take to answer, how often each is asked again, and how long all of it may take.
const ANSWER: Duration = Duration::from_secs(3);
const QUESTIONS: usize = 1;
const RESOLVE: Duration = Duration::from_secs(10);
/// How long a proxy may take to answer; it resolves and dials meanwhile.
const PROXY: Duration = Duration::from_secs(30);
/// How many answers are remembered: a sandbox may ask for any name below a wildcard, and an answer may have 64 KiB.
const REMEMBERED: u64 = 256;
/// How many addresses of a name are tried.
const ATTEMPTS: usize = 4;

/// Whom to ask for the addresses of names.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Resolvers {
    /// Those of the machine, from `/etc/resolv.conf`.
    #[default]
    System,
    /// These.
    At(Vec<SocketAddr>),
}

/// How the outside is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WayOut {
    /// Whom to ask for the addresses of names.
    pub resolvers: Resolvers,
    /// The proxy through which everything goes but what it spares.
    pub proxy: Option<UpstreamProxy>,
    /// Who named them.
    pub named_by: NamedBy,
}

/// Who named the servers of a [`WayOut`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum NamedBy {
    /// Whoever runs the sandbox on this machine, and may reach all that this machine can.
    #[default]
    Owner,
    /// Whoever made it through a server's API. They may reach no more of this machine's networks by it than the sandbox
    /// itself: what is public, and what a rule for addresses allows.
    Caller,
}

impl NamedBy {
    /// The proxy, as they know it.
    fn proxy(self) -> &'static str {
        match self {
            Self::Owner => "the proxy of `--upstream-proxy`",
            Self::Caller => "the proxy of `egressProxy`",
        }
    }
}

/// What the machine knows of names, as somebody read it who may.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SystemNames {
    /// Its resolvers, where they are to be asked, or why there are none.
    resolvers: Option<Result<SystemResolvers, String>>,
    /// `/etc/hosts`; nothing where it cannot be read.
    hosts: Vec<u8>,
}

/// What `/etc/resolv.conf` says, with the domain that the name of the machine has where that says none.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct SystemResolvers {
    servers: Vec<IpAddr>,
    domain: Option<String>,
    search: Vec<String>,
    dots: usize,
    edns: bool,
}

impl SystemNames {
    /// Reads what `resolvers` need.
    pub(crate) fn read(resolvers: &Resolvers) -> Self {
        Self {
            resolvers: (*resolvers == Resolvers::System).then(SystemResolvers::read),
            hosts: std::fs::read("/etc/hosts").unwrap_or_default(),
        }
    }
}

impl SystemResolvers {
    fn read() -> Result<Self, String> {
        let (config, options) = read_system_conf().map_err(|error| no_resolvers(&error))?;
        Ok(Self {
            servers: config.name_servers().iter().map(|server| server.ip).collect(),
            domain: config.domain().map(Name::to_ascii),
            search: config.search().iter().map(Name::to_ascii).collect(),
            dots: options.ndots,
            edns: options.edns0,
        })
    }

    fn config(&self) -> io::Result<(ResolverConfig, ResolverOpts)> {
        let name = |text: &String| Name::from_ascii(text).map_err(io::Error::other);
        let domain = self.domain.as_ref().map(name).transpose()?;
        let search = self.search.iter().map(name).collect::<io::Result<Vec<Name>>>()?;
        let servers = self.servers.iter().map(|server| NameServerConfig::udp_and_tcp(*server));
        let mut options = ResolverOpts::default();
        options.ndots = self.dots;
        options.edns0 = self.edns;
        Ok((ResolverConfig::from_parts(domain, search, servers.collect()), options))
    }
}

/// That the machine names no resolver, and who else could.
fn no_resolvers(why: &dyn std::error::Error) -> String {
    format!("`/etc/resolv.conf` names no DNS server ({why}); `dns_servers` (`--dns-server`) names one")
}

/// Why a connection was not made.
#[derive(Debug)]
pub(crate) enum Unreachable {
    /// Where it leads may not be dialled.
    Refused(String),
    /// It could not be made.
    Failed(String),
}

/// Says what may be dialled, and why not.
pub(crate) trait Judge {
    /// Whether an address may be that to which the host leads.
    fn destination(&self, address: IpAddr) -> Result<(), String>;

    /// Whether a server that a caller named may be asked on the way there.
    fn on_the_way(&self, server: SocketAddr) -> Result<(), String>;
}

/// Resolves and dials.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// Why there is none, where it could not be made: then no name is resolved.
    resolver: Result<TokioResolver, String>,
    way: WayOut,
}

/// A connection that was made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) stream: TcpStream,
    /// Where it leads, unless a proxy has resolved the name.
    pub(crate) address: Option<IpAddr>,
}

impl Upstream {
    /// Where the resolver cannot be made, no name is resolved, and addresses are dialled all the same.
    pub(crate) fn new(way: WayOut, system: &SystemNames) -> Self {
        let resolver = resolver(&way.resolvers, system).map_err(|error| error.to_string());
        Self { resolver, way }
    }

    pub(crate) fn way(&self) -> &WayOut {
        &self.way
    }

    /// Connects to `host`: its addresses are judged first, and only those that passed are dialled.
    pub(crate) async fn connect(&self, host: &Host, port: u16, judge: &impl Judge) -> Result<Made, Unreachable> {
        match self.way.proxy.as_ref().filter(|proxy| !proxy.spares(host)) {
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
        match host {
            // What it means is a matter of the machine that is asked, and that is another one.
            Host::Name(name) if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") => {
                Err(Unreachable::Refused(format!("`{name}` is the upstream proxy itself")))
            }
            Host::Name(_) if proxy.kind.resolves_names() => {
                let stream = self.ask(proxy, host, port, judge).await?;
                Ok(Made { stream, address: None })
            }
            _ => {
                let mut last = Unreachable::Failed(format!("`{host}` has no address"));
                for address in self.judged(host, judge).await?.into_iter().take(ATTEMPTS) {
                    match self.ask(proxy, &Host::Address(address), port, judge).await {
                        Ok(stream) => {
                            let address = Some(address);
                            return Ok(Made { stream, address });
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// A connection to `host`, for which the proxy was asked.
    async fn ask(
        &self,
        proxy: &UpstreamProxy,
        host: &Host,
        port: u16,
        judge: &impl Judge,
    ) -> Result<TcpStream, Unreachable> {
        let name = self.way.named_by.proxy();
        let failed = |reason: String| Unreachable::Failed(format!("{name} {reason}"));
        let addresses = match &proxy.host {
            Host::Address(address) => vec![*address],
            // With the search domains of the machine: names of proxies are often short.
            Host::Name(own) => match timeout(RESOLVE, self.resolver(judge)?.lookup_ip(own.as_str())).await {
                Ok(Ok(found)) => found.iter().collect(),
                _ => return Err(failed("has a name that cannot be resolved".to_owned())),
            },
        };
        if self.way.named_by == NamedBy::Caller {
            for own in &addresses {
                let passed = judge.on_the_way((*own, proxy.port).into());
                passed.map_err(|reason| Unreachable::Refused(format!("{name} may not be asked: {reason}")))?;
            }
        }
        let mut last = failed("has no address".to_owned());
        for own in addresses.into_iter().take(ATTEMPTS) {
            last = match timeout(CONNECT, TcpStream::connect((own, proxy.port))).await {
                Ok(Ok(stream)) => {
                    let made = match proxy.kind {
                        ProxyKind::Http => proxy::ask(PROXY, proxy, stream, host, port).await,
                        ProxyKind::Socks5 | ProxyKind::Socks5h => {
                            socks::ask(PROXY, proxy.credentials.as_ref(), stream, host, port).await
                        }
                    };
                    return made.map_err(failed);
                }
                Ok(Err(error)) => failed(format!("cannot be reached: {error}")),
                Err(_) => failed("cannot be reached: it took too long".to_owned()),
            };
        }
        Err(last)
    }

    async fn connect_directly(&self, host: &Host, port: u16, judge: &impl Judge) -> Result<Made, Unreachable> {
        let mut last = Unreachable::Failed(format!("`{host}` has no address"));
        for address in self.judged(host, judge).await?.into_iter().take(ATTEMPTS) {
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

    /// The addresses of `host`, all of which may be dialled.
    async fn judged(&self, host: &Host, judge: &impl Judge) -> Result<Vec<IpAddr>, Unreachable> {
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolve(name, judge).await?,
        };
        // One address that leads inside is enough to distrust the name: it may be asked again at any time.
        for address in &addresses {
            judge.destination(*address).map_err(Unreachable::Refused)?;
        }
        Ok(addresses)
    }

    /// The resolver, if its servers may be asked.
    fn resolver(&self, judge: &impl Judge) -> Result<&TokioResolver, Unreachable> {
        if let (Resolvers::At(servers), NamedBy::Caller) = (&self.way.resolvers, self.way.named_by) {
            for server in servers {
                let refused =
                    |reason| Unreachable::Refused(format!("the DNS server {server} may not be asked: {reason}"));
                judge.on_the_way(*server).map_err(refused)?;
            }
        }
        let unmade = |error: &String| Unreachable::Failed(format!("names cannot be resolved: {error}"));
        self.resolver.as_ref().map_err(unmade)
    }

    async fn resolve(&self, name: &DomainName, judge: &impl Judge) -> Result<Vec<IpAddr>, Unreachable> {
        // The dot at the end keeps search domains out.
        let why = match timeout(RESOLVE, self.resolver(judge)?.lookup_ip(format!("{name}."))).await {
            Ok(Ok(found)) => return Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_nx_domain() => "there is no such name".to_owned(),
            Ok(Err(error)) if error.is_no_records_found() => "it has no address".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        Err(Unreachable::Failed(format!("resolving `{name}`: {why}")))
    }
}

fn resolver(resolvers: &Resolvers, system: &SystemNames) -> io::Result<TokioResolver> {
    let (config, mut options) = match (resolvers, &system.resolvers) {
        (Resolvers::System, Some(Ok(read))) => read.config()?,
        (Resolvers::System, Some(Err(reason))) => return Err(io::Error::other(reason.clone())),
        (Resolvers::System, None) => return Err(io::Error::other("nobody read which resolvers there are")),
        (Resolvers::At(servers), _) => {
            let servers = servers.iter().map(|server| {
                let mut config = NameServerConfig::udp_and_tcp(server.ip());
                for connection in &mut config.connections {
                    connection.port = server.port();
                }
                config
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            (config, ResolverOpts::default())
        }
    };
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = ANSWER;
    options.attempts = QUESTIONS;
    options.cache_size = REMEMBERED;
    options.use_hosts_file = ResolveHosts::Never;
    let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let mut resolver = builder.with_options(options).build().map_err(io::Error::other)?;
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(system.hosts.as_slice())?;
    resolver.set_hosts(Arc::new(hosts));
    Ok(resolver)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, UdpSocket};

    use super::*;

    /// Both ends of a connection: ours, and that of a proxy.
    pub(super) async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        (ours, theirs)
    }

    /// What is there to be read on a connection that a proxy has made.
    pub(super) async fn rest(made: Result<TcpStream, String>) -> Result<Vec<u8>, String> {
        let mut connection = made?;
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).await.unwrap();
        Ok(rest)
    }

    async fn resolved(server: SocketAddr) -> String {
        match resolved_for(NamedBy::Owner, server).await {
            Err(Unreachable::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn resolved_for(named_by: NamedBy, server: SocketAddr) -> Result<Vec<IpAddr>, Unreachable> {
        let way = WayOut {
            resolvers: Resolvers::At(vec![server]),
            named_by,
            ..WayOut::default()
        };
        let upstream = Upstream::new(way, &SystemNames::default());
        upstream.resolve(&"slow.example".parse().unwrap(), &Strict).await
    }

    /// Lets everything be dialled, and nothing be asked.
    struct Strict;

    impl Judge for Strict {
        fn destination(&self, _: IpAddr) -> Result<(), String> {
            Ok(())
        }

        fn on_the_way(&self, _: SocketAddr) -> Result<(), String> {
            Err("it is private".to_owned())
        }
    }

    #[tokio::test]
    async fn servers_that_a_caller_named_are_asked_where_they_may_be() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let Err(Unreachable::Refused(reason)) = resolved_for(NamedBy::Caller, address).await else {
            panic!("it was asked");
        };
        assert_eq!(
            reason,
            format!("the DNS server {address} may not be asked: it is private")
        );
        for (named_by, refused) in [(NamedBy::Owner, false), (NamedBy::Caller, true)] {
            let way = WayOut {
                proxy: Some(UpstreamProxy::socks(&address.to_string(), None).unwrap()),
                named_by,
                ..WayOut::default()
            };
            let upstream = Upstream::new(way, &SystemNames::default());
            let host = Host::parse("www.example.com").unwrap();
            let hanging_up = async { drop(server.accept().await.unwrap()) };
            let made = tokio::select! {
                made = upstream.connect(&host, 443, &Strict) => made,
                () = async { hanging_up.await; std::future::pending().await } => unreachable!(),
            };
            let (is_refusal, reason) = match made {
                Err(Unreachable::Refused(reason)) => (true, reason),
                Err(Unreachable::Failed(reason)) => (false, reason),
                Ok(made) => panic!("{made:?}"),
            };
            assert_eq!(is_refusal, refused, "{reason}");
            let told = if refused {
                "may not be asked: it is private"
            } else {
                "hung up"
            };
            assert!(reason.contains(told), "{reason}");
        }
    }

    #[tokio::test]
    async fn without_a_resolver_addresses_are_dialled_and_names_say_what_is_missing() {
        let why = hickory_resolver::system_conf::parse_resolv_conf("").unwrap_err();
        let system = SystemNames {
            resolvers: Some(Err(no_resolvers(&why))),
            hosts: Vec::new(),
        };
        let upstream = Upstream::new(WayOut::default(), &system);
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let made = upstream
            .connect(&Host::Address(address.ip()), address.port(), &Strict)
            .await;
        assert_eq!(made.unwrap().address, Some(address.ip()));
        let host = Host::parse("www.example.com").unwrap();
        let Err(Unreachable::Failed(reason)) = upstream.connect(&host, 443, &Strict).await else {
            panic!("a name was resolved");
        };
        assert!(
            reason.contains("`/etc/resolv.conf`") && reason.contains("`dns_servers`"),
            "{reason}"
        );
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
