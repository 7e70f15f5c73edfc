//! The project's own tasks: all tests, the benchmarks, and the packages of a release.
//!
//! `cargo xtask test` is what continuous integration runs; `cargo xtask bench start` compares the start of a sandbox
//! with the reference tools, `cargo xtask bench egress` its way out with a direct one; `cargo xtask dist` makes packages. Deliberately not here: the tests
//! themselves (each crate has its own) and anything that is shipped.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what a task prints is its product"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "tasks start cargo, apt-get and the programs they compare; `sys::spawn` is for what runs in a sandbox"
)]

mod bench;
mod dist;
mod docs;
mod error;
mod gvisor;
mod program;
mod sdks;
mod test;
mod vendored;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the offleash workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Formats are checked, lints and documents too, then all tests run: as this user, for root once more as an
    /// ordinary user, and those of limits in a virtual machine
    Test(test::TestOptions),
    /// E2B's SDKs are installed below `target`, or renewed, for the tests that speak through them; `test` does it too
    Sdks,
    /// What the dashboard has of npm is fetched again, at the releases that are named, and compared by digest
    Vendored,
    /// The pictures of the dashboard in `docs/ui` are made anew, in a browser
    Pictures,
    /// The documents are built into a site in `target/docs/site`, with mdBook, and every link in it is looked up
    Docs,
    /// Packages of the program: wheel, npm, tar archive, Debian
    Dist(dist::DistOptions),
    /// Measures against the reference tools
    Bench {
        #[command(subcommand)]
        benchmark: Benchmark,
    },
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// How long a sandbox takes from nothing to its end, what it costs, and how many a second
    Start(bench::StartOptions),
    /// What the network of a sandbox costs: streams, connections, requests and the start
    Egress(bench::EgressOptions),
    /// What a daemon takes to make sandboxes, run commands and move files, and what they cost
    Api(bench::ApiOptions),
    /// How soon an interpreter with pandas answers in a new sandbox, what a cell takes, and what each costs
    Interpreter(bench::InterpreterOptions),
    /// What real work takes: git, package managers, a compiler, renames, processes, many files
    Work(bench::WorkOptions),
    /// What a command of level `simulated` takes, beside bash and level `process`
    Simulated(bench::SimulatedOptions),
    /// What images, builds, checkpoints and snapshots take
    Storage(bench::StorageOptions),
    /// What a sandbox of each level costs, beside runtimes of containers
    Levels(bench::LevelsOptions),
    /// What rules of monitoring cost the processes that hold sandboxes
    Monitoring(bench::MonitoringOptions),
    /// What a session of a browser takes until it can be driven, what navigations take, and what ten hold
    Browser(bench::BrowserOptions),
    /// A program that takes part in `egress`
    #[command(hide = true)]
    EgressPart {
        #[command(subcommand)]
        part: bench::Part,
    },
    /// Measures the commands that standard input names; started by `start` where a contender needs own mounts
    #[command(hide = true)]
    Helper,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Test(options) => test::run(&options),
        Task::Sdks => sdks::install_or_fail(),
        Task::Vendored => vendored::fetch(),
        Task::Pictures => pictures(),
        Task::Docs => docs::build(),
        Task::Dist(options) => dist::run(&options),
        Task::Bench {
            benchmark: Benchmark::Start(options),
        } => bench::run(&options),
        Task::Bench {
            benchmark: Benchmark::Egress(options),
        } => bench::run_egress(&options),
        Task::Bench {
            benchmark: Benchmark::Levels(options),
        } => bench::run_levels(&options),
        Task::Bench {
            benchmark: Benchmark::Browser(options),
        } => bench::run_browser(&options),
        Task::Bench {
            benchmark: Benchmark::Api(options),
        } => bench::run_api(&options),
        Task::Bench {
            benchmark: Benchmark::Interpreter(options),
        } => bench::run_interpreter(&options),
        Task::Bench {
            benchmark: Benchmark::Work(options),
        } => bench::run_work(&options),
        Task::Bench {
            benchmark: Benchmark::Storage(options),
        } => bench::run_storage(&options),
        Task::Bench {
            benchmark: Benchmark::Simulated(options),
        } => bench::run_simulated(&options),
        Task::Bench {
            benchmark: Benchmark::Monitoring(options),
        } => bench::run_monitoring(&options),
        Task::Bench {
            benchmark: Benchmark::EgressPart { part },
        } => bench::take_part(&part),
        Task::Bench {
            benchmark: Benchmark::Helper,
        } => bench::serve_helper(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                eprintln!("  caused by: {inner}");
                cause = inner.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs the test that makes the pictures.
fn pictures() -> Result<(), error::TaskError> {
    let mut command = program::cargo();
    command.args([
        "test",
        "--package",
        "offleash",
        "--test",
        "api",
        "--",
        "--ignored",
        "dashboard::browser_makes_pictures",
    ]);
    command.env("OFFLEASH_SDKS", sdks::directory());
    program::run(&mut command)
}
