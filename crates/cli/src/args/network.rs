//! The flags of the network.

use std::ffi::OsString;

use clap::Args;

/// What may be reached, and how.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Let this host be reached: a name, `*.` before a name, an address or a network; ports 80 and 443 unless named.
    #[arg(long, value_name = "HOST[:PORTS][/PROTOCOL]")]
    pub(crate) allow: Vec<OsString>,
    /// Ask at the terminal when this host is connected to; without a terminal it is refused.
    #[arg(long, value_name = "HOST[:PORTS][/PROTOCOL]")]
    pub(crate) ask: Vec<OsString>,
    /// How long a connection waits for an answer before it is refused. [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub(crate) ask_timeout: Option<String>,
    /// Keep this host from being reached although a less specific rule allows it; every port unless named.
    #[arg(long, value_name = "HOST[:PORTS]")]
    pub(crate) deny_host: Vec<OsString>,
    /// Let these requests through to a host, and no others. METHODS may be `*`. In PATH `*` is a segment or, at the end,
    /// whatever follows. The gateway opens TLS to the host.
    #[arg(long, value_name = "METHODS HOST/PATH")]
    pub(crate) allow_method: Vec<OsString>,
    /// Set this header in requests to a host, in place of what the sandbox sent.
    #[arg(long, value_name = "HOST NAME: VALUE")]
    pub(crate) set_header: Vec<OsString>,
    /// Take this header from requests to a host.
    #[arg(long, value_name = "HOST NAME")]
    pub(crate) remove_header: Vec<OsString>,
    /// Reach every public address at any port, unless a rule says otherwise. Private networks and this machine stay
    /// closed.
    #[arg(long, conflicts_with = "network")]
    pub(crate) internet: bool,
    /// Ask this DNS server for the addresses of names, in place of the machine's own. Where it does not answer, the next
    /// one is asked.
    #[arg(long, value_name = "IP[:PORT]")]
    pub(crate) dns_server: Vec<OsString>,
    /// Reach everything through the proxy of your network. A URL here has no password: `http://HOST:PORT`, `socks5://…`,
    /// or `socks5h://…` for a proxy that resolves names. `env` is HTTPS_PROXY and its kin. `env:VARIABLE` and `file:PATH`
    /// name what holds the URL, which may have a password then.
    #[arg(long, value_name = "URL|env|env:VARIABLE|file:PATH")]
    pub(crate) upstream_proxy: Option<OsString>,
    /// Reach this host without the upstream proxy: a name, `*.` before a name, an address or a network.
    #[arg(long, value_name = "HOST")]
    pub(crate) no_proxy: Vec<OsString>,
    /// Set HTTP_PROXY and its kin to the proxy inside, for programs that insist on one.
    #[arg(long)]
    pub(crate) proxy_variables: bool,
    /// Let requests to a host use a secret that the sandbox does not have. NAME holds a placeholder inside, and the
    /// gateway puts the value in. SOURCE is `env:VARIABLE` or `file:PATH`. PLACE is `bearer`, `basic`, `header:NAME`,
    /// `query:NAME` or `sigv4`; any header for credentials unless named. With `basic:USER` the gateway itself signs in to
    /// HOST as USER, in every request.
    #[arg(
        long,
        value_name = "NAME=SOURCE@HOST[,HOST…][#PLACE[,PLACE…]]",
        conflicts_with = "network"
    )]
    pub(crate) secret: Vec<OsString>,
    /// Let programs outside connect to a port of the sandbox, on 127.0.0.1 unless an IPv4 address is named. HOSTPORT 0 is
    /// any free port. PORT alone is the same on both sides.
    #[arg(long, short = 'p', value_name = "[ADDRESS:]HOSTPORT:PORT")]
    pub(crate) publish: Vec<OsString>,
    /// Let the sandbox reach this service on the host's 127.0.0.1, at the same port of its own 127.0.0.1 or at INSIDE.
    #[arg(long, value_name = "PORT[:INSIDE]")]
    pub(crate) host_port: Vec<OsString>,
    /// `none`: nothing is reached, whatever the policy allows.
    #[arg(long, visible_alias = "net", value_name = "none", conflicts_with_all = [
        "allow", "allow_net", "ask", "ask_timeout", "allow_method", "set_header", "remove_header", "dns_server", "upstream_proxy",
        "no_proxy",
        "proxy_variables", "publish", "host_port"
    ])]
    pub(crate) network: Option<String>,
}
