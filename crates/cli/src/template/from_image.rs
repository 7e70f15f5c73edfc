//! `offleash template build` from an image: what a Dockerfile says, or a recipe over an image.

use std::collections::BTreeMap;
use std::path::Path;

use offleash_core::build::BuildBase;
use offleash_core::build::patterns::IgnoreRules;
use offleash_core::template::{Recipe, TemplateName};
use offleash_core::units::Bytes;
use offleash_images::ImageStore;
use offleash_planner::dockerfile::{Dockerfile, DockerfileError, DockerfileOptions};
use offleash_planner::{read_named_file, read_regular_file};
use offleash_store::StateDirectory;
use offleash_supervisor::builds::{self, BuildContext, CallerBuild, ImageBuild};
use offleash_supervisor::lifecycle::open_state;
use offleash_supervisor::templates::USUAL_DISK;

use super::{build_env, ids_of, item, network, request_of};
use crate::args::TemplateBuildArgs;
use crate::failure::Failure;
use crate::{image, specify, terminal};

/// What a context names a Dockerfile and the list of what is left out.
const DOCKERFILE: &str = "Dockerfile";
const IGNORE: &str = ".dockerignore";

/// What is to be built; images that it begins with are here afterwards.
pub(super) fn build_of(
    arguments: &TemplateBuildArgs,
    state: Option<&Path>,
) -> Result<(StateDirectory, ImageBuild), Failure> {
    match &arguments.context {
        Some(context) => of_dockerfile(arguments, context, state),
        None => of_recipe(arguments, state),
    }
}

fn of_recipe(arguments: &TemplateBuildArgs, state: Option<&Path>) -> Result<(StateDirectory, ImageBuild), Failure> {
    let request = request_of(arguments)?;
    let base = BuildBase::named(arguments.from.as_deref().unwrap_or_default())?;
    let (build, notes) = builds::of_recipe(&request, base.clone())?;
    let state = open_state(state)?;
    fetch(&base, &state, arguments)?;
    tell(
        arguments,
        &match build.recipe.is_empty() {
            true => format!("building template `{}`: {base}", build.name),
            false => format!("building template `{}`: {base}, {}", build.name, build.recipe.summary()),
        },
    );
    notes.iter().for_each(|note| tell(arguments, &format!("  {note}")));
    let build = ImageBuild {
        uses_cache: !arguments.no_cache,
        ..build
    };
    Ok((state, build))
}

fn of_dockerfile(
    arguments: &TemplateBuildArgs,
    context: &Path,
    state: Option<&Path>,
) -> Result<(StateDirectory, ImageBuild), Failure> {
    if !context.is_dir() {
        return Err(
            Failure::new(format!("the context `{}` is no directory", context.display()))
                .with_hint("name the directory that the Dockerfile copies from"),
        );
    }
    let name = TemplateName::meant_by(arguments.name.as_deref().unwrap_or_default())?;
    let disk = match &arguments.disk {
        Some(text) => item::<Bytes>("--disk", text)?,
        None => USUAL_DISK,
    };
    let env = build_env(&arguments.build_env)?;
    let network = network(arguments)?;
    let (file, text) = match &arguments.file {
        Some(file) => (file.clone(), read_named_file(file)),
        // It comes with the context, which somebody else may have written.
        None => (context.join(DOCKERFILE), read_regular_file(&context.join(DOCKERFILE))),
    };
    let text = text.map_err(|error| match &arguments.file {
        Some(_) => Failure::explained(&error),
        None => Failure::explained(&error).with_hint("name the Dockerfile with `-f FILE`"),
    })?;
    let options = DockerfileOptions {
        build_args: build_args(&arguments.build_arg)?,
        target: arguments.target.clone(),
    };
    let wrong = |error: DockerfileError| Failure::from(error);
    let dockerfile = Dockerfile::parse(&specify::text_of(&file, text)?, &options).map_err(wrong)?;
    let state = open_state(state)?;
    let mut variables = BTreeMap::new();
    for base in dockerfile.bases().map_err(wrong)? {
        fetch(&base, &state, arguments)?;
        variables.insert(base.clone(), builds::env_of(&state, &base)?);
    }
    let planned = dockerfile.plan(&|base| variables.get(base).cloned().unwrap_or_default());
    let planned = planned.map_err(wrong)?;
    tell(arguments, &format!("building template `{name}`: {}", file.display()));
    planned
        .notes
        .iter()
        .for_each(|note| tell(arguments, &format!("  {note}")));
    let build = ImageBuild {
        name,
        plan: planned.plan,
        recipe: Recipe::default(),
        context: Some(BuildContext {
            directory: context.to_owned(),
            ignore: ignore_rules(context, &file)?,
        }),
        disk,
        env,
        network,
        ids: ids_of(arguments),
        uses_cache: !arguments.no_cache,
        caller: CallerBuild::default(),
    };
    Ok((state, build))
}

/// What is left out of a context: by the list that is for this Dockerfile alone, or the one for all.
fn ignore_rules(context: &Path, dockerfile: &Path) -> Result<IgnoreRules, Failure> {
    let mut own = dockerfile.as_os_str().to_owned();
    own.push(IGNORE);
    for file in [Path::new(&own), &context.join(IGNORE)] {
        // It comes with the context, which somebody else may have written: no link, and nothing to wait for.
        if file.symlink_metadata().is_ok() {
            let text = read_regular_file(file).map_err(|error| Failure::from_error(&error))?;
            let rules = IgnoreRules::parse(&String::from_utf8_lossy(&text));
            return rules.map_err(|error| {
                Failure::new(format!("`{}`: {error}", file.display()))
                    .with_hint("docs/templates.md says what a pattern is")
            });
        }
    }
    Ok(IgnoreRules::default())
}

/// Has an image here that is built upon.
fn fetch(base: &BuildBase, state: &StateDirectory, arguments: &TemplateBuildArgs) -> Result<(), Failure> {
    match base {
        BuildBase::Image(name) => {
            let store = ImageStore::open(state)?;
            let fetched = image::ensure(&store, name, arguments.pull, &arguments.registry, arguments.quiet);
            let could_be_stage = arguments.context.is_some() && !name.contains(['/', ':', '@']);
            fetched.map_err(|failure| match could_be_stage {
                true => failure.with_hint(format!(
                    "no stage of the Dockerfile is called `{}`; if one is meant, write its name as behind `AS`",
                    name.escape_debug()
                )),
                false => failure,
            })
        }
        _ => Ok(()),
    }
}

/// Values of `ARG`; one that is not written is the caller's own variable.
fn build_args(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let mut values = BTreeMap::new();
    for text in given {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text.as_str(), std::env::var(text).ok()),
        };
        if name.is_empty() {
            return Err(Failure::new("`--build-arg` names no argument").with_hint("write `--build-arg NAME=VALUE`"));
        }
        // One that is not set is as if it had not been named, which is what Docker does.
        values.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok(values)
}

fn tell(arguments: &TemplateBuildArgs, line: &str) {
    if !arguments.quiet {
        terminal::complain(line);
    }
}
