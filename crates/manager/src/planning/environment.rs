//! The environment of a command: what every sandbox has, what toolchains add, what rules pass and set.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use offleash_core::env::{EnvError, EnvRules, check_variable};
use offleash_core::plan::{Environment, User};

use super::toolchain::Added;
use super::{Host, etc, trust};

/// Variables by name.
pub(super) type Variables = BTreeMap<OsString, OsString>;

/// Where programs are looked for after those of toolchains.
const SYSTEM_PATH: [&str; 6] = [
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
];

/// The directories in which programs are looked for inside, the first first.
pub(super) fn search_path(added: &Added) -> Vec<PathBuf> {
    added
        .path
        .iter()
        .cloned()
        .chain(SYSTEM_PATH.iter().map(PathBuf::from))
        .collect()
}

/// What every sandbox has, and with `opens` what its programs need where the gateway opens connections.
pub(super) fn of_the_sandbox(user: &User, added: &Added, directory: &Path, opens: bool) -> Variables {
    let path = search_path(added);
    let path: Vec<&OsStr> = path.iter().map(|directory| directory.as_os_str()).collect();
    let own = [
        ("HOME", user.home.as_os_str().to_owned()),
        ("LANG", "C.UTF-8".into()),
        ("LOGNAME", user.name.clone().into()),
        ("PATH", path.join(OsStr::new(":"))),
        ("PWD", directory.as_os_str().to_owned()),
        ("SHELL", etc::shell().into()),
        ("USER", user.name.clone().into()),
    ];
    let mut variables: Variables = own.map(|(name, value)| (OsString::from(name), value)).into();
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
pub(super) fn resolve(rules: &EnvRules, host: &Host, mut variables: Variables) -> Result<Environment, EnvError> {
    for (name, value) in &rules.set {
        check_variable(name, value)?;
    }
    variables.extend(rules.resolve(&host.env));
    Ok(variables.into_iter().collect())
}
