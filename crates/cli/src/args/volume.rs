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
    /// Bring a volume and its bucket to the same: what has changed on one side goes to the other.
    Sync(VolumeSyncArgs),
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
    /// Keep what is in this bucket of S3: `s3://BUCKET` or `s3://BUCKET/PREFIX`. Objects are fetched before a sandbox has the
    /// volume, and what it wrote is sent when it ends.
    #[arg(long, value_name = "URL")]
    pub(crate) bucket: Option<String>,
    /// Who has the bucket. Without encryption only this machine is asked. [default: `https://s3.REGION.amazonaws.com`]
    #[arg(long, value_name = "URL", requires = "bucket")]
    pub(crate) endpoint: Option<String>,
    /// The region of the bucket. [default: us-east-1]
    #[arg(long, value_name = "REGION", requires = "bucket")]
    pub(crate) region: Option<String>,
    /// Where the credentials of the bucket are, as `ACCESS_KEY_ID:SECRET_ACCESS_KEY`. No sandbox has them. Without, the bucket
    /// is read by everybody.
    #[arg(long, value_name = "env:VARIABLE|file:PATH", requires = "bucket")]
    pub(crate) secret: Option<String>,
    /// Write nothing to the bucket.
    #[arg(long, requires = "bucket")]
    pub(crate) read_only: bool,
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

#[derive(Debug, Args)]
pub(crate) struct VolumeSyncArgs {
    /// The volume, by name or id.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Fetch what is new in the bucket, and send nothing.
    #[arg(long, conflicts_with = "push")]
    pub(crate) pull: bool,
    /// Send what is new in the volume, and fetch nothing.
    #[arg(long)]
    pub(crate) push: bool,
    /// Remove on the other side what is gone on one; it stays otherwise.
    #[arg(long)]
    pub(crate) delete: bool,
    /// Replace what has changed on both sides, with `--pull` in the volume and with `--push` in the bucket; each side keeps
    /// its own otherwise.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print what was done as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
