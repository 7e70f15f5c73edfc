//! Where packages come from: the hosts that a build may reach beside those that its owner names, what they may lead to, and with which
//! credentials they are asked.
//!
//! Names that the host's own package managers ask, by their configuration or by themselves, may lead into the owner's networks: at
//! exactly their ports, and to nothing that is this machine, its link or a service of its cloud. A recipe's own index may not, since it
//! may have come with something else.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use offleash_core::network::{DomainName, HeaderRule, Host, HostPort, MethodRule};
use offleash_core::template::Recipe;

use super::configured::{IndexConfiguration, PackageIndex};

const PYPI: [(&str, u16); 2] = [("pypi.org", 443), ("files.pythonhosted.org", 443)];
const NPM: [(&str, u16); 1] = [("registry.npmjs.org", 443)];

/// Variables of the build in which package managers find the addresses of indexes.
const PIP_VARIABLES: [&str; 2] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"];
const NPM_VARIABLES: [&str; 2] = ["NPM_CONFIG_REGISTRY", "npm_config_registry"];

/// Where the packages of a recipe come from.
#[derive(Debug, Default)]
pub struct RecipeIndexes {
    /// The rules that let them be fetched.
    pub rules: Vec<String>,
    /// Names that may lead into networks of the owner's, each at a port.
    pub inward: Vec<(DomainName, u16)>,
    /// Services of this machine that are given to the build.
    pub host_ports: Vec<HostPort>,
    /// Credentials, which are put into requests outside of the sandbox.
    pub headers: Vec<HeaderRule>,
    /// Which requests they go with: those that fetch.
    pub methods: Vec<MethodRule>,
    /// Variables of the steps that install.
    pub env: Vec<(OsString, OsString)>,
    /// Arguments for npm.
    pub npm_arguments: Vec<OsString>,
    /// What is to be said of it, a line each.
    pub notes: Vec<String>,
}

impl RecipeIndexes {
    /// Those of `recipe`, in a build with the variables `build_env` on `machine`.
    pub fn of(recipe: &Recipe, build_env: &[(OsString, OsString)], machine: &IndexConfiguration) -> Self {
        let mut indexes = Self::default();
        if !recipe.pip.is_empty() {
            indexes.add_pip(recipe, build_env, machine);
        }
        if !recipe.npm.is_empty() {
            indexes.add_npm(build_env, machine);
        }
        if !recipe.apt.is_empty() {
            for index in machine.apt() {
                indexes.add("apt", &index);
            }
        }
        indexes.tidy();
        indexes
    }

    /// Those of every package manager, as the configuration of `machine` names them.
    pub fn of_machine(machine: &IndexConfiguration) -> Self {
        let mut indexes = Self::default();
        indexes.add_pip(&Recipe::default(), &[], machine);
        indexes.add_npm(&[], machine);
        for index in machine.apt() {
            indexes.add("apt", &index);
        }
        indexes.tidy();
        indexes
    }

    fn tidy(&mut self) {
        for list in [&mut self.rules, &mut self.notes] {
            list.sort();
            list.dedup();
        }
    }

    fn add_pip(&mut self, recipe: &Recipe, build_env: &[(OsString, OsString)], machine: &IndexConfiguration) {
        let passed = of_variables(build_env, &PIP_VARIABLES);
        let has_another = build_env.iter().any(|(name, _)| name == PIP_VARIABLES[0]);
        self.rules.extend(passed.iter().map(PackageIndex::rule));
        if let Some(index) = &recipe.index_url {
            return self.rules.push(index.host_and_port());
        }
        if has_another {
            return;
        }
        let pip = machine.pip();
        match &pip.index {
            Some(index) => {
                self.add("pip", index);
                self.env.push((PIP_VARIABLES[0].into(), index.url.as_str().into()));
            }
            None => self.add_usual(&PYPI),
        }
        if passed.is_empty() && !pip.extra.is_empty() {
            pip.extra.iter().for_each(|index| self.add("pip", index));
            let urls: Vec<&str> = pip.extra.iter().map(|index| index.url.as_str()).collect();
            self.env.push((PIP_VARIABLES[1].into(), urls.join(" ").into()));
        }
        if !pip.trusted_hosts.is_empty() {
            self.env
                .push(("PIP_TRUSTED_HOST".into(), pip.trusted_hosts.join(" ").into()));
        }
    }

    fn add_npm(&mut self, build_env: &[(OsString, OsString)], machine: &IndexConfiguration) {
        let passed = of_variables(build_env, &NPM_VARIABLES);
        if !passed.is_empty() {
            return self.rules.extend(passed.iter().map(PackageIndex::rule));
        }
        let npm = machine.npm();
        match &npm.registry {
            Some(index) => {
                self.add("npm", index);
                self.env.push((NPM_VARIABLES[1].into(), index.url.as_str().into()));
            }
            None => self.add_usual(&NPM),
        }
        for (key, index) in &npm.scopes {
            self.add("npm", index);
            self.npm_arguments.push(format!("--{key}={}", index.url).into());
        }
    }

    /// An index that the host's configuration names.
    fn add(&mut self, asked_by: &str, index: &PackageIndex) {
        let mut note = format!(
            "{asked_by} looks at `{}:{}`, as {} says",
            index.host, index.port, index.said_by
        );
        if index.host.is_loopback() {
            let (port, inside) = (index.port, index.port);
            self.host_ports.push(HostPort { port, inside });
            self.notes.push(note + ", which is given to the build");
            return;
        }
        self.rules.push(index.rule());
        if let Host::Name(name) = &index.host {
            self.inward.push((name.clone(), index.port));
            note += "; the build may be led into your network by that name";
        }
        if let Some(header) = index.header() {
            self.headers.retain(|known| known.host() != header.host());
            self.headers.push(header);
            // npm asks for packages of scopes by paths that no rule for requests can be about.
            if asked_by != "npm" {
                self.methods.extend(format!("GET,HEAD {}/*", index.host).parse());
            }
            note += "; its credentials stay outside of the build";
        }
        self.notes.push(note);
    }

    /// What a package manager asks by itself.
    fn add_usual(&mut self, places: &[(&str, u16)]) {
        for (name, port) in places {
            self.rules.push(format!("{name}:{port}"));
            self.inward.extend(name.parse().map(|name| (name, *port)));
        }
    }
}

fn of_variables(env: &[(OsString, OsString)], names: &[&str]) -> Vec<PackageIndex> {
    let values = env.iter().filter(|(name, _)| names.iter().any(|known| name == known));
    let words = values.flat_map(|(name, value)| words(value).into_iter().map(move |word| (name, word)));
    words
        .filter_map(|(name, word)| PackageIndex::without_credentials(&word, &Path::new(name).display().to_string()))
        .collect()
}

fn words(value: &OsStr) -> Vec<String> {
    value.to_string_lossy().split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::configured::tests::machine;
    use super::*;

    fn recipe(pip: &str, npm: &str) -> Recipe {
        let list = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Recipe {
            pip: list(pip).iter().map(|name| name.parse().unwrap()).collect(),
            npm: list(npm).iter().map(|name| name.parse().unwrap()).collect(),
            ..Recipe::default()
        }
    }

    fn of(recipe: &Recipe, env: &[(OsString, OsString)]) -> RecipeIndexes {
        let (_root, machine) = machine(&[], &[]);
        RecipeIndexes::of(recipe, env, &machine)
    }

    fn inward(indexes: &RecipeIndexes) -> Vec<String> {
        let shown = indexes.inward.iter().map(|(name, port)| format!("{name}:{port}"));
        shown.collect()
    }

    #[test]
    fn only_the_indexes_of_what_is_installed_are_reached() {
        assert_eq!(of(&recipe("", ""), &[]).rules, Vec::<String>::new());
        let pip = of(&recipe("numpy", ""), &[]);
        assert_eq!(pip.rules, ["files.pythonhosted.org:443", "pypi.org:443"]);
        assert_eq!(inward(&pip), ["pypi.org:443", "files.pythonhosted.org:443"]);
        assert_eq!((pip.notes.len(), pip.env.len(), pip.headers.len()), (0, 0, 0));
        assert_eq!(of(&recipe("", "left-pad"), &[]).rules, ["registry.npmjs.org:443"]);
        let own = Recipe {
            index_url: Some("http://index.test:81/simple".parse().unwrap()),
            ..recipe("numpy", "")
        };
        let own = of(&own, &[]);
        assert_eq!(own.rules, ["index.test:81"]);
        assert_eq!(inward(&own), Vec::<String>::new());
    }

    #[test]
    fn those_of_the_machine_are_of_every_package_manager() {
        let (_root, machine) = machine(&[], &[]);
        let all = RecipeIndexes::of_machine(&machine);
        for rule in ["files.pythonhosted.org:443", "pypi.org:443", "registry.npmjs.org:443"] {
            assert!(all.rules.iter().any(|known| known == rule), "{all:?}");
        }
        let (_root, machine) = self::machine(&[], &[("PIP_INDEX_URL", "https://me:word@index.test/simple")]);
        let all = RecipeIndexes::of_machine(&machine);
        let index = (
            OsString::from("PIP_INDEX_URL"),
            OsString::from("https://index.test/simple"),
        );
        assert!(all.env.contains(&index) && all.headers.len() == 1, "{all:?}");
    }

    #[test]
    fn variables_that_the_owner_passes_name_other_indexes() {
        let env = |name: &str, value: &str| vec![(OsString::from(name), OsString::from(value))];
        let passed = env("PIP_INDEX_URL", "https://user:secret@index.test/simple");
        assert_eq!(of(&recipe("numpy", ""), &passed).rules, ["index.test:443"]);
        let extra = env("PIP_EXTRA_INDEX_URL", "http://a:b@a.test/x https://b.test:8443");
        let extra = of(&recipe("numpy", ""), &extra);
        let expected = ["a.test:80", "b.test:8443", "files.pythonhosted.org:443", "pypi.org:443"];
        assert_eq!(extra.rules, expected);
        assert!(extra.headers.is_empty());
        let npm = env("npm_config_registry", "http://npm.test:4873/");
        assert_eq!(of(&recipe("", "left-pad"), &npm).rules, ["npm.test:4873"]);
        assert_eq!(of(&recipe("", ""), &npm).rules, Vec::<String>::new());
    }

    #[test]
    fn what_the_host_s_configuration_names_may_lead_inside_and_its_credentials_stay_outside() {
        let files = [
            (
                "/etc/pip.conf",
                "[global]\nindex-url = https://me:confidential@index.corp/simple\nextra-index-url = http://extra.corp:81/\n\
                 trusted-host = extra.corp\n",
            ),
            (
                "/home/me/.npmrc",
                "registry=https://npm.corp/\n//npm.corp/:_authToken=confidential\n@s:registry=https://s.corp/\n",
            ),
        ];
        let (_root, known) = machine(&files, &[]);
        let indexes = RecipeIndexes::of(&recipe("numpy", "left-pad"), &[], &known);
        assert_eq!(
            indexes.rules,
            ["extra.corp:81", "index.corp:443", "npm.corp:443", "s.corp:443"]
        );
        assert_eq!(
            inward(&indexes),
            ["index.corp:443", "extra.corp:81", "npm.corp:443", "s.corp:443"]
        );
        assert_eq!(indexes.headers.len(), 2);
        let methods: Vec<String> = indexes.methods.iter().map(ToString::to_string).collect();
        assert_eq!(methods, ["GET,HEAD index.corp/*"]);
        let seen_inside = format!(
            "{:?} {:?} {:?} {:?}",
            indexes.env, indexes.npm_arguments, indexes.notes, indexes.rules
        );
        assert!(
            !seen_inside.contains("confidential") && !seen_inside.contains("me:"),
            "{seen_inside}"
        );
        assert!(seen_inside.contains("https://index.corp/simple"), "{seen_inside}");
        assert!(!format!("{indexes:?}").contains("confidential"));
        let note = indexes
            .notes
            .iter()
            .find(|note| note.contains("`index.corp:443`, as /etc/pip.conf says"));
        assert!(
            note.is_some_and(|note| note.contains("its credentials stay outside")),
            "{:?}",
            indexes.notes
        );
        // What a recipe or a flag names is theirs.
        let own = Recipe {
            index_url: Some("https://index.test/simple".parse().unwrap()),
            ..recipe("numpy", "")
        };
        let own = RecipeIndexes::of(&own, &[], &known);
        assert_eq!(
            (own.rules, own.inward.len(), own.env.len()),
            (vec!["index.test:443".to_owned()], 0, 0)
        );
    }

    #[test]
    fn an_index_on_this_machine_is_given_only_where_it_is_said_so_literally() {
        for address in ["localhost", "127.0.0.1", "[::1]"] {
            let (_root, known) = machine(&[], &[("PIP_INDEX_URL", &format!("http://{address}:3141/root"))]);
            let indexes = RecipeIndexes::of(&recipe("numpy", ""), &[], &known);
            assert_eq!(
                indexes.host_ports,
                [HostPort {
                    port: 3141,
                    inside: 3141
                }],
                "{address}"
            );
            assert!(indexes.rules.is_empty() && indexes.inward.is_empty());
        }
        let (_root, known) = machine(&[], &[("PIP_INDEX_URL", "http://169.254.169.254/")]);
        let indexes = RecipeIndexes::of(&recipe("numpy", ""), &[], &known);
        assert_eq!(
            (indexes.rules, indexes.inward.len()),
            (vec!["169.254.169.254:80".to_owned()], 0)
        );
    }
}
