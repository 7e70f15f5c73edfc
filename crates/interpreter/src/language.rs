//! The languages that there are drivers for.

use std::fmt;

/// A language of contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// Python, through IPython where that is installed.
    Python,
}

/// Reads the first frame and runs it. The directory in which it was started is not searched for modules meanwhile: a
/// file of the user's must not stand in for one of Python's own.
const PYTHON: &str = "\
import sys
if sys.path and not sys.path[0]: del sys.path[0]
import os
def take(n):
    b = b''
    while len(b) < n:
        p = os.read(0, n - len(b))
        if not p: sys.exit(0)
        b += p
    return b
line = b''
while not line.endswith(b'\\n'): line += take(1)
exec(compile(take(int(line.split()[2])), '<offleash>', 'exec'), {'__name__': 'offleash_driver'})
";

impl Language {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Python];

    /// The language of that name, in any case; `None` if there is none.
    pub fn parse(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Some(Self::Python),
            _ => None,
        }
    }

    /// The names of all of them, for a message.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
        }
    }

    /// The driver.
    pub fn source(self) -> &'static [u8] {
        match self {
            Self::Python => include_bytes!("../drivers/python.py"),
        }
    }

    /// Program and arguments that read the driver and run it.
    pub fn command(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Python => &["python3", "-c", PYTHON],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// What a sandbox needs for it, for whoever finds it missing.
    pub fn recipe(self) -> &'static str {
        match self {
            Self::Python => {
                "install Python 3.9 or newer on the machine, or make a template that has it: `offleash template build \
                 --from-host --name code-interpreter --pip ipython,numpy,pandas,matplotlib`"
            }
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{HostFrame, MAX_FROM_HOST};

    #[test]
    fn a_language_is_read_by_its_name() {
        for language in Language::ALL {
            assert_eq!(Language::parse(language.name()), Some(language));
            assert_eq!(Language::parse(&language.name().to_uppercase()), Some(language));
        }
        for name in ["", "cobol", "python ", "pythön"] {
            assert_eq!(Language::parse(name), None, "{name}");
        }
    }

    #[test]
    fn every_driver_fits_into_its_frame() {
        for language in Language::ALL {
            let source = language.source();
            assert!(
                HostFrame::Source(source).encode().unwrap().len() <= MAX_FROM_HOST + 64,
                "{language}"
            );
        }
    }
}
