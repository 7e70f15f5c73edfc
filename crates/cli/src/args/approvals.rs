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
}

#[derive(Debug, Args)]
pub(crate) struct DenyArgs {
    /// The question.
    #[arg(value_name = "APPROVAL")]
    pub(crate) id: String,
}
