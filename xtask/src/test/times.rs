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

/// Sorts `jobs`: first those that are not known, then by what they took when they ran last, the longest first.
pub(super) fn longest_first(jobs: &mut [Job], user: &str) {
    let known = fs::read_to_string(file(user)).map_or_else(|_| HashMap::new(), |text| parse(&text));
    jobs.sort_by_cached_key(|job| std::cmp::Reverse(known.get(&job.label()).copied().unwrap_or(Duration::MAX)));
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
    fn lines_are_read_back_and_others_passed_over() {
        let known = parse("1.500\t0.250\tcli/limits::a b\nnonsense\n-1\t0\tnegative\n2\t0\tlast\n");
        assert_eq!(known.len(), 2);
        assert_eq!(known["cli/limits::a b"], Duration::from_millis(1500));
        assert_eq!(known["last"], Duration::from_secs(2));
    }
}
