//! `cargo xtask test`: everything that has to hold before a change goes in.
//!
//! What tests need is installed where that is possible, the sources are checked, and every test runs as this user;
//! when that is root, what touches the kernel runs as an ordinary user as well, because a sandbox that only holds
//! for root holds for nobody. Tests of limits run in a virtual machine, too, whose control groups are those of most
//! machines. Users' tests run beside one another.

mod compiled;
mod examples;
mod libtest;
mod ordinary_user;
mod prerequisites;
mod runner;
mod scratch;
mod summary;
mod times;
mod virtual_machine;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::error::TaskError;
use crate::program::{self, cargo, workspace_root};
use crate::sdks;
use compiled::Compiled;
use ordinary_user::AsOrdinaryUser;
use runner::{AsThisUser, Runner};
use summary::{Pass, Skip, Summary};
pub(crate) use virtual_machine::install_kernel;

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Do not run the tests a second time as an ordinary user, nor in a virtual machine
    #[arg(long)]
    quick: bool,
    /// Run only the tests in a virtual machine
    #[arg(long, conflicts_with = "quick")]
    only_vm: bool,
    /// Run only the tests, and leave the check of format and the examples in documents out
    #[arg(long, conflicts_with = "only_vm")]
    only_tests: bool,
}

/// Runs all steps, goes on after a failed one where that makes sense, and prints the summary.
///
/// # Errors
/// `Failed` when anything failed.
pub(crate) fn run(options: &TestOptions) -> Result<(), TaskError> {
    let mut summary = Summary::default();
    step(&mut summary, "prerequisites", || Ok(prerequisites::install()));
    let checks_sources = !options.only_vm && !options.only_tests;
    if checks_sources {
        step(&mut summary, "format", || {
            check(cargo().args(["fmt", "--all", "--check"]))
        });
    }
    let compiled = build_beside_sdks(&mut summary, options);
    std::thread::scope(|scope| {
        // Tests wait a third of their time.
        let Some(compiled) = &compiled else {
            return;
        };
        let examples = checks_sources.then(|| scope.spawn(examples::run_beside_tests));
        run_tests(&mut summary, compiled, options);
        if let Some(examples) = examples {
            summary.absorb(joined(examples));
        }
    });
    print!("{summary}");
    match summary.failures() {
        0 => Ok(()),
        count => Err(TaskError::Failed { count }),
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Builds while SDKs are fetched: one waits for processors, the other for registries.
fn build_beside_sdks(summary: &mut Summary, options: &TestOptions) -> Option<Compiled> {
    std::thread::scope(|scope| {
        let sdks = (!options.only_vm).then(|| {
            scope.spawn(|| {
                let start = Instant::now();
                (install_sdks(), start.elapsed())
            })
        });
        let mut compiled = None;
        step(summary, "build, lint, documents", || {
            compiled = Some(compiled::build()?);
            Ok(Vec::new())
        });
        if let Some((skips, time)) = sdks.map(joined) {
            summary.record("SDKs, meanwhile", Ok(()), time);
            summary.skips.extend(skips);
        }
        compiled
    })
}

/// The tests that miss one say so, too.
fn install_sdks() -> Vec<Skip> {
    let missing = sdks::install().into_iter();
    let skip = |(sdk, reason)| Skip {
        what: format!("tests with `{sdk}`, an SDK or libraries"),
        reason,
    };
    let kernel = install_kernel().err().map(|reason| Skip {
        what: "tests with virtual machines of our own".to_owned(),
        reason,
    });
    missing.map(skip).chain(kernel).collect()
}

fn run_tests(summary: &mut Summary, compiled: &Compiled, options: &TestOptions) {
    if !options.only_vm {
        match run_here(summary, compiled, options) {
            Ok(passes) => summary.passes.extend(passes),
            Err(error) => summary.record("tests", Err(&error), std::time::Duration::ZERO),
        }
    }
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

/// Runs the tests of all users beside one another.
fn run_here(summary: &mut Summary, compiled: &Compiled, options: &TestOptions) -> Result<Vec<Pass>, TaskError> {
    let ordinary = match ordinary_user::why_not(options.quick) {
        Some(reason) => {
            summary.skips.push(Skip {
                what: "the second pass, as an ordinary user".to_owned(),
                reason,
            });
            None
        }
        None => Some(AsOrdinaryUser::prepare(compiled)?),
    };
    let scratch = tempfile::Builder::new().prefix("xtask-").tempdir();
    let scratch = scratch.map_err(TaskError::file("creating a directory in", std::env::temp_dir()))?;
    // In a thread of its own, which alone sees what is mounted for tests.
    let passes = std::thread::scope(|scope| {
        let thread = scope.spawn(|| run_in(scratch.path(), compiled, ordinary.as_ref()));
        thread.join()
    });
    passes.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn run_in(scratch: &Path, compiled: &Compiled, ordinary: Option<&AsOrdinaryUser>) -> Result<Vec<Pass>, TaskError> {
    let mut directories = vec![scratch];
    directories.extend(ordinary.map(AsOrdinaryUser::home));
    let in_memory = scratch::keep_in_memory(&directories).is_ok();
    let this = AsThisUser {
        compiled,
        scratch: in_memory.then_some(scratch),
    };
    let user = if program::is_root() { "root" } else { "this user" };
    let mut runners = vec![Runner { user, launch: &this }];
    if let Some(launch) = ordinary {
        launch.hand_over()?;
        let user = "an ordinary user";
        runners.push(Runner { user, launch });
    }
    Ok(runner::run(&runners))
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

fn check(command: &mut Command) -> Result<Vec<Skip>, TaskError> {
    program::run(command.current_dir(workspace_root())).map(|()| Vec::new())
}
