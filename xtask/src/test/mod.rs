//! `cargo xtask test`: everything that has to hold before a change goes in.
//!
//! What tests need is installed where that is possible, the sources are checked, and every test runs as this user;
//! when that is root, what touches the kernel runs once more as an ordinary user, because a sandbox that only holds
//! for root holds for nobody. Tests of limits run in a virtual machine as well, whose control groups are those of most
//! machines.

mod compiled;
mod libtest;
mod ordinary_user;
mod prerequisites;
mod runner;
mod summary;
mod times;
mod virtual_machine;

use std::process::Command;
use std::time::Instant;

use crate::error::TaskError;
use crate::program::{self, cargo, workspace_root};
use crate::sdks;
use compiled::Compiled;
use summary::{Skip, Summary};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Do not run the tests a second time as an ordinary user, nor in a virtual machine
    #[arg(long)]
    quick: bool,
    /// Run only the tests in a virtual machine
    #[arg(long, conflicts_with = "quick")]
    only_vm: bool,
}

/// Runs all steps, goes on after a failed one where that makes sense, and prints the summary.
///
/// # Errors
/// `Failed` when anything failed.
pub(crate) fn run(options: &TestOptions) -> Result<(), TaskError> {
    let mut summary = Summary::default();
    step(&mut summary, "prerequisites", || Ok(prerequisites::install()));
    if !options.only_vm {
        step(&mut summary, "SDKs", || Ok(install_sdks()));
        check_sources(&mut summary);
    }
    if let Some(compiled) = build(&mut summary) {
        if !options.only_vm {
            run_tests(&mut summary, &compiled, options);
        }
        run_in_virtual_machine(&mut summary, &compiled, options);
    }
    print!("{summary}");
    match summary.failures() {
        0 => Ok(()),
        count => Err(TaskError::Failed { count }),
    }
}

/// The tests that miss one say so, too.
fn install_sdks() -> Vec<Skip> {
    let missing = sdks::install().into_iter();
    let skip = |(sdk, reason)| Skip {
        what: format!("tests with `{sdk}`, an SDK or libraries"),
        reason,
    };
    let kernel = virtual_machine::install_kernel().err().map(|reason| Skip {
        what: "tests with virtual machines of our own".to_owned(),
        reason,
    });
    missing.map(skip).chain(kernel).collect()
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

fn build(summary: &mut Summary) -> Option<Compiled> {
    let mut compiled = None;
    step(summary, "build", || {
        compiled = Some(compiled::build()?);
        Ok(Vec::new())
    });
    compiled
}

fn run_tests(summary: &mut Summary, compiled: &Compiled, options: &TestOptions) {
    let user = if program::is_root() { "root" } else { "this user" };
    summary.passes.push(runner::run(user, &runner::AsThisUser { compiled }));
    step(summary, "examples in documents", check_examples);

    match ordinary_user::why_not(options.quick) {
        Some(reason) => summary.skips.push(Skip {
            what: "the second pass, as an ordinary user".to_owned(),
            reason,
        }),
        None => match ordinary_user::run(compiled) {
            Ok(pass) => summary.passes.push(pass),
            Err(error) => summary.record("second pass", Err(&error), std::time::Duration::ZERO),
        },
    }
}

fn run_in_virtual_machine(summary: &mut Summary, compiled: &Compiled, options: &TestOptions) {
    let outcome = match virtual_machine::why_not(options.quick) {
        Some(reason) => Ok(virtual_machine::Outcome::Skipped(reason)),
        None => virtual_machine::run(compiled),
    };
    match outcome {
        Ok(virtual_machine::Outcome::Ran(passes)) => summary.passes.extend(passes),
        Ok(virtual_machine::Outcome::Skipped(reason)) => summary.skips.push(Skip {
            what: "the tests in a virtual machine with cgroup v2".to_owned(),
            reason,
        }),
        Err(error) => summary.record("virtual machine", Err(&error), std::time::Duration::ZERO),
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
