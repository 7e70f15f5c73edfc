//! How long tests took: kept from one run to the next, so that the longest start first and none is waited for alone at the end.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::runner::Job;
use crate::error::TaskError;
use crate::program::target_directory;

/// What one test took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestTime {
    /// From its start to its end.
    pub(super) elapsed: Duration,
    /// Of all processors together, of the test and of those descendants for which somebody waited.
    pub(super) cpu: Duration,
    /// Its name.
    pub(super) name: String,
}

fn file(user: &str) -> PathBuf {
    target_directory().join("test-times").join(format!("{user}.tsv"))
}

/// Beginnings of the names of tests that take long, the longest first, for a machine on which none has run yet.
const LONG: [&str; 16] = [
    "cli/e2b::packages::",
    "interpreter/drivers::the_driver_of_python",
    "cli/e2b::languages::the_code_interpreter",
    "interpreter/drivers::",
    "cli/e2b::cells::",
    "cli/base::subordinate::",
    "interpreter/contexts::hostile::cells_of_java",
    "cli/levels",
    "cli/escape::leveled::",
    "cli/images::",
    "cli/supervisor::zygote::",
    "cli/warm::",
    "cli/e2b::",
    "cli/renames",
    "sys/src::seccomp::tests::program::every_condition",
    "cli/envd::input::",
];

/// With each of `jobs`, how long it may take: what it took when it ran last, else what is supposed of it.
pub(super) fn of(jobs: Vec<Job>, user: &str) -> impl Iterator<Item = (Duration, Job)> {
    let known = fs::read_to_string(file(user)).map_or_else(|_| HashMap::new(), |text| parse(&text));
    jobs.into_iter().map(move |job| {
        let name = job.label();
        (known.get(&name).copied().unwrap_or_else(|| supposed(&name)), job)
    })
}

/// Longer than others for those of which that is known; between the long ones and the short ones for what is new.
fn supposed(name: &str) -> Duration {
    let place = LONG.iter().position(|beginning| name.starts_with(beginning));
    Duration::from_secs(place.map_or(3, |place| 10 * (LONG.len() - place) as u64))
}

/// Lines `elapsed s, CPU s, name`, separated by tabs; what is no such line is passed over.
fn parse(text: &str) -> HashMap<String, Duration> {
    let times = text.lines().filter_map(|line| {
        let (elapsed, rest) = line.split_once('\t')?;
        let (_, name) = rest.split_once('\t')?;
        let elapsed = Duration::try_from_secs_f64(elapsed.parse().ok()?).ok()?;
        Some((name.to_owned(), elapsed))
    });
    times.collect()
}

/// Keeps what the tests took, for the next run and for whoever wants to know.
///
/// # Errors
/// `File` when the file cannot be written.
pub(super) fn keep(times: &[TestTime], user: &str) -> Result<(), TaskError> {
    let mut sorted: Vec<_> = times.iter().collect();
    sorted.sort_by_key(|time| std::cmp::Reverse(time.elapsed));
    let mut text = String::new();
    for TestTime { elapsed, cpu, name } in sorted {
        let (elapsed, cpu) = (elapsed.as_secs_f64(), cpu.as_secs_f64());
        writeln!(text, "{elapsed:.3}\t{cpu:.3}\t{name}").unwrap_or_default();
    }
    let file = file(user);
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).map_err(TaskError::file("creating", directory))?;
    }
    fs::write(&file, text).map_err(TaskError::file("writing", &file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_to_take_long_is_supposed_to() {
        assert!(supposed("cli/e2b::packages::a") > supposed("cli/e2b::files::a"));
        assert!(supposed("cli/e2b::files::a") > supposed("core/src::a"));
    }

    #[test]
    fn lines_are_read_back_and_others_passed_over() {
        let known = parse("1.500\t0.250\tcli/limits::a b\nnonsense\n-1\t0\tnegative\n2\t0\tlast\n");
        assert_eq!(known.len(), 2);
        assert_eq!(known["cli/limits::a b"], Duration::from_millis(1500));
        assert_eq!(known["last"], Duration::from_secs(2));
    }
}
