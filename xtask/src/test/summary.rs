//! What a run of all tests found, as a person reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::times::TestTime;
use crate::error::TaskError;

/// So many of the tests that took longest are named for each user.
const SLOWEST: usize = 20;

/// Everything that was found.
#[derive(Debug, Default)]
pub(super) struct Summary {
    steps: Vec<Step>,
    /// The tests, once for each user.
    pub(super) passes: Vec<Pass>,
    /// What could not be done here, apart from single tests.
    pub(super) skips: Vec<Skip>,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    failure: Option<String>,
    time: Duration,
}

/// Something that was not done, and why.
#[derive(Debug, Clone)]
pub(super) struct Skip {
    /// A test, or what would have been tested.
    pub(super) what: String,
    /// Why not.
    pub(super) reason: String,
}

/// All tests as one user.
#[derive(Debug)]
pub(super) struct Pass {
    /// Which user.
    pub(super) user: &'static str,
    /// How many tests passed.
    pub(super) passed: usize,
    /// The names of those that failed.
    pub(super) failed: Vec<String>,
    /// Those that could not run, or not fully, on this machine.
    pub(super) skipped: Vec<Skip>,
    /// How long all of them took.
    pub(super) time: Duration,
    /// What each took that ran on its own.
    pub(super) times: Vec<TestTime>,
}

impl Pass {
    /// One in which nothing ran yet.
    pub(super) fn new(user: &'static str) -> Self {
        Self {
            user,
            passed: 0,
            failed: Vec::new(),
            skipped: Vec::new(),
            time: Duration::ZERO,
            times: Vec::new(),
        }
    }
}

impl Summary {
    /// Keeps the result of a step.
    pub(super) fn record(&mut self, name: &'static str, outcome: Result<(), &TaskError>, time: Duration) {
        self.steps.push(Step {
            name,
            failure: outcome.err().map(ToString::to_string),
            time,
        });
    }

    /// Takes over what another one found.
    pub(super) fn absorb(&mut self, other: Self) {
        self.steps.extend(other.steps);
        self.passes.extend(other.passes);
        self.skips.extend(other.skips);
    }

    /// How many steps and tests failed.
    pub(super) fn failures(&self) -> usize {
        let steps = self.steps.iter().filter(|step| step.failure.is_some()).count();
        steps + self.passes.iter().map(Pass::failures).sum::<usize>()
    }
}

impl Pass {
    /// How many tests failed; one when nothing ran at all.
    pub(super) fn failures(&self) -> usize {
        if self.passed + self.failed.len() == 0 {
            return 1;
        }
        self.failed.len()
    }

    /// What all of them took of processors together.
    fn cpu(&self) -> Duration {
        self.times.iter().map(|time| time.cpu).sum()
    }

    /// Those that took longest, the longest first.
    fn slowest(&self) -> Vec<&TestTime> {
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by_key(|time| std::cmp::Reverse(time.elapsed));
        times.truncate(SLOWEST);
        times
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n── summary")?;
        for step in &self.steps {
            let word = if step.failure.is_some() { "FAILED" } else { "ok" };
            writeln!(f, "{:<24}{word:<8}{:>8.1} s", step.name, step.time.as_secs_f64())?;
        }
        for pass in &self.passes {
            let Pass {
                user,
                passed,
                failed,
                skipped,
                time,
                ..
            } = pass;
            let (failed, skipped) = (failed.len(), skipped.len());
            let seconds = time.as_secs_f64();
            writeln!(
                f,
                "tests as {user}: {passed} passed, {failed} failed, {skipped} skipped in {seconds:.1} s, {:.1} s of them on a \
                 processor",
                pass.cpu().as_secs_f64()
            )?;
            for TestTime { elapsed, cpu, name } in pass.slowest() {
                let (elapsed, cpu) = (elapsed.as_secs_f64(), cpu.as_secs_f64());
                writeln!(f, "{elapsed:>8.1} s {cpu:>8.1} s CPU {name}")?;
            }
        }
        self.write_skips(f)?;
        for step in &self.steps {
            if let Some(failure) = &step.failure {
                writeln!(f, "FAILED {}: {failure}", step.name)?;
            }
        }
        for pass in &self.passes {
            for name in &pass.failed {
                writeln!(f, "FAILED as {}: {name}", pass.user)?;
            }
        }
        Ok(())
    }
}

impl Summary {
    /// Skips, one line for each reason.
    fn write_skips(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for skip in self
            .skips
            .iter()
            .chain(self.passes.iter().flat_map(|pass| &pass.skipped))
        {
            by_reason.entry(&skip.reason).or_default().push(&skip.what);
        }
        for (reason, what) in by_reason {
            writeln!(f, "SKIPPED {}: {reason} ({})", what.len(), what.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(passed: usize, failed: &[&str]) -> Pass {
        Pass {
            user: "root",
            passed,
            failed: failed.iter().map(ToString::to_string).collect(),
            skipped: Vec::new(),
            time: Duration::from_secs(1),
            times: Vec::new(),
        }
    }

    #[test]
    fn failed_steps_and_failed_tests_are_counted_together() {
        let mut summary = Summary::default();
        summary.record("format", Ok(()), Duration::ZERO);
        summary.record("lint", Err(&TaskError::Failed { count: 1 }), Duration::ZERO);
        summary.passes.push(pass(3, &["core/lib::a", "core/lib::b"]));
        assert_eq!(summary.failures(), 3);
    }

    #[test]
    fn a_pass_that_ran_no_test_is_a_failure() {
        let summary = Summary {
            passes: vec![pass(0, &[])],
            ..Summary::default()
        };
        assert_eq!(summary.failures(), 1);
    }

    #[test]
    fn the_slowest_tests_are_named_the_slowest_first() {
        let mut summary = Summary::default();
        summary.passes.push(Pass {
            times: (0..30)
                .map(|number| TestTime {
                    elapsed: Duration::from_secs(number),
                    cpu: Duration::from_secs(1),
                    name: format!("test-{number}"),
                })
                .collect(),
            ..pass(30, &[])
        });
        let text = summary.to_string();
        let named: Vec<_> = text.lines().filter(|line| line.contains("test-")).collect();
        assert_eq!(named.len(), SLOWEST);
        assert_eq!(named[0], "    29.0 s      1.0 s CPU test-29");
    }

    #[test]
    fn skips_with_the_same_reason_share_a_line_that_counts_and_names_them() {
        let skip = |what: &str| Skip {
            what: what.to_owned(),
            reason: "no cgroup".to_owned(),
        };
        let summary = Summary {
            skips: vec![skip("a"), skip("b")],
            ..Summary::default()
        };
        assert!(summary.to_string().contains("SKIPPED 2: no cgroup (a, b)\n"));
    }
}
