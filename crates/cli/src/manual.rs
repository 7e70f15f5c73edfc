//! `offleash man`: manual pages, made of the same arguments as the help.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_mangen::Man;
use offleash_core::text::Text;

use crate::args::{Arguments, ManArgs};
use crate::failure::Failure;
use crate::terminal;

/// Prints the page of a command, or writes those of all.
pub(crate) fn man(arguments: &ManArgs) -> Result<ExitCode, Failure> {
    match &arguments.directory {
        Some(directory) => write_all(directory)?,
        None => terminal::print(&page(&arguments.command)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All commands, each under the name of its page, such as `offleash-snapshot-create`.
fn commands() -> clap::Command {
    let mut commands = Arguments::command().disable_help_subcommand(true);
    commands.build();
    commands
}

fn page(words: &[String]) -> Result<Vec<u8>, Failure> {
    let all = commands();
    let mut command = &all;
    for word in words {
        let found = command.find_subcommand(word).filter(|found| !found.is_hide_set());
        command = found.ok_or_else(|| {
            Failure::new(format!(
                "there is no command `{}`",
                Text::from(words.join(" ").as_str())
            ))
            .with_hint("`offleash help` lists the commands")
        })?;
    }
    let mut page = Vec::new();
    let rendered = Man::new(command.clone()).render(&mut page);
    rendered.map_err(|error| Failure::from_error(&error))?;
    Ok(page)
}

fn write_all(directory: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(commands(), directory).map_err(|error| {
        Failure::from_error(&error)
            .while_trying(format!("cannot write manual pages to `{}`", Text::from(directory)))
            .with_hint("name a directory that is there and can be written to")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_that_of_its_command() {
        let words = ["snapshot".to_owned(), "create".to_owned()];
        let text = String::from_utf8(page(&words).unwrap()).unwrap();
        assert!(text.contains(".TH offleash-snapshot-create 1"), "{text}");
        for words in [["nothing"], ["supervise"]] {
            let words = words.map(str::to_owned);
            let refused = page(&words).unwrap_err().to_string();
            assert!(
                refused.contains("no command") && refused.contains("hint: "),
                "{refused}"
            );
        }
    }

    #[test]
    fn there_is_a_page_for_each_command_and_one_for_all() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        for name in ["offleash", "offleash-run", "offleash-snapshot-create", "offleash-man"] {
            let path = directory.path().join(name).with_extension("1");
            assert!(path.metadata().unwrap().len() > 100, "{name}");
        }
        let nowhere = write_all(&directory.path().join("none")).unwrap_err().to_string();
        assert!(nowhere.contains("cannot write manual pages"), "{nowhere}");
    }
}
