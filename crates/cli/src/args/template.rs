//! The subcommands of `template`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use offleash_core::template::ReadyRecipe;

use super::{IdsArg, PullArg, RegistryArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build a template in a sandbox, in the place of one of the same name.
    Build(Box<TemplateBuildArgs>),
    /// List the templates.
    Ls(TemplateLsArgs),
    /// Show all that is known of templates, as JSON.
    Inspect(TemplateInspectArgs),
    /// Remove templates that no sandbox uses.
    Rm(TemplateRmArgs),
    /// Remove what steps of builds left that no template consists of.
    Prune(TemplatePruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TemplateBuildArgs {
    /// What it is called: a-z, 0-9, `-` and `_`.
    #[arg(long, short = 't', value_name = "NAME", required_unless_present = "file")]
    pub(crate) name: Option<String>,
    /// Build on the host's own system, as without `--from`.
    #[arg(long)]
    pub(crate) from_host: bool,
    /// Build on this image, or on a template that was built from one; each step is then a layer that is made once.
    #[arg(long, value_name = "IMAGE|template://NAME", conflicts_with = "from_host")]
    pub(crate) from: Option<String>,
    /// Recipe, such as `offleash-template.toml`; flags add to its lists and win over its other keys. With a CONTEXT it is
    /// the Dockerfile. [default with a CONTEXT: Dockerfile in it]
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Directory that a Dockerfile copies from; what its `.dockerignore` names is left out.
    #[arg(value_name = "CONTEXT", requires = "name", conflicts_with_all = [
        "from", "from_host", "pip", "apt", "npm", "run", "env", "index_url",
    ])]
    pub(crate) context: Option<PathBuf>,
    /// Set an `ARG` of the Dockerfile; without a value it is that of your own variable.
    #[arg(long, value_name = "NAME[=VALUE]", requires = "context")]
    pub(crate) build_arg: Vec<String>,
    /// Build this stage of the Dockerfile, and those that it needs. [default: the last one]
    #[arg(long, value_name = "STAGE", requires = "context")]
    pub(crate) target: Option<String>,
    /// Carry out every step, also those that an earlier build has carried out. Only of builds from an image.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// When images that are built upon are pulled. [default: missing]
    #[arg(long, value_enum, value_name = "missing|always|never")]
    pub(crate) pull: Option<PullArg>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Begin with a ready recipe, to whose lists flags add.
    #[arg(long, value_name = "browser|desktop|code-interpreter", conflicts_with = "context")]
    pub(crate) recipe: Option<ReadyRecipe>,
    /// Install these packages for the Python that `python3` is inside.
    #[arg(long, value_name = "REQUIREMENT,…")]
    pub(crate) pip: Vec<String>,
    /// Install these packages of the distribution; needs root, or subordinate ids.
    #[arg(long, value_name = "PACKAGE,…", value_delimiter = ',')]
    pub(crate) apt: Vec<String>,
    /// Install these packages for Node, globally.
    #[arg(long, value_name = "PACKAGE,…", value_delimiter = ',')]
    pub(crate) npm: Vec<String>,
    /// Run COMMAND with `sh -c` after packages were installed, as root.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) run: Vec<String>,
    /// Set a variable for every command in sandboxes of the template; whoever lists templates sees it.
    #[arg(long, short = 'e', value_name = "NAME=VALUE")]
    pub(crate) env: Vec<OsString>,
    /// Where pip looks instead of PyPI.
    #[arg(long, value_name = "URL")]
    pub(crate) index_url: Option<String>,
    /// Pass a variable of this name to the build alone, or set it; the scripts of packages see it.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) build_env: Vec<OsString>,
    /// Let the build reach this host beside the indexes of its packages.
    #[arg(long, value_name = "HOST[:PORTS][/PROTOCOL]")]
    pub(crate) allow: Vec<OsString>,
    /// Let the build reach every public address.
    #[arg(long)]
    pub(crate) internet: bool,
    /// Reach everything by way of this proxy; `env` is what HTTPS_PROXY says.
    #[arg(long, value_name = "env|URL|file:PATH")]
    pub(crate) upstream_proxy: Option<OsString>,
    /// What the template may take on disk. [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<String>,
    /// User ids of the sandbox that it is built in: one, or a range of 65536. [default: a range where it can be had]
    #[arg(long, value_enum, value_name = "single|range")]
    pub(crate) ids: Option<IdsArg>,
    /// Print what the steps print.
    #[arg(long, short = 'v', conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Print nothing but failures.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TemplatePruneArgs {
    /// Every step, also those that templates consist of: the templates stay, and are built anew the next time.
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateLsArgs {
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateInspectArgs {
    /// The templates; one that a key of the server has built is KEY/NAME.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateRmArgs {
    /// The templates; one that a key of the server has built is KEY/NAME.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}
