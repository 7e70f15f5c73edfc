//! `offleash hold`: the process that holds one sandbox for `offleash mcp`. Nobody calls it by hand, so no help names it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use offleash_core::error::ErrorKind;
use offleash_core::id::RunId;
use offleash_core::spec::NetworkSpec;
use offleash_manager::keeper::own::{OwnAnswer, OwnOrder, hold_own};

use crate::args::{Arguments, Command, McpArgs};
use crate::failure::{EXIT_FAILURE, Failure};
use crate::python::Python;
use crate::{run, specify, terminal};

/// `offleash hold DIRECTORY ID ARGUMENTS`: answers with one line on standard output, and serves until the sandbox ends. The
/// arguments are those of `offleash mcp`.
pub(crate) fn hold(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    offleash_sys::process::keep_free_memory();
    let (directory, id) = (words.next(), words.next());
    let id: Option<RunId> = id.and_then(|id| id.to_str()?.parse().ok());
    let (Some(directory), Some(id)) = (directory, id) else {
        return Failure::new("expected a directory, the id of a sandbox and arguments").print();
    };
    let words = std::iter::once(OsString::from("offleash")).chain(words);
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => return Failure::new(error.to_string()).print(),
    };
    let Command::Mcp(asked) = arguments.command else {
        return Failure::new("expected the arguments of `offleash mcp`").print();
    };
    match order(&asked, arguments.state, directory.into(), id) {
        Ok(order) => serve(order),
        Err(failure) => {
            let (message, hint) = failure.into_words();
            let kind = ErrorKind::Invalid;
            // Whoever waits for it hears of nothing otherwise.
            let _told = answer(&OwnAnswer::NotMade { kind, message, hint });
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn order(asked: &McpArgs, state: Option<PathBuf>, directory: PathBuf, id: RunId) -> Result<OwnOrder, Failure> {
    let mut spec = specify::specify(&asked.sandbox)?;
    // Code is what it is for: that has the libraries of the usual template where that is built.
    Python::choose(&asked.sandbox, &mut spec, state.as_deref())?;
    let cwd = asked
        .sandbox
        .cwd
        .as_deref()
        .map(specify::directory_inside)
        .transpose()?;
    Ok(OwnOrder {
        spec,
        id,
        state,
        directory,
        cwd: cwd.map(|cwd| Path::new(&cwd).to_owned()),
        command: vec!["offleash".into(), "mcp".into()],
    })
}

fn serve(order: OwnOrder) -> ExitCode {
    let network: NetworkSpec = order.spec.network.clone();
    match hold_own(order, answer) {
        Ok(Some(report)) => {
            run::tell(&report.record, &network, &report.notes);
            if let Some(error) = report.unkept {
                terminal::complain(&Failure::from(error).to_string());
            }
            if let Some(held_back) = report.held_back {
                terminal::complain(&format!("offleash: {held_back}"));
            }
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::from(EXIT_FAILURE),
        Err(error) => Failure::from(error).print(),
    }
}

/// Says what came of it, and lets go of the stream: whoever reads it waits for its end.
fn answer(answer: &OwnAnswer) -> io::Result<()> {
    let line = serde_json::to_vec(answer).map_err(io::Error::other)?;
    terminal::answer_and_stay(&[line.as_slice(), b"\n"].concat())
}
