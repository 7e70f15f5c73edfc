//! `offleash template`: builds templates, lists and removes them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use offleash_api::client::{Client, SOCKET};
use offleash_core::env::check_variable;
use offleash_core::spec::{IdChoice, SandboxSpec};
use offleash_core::template::{Recipe, RecipeFile, TemplateName, split_requirements};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_store::StateDirectory;
use offleash_supervisor::lifecycle::{open_existing_state, open_state};
use offleash_supervisor::templates::{self, BuildRequest, TemplateError, TemplateListing, USUAL_DISK};
use serde::Serialize;

use self::progress::Shown;
use crate::args::{
    IdsArg, NetworkArgs, TemplateBuildArgs, TemplateCommand, TemplateInspectArgs, TemplateLsArgs, TemplateRmArgs,
};
use crate::failure::Failure;
use crate::remote::table::Table;
use crate::{specify, terminal};

mod builder;
mod progress;

pub(crate) use self::builder::builder;

pub(crate) fn template(command: &TemplateCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        TemplateCommand::Build(arguments) => build(arguments, state),
        TemplateCommand::Ls(arguments) => ls(arguments, state),
        TemplateCommand::Inspect(arguments) => inspect(arguments, state),
        TemplateCommand::Rm(arguments) => rm(arguments, state),
    }
}

fn build(arguments: &TemplateBuildArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let request = request_of(arguments)?;
    let state = open_state(state)?;
    if !arguments.quiet {
        terminal::complain(&format!(
            "building template `{}`: {}",
            request.name,
            request.recipe.summary()
        ));
    }
    let mut shown = Shown::new(arguments.quiet, arguments.verbose);
    let built = templates::build(&state, &request, &mut shown);
    shown.finish();
    let record = built.map_err(failure)?;
    if !arguments.quiet {
        terminal::complain(&format!(
            "template `{}` is built: {} in {} files",
            record.name,
            Bytes(rounded(record.bytes)),
            record.files
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be built: what the recipe's file says, and what flags say.
fn request_of(arguments: &TemplateBuildArgs) -> Result<BuildRequest, Failure> {
    let file = match &arguments.file {
        Some(file) => read_recipe(file)?,
        None => RecipeFile::default(),
    };
    let name = match &arguments.name {
        Some(name) => TemplateName::meant_by(name)?,
        None => file.name.clone().ok_or_else(|| {
            Failure::new("the template has no name")
                .with_hint("name it with `--name NAME`, or with the key `name` of the recipe")
        })?,
    };
    let mut recipe = file.recipe;
    add_flags(arguments, &mut recipe)?;
    if recipe.is_empty() && name.is_code_interpreter() {
        let usual = Recipe::code_interpreter();
        recipe = Recipe {
            index_url: recipe.index_url,
            allow: recipe.allow,
            imports: recipe.imports,
            ..usual
        };
    }
    if recipe.is_empty() {
        return Err(TemplateError::Empty { name }.into());
    }
    let disk = match &arguments.disk {
        Some(text) => item::<Bytes>("--disk", text)?,
        None => file.disk.unwrap_or(USUAL_DISK),
    };
    Ok(BuildRequest {
        name,
        recipe,
        disk,
        env: build_env(&arguments.build_env)?,
        network: network(arguments)?,
        ids: arguments.ids.map(|ids| match ids {
            IdsArg::Single => IdChoice::Single,
            IdsArg::Range => IdChoice::Range,
        }),
    })
}

fn read_recipe(file: &Path) -> Result<RecipeFile, Failure> {
    RecipeFile::parse(&specify::read(file)?)
        .map_err(|error| Failure::at(file, &error).with_hint("docs/templates.md lists every key"))
}

fn add_flags(arguments: &TemplateBuildArgs, recipe: &mut Recipe) -> Result<(), Failure> {
    for list in &arguments.pip {
        for text in split_requirements(list) {
            recipe.pip.push(item("--pip", &text)?);
        }
    }
    for text in &arguments.apt {
        recipe.apt.push(item("--apt", text)?);
    }
    for text in &arguments.npm {
        recipe.npm.push(item("--npm", text)?);
    }
    recipe.run.extend(arguments.run.iter().cloned());
    if let Some(url) = &arguments.index_url {
        recipe.index_url = Some(item("--index-url", url)?);
    }
    for given in &arguments.env {
        let (name, value) = variable("--env", given)?;
        let value = value.ok_or_else(|| {
            Failure::new(format!("`--env {}` has no value", Text::from(given)))
                .with_hint("write `--env NAME=VALUE`; `--build-env NAME` passes a variable of yours to the build")
        })?;
        let utf8 = |text: OsString| {
            text.into_string()
                .map_err(|_| Failure::new("the value of `--env` is not UTF-8").with_hint("write it in UTF-8"))
        };
        recipe.env.insert(utf8(name)?, utf8(value)?);
    }
    Ok(())
}

fn item<T: FromStr<Err: std::error::Error>>(flag: &str, text: &str) -> Result<T, Failure> {
    text.trim().parse().map_err(|error: T::Err| {
        Failure::new(format!("`{flag}`: {error}"))
            .with_hint(format!("`offleash help template build` says what `{flag}` takes"))
    })
}

/// The variables of the build alone; one without a value is the caller's own.
pub(crate) fn build_env(given: &[OsString]) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut env = Vec::new();
    for text in given {
        match variable("--build-env", text)? {
            (name, Some(value)) => env.push((name, value)),
            (name, None) => {
                let value = std::env::var_os(&name).ok_or_else(|| {
                    Failure::new(format!("`--build-env {}`: that variable is not set", Text::from(&name)))
                        .with_hint("set it, or write `--build-env NAME=VALUE`")
                })?;
                env.push((name, value));
            }
        }
    }
    Ok(env)
}

/// `NAME[=VALUE]`. What is wrong with a value is not told with the value, which may be confidential.
fn variable(flag: &str, given: &OsString) -> Result<(OsString, Option<OsString>), Failure> {
    let bytes = given.as_bytes();
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(place) => (&bytes[..place], Some(OsString::from_vec(bytes[place + 1..].to_vec()))),
        None => (bytes, None),
    };
    let name = OsString::from_vec(name.to_vec());
    check_variable(&name, value.as_deref().unwrap_or_default()).map_err(|error| {
        Failure::new(format!("`{flag} {}` is not valid: {error}", Text::from(&name)))
            .with_hint(format!("`offleash help template build` says what `{flag}` takes"))
    })?;
    Ok((name, value))
}

fn network(arguments: &TemplateBuildArgs) -> Result<offleash_core::spec::NetworkSpec, Failure> {
    let flags = NetworkArgs {
        allow: arguments.allow.clone(),
        internet: arguments.internet,
        upstream_proxy: arguments.upstream_proxy.clone(),
        ..NetworkArgs::default()
    };
    let mut spec = SandboxSpec::default();
    specify::apply_network_flags(&flags, &mut spec)?;
    Ok(spec.network)
}

/// A failure with the last that a step said.
fn failure(error: TemplateError) -> Failure {
    if let TemplateError::Step { last_lines, .. } = &error {
        for line in last_lines {
            terminal::complain(&format!("  {line}"));
        }
    }
    Failure::from(error)
}

/// Whole MiB, or KiB, are enough for people.
pub(crate) fn rounded(bytes: u64) -> u64 {
    let unit = if bytes >= 10 << 20 { 1 << 20 } else { 1 << 10 };
    (bytes / unit).max(1) * unit
}

fn ls(arguments: &TemplateLsArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let listed = match open_existing_state(state)? {
        Some(state) => {
            templates::clean(&state)?;
            templates::list(&state)?
        }
        None => Vec::new(),
    };
    if arguments.json {
        let shown: Vec<Document<'_>> = listed.iter().map(Document::of).collect();
        terminal::print(&terminal::json_line(&shown)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "BUILT", "SIZE", "STATE", "RECIPE"]);
    for template in &listed {
        let record = &template.record;
        let state = match (template.in_use, template.outdated) {
            (true, true) => "used, outdated",
            (true, false) => "used",
            (false, true) => "outdated",
            (false, false) => "ready",
        };
        table.row([
            record.name.to_string(),
            record.built_at.clone(),
            Bytes(rounded(record.bytes)).to_string(),
            state.to_owned(),
            record.recipe.summary(),
        ]);
    }
    table.print()
}

/// A template as documents show it.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a TemplateName,
    build: &'a str,
    built_at: &'a str,
    bytes: u64,
    files: u64,
    ids: IdChoice,
    outdated: bool,
    in_use: bool,
    recipe: &'a Recipe,
}

impl<'a> Document<'a> {
    fn of(listing: &'a TemplateListing) -> Self {
        let record = &listing.record;
        Self {
            name: &record.name,
            build: &record.build,
            built_at: &record.built_at,
            bytes: record.bytes,
            files: record.files,
            ids: record.ids,
            outdated: listing.outdated,
            in_use: listing.in_use,
            recipe: &record.recipe,
        }
    }
}

fn inspect(arguments: &TemplateInspectArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let state = open_existing_state(state)?;
    let found = arguments.names.iter().map(|name| {
        let name = TemplateName::meant_by(name)?;
        match &state {
            Some(state) => Ok(templates::inspect(state, &name)?),
            None => Err(TemplateError::Missing { name }.into()),
        }
    });
    let found: Vec<TemplateListing> = found.collect::<Result<_, Failure>>()?;
    let shown: Vec<Document<'_>> = found.iter().map(Document::of).collect();
    let document = terminal::json_document(&shown).map_err(|error| Failure::from_error(&error))?;
    terminal::print(&document)?;
    Ok(ExitCode::SUCCESS)
}

fn rm(arguments: &TemplateRmArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let state = open_existing_state(state)?;
    let names = arguments.names.iter().map(|name| TemplateName::meant_by(name));
    for name in names.collect::<Result<Vec<_>, _>>()? {
        match &state {
            Some(state) => remove(state, &name)?,
            None => return Err(TemplateError::Missing { name }.into()),
        }
        terminal::print(format!("{name}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a template; where it is used, a server is asked, because it may be used by nobody but the server's warm pool.
fn remove(state: &StateDirectory, name: &TemplateName) -> Result<(), Failure> {
    let used = match templates::remove(state, name) {
        Err(used @ TemplateError::InUse { .. }) => used,
        other => return Ok(other?),
    };
    let asked = Client::new(&state.path().join(SOCKET)).and_then(|client| client.delete(&format!("/templates/{name}")));
    match asked {
        // What a server cannot remove of it, which may not be able to become its superuser.
        Ok(()) => Ok(templates::clean(state)?),
        Err(_) => Err(used.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn every_key_is_in_the_reference() {
        const BEGIN: &str = "<!-- keys: made by crates/cli/src/template.rs -->\n";
        const END: &str = "<!-- end of keys -->";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/templates.md");
        let committed = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = committed.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let mut table = "| key | takes | meaning | example |\n|---|---|---|---|\n".to_owned();
        for row in offleash_core::template::reference() {
            writeln!(
                table,
                "| `{}` | {} | {} | `{}` |",
                row.key, row.kind, row.doc, row.example
            )
            .unwrap();
        }
        let text = format!("{before}{BEGIN}\n{table}\n{END}{after}");
        if std::env::var_os("OFFLEASH_UPDATE_DOCS").is_some() {
            return std::fs::write(&path, text).unwrap();
        }
        assert!(
            text == committed,
            "docs/templates.md is not what the program says; write it anew with OFFLEASH_UPDATE_DOCS=1"
        );
    }

    #[test]
    fn a_value_that_is_wrong_is_not_repeated() {
        let failure = variable("--build-env", &OsString::from("=confidential")).unwrap_err();
        assert!(!failure.to_string().contains("confidential"), "{failure}");
        let set = build_env(&["A=b=c".into()]).unwrap();
        assert_eq!(set, [("A".into(), "b=c".into())]);
        assert!(build_env(&["OFFLEASH_NOT_SET".into()]).is_err());
    }

    #[test]
    fn sizes_are_of_whole_units() {
        for (bytes, shown) in [(1, "1K"), (208_896, "204K"), (537_931_776, "513M")] {
            assert_eq!(Bytes(rounded(bytes)).to_string(), shown);
        }
    }
}
