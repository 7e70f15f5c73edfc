//! The languages that there are drivers for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A language of contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python, through IPython where that is installed.
    Python,
    /// JavaScript, in Node.
    JavaScript,
    /// TypeScript, in Node: its types are taken out.
    TypeScript,
    /// Bash.
    Bash,
    /// R.
    R,
    /// Java, in JShell.
    Java,
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

/// As [`PYTHON`]: the process that it is for reads the frame from its input, and the one that runs cells, which the
/// first starts with the same line, from a descriptor of its own.
const NODE: &str = "\
{
  const { readSync } = require('fs'), role = process.argv[1], from = role === 'runner' ? 3 : 0;
  const take = (n) => {
    const b = Buffer.alloc(n);
    for (let at = 0, size; at < n; at += size) if (!(size = readSync(from, b, at, n - at))) process.exit(0);
    return b;
  };
  let line = '';
  while (!line.endsWith('\\n')) line += take(1).toString('latin1');
  const source = take(Number(line.split(' ')[2]));
  const text = '(function (load, role, source, bootstrap, dynamicImport) {' + source + '\\n})';
  const bootstrap = process.execArgv[process.execArgv.indexOf('-e') + 1];
  const driver = require('vm').runInThisContext(text, { filename: '<offleash>' });
  driver(require, role, source, bootstrap, (name) => import(name));
}
";

/// Reads the first frame, runs it, and then what that has for running cells: outside of functions, so that what cells
/// declare stays, and in the first line, from which theirs are counted.
const BASH: &str = "\
IFS=' ' builtin read -r _ _ __offleash_code && \
LC_ALL=C IFS= builtin read -r -N \"$__offleash_code\" __offleash_code && \
builtin eval \"$__offleash_code\" && \
builtin eval \"$__offleash_serve\"
";

/// The driver of R: of its two halves, the shell is given that of R.
const R: &str = concat!(
    include_str!("../drivers/speaker.sh"),
    "__offleash_r=$(cat <<'__OFFLEASH_R'\n",
    include_str!("../drivers/r.R"),
    "__OFFLEASH_R\n)\n",
    include_str!("../drivers/r.sh"),
);

/// Writes the first frame to a file, which Java needs and the driver removes, and starts it with descriptors that it
/// cannot make itself. This shell waits for it, because what a virtual machine that does not start says of that has to be
/// read by somebody. Interrupts are for the driver.
const JAVA: &str = "\
IFS=' ' read -r _ _ length
if ! type -P java >/dev/null; then exit 127; fi
directory=$(mktemp -d) && head -c \"$length\" >\"$directory/Driver.java\" || exit 70
exec 7<&0 8>&1 9>&2 210<> <(:) 211<> <(:) </dev/null
exec 5</proc/self/fd/210 6</proc/self/fd/211 3>/proc/self/fd/210 4>/proc/self/fd/211 210>&- 211>&-
trap : INT
opens=java.base/java
java -XX:+UseSerialGC -XX:-UsePerfData -Dfile.encoding=UTF-8 --add-opens $opens.io=ALL-UNNAMED \
    --add-opens $opens.util=ALL-UNNAMED \"$directory/Driver.java\" \"$directory/Driver.java\" \
    1>&3 2>&4 3<&7 4>&8 7<&- 8>&- 9>&-
status=$?
exec 3>&- 4>&-
if [[ -d $directory ]]; then rm -rf \"$directory\"; cat <&5 >&9; cat <&6 >&9; fi
trap - INT
if ((status > 128)); then kill -s $((status - 128)) $$; fi
exit $status
";

impl Language {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Python,
        Self::JavaScript,
        Self::TypeScript,
        Self::Bash,
        Self::R,
        Self::Java,
    ];

    /// The language of that name, in any case; `None` if there is none.
    pub fn parse(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Some(Self::Python),
            "javascript" | "js" => Some(Self::JavaScript),
            "typescript" | "ts" => Some(Self::TypeScript),
            "bash" | "sh" => Some(Self::Bash),
            "r" => Some(Self::R),
            "java" => Some(Self::Java),
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
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::R => "r",
            Self::Java => "java",
        }
    }

    /// Whether a variable of that name is looked at when Python or a library of it is loaded, and not later: one that is
    /// loaded already must not be given it.
    pub fn is_read_by_python_at_start(name: &str) -> bool {
        let prefixes = [
            "PYTHON",
            "LD_",
            "LC_",
            "MPL",
            "OMP_",
            "KMP_",
            "OPENBLAS_",
            "GOTO_",
            "MKL_",
            "BLIS_",
            "NUMEXPR_",
            "NPY_",
            "NUMPY_",
            "PANDAS_",
            "IPYTHON",
            "JUPYTER_",
            "MALLOC_",
            "GLIBC_",
        ];
        let names = [
            "LANG",
            "LANGUAGE",
            "TZ",
            "HOME",
            "USER",
            "LOGNAME",
            "TMPDIR",
            "TMP",
            "TEMP",
            "XDG_CONFIG_HOME",
        ];
        names.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The driver.
    pub fn source(self) -> &'static [u8] {
        match self {
            Self::Python => include_bytes!("../drivers/python.py"),
            Self::JavaScript | Self::TypeScript => include_bytes!("../drivers/javascript.js"),
            Self::Bash => concat!(
                include_str!("../drivers/speaker.sh"),
                include_str!("../drivers/bash.sh")
            )
            .as_bytes(),
            Self::R => R.as_bytes(),
            Self::Java => include_bytes!("../drivers/Driver.java"),
        }
    }

    /// What a driver is given before it saves or loads, beside what it is already.
    pub(crate) fn state_source(self) -> Option<&'static [u8]> {
        match self {
            Self::Python => Some(
                concat!(
                    include_str!("../drivers/objects.py"),
                    include_str!("../drivers/state.py")
                )
                .as_bytes(),
            ),
            Self::Bash => Some(include_bytes!("../drivers/state.sh")),
            Self::R => Some(include_bytes!("../drivers/state.R")),
            Self::JavaScript | Self::TypeScript | Self::Java => None,
        }
    }

    /// Why what its cells left cannot be carried to another context, if it cannot.
    pub(crate) fn cannot_be_saved(self) -> Option<&'static str> {
        match self {
            Self::JavaScript | Self::TypeScript => {
                Some("Node can write down values, and neither functions, classes nor what they close over")
            }
            Self::Java => Some("Java can write down objects of classes that say so, and no class that a cell declared"),
            Self::Python | Self::Bash | Self::R => None,
        }
    }

    /// Program and arguments that read the driver and run it.
    pub fn command(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Python => &["python3", "-c", PYTHON],
            // The internals are for the process that prepares cells; the one that runs them does not have them.
            Self::JavaScript => &["node", "--expose-internals", "-e", NODE, "javascript"],
            Self::TypeScript => &["node", "--expose-internals", "-e", NODE, "typescript"],
            Self::Bash => &["bash", "-c", BASH, "bash"],
            Self::R => &["bash", "-c", BASH, "r"],
            Self::Java => &["bash", "-c", JAVA, "java"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// The programs without which there are no contexts of it; those of TypeScript must be new enough, too.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3"],
            Self::JavaScript | Self::TypeScript => &["node"],
            Self::Bash => &["bash"],
            Self::R => &["bash", "Rscript"],
            Self::Java => &["bash", "java", "javac"],
        }
    }

    /// What a sandbox needs for it, for whoever finds it missing.
    pub fn recipe(self) -> &'static str {
        match self {
            Self::Python => {
                "install Python 3.9 or newer on the machine, use an image that has it, or make a template that does: `offleash template build \
                 --from-host --name code-interpreter --pip ipython,numpy,pandas,matplotlib`"
            }
            Self::JavaScript => {
                "install Node 18 or newer on the machine, use an image that has it, or make a template that does: `offleash template build \
                 --from-host --name node --apt nodejs`"
            }
            Self::TypeScript => {
                "install Node 22.13 or newer on the machine, use an image that has it, or make a template that has an \
                 older one with its package for TypeScript: `offleash template build --from-host --name node --npm typescript@5`"
            }
            Self::Bash => {
                "install Bash 5.0 or newer and GNU coreutils on the machine, or use a root or an image that has them"
            }
            Self::R => {
                "install R 4.0 or newer and Bash on the machine, use an image that has them, or make a template that does: `offleash template \
                 build --from-host --name r --apt r-base-core`"
            }
            Self::Java => {
                "install Java 17 or newer with its compiler, and Bash, on the machine, use an image that has them, or make a template that does: \
                 `offleash template build --from-host --name java --apt default-jdk-headless`"
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
        for (alias, language) in [
            ("py", Language::Python),
            ("js", Language::JavaScript),
            ("TS", Language::TypeScript),
            ("R", Language::R),
            ("Java", Language::Java),
        ] {
            assert_eq!(Language::parse(alias), Some(language));
        }
        for name in ["", "cobol", "python ", "pythön"] {
            assert_eq!(Language::parse(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_read_at_the_start_cannot_be_given_later() {
        for name in [
            "PYTHONPATH",
            "OMP_NUM_THREADS",
            "MPLBACKEND",
            "TZ",
            "LC_ALL",
            "LD_LIBRARY_PATH",
        ] {
            assert!(Language::is_read_by_python_at_start(name), "{name}");
        }
        for name in ["OPENAI_API_KEY", "PATH", "DEBUG", "TZDATA", "http_proxy"] {
            assert!(!Language::is_read_by_python_at_start(name), "{name}");
        }
    }

    #[test]
    fn every_driver_fits_into_its_frame() {
        for language in Language::ALL {
            for source in [Some(language.source()), language.state_source()].into_iter().flatten() {
                let length = HostFrame::Source(source).encode().unwrap().len();
                assert!(length <= MAX_FROM_HOST + 64, "{language}");
            }
        }
    }
}
