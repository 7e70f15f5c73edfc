//! The words behind `offleash run`, taken apart without a parser: what decides about the sandbox, and what runs in it.
//!
//! Whether the parser takes them apart in the same way is found out before a sandbox is kept for them (`cli::warm`), so that
//! one which waits was taken apart like that.

use std::ffi::OsString;
use std::path::PathBuf;

use offleash_core::text::Text;

const SEPARATOR: &str = "--";
const SCRIPT: &str = "-c";
const STATE: &[u8] = b"--state";

/// The words of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunWords<'a> {
    /// The arguments that decide about the sandbox.
    pub arguments: &'a [OsString],
    /// The script, if it is for a shell.
    pub script: Option<&'a OsString>,
    /// Program and arguments, or the script's parameters.
    pub command: &'a [OsString],
}

impl<'a> RunWords<'a> {
    /// Takes words apart. `None` where there is no command, or none that is found like this.
    pub fn split(words: &'a [OsString]) -> Option<Self> {
        let separator = words.iter().position(|word| word == SEPARATOR);
        let (before, command) = match separator {
            Some(place) => (&words[..place], &words[place + 1..]),
            None => (words, &words[words.len()..]),
        };
        match before {
            [arguments @ .., flag, script] if flag == SCRIPT && !script.as_encoded_bytes().starts_with(b"-") => {
                Some(Self {
                    arguments,
                    script: Some(script),
                    command,
                })
            }
            _ if command.is_empty() => None,
            arguments => Some(Self {
                arguments,
                script: None,
                command,
            }),
        }
    }

    /// The state directory that they name.
    pub(super) fn state(&self) -> Option<PathBuf> {
        let mut words = self.arguments.iter();
        while let Some(word) = words.next() {
            match word.as_encoded_bytes().strip_prefix(STATE) {
                Some([]) => return words.next().map(PathBuf::from),
                Some([b'=', value @ ..]) => return Some(Text::from(value).as_path().to_owned()),
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn words_are_taken_apart() {
        for (text, arguments, script, command) in [
            ("-- echo -- x", "", None, "echo -- x"),
            ("--warm 2 -- echo -c x", "--warm 2", None, "echo -c x"),
            ("--warm 2 -c S", "--warm 2", Some("S"), ""),
            ("--warm 2 -c S -- a b", "--warm 2", Some("S"), "a b"),
        ] {
            let list = words(text);
            let split = RunWords::split(&list).unwrap();
            assert_eq!(split.arguments, words(arguments), "{text}");
            assert_eq!(
                split.script.map(OsString::as_os_str),
                script.map(AsRef::as_ref),
                "{text}"
            );
            assert_eq!(split.command, words(command), "{text}");
        }
        for text in ["", "--warm 2 true", "--", "-c -x", "-c"] {
            assert_eq!(RunWords::split(&words(text)), None, "{text}");
        }
    }

    #[test]
    fn the_state_directory_is_found_in_both_forms() {
        for (text, state) in [
            ("--warm 2 --state /s -- x", Some("/s")),
            ("--state=/s -- x", Some("/s")),
            ("--state= -- x", Some("")),
            ("--stately -- --state=/s", None),
        ] {
            let list = words(text);
            let split = RunWords::split(&list).unwrap();
            assert_eq!(split.state(), state.map(PathBuf::from), "{text}");
        }
    }
}
