//! `cargo xtask test`: everything that has to hold before a change goes in.
//!
//! What tests need is installed where that is possible, the sources are checked, and every test runs as this user;
//! when that is root, what touches the kernel runs once more as an ordinary user, because a sandbox that only holds
//! for root holds for nobody.

mod compiled;
mod libtest;
mod ordinary_user;
mod prerequisites;
mod runner;
mod summary;

use std::process::Command;
use std::time::Instant;

use crate::error::TaskError;
use crate::program::{self, cargo, workspace_root};
use summary::{Skip, Summary};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Do not run the tests a second time as an ordinary user
    #[arg(long)]
    quick: bool,
}

/// Runs all steps, goes on after a failed one where that makes sense, and prints the summary.
///
/// # Errors
/// `Failed` when anything failed.
pub(crate) fn run(options: &TestOptions) -> Result<(), TaskError> {
    let mut summary = Summary::default();
    step(&mut summary, "prerequisites", || Ok(prerequisites::install()));
    check_sources(&mut summary);
    run_tests(&mut summary, options);
    print!("{summary}");
    match summary.failures() {
        0 => Ok(()),
        count => Err(TaskError::Failed { count }),
    }
}

fn check_sources(summary: &mut Summary) {
    step(summary, "format", || check(cargo().args(["fmt", "--all", "--check"])));
    step(summary, "lint", || {
        check(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
    });
    step(summary, "documents", || {
        check(
            cargo()
                .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])
                .env("RUSTDOCFLAGS", "--deny warnings"),
        )
    });
}

fn run_tests(summary: &mut Summary, options: &TestOptions) {
    let mut compiled = None;
    step(summary, "build", || {
        compiled = Some(compiled::build()?);
        Ok(Vec::new())
    });
    let Some(compiled) = compiled else { return };

    let user = if program::is_root() { "root" } else { "this user" };
    summary
        .passes
        .push(runner::run(user, &runner::AsThisUser { compiled: &compiled }));
    step(summary, "examples in documents", check_examples);

    match ordinary_user::why_not(options.quick) {
        Some(reason) => summary.skips.push(Skip {
            what: "the second pass, as an ordinary user".to_owned(),
            reason,
        }),
        None => match ordinary_user::run(&compiled) {
            Ok(pass) => summary.passes.push(pass),
            Err(error) => summary.record("second pass", Err(&error), std::time::Duration::ZERO),
        },
    }
}

/// Runs one step, says so, and keeps its result and its skips.
fn step(summary: &mut Summary, name: &'static str, body: impl FnOnce() -> Result<Vec<Skip>, TaskError>) {
    eprintln!("── {name}");
    let start = Instant::now();
    let outcome = body();
    match &outcome {
        Ok(_) => summary.record(name, Ok(()), start.elapsed()),
        Err(error) => {
            eprintln!("error: {error}");
            summary.record(name, Err(error), start.elapsed());
        }
    }
    summary.skips.extend(outcome.unwrap_or_default());
}

fn check_examples() -> Result<Vec<Skip>, TaskError> {
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--doc", "--quiet"])
        .current_dir(workspace_root());
    program::run_and_print(&mut command, libtest::without_empty_frames).map(|()| Vec::new())
}

fn check(command: &mut Command) -> Result<Vec<Skip>, TaskError> {
    program::run(command.current_dir(workspace_root())).map(|()| Vec::new())
}
