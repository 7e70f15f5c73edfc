//! Arguments of `offleash desktop`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum DesktopCommand {
    /// Start a desktop in a sandbox of its own, and print the address of the page that shows its screen.
    Create(Box<DesktopCreateArgs>),
    /// List desktops.
    Ls(DesktopListArgs),
    /// Print the address of the page that shows the screen of a desktop: whoever has it sees and drives it, or sees it alone.
    Url(DesktopUrlArgs),
    /// End desktops.
    #[command(visible_alias = "rm")]
    Release(DesktopIdsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DesktopCreateArgs {
    /// What the sandbox is made from. [default: `desktop` where there is one, or else `base`]
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// The size of its screen, pixels. [default: 1024x768]
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    pub(crate) resolution: Option<String>,
    /// Pixels an inch. [default: 96]
    #[arg(long, value_name = "DPI")]
    pub(crate) dpi: Option<u16>,
    /// Let programs reach a name, `*.` before a name, an address or a network, and nothing else.
    #[arg(long, value_name = "HOST[:PORTS]")]
    pub(crate) allow: Vec<String>,
    /// Let programs not reach an address or a network.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) deny_host: Vec<String>,
    /// How long the desktop lasts, such as 90s, 5m or 2h. [default: the daemon's]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Memory it may use, MiB. [default: 1024]
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Keep pictures of its screen.
    #[arg(long)]
    pub(crate) record: bool,
    /// A label.
    #[arg(long, short = 'l', value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// Print all that is known of the desktop, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DesktopListArgs {
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DesktopUrlArgs {
    /// The desktop.
    #[arg(value_name = "DESKTOP")]
    pub(crate) id: String,
    /// Print the address at which the screen is seen and nobody drives it.
    #[arg(long)]
    pub(crate) view_only: bool,
    /// Print the address of its WebSocket instead, for viewers such as noVNC.
    #[arg(long)]
    pub(crate) websocket: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DesktopIdsArgs {
    /// The desktops.
    #[arg(value_name = "DESKTOP", required = true)]
    pub(crate) ids: Vec<String>,
}
