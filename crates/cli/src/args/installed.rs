//! The arguments of what is of use when the program was installed: `self-check` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct SelfCheckArgs {
    /// Try this level alone; may be repeated. [default: all]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) level: Vec<String>,
    /// How to print the report.
    #[arg(
        long,
        value_enum,
        value_name = "text|json",
        hide_possible_values = true,
        default_value = "text"
    )]
    pub(crate) format: ReportFormat,
}

/// The form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Lines for people.
    Text,
    /// One JSON document.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write the pages of all commands into this directory, which is there, instead of printing one.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) directory: Option<PathBuf>,
    /// The command, such as `run` or `snapshot create`. [default: offleash itself]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
