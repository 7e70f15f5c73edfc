//! The subcommands of `image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Fetch images from registries and unpack them.
    Pull(ImagePullArgs),
    /// Take images from an archive of `docker save`, or from a layout of OCI in an archive or a directory.
    Load(ImageLoadArgs),
    /// Give an image another name.
    Tag(ImageTagArgs),
    /// Write images to an archive that `docker load`, `podman load` and `image load` take.
    Save(ImageSaveArgs),
    /// List the images.
    Ls(ImageLsArgs),
    /// Show all that is known of images, as JSON.
    Inspect(ImageInspectArgs),
    /// Remove names of images, and what of them nothing else needs.
    Rm(ImageRmArgs),
    /// Remove what no name needs, and what broken pulls left.
    Prune(ImagePruneArgs),
}

/// When the image of a run is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum PullArg {
    /// When it is not here.
    #[default]
    Missing,
    /// Before each run.
    Always,
    /// Not at all.
    Never,
}

/// How registries are reached.
#[derive(Debug, Default, Args)]
pub(crate) struct RegistryArgs {
    /// Trust the certificate authorities in this PEM file, too, when an image is pulled.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_ca: Vec<PathBuf>,
    /// Ask the registry without encryption when an image is pulled; only one at `localhost` or another name of this machine.
    #[arg(long)]
    pub(crate) plain_http: bool,
    /// Ask the mirror at URL before the registry, such as `docker.io=https://mirror.example`.
    #[arg(long, value_name = "REGISTRY=URL")]
    pub(crate) mirror: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePullArgs {
    /// The images, as Docker names them: `python:3.12-slim`, `ghcr.io/owner/name@sha256:…`.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Print nothing but failures and what was pulled.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageLoadArgs {
    /// The archive or the directory; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What the image is called, whatever the file says.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print nothing but failures and what was loaded.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageTagArgs {
    /// The image, by name or by the beginning of an id.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// What it is called, too; what was called so before is not any more.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImageSaveArgs {
    /// The archive, which must not exist; standard output if absent.
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The images, by name or by the beginning of an id.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageLsArgs {
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageInspectArgs {
    /// The images, by name or by the beginning of an id.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// The images, by name or by the beginning of an id.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePruneArgs {
    /// Remove all images that no run uses.
    #[arg(long, short = 'a')]
    pub(crate) all: bool,
}
