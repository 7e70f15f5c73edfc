//! `offleash template`: builds templates, lists and removes them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use offleash_api::client::{Client, SOCKET};
use offleash_core::env::check_variable;
use offleash_core::spec::{IdChoice, RootChoice, SandboxSpec};
use offleash_core::template::{Recipe, RecipeFile, TemplateName, split_requirements};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_store::{StateDirectory, TemplateImage, TemplateRecord};
use offleash_supervisor::builds;
use offleash_supervisor::lifecycle::{open_existing_state, open_state};
use offleash_supervisor::templates::{self, BuildRequest, TemplateError, TemplateListing, USUAL_DISK};
use serde::Serialize;

use self::built::BuiltNames;
use self::progress::Shown;
use crate::args::{
    IdsArg, NetworkArgs, TemplateBuildArgs, TemplateCommand, TemplateInspectArgs, TemplateLsArgs, TemplatePruneArgs,
    TemplateRmArgs,
};
use crate::failure::Failure;
use crate::remote::holders;
use crate::remote::table::Table;
use crate::terminal::rounded;
use crate::{image, specify, terminal};

mod builder;
mod built;
mod from_image;
mod progress;

pub(crate) use self::builder::builder;

pub(crate) fn template(command: &TemplateCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        TemplateCommand::Build(arguments) => build(arguments, state),
        TemplateCommand::Ls(arguments) => ls(arguments, state),
        TemplateCommand::Inspect(arguments) => inspect(arguments, state),
        TemplateCommand::Rm(arguments) => rm(arguments, state),
        TemplateCommand::Prune(arguments) => prune(arguments, state),
    }
}

fn build(arguments: &TemplateBuildArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    if arguments.context.is_some() || arguments.from.is_some() {
        let (state, build) = from_image::build_of(arguments, state)?;
        return carry_out(arguments, &state, &build.name, |shown| {
            builds::build(&state, &build, shown)
        });
    }
    let request = request_of(arguments)?;
    let state = open_state(state)?;
    if !arguments.quiet {
        terminal::complain(&format!(
            "building template `{}`: {}",
            request.name,
            request.recipe.summary()
        ));
    }
    carry_out(arguments, &state, &request.name, |shown| {
        templates::build(&state, &request, shown)
    })
}

/// Builds, and tells how that goes on.
fn carry_out(
    arguments: &TemplateBuildArgs,
    state: &StateDirectory,
    name: &TemplateName,
    build: impl FnOnce(&mut Shown) -> Result<TemplateRecord, TemplateError>,
) -> Result<ExitCode, Failure> {
    let mut shown = Shown::new(arguments.quiet, arguments.verbose);
    let built = build(&mut shown);
    shown.finish();
    let record = built.map_err(failure)?;
    if !arguments.quiet {
        terminal::complain(&format!(
            "template `{name}` is built: {} in {} files",
            Bytes(rounded(record.bytes)),
            record.files
        ));
    }
    tell_called_alike(state, name);
    tell_lost(state, name, Some(&record.build));
    Ok(ExitCode::SUCCESS)
}

/// Says which snapshots have a template's name: of the name alone a sandbox is the template's.
fn tell_called_alike(state: &StateDirectory, name: &TemplateName) {
    let alike = holders::snapshots(state.path(), |snapshot| snapshot["name"] == *name.as_str());
    if !alike.is_empty() {
        terminal::complain(&format!(
            "warning: `--template {name}` means this template, and not the snapshot of that name: {}",
            holders::shown(&alike)
        ));
    }
}

/// Says which snapshots lie over another build of a template than there is now, if there is one.
fn tell_lost(state: &StateDirectory, name: &TemplateName, build: Option<&str>) {
    let is_lost = |snapshot: &serde_json::Value| {
        snapshot["template"] == *name.as_str() && build.is_none_or(|build| snapshot["build"] != *build)
    };
    let lost = holders::snapshots(state.path(), is_lost);
    if !lost.is_empty() {
        let lost = holders::shown(&lost);
        terminal::complain(&format!(
            "warning: no sandbox can be made of these snapshots any more: {lost}"
        ));
        terminal::complain("hint: they lie over the template as it was; `offleash snapshot rm ID` removes one");
    }
}

/// Puts the image in the place of a template that is one.
pub(crate) fn find_image(spec: &mut SandboxSpec, state: Option<&Path>) -> Result<(), Failure> {
    let RootChoice::Base {
        template: Some(name),
        snapshot: None,
        layer: None,
    } = &spec.root
    else {
        return Ok(());
    };
    if let Some(state) = open_existing_state(state)?
        && let Some(image) = templates::image_root(state.path(), name, None)?
    {
        spec.root = RootChoice::Image(Box::new(image));
    }
    Ok(())
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
    if let Some(ready) = arguments.recipe {
        recipe = recipe.over(ready.recipe());
    }
    if recipe.is_empty() && name.is_code_interpreter() {
        let usual = Recipe::code_interpreter();
        recipe = Recipe {
            index_url: recipe.index_url,
            allow: recipe.allow,
            imports: recipe.imports,
            ..usual
        };
    }
    // An image can be a template as it is.
    if recipe.is_empty() && arguments.from.is_none() {
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
        ids: ids_of(arguments),
    })
}

fn ids_of(arguments: &TemplateBuildArgs) -> Option<IdChoice> {
    arguments.ids.map(|ids| match ids {
        IdsArg::Single => IdChoice::Single,
        IdsArg::Range => IdChoice::Range,
    })
}

fn read_recipe(file: &Path) -> Result<RecipeFile, Failure> {
    let text = specify::read(file)?;
    RecipeFile::parse(&text).map_err(|error| match is_dockerfile(&text) {
        true => Failure::new(format!(
            "`{}` is a Dockerfile, and there is no context",
            Text::from(file)
        ))
        .with_hint(
            "name the directory that it copies from behind the flags: `offleash template build --name NAME -f FILE .`",
        ),
        false => Failure::at(file, &error).with_hint("docs/templates.md lists every key"),
    })
}

/// Whether the first instruction of a text is one of those that a Dockerfile begins with.
fn is_dockerfile(text: &str) -> bool {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    let word = first
        .and_then(|line| line.split_whitespace().next())
        .unwrap_or_default();
    word.eq_ignore_ascii_case("FROM") || word.eq_ignore_ascii_case("ARG")
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

fn ls(arguments: &TemplateLsArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let directory = open_existing_state(state)?;
    let listed = match &directory {
        Some(state) => {
            templates::clean(state)?;
            templates::list(state)?
        }
        None => Vec::new(),
    };
    let built = BuiltNames::of(directory.as_ref(), &listed);
    if arguments.json {
        let of = |listing| Document {
            built_as: built.of_template(listing),
            ..Document::of(listing)
        };
        let shown: Vec<Document<'_>> = listed.iter().map(of).collect();
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
            built.of_template(template).unwrap_or_else(|| record.name.to_string()),
            record.built_at.clone(),
            Bytes(rounded(record.bytes)).to_string(),
            state.to_owned(),
            summary(record),
        ]);
    }
    table.print()
}

/// What a template was built from, in a line.
fn summary(record: &TemplateRecord) -> String {
    match &record.image {
        Some(image) if record.recipe.is_empty() => {
            format!("{}, steps: {}", image.from, image.steps.len())
        }
        Some(image) => format!("{}, {}", image.from, record.recipe.summary()),
        None => record.recipe.summary(),
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a TemplateImage>,
    /// Whose it is and what that key calls it, if a key built it: `KEY/NAME:TAG,…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    built_as: Option<String>,
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
            image: record.image.as_ref(),
            built_as: None,
        }
    }
}

fn inspect(arguments: &TemplateInspectArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    if let Some(shown) = built::inspect(&arguments.names, state)? {
        let document = terminal::json_document(&shown).map_err(|error| Failure::from_error(&error))?;
        terminal::print(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
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
    let (of_keys, own): (Vec<&String>, Vec<&String>) = arguments.names.iter().partition(|name| built::is_of_key(name));
    let names = own.into_iter().map(|name| TemplateName::meant_by(name));
    let names: Vec<TemplateName> = names.collect::<Result<_, _>>()?;
    for name in of_keys {
        built::remove(name, state)?;
        terminal::print(format!("{name}\n").as_bytes())?;
    }
    let state = open_existing_state(state)?;
    for name in names {
        match &state {
            Some(state) => {
                remove(state, &name)?;
                tell_lost(state, &name, None);
            }
            None => return Err(TemplateError::Missing { name }.into()),
        }
        terminal::print(format!("{name}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn prune(arguments: &TemplatePruneArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    if let Some(state) = open_existing_state(state)? {
        let pruned = builds::prune(&state, arguments.all)?;
        if pruned.steps > 0 {
            terminal::complain(&format!("forgotten: steps of builds ({})", pruned.steps));
        }
        image::tell_removed(&pruned.report);
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
        Err(_) => {
            let of_template = |sandbox: &serde_json::Value| sandbox["template"] == *name.as_str();
            let held = holders::sandboxes(state.path(), of_template);
            Err(holders::named(used.into(), "used by sandboxes", &held))
        }
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
    fn a_dockerfile_is_told_from_a_recipe() {
        for text in ["FROM x\n", "# syntax=x\n\nARG A=1\nFROM x\n", "  from x"] {
            assert!(is_dockerfile(text), "{text}");
        }
        for text in ["", "pip = []\n", "# FROM x\nname = \"x\"\n", "from_host = 1"] {
            assert!(!is_dockerfile(text), "{text}");
        }
    }

    #[test]
    fn a_value_that_is_wrong_is_not_repeated() {
        let failure = variable("--build-env", &OsString::from("=confidential")).unwrap_err();
        assert!(!failure.to_string().contains("confidential"), "{failure}");
        let set = build_env(&["A=b=c".into()]).unwrap();
        assert_eq!(set, [("A".into(), "b=c".into())]);
        assert!(build_env(&["OFFLEASH_NOT_SET".into()]).is_err());
    }
}
