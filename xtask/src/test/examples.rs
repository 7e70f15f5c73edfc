//! The examples in the documents of crates, which run beside the tests and with the time that these leave.

use std::ffi::OsString;
use std::process::Command;

use super::compiled::judged;
use super::libtest;
use super::step;
use super::summary::Summary;
use crate::program::{self, cargo, workspace_root};

/// Puts what it is given behind all others: its session is a group of its own where the kernel groups sessions (sched(7), "The autogroup
/// feature"), and within that the nice value holds.
const BEHIND_OTHERS: &str = "echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 \"$@\"";

/// Compiles and runs them.
pub(super) fn run_beside_tests() -> Summary {
    let mut summary = Summary::default();
    step(&mut summary, "examples, meanwhile", || {
        let mut command = behind_others(cargo().args([
            "test",
            "--workspace",
            // Asked for by name, those of another's sources would run, whatever their manifest says.
            "--exclude",
            "offleash-bashkit",
            "--doc",
            "--quiet",
        ]));
        let command = judged(&mut command).current_dir(workspace_root());
        program::run_and_print(command, libtest::without_empty_frames).map(|()| Vec::new())
    });
    summary
}

/// The same command, in a session of its own, which gets what others leave.
fn behind_others(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<OsString> = words.map(OsString::from).collect();
    let mut behind = Command::new("setsid");
    behind.args(["--wait", "sh", "-c", BEHIND_OTHERS, "sh"]).args(words);
    behind
}
