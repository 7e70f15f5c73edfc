//! The arguments of snapshots and checkpoints.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use offleash_core::id::SandboxName;

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Make a snapshot of a sandbox that runs, and print its id.
    Create(SnapshotCreateArgs),
    /// List snapshots, the newest first.
    Ls(SnapshotLsArgs),
    /// Remove snapshots. Sandboxes made of one go on; its files go with the last of them.
    Rm(SnapshotIdsArgs),
    /// Show all that the daemon knows of snapshots, as JSON.
    Inspect(SnapshotIdsArgs),
    /// Write a snapshot to a file, as a layer of an image with a description in it.
    Export(SnapshotExportArgs),
    /// Make a snapshot of such a file, and print its id. The file need not be trusted.
    Import(SnapshotImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotCreateArgs {
    /// What it is called. The snapshot that was called so is without a name then.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// What sandboxes made of it have of contexts of code: `all`, and there is no snapshot where something cannot be carried;
    /// what is `possible`; `none`.
    #[arg(long, value_name = "WHICH", value_parser = ["all", "possible", "none"], default_value = "all")]
    pub(crate) contexts: String,
    /// The sandbox, by its id or its name; it runs or is paused.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotLsArgs {
    /// Those of one sandbox, by its id.
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox: Option<String>,
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotIdsArgs {
    /// The snapshots, by id or name.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotExportArgs {
    /// The snapshot, by its id or its name.
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) id: String,
    /// The file, which must not exist.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotImportArgs {
    /// What it is called; it has no name otherwise.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// The file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// What it is called. The checkpoint of the sandbox that was called so is without a name then.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// The sandbox, by its id or its name; it runs or is paused.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointsArgs {
    /// Remove this one, by its id or its name.
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) rm: Option<String>,
    /// Print them as JSON.
    #[arg(long, conflicts_with = "rm")]
    pub(crate) json: bool,
    /// The sandbox, by its id or its name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The checkpoint, by its id or its name.
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) checkpoint: String,
    /// The sandbox, by its id or its name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}
