//! The environment of a command: what every sandbox has, what toolchains add, what rules pass and set.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use offleash_core::env::{EnvError, EnvRules, check_variable};
use offleash_core::plan::{Environment, SandboxUser};
use offleash_core::spec::RootChoice;

use super::host::PlanningHost;
use super::image;
use super::toolchain::ToolchainAdditions;
use super::trust;

/// Of a sandbox without debuggers: the search for leaks at the end of a program that was built with a sanitizer is one, and
/// without it the program fails (<https://clang.llvm.org/docs/LeakSanitizer.html>).
const NO_SEARCH_FOR_LEAKS: [(&str, &str); 2] = [("ASAN_OPTIONS", "detect_leaks=0"), ("LSAN_OPTIONS", "detect_leaks=0")];

/// Variables by name.
pub(super) type VariableMap = BTreeMap<OsString, OsString>;

/// Where programs are looked for after those of toolchains.
const SYSTEM_PATH: [&str; 6] = [
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
];

/// The same where there is a superuser, or a name of one: in the order of Debian's login shells.
const SYSTEM_PATH_OF_BASE: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// The directories in which programs are looked for inside, the first first.
pub(super) fn search_path(root: &RootChoice, added: &ToolchainAdditions) -> Vec<PathBuf> {
    let system = match root {
        RootChoice::System => SYSTEM_PATH,
        RootChoice::Base { .. } | RootChoice::Image(_) => SYSTEM_PATH_OF_BASE,
    };
    if let Some(path) = image::search_path(root) {
        return added.path.iter().cloned().chain(path).collect();
    }
    added
        .path
        .iter()
        .cloned()
        .chain(system.iter().map(PathBuf::from))
        .collect()
}

/// What sanitizers need where no debugger may work.
pub(super) fn of_sanitizers(allow_ptrace: bool) -> impl Iterator<Item = (OsString, OsString)> {
    let variables = NO_SEARCH_FOR_LEAKS.into_iter().filter(move |_| !allow_ptrace);
    variables.map(|(name, value)| (name.into(), value.into()))
}

/// What every sandbox has, and with `opens` what its programs need where the gateway opens connections.
pub(super) fn of_the_sandbox(
    user: &SandboxUser,
    search_path: &[PathBuf],
    added: &ToolchainAdditions,
    directory: &Path,
    opens: bool,
) -> VariableMap {
    let mut variables: VariableMap = user.environment(search_path).into_iter().collect();
    variables.insert("LANG".into(), "C.UTF-8".into());
    variables.insert("PWD".into(), directory.into());
    if opens {
        variables.extend(trust::variables());
    }
    variables.extend(added.variables.iter().cloned());
    variables
}

/// The environment, by name. Later in this list wins: what every sandbox has, what toolchains add, what is passed from
/// the host, what is set.
///
/// # Errors
/// When a variable that is set cannot exist.
pub(super) fn resolve(
    rules: &EnvRules,
    host: &PlanningHost,
    mut variables: VariableMap,
) -> Result<Environment, EnvError> {
    for (name, value) in &rules.set {
        check_variable(name, value)?;
    }
    variables.extend(rules.resolve(&host.env));
    Ok(variables.into_iter().collect())
}
