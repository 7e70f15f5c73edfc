//! The subcommands of `volume`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use offleash_core::units::Bytes;
use offleash_core::volume::VolumeName;

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume: a directory that outlives the sandboxes that it is mounted in.
    Create(VolumeCreateArgs),
    /// List the volumes.
    Ls(VolumeLsArgs),
    /// Show all that is known of volumes, and how much is in them, as JSON.
    Inspect(VolumeInspectArgs),
    /// Remove volumes that nobody uses, or with `NAME:/PATH` something in one.
    Rm(VolumeRmArgs),
    /// Copy files and directories into a volume, or out of it.
    Cp(VolumeCpArgs),
    /// Change how much a volume may hold, for sandboxes that are started from then on.
    Resize(VolumeResizeArgs),
    /// Remove volumes of yours that are empty and that nobody uses.
    Prune(VolumePruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VolumeResizeArgs {
    /// How much its files may take on disk, such as 512M or 2G.
    #[arg(long, value_name = "SIZE", required_unless_present = "inodes")]
    pub(crate) size: Option<Bytes>,
    /// How many files, directories and links it may have.
    #[arg(long, value_name = "N")]
    pub(crate) inodes: Option<u64>,
    /// The volume, by name or id.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct VolumePruneArgs {
    /// Those that are not empty, too, with all that is in them.
    #[arg(long, short = 'a')]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArgs {
    /// What it is called.
    #[arg(value_name = "NAME")]
    pub(crate) name: VolumeName,
    /// How much its files may take on disk, such as 512M or 2G. [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    /// How many files, directories and links it may have. [default: 500000]
    #[arg(long, value_name = "N")]
    pub(crate) inodes: Option<u64>,
    /// Let many sandboxes write to it at the same time, instead of one.
    #[arg(long)]
    pub(crate) shared: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeLsArgs {
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeInspectArgs {
    /// The volumes, by name or id.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeRmArgs {
    /// The volumes, by name or id; `NAME:/PATH` is something in one, with all that is in it.
    #[arg(value_name = "NAME[:/PATH]", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCpArgs {
    /// The most that is copied out of a volume in all.
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub(crate) max_bytes: Bytes,
    /// From where: a path here, or NAME:/PATH.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// To where: a path here, or NAME:/PATH. What is a directory there gets the copy into it.
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: PathBuf,
}
