//! The flags of the network.

use std::ffi::OsString;

use clap::Args;

/// What may be reached, and how.
#[derive(Debug, Default, Args)]
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
    /// Let these requests through to a host, and no others: methods or `*`, a host, a path in which `*` is a segment or,
    /// at the end, whatever follows. TLS to the host is opened by the gateway.
    #[arg(long, value_name = "METHODS HOST/PATH")]
    pub(crate) allow_method: Vec<OsString>,
    /// Set this header in requests to a host, in place of what the sandbox sent.
    #[arg(long, value_name = "HOST NAME: VALUE")]
    pub(crate) set_header: Vec<OsString>,
    /// Take this header from requests to a host.
    #[arg(long, value_name = "HOST NAME")]
    pub(crate) remove_header: Vec<OsString>,
    /// `none`: nothing is reached, whatever the policy allows.
    #[arg(long, value_name = "none", conflicts_with_all = ["allow", "ask", "allow_method"])]
    pub(crate) network: Option<String>,
}
