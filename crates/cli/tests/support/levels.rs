//! The level that the tests of a thread run at, and the runtimes that some take.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::{processes, skip};

thread_local! {
    /// Flags of `offleash run`, from [`at_level`].
    static FLAGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Does something while every `offleash run` of this thread has these flags, unless it names a level itself.
pub fn at_level<T>(flags: &[String], action: impl FnOnce() -> T) -> T {
    FLAGS.replace(flags.to_vec());
    let done = action();
    FLAGS.take();
    done
}

/// Whether the tests of this thread run at another level than `process`.
pub fn is_elsewhere() -> bool {
    FLAGS.with_borrow(|flags| !flags.is_empty())
}

/// Arguments of the program, with the flags of this thread's level.
pub(super) fn with_flags<I, S>(arguments: I) -> Vec<OsString>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut arguments: Vec<OsString> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
    let names_level = arguments.iter().any(|word| word == "--level");
    if arguments.first().is_some_and(|word| word == "run") && !names_level {
        FLAGS.with_borrow(|flags| drop(arguments.splice(1..1, flags.iter().map(OsString::from))));
    }
    arguments
}

/// The flags of level `container` with this runtime.
pub fn container_flags(runtime: &Path) -> Vec<String> {
    let runtime = runtime.to_str().unwrap();
    ["--level", "container", "--runtime", runtime].map(str::to_owned).into()
}

/// gVisor's program: beside the SDKs, or in `PATH`; says so if there is none.
pub fn runsc() -> Option<PathBuf> {
    let installed = std::env::var_os("OFFLEASH_SDKS").map(|sdks| Path::new(&sdks).join("gvisor/usr/bin/runsc"));
    let found = installed.filter(|path| path.exists());
    found.or_else(|| runtime("runsc"))
}

/// A runtime in `PATH`; says so if there is none.
pub fn runtime(name: &str) -> Option<PathBuf> {
    let found = processes::program(name);
    if found.is_none() {
        skip(&format!("there is no {name}"));
    }
    found
}
