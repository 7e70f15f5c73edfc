//! What this machine offers for contexts of code: what `isolation`'s probe finds, seen with the languages and templates that
//! there are. `doctor` shows it beside that; nothing is started and nothing is written.

use std::io;
use std::path::{Path, PathBuf};

use offleash_core::level::Level;
use offleash_core::template::TemplateName;
use offleash_core::text::{Text, one_line};
use offleash_interpreter::language::Language;
use offleash_isolation::probe::{self, ProbeSubject};
pub use offleash_isolation::probe::{FeatureCheck, FeatureRemedy, FeatureStatus, LevelReport, ProbeReport};
use offleash_simulated::engine::ScriptLanguage;
use offleash_store::{HostIdentity, StateDirectory};
use offleash_sys::process::is_root;

use crate::templates;

/// Where programs of the host are that sandboxes see.
const PLACES: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin"];
/// Templates that are named; there may be many.
const MAX_NAMED: usize = 8;

/// All that this machine offers to this process, for runs that are kept in `state`. Takes some milliseconds, and blocks.
///
/// # Errors
/// When `/proc` is missing, so that the program's path is unknown.
pub fn machine(state: PathBuf) -> io::Result<ProbeReport> {
    let subject = ProbeSubject::this_process(state)?;
    let mut report = probe::probe(&subject);
    let of_code = checks(&report, &subject.state_directory);
    report.checks.extend(of_code);
    Ok(report)
}

/// Which languages contexts can have, whether an interpreter that is ready can be forked for them, and what scripts have without
/// an operating system.
fn checks(report: &ProbeReport, state: &Path) -> [FeatureCheck; 3] {
    let built = built(state);
    let languages = languages(PLACES.map(Path::new), &built);
    [languages, forked(report, &built), interpreters(report, state)]
}

/// Interpreters of levels `simulated` and `wasm`.
fn interpreters(report: &ProbeReport, state: &Path) -> FeatureCheck {
    let check = |status, found: String, mend: Option<&str>| FeatureCheck {
        name: "script-interpreters",
        status,
        found,
        needed_for: "Python and JavaScript at levels `simulated` and `wasm`",
        mend: mend.map(|explanation| FeatureRemedy {
            explanation: explanation.to_owned(),
            commands: Vec::new(),
        }),
    };
    if !offleash_wasm::has_interpreters() {
        let mend = "build it with feature `wasm`, which is on by default";
        return check(FeatureStatus::Missing, "this build has none".to_owned(), Some(mend));
    }
    let namespaces = report.checks.iter().find(|check| check.name == "user-namespaces");
    let can_have_empty_root =
        is_root() || namespaces.is_none_or(|namespaces| namespaces.status != FeatureStatus::Missing);
    if !can_have_empty_root {
        let found = "a worker takes compiled code only in an empty root directory, which takes a user namespace";
        let mend = "what user namespaces lack is above, with its mend";
        return check(FeatureStatus::Limited, found.to_owned(), Some(mend));
    }
    let compiled = ScriptLanguage::ALL
        .into_iter()
        .filter(|language| offleash_wasm::is_compiled(state, *language));
    let compiled: Vec<&str> = compiled.map(ScriptLanguage::word).collect();
    let found = match compiled.as_slice() {
        [] => "python, javascript; the first use compiles them, which takes some seconds".to_owned(),
        compiled if compiled.len() == ScriptLanguage::ALL.len() => "python, javascript; compiled".to_owned(),
        compiled => format!("python, javascript; compiled: {}", compiled.join(", ")),
    };
    check(FeatureStatus::Ok, found, None)
}

/// The templates of the state directory, which may not be there; or why they cannot be seen.
fn built(state: &Path) -> Result<Vec<String>, String> {
    if !state.join("templates").is_dir() {
        return Ok(Vec::new());
    }
    let opened = StateDirectory::open(Some(state), &HostIdentity::of_this_process());
    let opened = opened.map_err(|error| offleash_core::error::with_causes(&error))?;
    let listed = templates::list(&opened).map_err(|error| offleash_core::error::with_causes(&error))?;
    Ok(listed.into_iter().map(|one| one.record.name.to_string()).collect())
}

fn languages<'a>(
    places: impl IntoIterator<Item = &'a Path> + Clone,
    built: &Result<Vec<String>, String>,
) -> FeatureCheck {
    let find = |program: &&str| -> Option<PathBuf> {
        let mut paths = places.clone().into_iter().map(|place| place.join(program));
        paths.find(|path| path.is_file())
    };
    let (there, missing): (Vec<_>, Vec<_>) = Language::ALL
        .into_iter()
        .partition(|language| language.programs().iter().all(|program| find(program).is_some()));
    let name = |language: &Language| match language {
        // How old it is would have to be asked of it.
        Language::TypeScript => "typescript (if Node is 22.13 or newer)",
        other => other.name(),
    };
    let names = |languages: &[Language]| languages.iter().map(name).collect::<Vec<_>>().join(", ");
    let mut found = match &*there {
        [] => "this machine has the programs of no language".to_owned(),
        there => format!("this machine has the programs of {}", names(there)),
    };
    if !missing.is_empty() && !there.is_empty() {
        found.push_str(&format!("; not of {}", names(&missing)));
    }
    match built {
        Ok(built) if !built.is_empty() => found.push_str(&format!("; templates may have more: {}", named(built))),
        _ => {}
    }
    let status = match (&*there, &*missing) {
        (_, []) => FeatureStatus::Ok,
        ([], _) => FeatureStatus::Missing,
        _ => FeatureStatus::Limited,
    };
    let recipes: Vec<String> = missing
        .iter()
        .map(|one| format!("{}: {}", one.name(), one.recipe()))
        .collect();
    FeatureCheck {
        name: "code-languages",
        status,
        found,
        needed_for: "contexts of code (`run_code` of `mcp` and `serve`, E2B's code interpreter) in sandboxes of no template",
        mend: (!recipes.is_empty()).then(|| FeatureRemedy {
            explanation: recipes.join("; "),
            commands: Vec::new(),
        }),
    }
}

fn forked(report: &ProbeReport, built: &Result<Vec<String>, String>) -> FeatureCheck {
    const USUAL: &str = "in sandboxes of the base, contexts start their own";
    let check = |status, found: String, mend| FeatureCheck {
        name: "ready-interpreter",
        status,
        found,
        needed_for: "contexts of Python in sandboxes of `serve` that are there at once, with their libraries loaded",
        mend,
    };
    if !report.is_available(Level::Process) {
        let why = report.levels.iter().find(|one| one.level == Level::Process);
        let why = why.map_or_else(String::new, |one| format!(": {}", one.why));
        let explanation = "what level `process` lacks is above, with its mend".to_owned();
        let commands = Vec::new();
        let mend = FeatureRemedy { explanation, commands };
        return check(
            FeatureStatus::Missing,
            format!("no interpreter can be forked into a sandbox below level `process`, which is not here{why}"),
            Some(mend),
        );
    }
    // Its own line says what to do about it.
    let landlock = report.checks.iter().find(|check| check.name == "landlock");
    if landlock.is_some_and(|check| check.status != FeatureStatus::Ok) {
        let found = "an interpreter is forked into sandboxes only where Landlock can keep it from looking into them while they \
                     are made (Linux 6.12); contexts start their own";
        return check(FeatureStatus::Limited, found.to_owned(), None);
    }
    match built {
        Err(why) => check(
            FeatureStatus::Missing,
            format!("the templates cannot be seen: {}", one_line(why.as_bytes())),
            None,
        ),
        Ok(built) if built.is_empty() => {
            let missing = templates::TemplateError::Missing {
                name: TemplateName::code_interpreter(),
            };
            let mend = FeatureRemedy {
                explanation: offleash_core::error::Explained::hint(&missing).unwrap_or_default(),
                commands: Vec::new(),
            };
            let found =
                format!("an interpreter can be forked into sandboxes of a built template, and there is none; {USUAL}");
            check(FeatureStatus::Limited, found, Some(mend))
        }
        Ok(built) => {
            let found = format!("`serve` forks it into sandboxes of {}; {USUAL}", named(built));
            check(FeatureStatus::Ok, found, None)
        }
    }
}

fn named(built: &[String]) -> String {
    let shown: Vec<String> = built
        .iter()
        .take(MAX_NAMED)
        .map(|name| format!("`{}`", Text::from(name.as_str())))
        .collect();
    match built.len().saturating_sub(MAX_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use offleash_isolation::probe::LevelReport;

    use super::*;

    fn report(available: bool) -> ProbeReport {
        let why = "lacks user-namespaces".to_owned();
        let level = Level::Process;
        ProbeReport {
            checks: Vec::new(),
            levels: vec![LevelReport {
                level,
                available,
                why,
                lacks: Vec::new(),
            }],
        }
    }

    #[test]
    fn languages_are_those_whose_programs_are_there() {
        let place = tempfile::tempdir().unwrap();
        let check = |built| languages([place.path()], &built);
        let none = check(Ok(Vec::new()));
        assert_eq!(
            (none.status, none.found.contains("no language")),
            (FeatureStatus::Missing, true),
            "{none:?}"
        );
        assert!(
            none.mend.as_ref().unwrap().explanation.contains("--apt r-base-core"),
            "{none:?}"
        );
        for program in ["python3", "bash", "java"] {
            std::fs::write(place.path().join(program), "").unwrap();
        }
        let some = check(Ok(vec!["stats".to_owned()]));
        // Java without its compiler is none.
        let expected = "this machine has the programs of python, bash; not of javascript, typescript (if Node is 22.13 or newer), r, java; \
                        templates may have more: `stats`";
        assert_eq!((some.status, &*some.found), (FeatureStatus::Limited, expected));
        for program in ["node", "Rscript", "javac"] {
            std::fs::write(place.path().join(program), "").unwrap();
        }
        let all = check(Ok(Vec::new()));
        assert_eq!((all.status, all.mend), (FeatureStatus::Ok, None));
    }

    #[test]
    fn why_no_interpreter_can_be_forked_comes_with_its_mend() {
        let below = forked(&report(false), &Ok(vec!["code-interpreter".to_owned()]));
        assert_eq!(below.status, FeatureStatus::Missing);
        assert!(
            below.found.contains("lacks user-namespaces") && below.mend.is_some(),
            "{below:?}"
        );
        let none = forked(&report(true), &Ok(Vec::new()));
        assert_eq!(none.status, FeatureStatus::Limited);
        assert!(none.mend.unwrap().explanation.contains("offleash template build"));
        let there = forked(&report(true), &Ok(vec!["code-interpreter".to_owned()]));
        assert_eq!((there.status, there.mend.is_none()), (FeatureStatus::Ok, true));
        let many: Vec<String> = (0..20).map(|number| format!("t{number}")).collect();
        assert!(forked(&report(true), &Ok(many)).found.contains("`t7` and 12 more"));
        let landlock = FeatureCheck {
            name: "landlock",
            status: FeatureStatus::Limited,
            found: String::new(),
            needed_for: "",
            mend: None,
        };
        let older = ProbeReport {
            checks: vec![landlock],
            ..report(true)
        };
        let without = forked(&older, &Ok(vec!["code-interpreter".to_owned()]));
        assert!(
            without.status == FeatureStatus::Limited && without.found.contains("6.12"),
            "{without:?}"
        );
        let hidden = forked(&report(true), &Err("cannot read\u{1b}[2J".to_owned()));
        assert!(
            hidden.status == FeatureStatus::Missing && !hidden.found.contains('\u{1b}'),
            "{hidden:?}"
        );
    }

    #[test]
    fn nothing_is_made_in_a_state_directory() {
        let state = tempfile::tempdir().unwrap();
        checks(&report(true), state.path());
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }
}
