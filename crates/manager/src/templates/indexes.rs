//! Where packages come from: the hosts that a build may reach beside those that its owner names.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use offleash_core::template::Recipe;

const PYPI: [&str; 2] = ["pypi.org:443", "files.pythonhosted.org:443"];
const NPM: &str = "registry.npmjs.org:443";

/// Variables of the build in which package managers find the addresses of indexes.
const PIP_VARIABLES: [&str; 2] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"];
const NPM_VARIABLES: [&str; 2] = ["NPM_CONFIG_REGISTRY", "npm_config_registry"];

/// Most bytes of a file that lists where the distribution's packages come from, and most such files.
const LONGEST_LIST: u64 = 256 * 1024;
const MOST_LISTS: usize = 256;

/// The rules that let the packages of `recipe` be fetched, in a build with the variables `env`.
pub(super) fn rules(recipe: &Recipe, env: &[(OsString, OsString)]) -> Vec<String> {
    let mut rules = Vec::new();
    let of_variables = |names: &[&str]| -> Vec<String> {
        let values = env.iter().filter(|(name, _)| names.iter().any(|known| name == known));
        let addresses = values.flat_map(|(_, value)| words(value));
        addresses.filter_map(|address| host_and_port(&address)).collect()
    };
    if !recipe.pip.is_empty() {
        rules.extend(of_variables(&PIP_VARIABLES));
        let has_another = env.iter().any(|(name, _)| name == PIP_VARIABLES[0]);
        match &recipe.index_url {
            Some(index) => rules.push(index.host_and_port()),
            None if has_another => {}
            None => rules.extend(PYPI.map(str::to_owned)),
        }
    }
    if !recipe.npm.is_empty() {
        let others = of_variables(&NPM_VARIABLES);
        if others.is_empty() {
            rules.push(NPM.to_owned());
        }
        rules.extend(others);
    }
    if !recipe.apt.is_empty() {
        rules.extend(of_the_distribution(Path::new("/etc/apt")));
    }
    rules.sort();
    rules.dedup();
    rules
}

fn words(value: &OsStr) -> Vec<String> {
    value.to_string_lossy().split_whitespace().map(str::to_owned).collect()
}

/// The hosts in `sources.list` and the files of `sources.list.d`, of either form (sources.list(5)).
fn of_the_distribution(apt: &Path) -> Vec<String> {
    let more = fs::read_dir(apt.join("sources.list.d")).into_iter().flatten().flatten();
    let files = std::iter::once(apt.join("sources.list")).chain(more.map(|found| found.path()));
    let mut rules = Vec::new();
    for file in files.take(MOST_LISTS) {
        let is_small = fs::metadata(&file).is_ok_and(|found| found.is_file() && found.len() <= LONGEST_LIST);
        let text = if is_small {
            fs::read_to_string(&file).unwrap_or_default()
        } else {
            String::new()
        };
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        rules.extend(lines.flat_map(str::split_whitespace).filter_map(host_and_port));
    }
    rules
}

/// The host and port of an address with `http` or `https`, without its user.
fn host_and_port(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next().filter(|host| !host.is_empty())?;
    let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    Some(if has_port {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(pip: &str, npm: &str) -> Recipe {
        let list = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Recipe {
            pip: list(pip).iter().map(|name| name.parse().unwrap()).collect(),
            npm: list(npm).iter().map(|name| name.parse().unwrap()).collect(),
            ..Recipe::default()
        }
    }

    #[test]
    fn only_the_indexes_of_what_is_installed_are_reached() {
        assert_eq!(rules(&recipe("", ""), &[]), Vec::<String>::new());
        assert_eq!(
            rules(&recipe("numpy", ""), &[]),
            ["files.pythonhosted.org:443", "pypi.org:443"]
        );
        assert_eq!(rules(&recipe("", "left-pad"), &[]), [NPM]);
        let own = Recipe {
            index_url: Some("http://index.test:81/simple".parse().unwrap()),
            ..recipe("numpy", "")
        };
        assert_eq!(rules(&own, &[]), ["index.test:81"]);
    }

    #[test]
    fn variables_that_the_owner_passes_name_other_indexes() {
        let env = |name: &str, value: &str| vec![(OsString::from(name), OsString::from(value))];
        let passed = env("PIP_INDEX_URL", "https://user:secret@index.test/simple");
        assert_eq!(rules(&recipe("numpy", ""), &passed), ["index.test:443"]);
        let extra = env("PIP_EXTRA_INDEX_URL", "http://a.test/x https://b.test:8443");
        assert_eq!(
            rules(&recipe("numpy", ""), &extra),
            ["a.test:80", "b.test:8443", "files.pythonhosted.org:443", "pypi.org:443"]
        );
        let npm = env("npm_config_registry", "http://npm.test:4873/");
        assert_eq!(rules(&recipe("", "left-pad"), &npm), ["npm.test:4873"]);
        assert_eq!(rules(&recipe("", ""), &npm), Vec::<String>::new());
    }

    #[test]
    fn the_distribution_s_packages_come_from_where_its_files_say() {
        let apt = tempfile::tempdir().unwrap();
        fs::create_dir(apt.path().join("sources.list.d")).unwrap();
        let old = "# http://no.test x\ndeb [signed-by=/x] http://deb.test/debian bookworm main\ndeb cdrom:[x]/ y z\n";
        fs::write(apt.path().join("sources.list"), old).unwrap();
        let new = "Types: deb\nURIs: https://sec.test:8443/debian http://u@deb.test/x\nSuites: bookworm\n";
        fs::write(apt.path().join("sources.list.d/debian.sources"), new).unwrap();
        assert_eq!(
            of_the_distribution(apt.path()),
            ["deb.test:80", "sec.test:8443", "deb.test:80"]
        );
    }
}
