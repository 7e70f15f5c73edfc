//! The languages that are looked for: how each says its version, and how its programs are compiled and run.

/// A language.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LanguageEntry {
    pub(crate) name: &'static str,
    /// Other names that it goes by.
    pub(crate) aliases: &'static [&'static str],
    /// The program that runs it, where that is called otherwise.
    pub(crate) runtime: Option<&'static str>,
    /// A line of a shell that writes its version, and fails where it is not there.
    pub(super) probe: &'static str,
    /// What a file of it ends with.
    pub(crate) extension: &'static str,
    /// Whether files must end with that.
    pub(super) needs_extension: bool,
    /// A script of a shell that compiles the files that it is given.
    pub(super) compile: Option<&'static str>,
    /// One that runs the file that it is given first, with what follows for arguments.
    pub(crate) run: &'static str,
}

/// The variable in which words for a compiler are.
pub(super) const COMPILER_OPTIONS: &str = "OFFLEASH_COMPILER_OPTIONS";

/// Runs what a compiler made.
const COMPILED: &str = "shift; exec ./offleash-program \"$@\"";

/// A language that is neither compiled nor particular about names of files.
const fn script(
    name: &'static str,
    aliases: &'static [&'static str],
    extension: &'static str,
    probe: &'static str,
    run: &'static str,
) -> LanguageEntry {
    LanguageEntry {
        name,
        aliases,
        runtime: None,
        probe,
        extension,
        needs_extension: false,
        compile: None,
        run,
    }
}

const fn compiled(
    name: &'static str,
    aliases: &'static [&'static str],
    extension: &'static str,
    probe: &'static str,
    compile: &'static str,
) -> LanguageEntry {
    LanguageEntry {
        needs_extension: true,
        compile: Some(compile),
        ..script(name, aliases, extension, probe, COMPILED)
    }
}

/// All of them.
pub(super) static LANGUAGES: [LanguageEntry; 15] = [
    script(
        "python",
        &["py", "py3", "python3"],
        "py",
        "python3 -c 'import sys; print(\"%d.%d.%d\" % sys.version_info[:3])'",
        "exec python3 \"$@\"",
    ),
    LanguageEntry {
        runtime: Some("node"),
        ..script(
            "javascript",
            &["js", "node", "node-js", "node-javascript"],
            "js",
            "node -p process.versions.node",
            "exec node \"$@\"",
        )
    },
    LanguageEntry {
        runtime: Some("node"),
        needs_extension: true,
        ..script(
            "typescript",
            &["ts", "node-ts", "node-typescript"],
            "ts",
            // Those that know no types refuse the flag.
            "node --experimental-strip-types --no-warnings -p process.versions.node",
            "exec node --experimental-strip-types --no-warnings \"$@\"",
        )
    },
    script(
        "bash",
        &["sh"],
        "sh",
        "bash -c 'echo \"$BASH_VERSION\"'",
        "exec bash \"$@\"",
    ),
    LanguageEntry {
        runtime: Some("gcc"),
        ..compiled(
            "c",
            &["gcc"],
            "c",
            "gcc -dumpfullversion",
            "set -f; exec gcc -std=gnu17 -O1 $OFFLEASH_COMPILER_OPTIONS -o offleash-program \"$@\" -lm",
        )
    },
    LanguageEntry {
        runtime: Some("gcc"),
        ..compiled(
            "c++",
            &["cpp", "g++"],
            "cpp",
            "g++ -dumpfullversion",
            "set -f; exec g++ -std=gnu++17 -O1 $OFFLEASH_COMPILER_OPTIONS -o offleash-program \"$@\"",
        )
    },
    compiled(
        "go",
        &["golang"],
        "go",
        "go version",
        "export GOCACHE=\"$PWD/.go-cache\" GO111MODULE=off; set -f; exec go build $OFFLEASH_COMPILER_OPTIONS -o offleash-program \"$@\"",
    ),
    compiled(
        "rust",
        &["rs"],
        "rs",
        "rustc --version",
        "set -f; exec rustc $OFFLEASH_COMPILER_OPTIONS -o offleash-program \"$1\"",
    ),
    LanguageEntry {
        needs_extension: true,
        ..script("java", &[], "java", "java -version 2>&1", "exec java \"$@\"")
    },
    script("ruby", &["rb", "ruby3"], "rb", "ruby -v", "exec ruby \"$@\""),
    script(
        "perl",
        &["pl"],
        "pl",
        "perl -e 'printf \"%vd\", $^V'",
        "exec perl \"$@\"",
    ),
    script("php", &["php8"], "php", "php -r 'echo PHP_VERSION;'", "exec php \"$@\""),
    script("lua", &[], "lua", "lua -v 2>&1", "exec lua \"$@\""),
    script("rscript", &["r"], "r", "Rscript --version 2>&1", "exec Rscript \"$@\""),
    script(
        "awk",
        &["gawk"],
        "awk",
        "gawk --version",
        "p=$1; shift; exec gawk -f \"$p\" \"$@\"",
    ),
];

/// Programs that bring scripts of Bash by which they are compiled and run. Nobody finds them by a name.
pub(crate) static OWN_SCRIPTS: LanguageEntry = LanguageEntry {
    compile: Some("[ ! -e compile ] || exec bash ./compile"),
    ..script("own-scripts", &[], "sh", "true", "exec bash ./run \"$@\"")
};

/// The language that goes by this name.
pub(crate) fn find(name: &str) -> Option<&'static LanguageEntry> {
    LANGUAGES.iter().find(|language| language.goes_by(name))
}

impl LanguageEntry {
    /// Whether it is called so.
    pub(crate) fn goes_by(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The script that compiles its programs, where they are compiled.
    pub(crate) fn compile_script(&self) -> Option<&'static str> {
        self.compile
    }

    /// Whether its programs run as they are.
    pub(crate) fn is_interpreted(&self) -> bool {
        self.compile.is_none()
    }

    /// A line that runs the program in `file`, with `"$@"` for its arguments.
    pub(crate) fn command(&self, file: &str, arguments: &[String]) -> Vec<String> {
        let words = ["/bin/sh", "-c", self.run, "sh", file].map(str::to_owned);
        words.into_iter().chain(arguments.iter().cloned()).collect()
    }

    /// A name that its files can have: `given`, with what they must end with.
    pub(super) fn file_name(&self, given: &str) -> String {
        let ends_well = given
            .rsplit_once('.')
            .is_some_and(|(_, extension)| extension.eq_ignore_ascii_case(self.extension));
        match self.needs_extension && !ends_well {
            true => format!("{given}.{}", self.extension),
            false => given.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_languages_go_by_one_name() {
        for (index, language) in LANGUAGES.iter().enumerate() {
            for name in std::iter::once(&language.name).chain(language.aliases) {
                let others = LANGUAGES.iter().skip(index + 1);
                assert!(others.clone().all(|other| !other.goes_by(name)), "{name}");
                assert_eq!(find(name).unwrap().name, language.name);
            }
        }
        assert_eq!(find("brainfuck"), None);
    }

    #[test]
    fn files_are_called_what_compilers_want() {
        let named = |language: &str, given: &str| find(language).unwrap().file_name(given);
        assert_eq!(named("python", "file0.code"), "file0.code");
        assert_eq!(named("c", "file0.code"), "file0.code.c");
        assert_eq!(named("c", "src/a.C"), "src/a.C");
        assert_eq!(named("java", "Main.java"), "Main.java");
    }
}
