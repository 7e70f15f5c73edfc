//! The flags of permissions, named as Deno names them.

use std::ffi::OsString;

use clap::Args;

/// What code may do, in Deno's words: each is a flag of ours, or several.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Permissions (as Deno's)")]
pub(crate) struct PermissionArgs {
    /// The same as `--read` for each path.
    #[arg(long, num_args = 0.., require_equals = true, value_delimiter = ',', value_name = "PATH,…")]
    pub(crate) allow_read: Option<Vec<OsString>>,
    /// Write to these directories of the host, and read them, at their places (`--mount DIR:DIR:rw`). That of the workspace, and
    /// no directory at all, mean that changes in the workspace are written back (`--workspace DIR:rw`).
    #[arg(long, num_args = 0.., require_equals = true, value_delimiter = ',', value_name = "DIR,…")]
    pub(crate) allow_write: Option<Vec<OsString>>,
    /// The same as `--allow` for each host; without one, as `--internet`.
    #[arg(long, num_args = 0.., require_equals = true, value_delimiter = ',', value_name = "HOST[:PORTS],…")]
    pub(crate) allow_net: Option<Vec<OsString>>,
    /// The same as `--allow-command` for each command; without one, every command may run, as ever.
    #[arg(long, num_args = 0.., require_equals = true, value_delimiter = ',', value_name = "COMMAND,…")]
    pub(crate) allow_run: Option<Vec<OsString>>,
    /// The same as `--env` for each variable.
    #[arg(long, num_args = 0.., require_equals = true, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) allow_env: Option<Vec<OsString>>,
    /// The same as `--deny` for each path.
    #[arg(long, num_args = 1.., require_equals = true, value_delimiter = ',', value_name = "PATH,…")]
    pub(crate) deny_read: Vec<OsString>,
    /// The same as `--deny-host` for each host.
    #[arg(long, num_args = 1.., require_equals = true, value_delimiter = ',', value_name = "HOST[:PORTS],…")]
    pub(crate) deny_net: Vec<OsString>,
    /// The same as `--deny-command` for each command.
    #[arg(long, num_args = 1.., require_equals = true, value_delimiter = ',', value_name = "COMMAND,…")]
    pub(crate) deny_run: Vec<OsString>,
    /// Ask at the terminal about every host that nothing was said of. An answer is for a connection, for this run, or, with
    /// `--policy FILE`, for good.
    #[arg(long, conflicts_with_all = ["internet", "network"])]
    pub(crate) prompt: bool,
}
