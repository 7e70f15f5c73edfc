//! Arguments of `offleash controller`.

use std::path::PathBuf;

use clap::Args;

use super::LogArg;

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Labels of the daemons' pods, as in `app.kubernetes.io/name=offleash,app.kubernetes.io/instance=boxes`.
    #[arg(long, value_name = "NAME=VALUE,…")]
    pub(crate) daemons: String,
    /// File with a `create` key that all daemons take; their sandboxes are this key's.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
    /// What the controller is called: it serves objects with the label `offleash/controller=NAME`, and no others.
    #[arg(long, value_name = "NAME", default_value = "offleash")]
    pub(crate) name: String,
    /// Namespace of the daemons' pods and of the Lease. [default: that of this pod]
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Serve objects of one namespace alone.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) watch: Option<String>,
    /// Port of daemons whose pods name none as `http`.
    #[arg(long, value_name = "PORT", default_value = "3000", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) daemon_port: u16,
    /// Image of placeholder pods, which does nothing.
    #[arg(long, value_name = "IMAGE", default_value = "registry.k8s.io/pause:3.10")]
    pub(crate) pause_image: String,
    /// Domain of the cluster's names.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub(crate) cluster_domain: String,
    /// Address of the API server, without encryption on this machine alone (`kubectl proxy`). [default: that of this pod]
    #[arg(long, value_name = "URL")]
    pub(crate) api_server: Option<String>,
    /// File with the token for the API server, where that is named.
    #[arg(long, value_name = "FILE", requires = "api_server")]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the authority of the API server, where that is named, PEM.
    #[arg(long, value_name = "FILE", requires = "api_server")]
    pub(crate) api_server_ca: Option<PathBuf>,
    /// What to log on standard error, as JSON lines.
    #[arg(long, value_enum, value_name = "none|errors|requests", default_value = "errors")]
    pub(crate) log: LogArg,
}
