//! The arguments of `serve` and `key`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use offleash_api::{NodeAddress, NodesName};
use offleash_core::units::Bytes;

#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on. [default: 127.0.0.1:3000]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<ListenAt>,
    /// Domain below which PORT-ID.DOMAIN is a port inside a sandbox. [default: localhost with the port, on a loopback
    /// address]
    #[arg(long, value_name = "DOMAIN[:PORT]")]
    pub(crate) domain: Option<String>,
    /// Certificate chain to speak TLS with, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen where others can reach it without TLS, so that keys can be read on the way.
    #[arg(long)]
    pub(crate) insecure_public: bool,
    /// Let pages of this origin call, such as `https://app.example`.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// What to log on standard error, as JSON lines. [default: errors]
    #[arg(long, value_enum, value_name = "none|errors|requests")]
    pub(crate) log: Option<LogArg>,
    /// Configuration file. Flags win over it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration and end.
    #[arg(long)]
    pub(crate) config_check: bool,
}

/// Where to listen: an address and a port; `localhost` is 127.0.0.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ListenAt(pub(crate) SocketAddr);

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let port: Option<u16> = port.parse().ok();
        match (text.parse(), host, port) {
            (Ok(address), ..) => Ok(Self(address)),
            (Err(_), "localhost", Some(port)) => Ok(Self((Ipv4Addr::LOCALHOST, port).into())),
            (Err(_), host, port) => {
                let port = port.unwrap_or(3000);
                let everywhere = if host.is_empty() {
                    format!(", at every address `0.0.0.0:{port}`")
                } else {
                    String::new()
                };
                Err(format!(
                    "it is no address with a port; on this machine alone it is `127.0.0.1:{port}`{everywhere}"
                ))
            }
        }
    }
}

impl TryFrom<String> for ListenAt {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[derive(Debug, Args)]
pub(crate) struct FrontArgs {
    /// Address of a node's server, as in `https://node-1.example:3000`, or with `http://`, by which keys can be read on the way;
    /// with `=2` behind it the node gets twice as many sandboxes as one with nothing.
    #[arg(long, value_name = "URL[=WEIGHT]", required_unless_present = "nodes_dns")]
    pub(crate) node: Vec<NodeAddress>,
    /// Name that leads by DNS to the servers of nodes, as in `https://boxes-nodes.agents.svc:3000`; asked for again every 5 s.
    /// Addresses of this machine, of its link and of a cloud's services are refused.
    #[arg(long, value_name = "URL[=WEIGHT]")]
    pub(crate) nodes_dns: Vec<NodesName>,
    /// Trust the certificate authorities in FILE (PEM) for nodes, beside the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) node_ca: Option<PathBuf>,
    /// File with an `overview` key that all nodes take, with which they are asked for the ids of their sandboxes; an `admin`
    /// key does, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3000")]
    pub(crate) listen: ListenAt,
    /// Domain below which PORT-ID.DOMAIN is a port inside a sandbox; the nodes need the same. [default: localhost, on a loopback
    /// address]
    #[arg(long, value_name = "DOMAIN[:PORT]")]
    pub(crate) domain: Option<String>,
    /// Certificate chain to speak TLS with, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen where others can reach it without TLS, so that keys can be read on the way.
    #[arg(long)]
    pub(crate) insecure_public: bool,
    /// What to log on standard error, as JSON lines.
    #[arg(long, value_enum, value_name = "none|errors|requests", default_value = "errors")]
    pub(crate) log: LogArg,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// A node of the front that is asked, as `/v1/front/nodes` calls it: it is drained, and its sandboxes go to other nodes.
    #[arg(value_name = "NODE", conflicts_with_all = ["undo", "status"])]
    pub(crate) node: Option<String>,
    /// Take new sandboxes again.
    #[arg(long, conflicts_with_all = ["wait", "status"])]
    pub(crate) undo: bool,
    /// Wait until no sandbox is left.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Say whether the server is drained, and change nothing.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) status: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogArg {
    None,
    Errors,
    Requests,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it; it cannot be shown again. With `--key-file`, take a key that is there.
    Create(KeyCreateArgs),
    /// List keys.
    Ls(KeyListArgs),
    /// Make a key invalid, for good; its sandboxes, and their access tokens, live on unless it is said otherwise.
    Rm(KeyRemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyCreateArgs {
    /// Name for the key.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) name: String,
    /// What it may do: read (look at its own sandboxes), create (make them as well), overview (list the ids of all sandboxes and
    /// nothing else, for a front), admin (everything).
    #[arg(long, value_name = "SCOPE", default_value = "create", value_delimiter = ',')]
    pub(crate) scope: Vec<String>,
    /// Sandboxes that it may have at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_sandboxes: Option<u32>,
    /// CPUs that its running sandboxes may have together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_cpus: Option<u32>,
    /// Memory that its sandboxes may have together: `2G`, or a number of MiB.
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub(crate) max_memory: Option<u64>,
    /// Disk that its sandboxes may have together: `20G`, or a number of MiB.
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub(crate) max_disk: Option<u64>,
    /// Grant it so much of the tools that the server's `tools.policy` declares, as in `pay where amount < 5 calls 3`; `NAME` is all
    /// of one, `*` all of all. Its sandboxes have them unless they are asked for with less.
    #[arg(long, value_name = "GRANT")]
    pub(crate) tool_grant: Vec<String>,
    /// File with a key that is to be valid here, too: `e2b_` and 40 hexadecimal digits. Nothing is printed of it. If it is valid
    /// already, nothing changes; one that was removed does not come back.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// A size in MiB: a number alone is that already.
fn mebibytes(text: &str) -> Result<u64, String> {
    let mib = match text.parse::<u64>() {
        Ok(number) => number,
        Err(_) => text.parse::<Bytes>().map_err(|error| error.to_string())?.0 >> 20,
    };
    match mib {
        0 => Err("it is less than 1 MiB".to_owned()),
        mib => Ok(mib),
    }
}

#[derive(Debug, Args)]
pub(crate) struct KeyListArgs {
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeyRemoveArgs {
    /// End the key's sandboxes, too: a server that runs does so within seconds, otherwise the next one does as it starts.
    /// KEY may be the id of a key that was removed before.
    #[arg(long)]
    pub(crate) stop_sandboxes: bool,
    /// The key's id, or its name.
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[cfg(test)]
mod tests {
    use super::mebibytes;

    #[test]
    fn a_quota_is_a_size_or_a_number_of_mebibytes() {
        for (text, mib) in [
            ("512", 512),
            ("512M", 512),
            ("2G", 2048),
            ("1.5GiB", 1536),
            ("512MB", 488),
        ] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for text in [
            "",
            "0",
            "0G",
            "1K",
            "-1",
            "-1M",
            "M",
            "2X",
            "18446744073709551616",
            "99999999999T",
        ] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }
}
