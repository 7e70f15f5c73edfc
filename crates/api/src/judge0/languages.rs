//! Languages by the numbers that Judge0 CE has for them, versions 1.13.1 and later.

use serde::Serialize;

use crate::languages::{LanguageRuntime, OWN_SCRIPTS};

/// A language of Judge0's: what we call it, its numbers and the file that its program is.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberedLanguage {
    /// Judge0 numbers versions; all of these stand for the one that is there.
    numbers: &'static [i64],
    name: &'static str,
    shown: &'static str,
    pub(super) file: &'static str,
}

static NUMBERED: [NumberedLanguage; 14] = [
    NumberedLanguage {
        numbers: &[46],
        name: "bash",
        shown: "Bash",
        file: "script.sh",
    },
    NumberedLanguage {
        numbers: &[50, 48, 49, 103],
        name: "c",
        shown: "C (GCC)",
        file: "main.c",
    },
    NumberedLanguage {
        numbers: &[54, 52, 53, 105],
        name: "c++",
        shown: "C++ (GCC)",
        file: "main.cpp",
    },
    NumberedLanguage {
        numbers: &[60, 95, 106, 107],
        name: "go",
        shown: "Go",
        file: "main.go",
    },
    NumberedLanguage {
        numbers: &[62, 91],
        name: "java",
        shown: "Java (OpenJDK)",
        file: "Main.java",
    },
    NumberedLanguage {
        numbers: &[63, 93, 97, 102],
        name: "javascript",
        shown: "JavaScript (Node.js)",
        file: "script.js",
    },
    NumberedLanguage {
        numbers: &[64],
        name: "lua",
        shown: "Lua",
        file: "script.lua",
    },
    NumberedLanguage {
        numbers: &[85],
        name: "perl",
        shown: "Perl",
        file: "script.pl",
    },
    NumberedLanguage {
        numbers: &[68, 98],
        name: "php",
        shown: "PHP",
        file: "script.php",
    },
    NumberedLanguage {
        numbers: &[71, 92, 100, 109],
        name: "python",
        shown: "Python",
        file: "script.py",
    },
    NumberedLanguage {
        numbers: &[80, 99],
        name: "rscript",
        shown: "R",
        file: "script.r",
    },
    NumberedLanguage {
        numbers: &[72],
        name: "ruby",
        shown: "Ruby",
        file: "script.rb",
    },
    NumberedLanguage {
        numbers: &[73, 108],
        name: "rust",
        shown: "Rust",
        file: "main.rs",
    },
    NumberedLanguage {
        numbers: &[74, 94, 101],
        name: "typescript",
        shown: "TypeScript",
        file: "script.ts",
    },
];

/// Programs of several files, which bring scripts that compile and run them.
const MULTI_FILE: NumberedLanguage = NumberedLanguage {
    numbers: &[89],
    name: "bash",
    shown: "Multi-file program",
    file: "",
};

/// A language that can be asked for.
#[derive(Debug, Clone)]
pub(super) struct OfferedLanguage {
    pub(super) number: i64,
    pub(super) known: NumberedLanguage,
    pub(super) runtime: LanguageRuntime,
}

#[derive(Debug, Serialize)]
pub(super) struct LanguageAnswer {
    pub(super) id: i64,
    pub(super) name: String,
}

#[derive(Debug, Serialize)]
pub(super) struct LanguageDetails {
    id: i64,
    name: String,
    is_archived: bool,
    source_file: &'static str,
    compile_cmd: Option<&'static str>,
    run_cmd: &'static str,
}

impl OfferedLanguage {
    /// Whether its programs are their additional files alone.
    pub(super) fn brings_scripts(&self) -> bool {
        self.runtime.language == &OWN_SCRIPTS
    }

    pub(super) fn answer(&self) -> LanguageAnswer {
        let name = match self.brings_scripts() {
            true => self.known.shown.to_owned(),
            false => format!("{} ({})", self.known.shown, self.runtime.version),
        };
        LanguageAnswer { id: self.number, name }
    }

    pub(super) fn details(&self) -> LanguageDetails {
        let LanguageAnswer { id, name } = self.answer();
        LanguageDetails {
            id,
            name,
            is_archived: false,
            source_file: self.known.file,
            compile_cmd: self.runtime.language.compile_script(),
            run_cmd: self.runtime.language.run,
        }
    }
}

/// What of these there is, by numbers: of each language the newest version.
pub(super) fn offered(all: &[LanguageRuntime]) -> Vec<OfferedLanguage> {
    let newest = |name: &str| {
        let of = all.iter().filter(|runtime| runtime.language.name == name);
        // Of two that are the same, the first is that of the base.
        of.reduce(|best, other| if other.version > best.version { other } else { best })
    };
    let mut offered = Vec::new();
    for known in NUMBERED {
        if let Some(runtime) = newest(known.name) {
            offered.extend(known.numbers.iter().map(|number| OfferedLanguage {
                number: *number,
                known,
                runtime: runtime.clone(),
            }));
        }
    }
    if let Some(bash) = newest(MULTI_FILE.name) {
        let runtime = LanguageRuntime {
            language: &OWN_SCRIPTS,
            ..bash.clone()
        };
        offered.extend(MULTI_FILE.numbers.iter().map(|number| OfferedLanguage {
            number: *number,
            known: MULTI_FILE,
            runtime: runtime.clone(),
        }));
    }
    offered.sort_by_key(|one| one.number);
    offered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::languages::find_language;

    #[test]
    fn every_number_is_one_language_that_there_can_be() {
        let mut numbers: Vec<i64> = NUMBERED
            .iter()
            .chain([&MULTI_FILE])
            .flat_map(|one| one.numbers)
            .copied()
            .collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        for one in NUMBERED {
            assert_eq!(find_language(one.name).map(|found| found.name), Some(one.name));
        }
    }
}
