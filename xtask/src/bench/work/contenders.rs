//! Who does the work, and the command lines that make the comparison fair: all may write to the job's directory, and
//! see the system and the Rust toolchain.

use std::ffi::OsString;
use std::path::Path;

use crate::bench::contender::{Arena, BUBBLEWRAP, OFFLEASH, PLAIN, bubblewrap_words};
use crate::error::TaskError;

/// Our name where changes are written back at the end.
pub(super) const WRITTEN_BACK: &str = "offleash, rw";

/// A run answers 1 when it held something back, as of packages that bring names which run code later; the same job
/// has succeeded without that.
const TOLERANT: [&str; 4] = ["/bin/sh", "-c", "\"$@\" || [ $? = 1 ]", "sh"];

/// One way to do a job.
#[derive(Debug)]
pub(super) struct Contender {
    /// As it is named in reports.
    pub(super) name: &'static str,
    /// Words before the job's own.
    pub(super) words: Vec<OsString>,
}

/// Everybody, or why one cannot take part.
pub(super) fn all(arena: &Arena, directory: &Path, rust: &Path) -> [Result<Contender, (&'static str, TaskError)>; 4] {
    let bubblewrap = bubblewrap_words().map(|mut words| {
        // Before the `--` at the end.
        let end = words.split_off(words.len() - 1);
        // Distributions name their compiler there.
        let alternatives = Path::new("/etc/alternatives");
        for (option, path) in [
            ("--bind", directory),
            ("--ro-bind", rust),
            ("--ro-bind-try", alternatives),
        ] {
            words.extend([option.into(), path.into(), path.into()]);
        }
        words.extend(["--chdir".into(), directory.into()]);
        words.extend(end);
        Contender {
            name: BUBBLEWRAP,
            words,
        }
    });
    let ours = |name, mode: &str| {
        let mut workspace = OsString::from(directory);
        workspace.push(mode);
        let words = ["run", "--quiet", "--read"].map(OsString::from);
        let mut words: Vec<_> = std::iter::once(arena.binary().into()).chain(words).collect();
        words.extend([rust.into(), "--workspace".into(), workspace, "--".into()]);
        Ok(Contender { name, words })
    };
    [
        Ok(Contender {
            name: PLAIN,
            words: Vec::new(),
        }),
        bubblewrap.map_err(|error| (BUBBLEWRAP, error)),
        ours(OFFLEASH, ":overlay"),
        ours(WRITTEN_BACK, ":rw").map(|contender| Contender {
            words: TOLERANT
                .map(OsString::from)
                .into_iter()
                .chain(contender.words)
                .collect(),
            ..contender
        }),
    ]
}
