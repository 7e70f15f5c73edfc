//! Git's system configuration inside: what git has to know of a sandbox.
//!
//! The least of git's configurations, so whatever the user's or a repository's says is said over it. Deliberately not
//! the host's, which may hold credentials.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::program_search;
use super::view::PlanView;

/// Where it is.
const PATH: &str = "/etc/gitconfig";

/// Its name in `/etc`.
pub const NAME: &str = "gitconfig";

/// What is in it.
///
/// Git takes a file for unchanged as long as the index says of it what `lstat` does, and reads it otherwise. Owners are
/// others inside, and copying up gives a file another change time and number, so each run would read every file of a
/// repository that came from outside. What is left to compare is size, time of modification and mode.
pub const CONTENTS: &str = "\
# A sandbox shows files under another owner; what is written to gets another number and change time.
[core]
\tcheckStat = minimal
\ttrustctime = false
";

/// The variable by which a git whose own system configuration would be elsewhere finds this one.
///
/// Distributions' git reads [`PATH`]; one below another prefix reads `etc/gitconfig` there. Where the host has such a file
/// nothing is said, since it would no longer be read.
pub(super) fn variable(search_path: &[PathBuf], cwd: &Path, view: PlanView<'_>) -> Option<(OsString, OsString)> {
    let program = program_search::find(OsStr::new("git"), search_path, cwd, view)?;
    let mut prefixes = program.paths().filter_map(|path| path.parent()?.parent());
    let is_elsewhere = |prefix: &Path| prefix != Path::new("/") && prefix != Path::new("/usr");
    let has_its_own = |prefix: &Path| view.resolve(&prefix.join("etc").join(NAME)).is_some();
    prefixes
        .all(|prefix| is_elsewhere(prefix) && !has_its_own(prefix))
        .then(|| ("GIT_CONFIG_SYSTEM".into(), PATH.into()))
}
