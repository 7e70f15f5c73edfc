//! The flags of a run from which a policy is learned.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// What is learned from a run.
#[derive(Debug, Default, Args)]
pub(crate) struct LearnArgs {
    /// Ask about every host that no rule is about, and add what the run reached to the policy FILE.
    #[arg(long, value_name = "FILE", help_heading = "Network", conflicts_with = "network")]
    pub(crate) learn: Option<PathBuf>,
    /// With `--learn`: do not ask about this host, but allow it.
    #[arg(
        long,
        value_name = "HOST[:PORTS][/PROTOCOL]",
        help_heading = "Network",
        requires = "learn"
    )]
    pub(crate) learn_allow: Vec<OsString>,
}
