//! What a run says to the holder of a sandbox: a byte for what it wants, with its standard streams and its directory; then a
//! list of byte strings behind its length.

use crate::buffer::Buffer;
use crate::strings::{self, Strings};
use crate::words::Words;

/// Asks for the sandbox.
pub const RUN: u8 = b'R';
/// The answer: the sandbox is the caller's, and its command is about to be started.
pub const TAKEN: u8 = b'T';

/// What is handed over in words.
#[derive(Debug)]
pub struct Handover<'a, A: ?Sized, E: ?Sized> {
    /// The key of run and holder.
    pub key: &'a [u8],
    /// How long ago the run started, ns.
    pub age: u64,
    /// Where it was started.
    pub cwd: &'a [u8],
    /// Its words.
    pub list: &'a A,
    /// Where in them the script and the command are.
    pub words: Words,
    /// The whole environment, `NAME=VALUE` each; what is none is left out.
    pub env: &'a E,
}

impl<A: Strings + ?Sized, E: Strings + ?Sized> Handover<'_, A, E> {
    /// Writes it as the holder reads it.
    pub fn write(&self, text: &mut Buffer<'_>) {
        let start = text.length();
        text.add_number(0);
        text.add_sized(self.key);
        text.add_sized(&self.age.to_le_bytes());
        text.add_sized(self.cwd);
        let script = self.words.script.and_then(|place| self.list.get(place));
        text.add_sized(&u64::from(script.is_some()).to_le_bytes());
        if let Some(script) = script {
            text.add_sized(script);
        }
        let command = strings::from(self.list, self.words.command).count();
        text.add_sized(&(command as u64).to_le_bytes());
        strings::from(self.list, self.words.command).for_each(|word| text.add_sized(word));
        for variable in strings::from(self.env, 0) {
            if let Some((name, value)) = split_variable(variable) {
                text.add_sized(name);
                text.add_sized(value);
            }
        }
        let length = text.length() - start - 8;
        text.set_number(start, length as u64);
    }
}

/// A name may begin with `=`, and what has no other is none (environ(7) leaves it open; the standard library decides so).
fn split_variable(variable: &[u8]) -> Option<(&[u8], &[u8])> {
    let place = variable.iter().skip(1).position(|byte| *byte == b'=')? + 1;
    Some((variable.get(..place)?, variable.get(place + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_taken_apart_as_the_standard_library_does() {
        let split = |text: &'static str| split_variable(text.as_bytes());
        assert_eq!(split("A=1=2"), Some((&b"A"[..], &b"1=2"[..])));
        assert_eq!(split("=A=1"), Some((&b"=A"[..], &b"1"[..])));
        assert_eq!(split("A="), Some((&b"A"[..], &b""[..])));
        for none in ["", "A", "=A"] {
            assert_eq!(split(none), None, "{none}");
        }
    }
}
