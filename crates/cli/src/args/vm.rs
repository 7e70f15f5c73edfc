//! The subcommands of `vm`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Find a kernel for guests, check it, and make ready what machines are booted from.
    Kernel(VmKernelArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VmKernelArgs {
    /// Unpack this Debian package of a kernel (`linux-image-…-cloud-amd64`) into the state directory first.
    #[arg(long, value_name = "FILE.deb", conflicts_with = "path")]
    pub(crate) package: Option<PathBuf>,
    /// Look at this alone: a kernel, or a directory with `boot` and `lib/modules` of one. [default: the state directory, then
    /// the newest below /boot]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}
