//! A further pass: what control groups hold, in a virtual machine that has version 2 alone, as most machines do.
//!
//! The machine on which tests run may have version 1, or groups that are not ours to make. This one is the same
//! everywhere: Debian's kernel, groups laid out as systemd lays them out, root and an ordinary user with and without
//! delegation. It shows as well that sandboxes work on Linux 6.1, where this machine may have another.
//! Everything is emulated, and so only tests that depend on groups or on the kernel's age are run.

mod archive;
mod machine;
mod packages;
mod report;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use super::compiled::{Compiled, TestBinary};
use super::runner::{self, AsThisUser, Job};
use super::summary::Pass;
use crate::error::TaskError;
use crate::program;
use packages::Packages;

/// After this many seconds a test is killed and has failed.
const TEST_TIMEOUT_S: u32 = 120;

/// Executables, by label, and the beginnings of the names of tests to run in them.
type Tests = &'static [(&'static str, &'static [&'static str])];

/// Who runs tests in the machine.
#[derive(Debug)]
struct Scenario {
    /// The word for it in `jobs.sh`.
    who: &'static str,
    /// As the summary names it.
    user: &'static str,
    /// What they run.
    tests: Tests,
}

/// Groups, made and used.
const GROUPS: Tests = &[
    ("sys/src", &["cgroup::group"]),
    ("isolation/src", &["limits::watcher::tests::with_a_group"]),
];
/// Runs, as a person meets them.
const RUNS: Tests = &[
    ("cli/cgroup_v2", &[""]),
    ("cli/doctor", &["what_it_says"]),
    (
        "cli/limits",
        &[
            "running_out_of_memory",
            "files_in_memory",
            "no_more_processes",
            "a_fork_bomb",
            "cpu_time_of_short",
            "a_part_of_a_cpu",
            "every_limit_is",
        ],
    ),
    ("cli/changes", &["applied_changes", "special_files"]),
];

const SCENARIOS: [Scenario; 5] = [
    Scenario {
        who: "root",
        user: "root with cgroup v2",
        tests: RUNS,
    },
    Scenario {
        who: "root-in-own-group",
        user: "root with cgroup v2, in a group of its own",
        tests: GROUPS,
    },
    Scenario {
        who: "user-with-delegation",
        user: "an ordinary user with cgroup v2 and delegation",
        tests: RUNS,
    },
    Scenario {
        who: "user-in-own-scope",
        user: "an ordinary user with cgroup v2, in a delegated group",
        tests: GROUPS,
    },
    Scenario {
        who: "user",
        user: "an ordinary user with cgroup v2, without delegation",
        tests: RUNS,
    },
];

/// Why there is no such pass, if there is none.
pub(super) fn why_not(quick: bool) -> Option<String> {
    if quick {
        Some("left out by --quick".to_owned())
    } else if !cfg!(target_arch = "x86_64") {
        Some("the tests are built for another processor than the machine's".to_owned())
    } else if program::find(machine::EMULATOR).is_none() {
        Some(format!("`{}` is missing", machine::EMULATOR))
    } else {
        None
    }
}

/// Has the kernel unpacked that tests and benchmarks of level `microvm` boot: its directory.
///
/// # Errors
/// In words: why it could not be had.
pub(crate) fn install_kernel() -> Result<PathBuf, String> {
    packages::obtain_kernel(&program::target_directory().join("virtual-machine"))
}

/// What came of the pass.
#[derive(Debug)]
pub(super) enum Outcome {
    /// One for each scenario.
    Ran(Vec<Pass>),
    /// The machine could not be put together here, and why.
    Skipped(String),
}

/// Runs the pass.
///
/// # Errors
/// When the machine cannot be started or says nothing of its tests.
pub(super) fn run(compiled: &Compiled) -> Result<Outcome, TaskError> {
    eprintln!("── tests in a virtual machine with cgroup v2");
    let start = Instant::now();
    let packages = match Packages::obtain(&program::target_directory().join("virtual-machine")) {
        Ok(packages) => packages,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let directory = tempfile::tempdir().map_err(TaskError::file("creating a directory in", std::env::temp_dir()))?;
    let jobs = jobs(compiled)?;
    let files = machine::assemble(directory.path(), &packages, &executables(compiled, &jobs), &list(&jobs))?;
    let ended = report::parse(&machine::boot(directory.path(), &packages.kernel, &files)?);

    let mut passes = SCENARIOS.map(|scenario| Pass::new(scenario.user));
    for (number, (scenario, job)) in jobs.iter().enumerate() {
        let ended = ended
            .get(&number)
            .map(|ended| (ended.status == 0, ended.output.as_str()));
        let (success, output) = ended.unwrap_or((false, "the virtual machine ended before this test did"));
        let verdict = runner::verdict(success, output);
        runner::keep(&mut passes[*scenario], job, Ok((verdict, output.to_owned())));
    }
    for pass in &mut passes {
        pass.time = start.elapsed();
    }
    Ok(Outcome::Ran(passes.into()))
}

/// Every test of every scenario, each with the scenario's place among them.
fn jobs(compiled: &Compiled) -> Result<Vec<(usize, Job)>, TaskError> {
    let mut jobs = Vec::new();
    for (place, scenario) in SCENARIOS.iter().enumerate() {
        for (label, beginnings) in scenario.tests {
            for beginning in *beginnings {
                let chosen = chosen(compiled, label, beginning);
                // A test that was given another name must not go missing here without a word.
                if chosen.is_empty() {
                    return Err(TaskError::Answer {
                        from: "the compiled tests",
                        why: format!("no test of `{label}` begins with `{beginning}`"),
                    });
                }
                jobs.extend(chosen.into_iter().map(|job| (place, job)));
            }
        }
    }
    Ok(jobs)
}

/// The tests of the executable `label` whose names begin with `beginning`.
fn chosen(compiled: &Compiled, label: &str, beginning: &str) -> Vec<Job> {
    let binaries = compiled.tests.iter().filter(|binary| binary.label() == label);
    binaries
        .flat_map(|binary| {
            runner::list(
                binary,
                &AsThisUser {
                    compiled,
                    scratch: None,
                },
            )
        })
        .filter(|job| job.test.as_deref().is_some_and(|name| name.starts_with(beginning)))
        .collect()
}

/// The name of a test executable in the machine.
fn name_of(binary: &TestBinary) -> String {
    binary.label().replace('/', "-")
}

/// The executables of `jobs`, and the program that they drive.
fn executables(compiled: &Compiled, jobs: &[(usize, Job)]) -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = jobs
        .iter()
        .map(|(_, job)| (name_of(&job.binary), job.binary.path.clone()))
        .collect();
    found.sort();
    found.dedup();
    found.extend(compiled.offleash().map(|path| ("offleash".to_owned(), path.clone())));
    found
}

/// The list that `jobs.sh` reads.
fn list(jobs: &[(usize, Job)]) -> String {
    let mut list = String::new();
    for (number, (scenario, job)) in jobs.iter().enumerate() {
        let who = SCENARIOS[*scenario].who;
        let name = name_of(&job.binary);
        // A `String` takes all that is written to it.
        let _ = write!(list, "{number} {who} {TEST_TIMEOUT_S} /vm/{name}");
        if let Some(test) = &job.test {
            let _ = write!(list, " --exact {test} --show-output");
        }
        list.push('\n');
    }
    list
}
