//! A Python that is started before it is known what it is to run: which program it is, and how it is told.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What it writes to its standard output when it waits, and nothing before.
pub const READY: &[u8] = b"ready\n";

const PYTHON: &str = "python3";
const START: &str =
    "exec(compile(__import__('sys').argv.pop(1), '<offleash>', 'exec'), {'__name__': 'offleash_ahead'})";
const SOURCE: &str = include_str!("../drivers/ahead.py");

/// Program and arguments, for one that imports these modules as far as they are installed.
pub fn command(modules: impl IntoIterator<Item = String>) -> Vec<OsString> {
    let start = [PYTHON, "-c", START, SOURCE].map(OsString::from);
    start
        .into_iter()
        .chain(modules.into_iter().map(OsString::from))
        .collect()
}

/// Whether that is a command that it can be told: another Python, or none, is not its business.
pub fn can_run(command: &[OsString]) -> bool {
    command.first().is_some_and(|program| program == PYTHON)
}

/// Its input: the `command`, which it does as if it was started so in `directory`. What follows is the command's own input.
pub fn input(directory: &Path, command: &[OsString]) -> Vec<u8> {
    let mut words = Vec::new();
    for word in std::iter::once(directory.as_os_str()).chain(command.iter().map(OsString::as_os_str)) {
        words.extend_from_slice(word.as_bytes());
        words.push(0);
    }
    let mut input = format!("{}\n", words.len()).into_bytes();
    input.extend(words);
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_with_its_directory() {
        let command = ["python3", "-c", ""].map(OsString::from);
        assert_eq!(input(Path::new("/w"), &command), b"15\n/w\0python3\0-c\0\0");
        assert!(can_run(&command) && !can_run(&["python".into()]) && !can_run(&[]));
    }

    #[test]
    fn it_says_what_is_waited_for() {
        assert!(SOURCE.contains("READY = b\"ready\\n\"\n"));
    }
}
