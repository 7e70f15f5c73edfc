//! The lines that Rust's own test harness prints, for whoever reads a log.
//!
//! Continuous integration and other tools count tests by these lines alone. Each test here runs in a harness of its
//! own, so the harness's lines say "1 test" each time; they are left out, and one pair is printed for a whole pass.

use std::fmt;

use super::summary::Pass;

/// The line before the tests.
#[derive(Debug)]
pub(super) struct Running(pub(super) usize);

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count) = self;
        let plural = if *count == 1 { "" } else { "s" };
        write!(f, "\nrunning {count} test{plural}")
    }
}

/// The line after them. What could not run here is counted as ignored.
#[derive(Debug)]
pub(super) struct Ended<'a>(pub(super) &'a Pass);

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(pass) = self;
        let word = if pass.failures() == 0 { "ok" } else { "FAILED" };
        let (passed, failed, ignored) = (pass.passed, pass.failed.len(), pass.skipped.len());
        write!(
            f,
            "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; \
             finished in {:.2}s\n",
            pass.time.as_secs_f64()
        )
    }
}

/// Whether the harness prints `line` before or after tests.
fn frames_tests(line: &str) -> bool {
    line.starts_with("test result: ")
        || line
            .strip_prefix("running ")
            .is_some_and(|rest| rest.ends_with(" tests") || rest == "1 test")
}

/// The output of one test without the lines that would count it a second time.
pub(super) fn without_counts(output: &str) -> String {
    let lines: Vec<_> = output.lines().filter(|line| !frames_tests(line)).collect();
    lines.join("\n").trim().to_owned()
}

/// The output of a harness without the frames around no test at all.
pub(super) fn without_empty_frames(output: &str) -> String {
    let mut kept = Vec::new();
    let mut empty = false;
    for line in output.lines() {
        empty |= line == "running 0 tests";
        if !empty {
            kept.push(line);
        }
        empty &= !line.starts_with("test result: ");
    }
    let kept = kept.join("\n");
    if kept.trim().is_empty() {
        String::new()
    } else {
        kept + "\n"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test::summary::Skip;

    #[test]
    fn a_pass_ends_with_the_line_that_log_readers_count() {
        let skip = Skip {
            what: "cli/limits::a".to_owned(),
            reason: "no cgroup".to_owned(),
        };
        let mut pass = Pass {
            user: "root",
            passed: 817,
            failed: Vec::new(),
            skipped: vec![skip],
            time: Duration::from_secs(67),
            times: Vec::new(),
        };
        let end = "0 measured; 0 filtered out; finished in 67.00s\n";
        assert_eq!(
            Ended(&pass).to_string(),
            format!("\ntest result: ok. 817 passed; 0 failed; 1 ignored; {end}")
        );
        pass.failed.push("cli/limits::b".to_owned());
        assert_eq!(
            Ended(&pass).to_string(),
            format!("\ntest result: FAILED. 817 passed; 1 failed; 1 ignored; {end}")
        );
    }

    #[test]
    fn a_pass_that_ran_no_test_has_failed_in_the_log_too() {
        let pass = Pass {
            user: "root",
            passed: 0,
            failed: Vec::new(),
            skipped: Vec::new(),
            time: Duration::ZERO,
            times: Vec::new(),
        };
        assert!(Ended(&pass).to_string().starts_with("\ntest result: FAILED. 0 passed;"));
    }

    #[test]
    fn the_number_of_tests_is_said_as_the_harness_says_it() {
        assert_eq!(Running(1).to_string(), "\nrunning 1 test");
        assert_eq!(Running(823).to_string(), "\nrunning 823 tests");
    }

    #[test]
    fn a_failed_tests_own_frame_is_left_out_and_what_it_said_stays() {
        let output = "\nrunning 1 test\ntest a ... FAILED\n\n---- a stdout ----\nrunning late\n\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert_eq!(
            without_counts(output),
            "test a ... FAILED\n\n---- a stdout ----\nrunning late"
        );
    }

    #[test]
    fn frames_around_no_test_are_left_out_and_others_stay() {
        let empty = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n\n";
        let full = "\nrunning 1 test\n.\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(without_empty_frames(&empty.repeat(3)), "");
        let kept = without_empty_frames(&format!("{empty}{full}{empty}"));
        assert_eq!(kept.trim(), full.trim());
    }
}
