//! Arguments of `offleash tools`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ToolsCommand {
    /// List the tools of a policy.
    Ls(ToolSourceArgs),
    /// Call a tool as code in a sandbox would.
    Call(ToolCallArgs),
    /// Offer the tools to an agent host, outside of any sandbox: speaks the Model Context Protocol on standard input and output.
    Serve(ToolSourceArgs),
}

/// Where tools are declared.
#[derive(Debug, Args)]
pub(crate) struct ToolSourceArgs {
    /// The policy.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: PathBuf,
    /// Grant no more than this, as `run --tool-grant` does.
    #[arg(long, value_name = "GRANT")]
    pub(crate) tool_grant: Vec<OsString>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ToolCallArgs {
    #[command(flatten)]
    pub(crate) source: ToolSourceArgs,
    /// The tool, and its arguments: `--NAME VALUE`, values of required parameters in their order, or a JSON object; `-` reads one
    /// from standard input.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "TOOL"
    )]
    pub(crate) call: Vec<String>,
}
