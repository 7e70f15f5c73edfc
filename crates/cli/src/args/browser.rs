//! Arguments of `offleash browser`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum BrowserCommand {
    /// Start a browser in a sandbox of its own, and print the address at which it is driven.
    Create(Box<BrowserCreateArgs>),
    /// List sessions of browsers.
    Ls(BrowserListArgs),
    /// Print the address at which the browser of a session is driven: whoever has it may.
    Url(BrowserIdArgs),
    /// End sessions, and save their contexts first if they are to be saved.
    #[command(visible_alias = "rm")]
    Release(BrowserIdsArgs),
    /// Print what the browser of a session requested, was answered and wrote to its console, as JSON lines.
    Logs(BrowserIdArgs),
    /// Print the requests of a session as HAR 1.2, without bodies, cookies and credentials.
    Har(BrowserIdArgs),
    /// List contexts: what browsers keep between sessions.
    Contexts(BrowserListArgs),
    /// Remove contexts that no session saves to.
    Forget(BrowserNamesArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BrowserCreateArgs {
    /// What the sandbox is made from. [default: `browser` where there is one, or else `base`]
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Begin with this context, made if it is not there, and save to it at the end.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Begin with the context, and leave it as it was.
    #[arg(long, requires = "context")]
    pub(crate) read_context: bool,
    /// Let pages reach a name, `*.` before a name, an address or a network, and nothing else.
    #[arg(long, value_name = "HOST[:PORTS]")]
    pub(crate) allow: Vec<String>,
    /// Let pages not reach an address or a network.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) deny_host: Vec<String>,
    /// Reach what pages may reach through a proxy of SOCKS 5: `socks5://HOST:PORT`, or `env:VARIABLE` or `file:PATH`, where
    /// its URL may have a name and a password.
    #[arg(long, value_name = "PROXY")]
    pub(crate) proxy: Option<String>,
    /// How long the session lasts, such as 90s, 5m or 2h. [default: the daemon's]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// The size of its windows, pixels.
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    pub(crate) viewport: Option<String>,
    /// What the browser calls itself.
    #[arg(long, value_name = "TEXT")]
    pub(crate) user_agent: Option<String>,
    /// Its language, such as de-DE.
    #[arg(long, value_name = "LOCALE")]
    pub(crate) locale: Option<String>,
    /// Its time zone, such as Europe/Berlin.
    #[arg(long, value_name = "ZONE")]
    pub(crate) timezone: Option<String>,
    /// Memory it may use, MiB. [default: 1024]
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Keep pictures of its pages.
    #[arg(long)]
    pub(crate) record: bool,
    /// A label.
    #[arg(long, short = 'l', value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// Print all that is known of the session, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BrowserListArgs {
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BrowserIdArgs {
    /// The session.
    #[arg(value_name = "SESSION")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct BrowserIdsArgs {
    /// The sessions.
    #[arg(value_name = "SESSION", required = true)]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BrowserNamesArgs {
    /// The contexts, by name or id.
    #[arg(value_name = "CONTEXT", required = true)]
    pub(crate) names: Vec<String>,
}
