//! The words behind `offleash run`, taken apart without a parser: what decides about the sandbox, and what runs in it.
//!
//! Whether a parser takes them apart in the same way is found out before a sandbox is kept for them, so that one which waits
//! was taken apart like that.

use crate::strings::{self, Strings};

const SEPARATOR: &[u8] = b"--";
const SCRIPT: &[u8] = b"-c";
const STATE: &[u8] = b"--state";

/// Places in a list of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// The first argument.
    pub first: usize,
    /// Behind the last argument that decides about the sandbox.
    pub end: usize,
    /// The script, if it is for a shell.
    pub script: Option<usize>,
    /// The command's first word, or the script's first parameter.
    pub command: usize,
}

impl Words {
    /// Takes apart what stands in `list` from `first` on. `None` where there is no command, or none that is found like this.
    pub fn split<S: Strings + ?Sized>(list: &S, first: usize) -> Option<Self> {
        let is = |place: usize, word: &[u8]| list.get(place).is_some_and(|found| strings::same(found, word));
        let count = strings::from(list, first)
            .take_while(|word| !strings::same(word, SEPARATOR))
            .count();
        let end = first + count;
        let command = match list.get(end) {
            Some(_) => end + 1,
            None => end,
        };
        let has_script =
            count >= 2 && is(end - 2, SCRIPT) && list.get(end - 1).is_some_and(|script| script.first() != Some(&b'-'));
        if has_script {
            return Some(Self {
                first,
                end: end - 2,
                script: Some(end - 1),
                command,
            });
        }
        list.get(command)?;
        Some(Self {
            first,
            end,
            script: None,
            command,
        })
    }

    /// What decides about the sandbox.
    pub(crate) fn arguments<S: Strings + ?Sized>(self, list: &S) -> impl Iterator<Item = &[u8]> {
        strings::from(list, self.first).take(self.end - self.first)
    }

    /// The state directory that they name.
    pub(crate) fn state<S: Strings + ?Sized>(self, list: &S) -> Option<&[u8]> {
        let mut words = self.arguments(list);
        while let Some(word) = words.next() {
            match strings::after(word, STATE) {
                Some([]) => return words.next(),
                Some([b'=', value @ ..]) => return Some(value),
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn words_are_taken_apart() {
        for (text, end, script, command) in [
            ("-- echo -- x", 0, None, 1),
            ("--warm 2 -- echo -c x", 2, None, 3),
            ("--warm 2 -c S", 2, Some(3), 4),
            ("--warm 2 -c S -- a b", 2, Some(3), 5),
        ] {
            let expected = Words {
                first: 0,
                end,
                script,
                command,
            };
            assert_eq!(Words::split(&*words(text), 0), Some(expected), "{text}");
        }
        for text in ["", "--warm 2 true", "--", "-c -x", "-c"] {
            assert_eq!(Words::split(&*words(text), 0), None, "{text}");
        }
        let behind = Words::split(&*words("offleash run -- true"), 2).unwrap();
        assert_eq!((behind.first, behind.end, behind.command), (2, 2, 3));
    }

    #[test]
    fn the_state_directory_is_found_in_both_forms() {
        for (text, state) in [
            ("--warm 2 --state /s -- x", Some("/s")),
            ("--state=/s -- x", Some("/s")),
            ("--state= -- x", Some("")),
            ("--stately -- --state=/s", None),
        ] {
            let words = words(text);
            let split = Words::split(&*words, 0).unwrap();
            assert_eq!(split.state(&*words), state.map(str::as_bytes), "{text}");
        }
    }
}
