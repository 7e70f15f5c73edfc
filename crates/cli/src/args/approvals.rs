//! Arguments of `offleash approvals`.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct ApprovalsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ApprovalsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List the questions that wait for an answer.
    Ls(ApprovalListArgs),
    /// Allow the call that a question is about.
    Approve(ApproveArgs),
    /// Refuse it, and later ones of its sandbox with the same parameters.
    Deny(DenyArgs),
    /// List the hosts that were allowed for good.
    Allowed(ApprovalListArgs),
    /// Have such a host asked about again, in sandboxes that are made from now on.
    Forget(ForgetArgs),
}

#[derive(Debug, Default, Args)]
pub(crate) struct ApprovalListArgs {
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    /// The question.
    #[arg(value_name = "APPROVAL")]
    pub(crate) id: String,
    /// Allow the tool for this sandbox, within its grant, and not this call alone.
    #[arg(long)]
    pub(crate) for_sandbox: bool,
    /// Allow the host and port for good: in this sandbox, and in those that the same key makes of the same template.
    #[arg(long, conflicts_with = "for_sandbox")]
    pub(crate) always: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// The allowed host, as `offleash approvals allowed` lists it.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct DenyArgs {
    /// The question.
    #[arg(value_name = "APPROVAL")]
    pub(crate) id: String,
}
