//! One flag for each limit of core's table.

use clap::{ArgAction, Args, FromArgMatches};
use offleash_core::limits::LimitName;

/// One flag for each limit of core's table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitArgs {
    pub(crate) given: Vec<(LimitName, String)>,
}

impl Args for LimitArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let help = |name: LimitName| format!("{} [default: {}]", capitalized(name.doc()), name.default_text());
        command.next_help_heading("Limits").args(LimitName::ALL.map(|name| {
            // The flag is the id: `workspace` is a limit and, as the field of that name, an argument of its own.
            let flag = clap::Arg::new(name.flag())
                .long(name.row().flag.trim_start_matches('-'))
                .value_name("LIMIT")
                .action(ArgAction::Set)
                .allow_hyphen_values(true)
                .help(help(name));
            // What Docker and E2B call them.
            match name {
                LimitName::WallTime => flag.visible_alias("timeout"),
                LimitName::Workspace => flag.visible_alias("disk"),
                LimitName::Memory => flag.short('m'),
                LimitName::Pids => flag.visible_alias("pids-limit"),
                _ => flag,
            }
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let value = |name: LimitName| Some((name, matches.get_one::<String>(name.flag())?.clone()));
        Ok(Self {
            given: LimitName::ALL.into_iter().filter_map(value).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A sentence of core's tables as help texts begin.
fn capitalized(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
