//! What is done in the sandbox to carry out a recipe, step by step.

use std::ffi::OsString;

use offleash_core::template::{PackageManager, Recipe};

use super::error::RecipeError;
use super::indexes::RecipeIndexes;

/// One command in the sandbox, as its superuser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipeStep {
    /// What it is called in messages.
    pub title: String,
    /// What it installs if that may be left out.
    pub optional: Option<String>,
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Variables beside those of the whole build.
    pub env: Vec<(OsString, OsString)>,
}

/// What scripts below exit with when a program is missing, each with the program and the mend.
const MISSING: [(u8, &str, &str); 4] = [
    (
        90,
        "python3",
        "install the package python3 on the host, or add it with `--apt` where sandboxes have a superuser",
    ),
    (
        91,
        "pip",
        "install the package python3-pip on the host, or add it with `--apt python3-pip` where sandboxes have a superuser",
    ),
    (
        92,
        "npm",
        "install Node with npm on the host, or add it with `--apt nodejs,npm` where sandboxes have a superuser",
    ),
    (
        93,
        "apt-get",
        "this host's distribution has no apt; install its packages on the host",
    ),
];

/// Packages of the host count as installed, whose directories below `/etc` and `/var` are not all in a sandbox; their scripts
/// take those for granted, and run when another package concerns them. What is no configuration file there is a directory. Nobody is there to be asked
/// whether configuration that a newer package has is wanted: what is there stays, and what is missing comes.
const APT: &str = r#"command -v apt-get >/dev/null || exit 93
set -e
known=/var/lib/dpkg/info
cat "$known"/*.conffiles >/tmp/.conffiles 2>/dev/null || :
cat "$known"/*.list 2>/dev/null | grep -E '^/(etc|var)/' | sort -u | grep -vxFf /tmp/.conffiles | while read -r path; do
case ${path##*/} in
*.d) ;;
*.*) continue ;;
esac
test -e "$path" || test -L "$path" || mkdir -p -- "$path" 2>/dev/null || :
done
set -- -o Acquire::EnableSrvRecords=false -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
-o Dpkg::Options::=--force-confmiss -- "$@"
apt-get update -o Acquire::EnableSrvRecords=false
exec apt-get install -y --no-install-recommends "$@"
"#;

/// The mark that keeps pip from a distribution's Python (PEP 668) is right on a machine and not in a template, where the
/// packages, and what users of its sandboxes add, go to `/usr/local` or to their homes.
const PIP: &str = r#"command -v python3 >/dev/null || exit 90
python3 -m pip --version >/dev/null || exit 91
set -e
rm -f -- "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/EXTERNALLY-MANAGED"
exec python3 -m pip install --progress-bar off "$@"
"#;

const NPM: &str = "command -v npm >/dev/null || exit 92\n\
                   exec npm install --global --prefix /usr/local --no-fund --no-audit --no-update-notifier --cache /tmp/.npm \"$@\"";

/// What package managers and scripts leave behind that nobody needs.
const TIDY: &str = "rm -rf /root/.cache /root/.npm /var/cache/apt/pkgcache.bin /var/cache/apt/srcpkgcache.bin\n\
                    for place in /tmp /var/tmp; do find \"$place\" -mindepth 1 -delete; done\n\
                    for place in /var/lib/apt/lists /var/cache/apt/archives; do\n\
                    if test -d \"$place\"; then find \"$place\" -type f -delete; fi\ndone";

/// The steps of a recipe, in their order. The last one leaves the layer as it is to be kept, and shows that a sandbox can
/// be made of it.
pub fn of(recipe: &Recipe, indexes: &RecipeIndexes) -> Vec<RecipeStep> {
    let shell = |script: &str, arguments: Vec<OsString>| {
        let start = ["/bin/sh", "-c", script, "sh"].map(OsString::from);
        start.into_iter().chain(arguments).collect::<Vec<_>>()
    };
    let step = |title: String, argv| RecipeStep {
        title,
        optional: None,
        argv,
        env: Vec::new(),
    };
    let is_of_pip = |name: &OsString| name.as_encoded_bytes().starts_with(b"PIP_");
    let set = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let mut steps = Vec::new();
    if !recipe.apt.is_empty() {
        let names = recipe.apt.iter().map(|name| name.as_str().into()).collect();
        steps.push(RecipeStep {
            optional: left_out(recipe, PackageManager::Apt),
            env: set(&[("DEBIAN_FRONTEND", "noninteractive")]),
            ..step("apt-get install".to_owned(), shell(APT, names))
        });
    }
    if !recipe.pip.is_empty() {
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(index) = &recipe.index_url {
            arguments.extend(["--index-url".into(), index.as_str().into()]);
        }
        arguments.push("--".into());
        arguments.extend(recipe.pip.iter().map(|name| OsString::from(name.as_str())));
        let mut env: Vec<(OsString, OsString)> = set(&[
            ("PIP_NO_CACHE_DIR", "1"),
            ("PIP_NO_INPUT", "1"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_ROOT_USER_ACTION", "ignore"),
            // Never to the home of whoever builds.
            ("PIP_USER", "0"),
        ]);
        env.extend(indexes.env.iter().filter(|(name, _)| is_of_pip(name)).cloned());
        steps.push(RecipeStep {
            env,
            ..step("pip install".to_owned(), shell(PIP, arguments))
        });
    }
    if !recipe.npm.is_empty() {
        let names = recipe.npm.iter().map(|name| name.as_str().into());
        let arguments = indexes.npm_arguments.iter().cloned().chain(["--".into()]).chain(names);
        let optional = left_out(recipe, PackageManager::Npm);
        let mut env: Vec<_> = indexes
            .env
            .iter()
            .filter(|(name, _)| !is_of_pip(name))
            .cloned()
            .collect();
        if optional.is_some() {
            // Nobody waits long for a registry whose packages may be left out.
            env.extend(set(&[
                ("npm_config_fetch_retries", "1"),
                ("npm_config_fetch_retry_mintimeout", "1000"),
            ]));
        }
        steps.push(RecipeStep {
            optional,
            env,
            ..step("npm install".to_owned(), shell(NPM, arguments.collect()))
        });
    }
    for (number, command) in recipe.run.iter().enumerate() {
        let argv = ["/bin/sh", "-c", command].map(OsString::from).to_vec();
        steps.push(step(format!("command {}", number + 1), argv));
    }
    steps.push(step("tidying up".to_owned(), shell(TIDY, Vec::new())));
    steps
}

/// The packages of a manager if they may be left out, in a line.
pub fn left_out(recipe: &Recipe, of: PackageManager) -> Option<String> {
    let listed = match of {
        PackageManager::Apt => recipe.apt.iter().map(ToString::to_string).collect::<Vec<_>>(),
        PackageManager::Npm => recipe.npm.iter().map(ToString::to_string).collect(),
    };
    recipe.optional.contains(&of).then(|| listed.join(", "))
}

/// The program whose lack a step's exit code tells of.
pub fn missing(step: &RecipeStep, code: u8) -> Option<RecipeError> {
    // A command of the owner's means what it likes by it.
    let is_ours = step.argv.len() > 3;
    let (_, program, hint) = MISSING.into_iter().find(|(known, ..)| *known == code && is_ours)?;
    Some(RecipeError::NoProgram {
        step: step.title.clone(),
        program,
        hint,
    })
}

/// The program that an image lacks, if one of our scripts says so with its exit code.
pub fn missing_in_image(command: &[String], code: u8) -> Option<&'static str> {
    let script = command.get(2)?;
    let is_ours = [APT, PIP, NPM].contains(&script.as_str()) && command.len() > 3;
    let (_, program, _) = MISSING.into_iter().find(|(known, ..)| *known == code && is_ours)?;
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_arguments_and_never_part_of_a_script() {
        let recipe = Recipe {
            apt: vec!["graphviz".parse().unwrap()],
            pip: vec!["pandas; python_version > '3'".parse().unwrap()],
            npm: vec!["left-pad".parse().unwrap()],
            run: vec!["echo $HOME".to_owned()],
            index_url: Some("https://index.test/simple".parse().unwrap()),
            ..Recipe::default()
        };
        let steps = of(&recipe, &RecipeIndexes::default());
        let titles: Vec<&str> = steps.iter().map(|step| step.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "apt-get install",
                "pip install",
                "npm install",
                "command 1",
                "tidying up"
            ]
        );
        let rest = |step: usize| steps[step].argv[4..].to_vec();
        assert_eq!(rest(0), ["graphviz"]);
        assert_eq!(
            rest(1),
            [
                "--index-url",
                "https://index.test/simple",
                "--",
                "pandas; python_version > '3'"
            ]
        );
        assert_eq!(rest(2), ["--", "left-pad"]);
        assert_eq!(steps[3].argv, ["/bin/sh", "-c", "echo $HOME"]);
        assert_eq!(of(&Recipe::default(), &RecipeIndexes::default()).len(), 1);
    }

    #[test]
    fn what_is_missing_is_told_of_by_its_own_steps_alone() {
        let recipe = Recipe {
            pip: vec!["x".parse().unwrap()],
            run: vec!["exit 91".to_owned()],
            ..Recipe::default()
        };
        let steps = of(&recipe, &RecipeIndexes::default());
        assert!(missing(&steps[0], 91).is_some_and(|error| error.to_string().contains("no `pip`")));
        assert!(missing(&steps[0], 1).is_none() && missing(&steps[1], 91).is_none());
        let command = |step: &RecipeStep| -> Vec<String> {
            let words = step.argv.iter();
            words.map(|word| word.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(missing_in_image(&command(&steps[0]), 91), Some("pip"));
        assert_eq!(missing_in_image(&command(&steps[1]), 91), None);
    }
}
