//! A recipe over an image: the same scripts as over the host's system, each of them a step.

use std::ffi::OsString;

use offleash_core::build::{BuildBase, BuildPlan, BuildStage, BuildStep, RunStep, StepAction};

use super::{CallerBuild, ImageBuild};
use crate::templates::{BuildRequest, TemplateError, network_of};
use offleash_planner::recipes::{IndexConfiguration, RecipeIndexes, steps};
use offleash_planner::system::SUPERUSER;

/// The build of a recipe over `base`, and what its owner should know, a line each.
///
/// Nothing is tidied up: what an earlier layer has takes its room whatever a later one removes.
///
/// An empty recipe makes a template of the base as it is.
///
/// # Errors
/// `Network`.
pub fn of_recipe(request: &BuildRequest, base: BuildBase) -> Result<(ImageBuild, Vec<String>), TemplateError> {
    let BuildRequest { name, recipe, .. } = request;
    let indexes = RecipeIndexes::of(recipe, &request.env, &IndexConfiguration::this());
    let set = recipe.env.iter().map(|(name, value)| BuildStep {
        title: format!("variable {name}"),
        action: StepAction::Env {
            name: name.clone(),
            value: value.clone(),
        },
    });
    let mut steps: Vec<BuildStep> = set.collect();
    let scripts = steps::of(recipe, &indexes).into_iter().rev().skip(1).rev();
    steps.extend(scripts.map(|script| {
        BuildStep {
            title: script.title,
            action: StepAction::Run(RunStep {
                command: script.argv.into_iter().map(utf8).collect(),
                // What the owner passes wins over what a step usually has.
                arguments: script
                    .env
                    .into_iter()
                    .filter(|(name, _)| !request.env.iter().any(|(own, _)| own == name))
                    .map(|(name, value)| (utf8(name), utf8(value)))
                    .collect(),
                user: Some(SUPERUSER.to_owned()),
                ..RunStep::default()
            }),
        }
    }));
    let build = ImageBuild {
        name: name.clone(),
        plan: BuildPlan {
            stages: vec![BuildStage { base, steps }],
        },
        recipe: recipe.clone(),
        context: None,
        disk: request.disk,
        env: request.env.clone(),
        network: network_of(request, &indexes)?,
        ids: request.ids,
        uses_cache: true,
        caller: CallerBuild::default(),
    };
    Ok((build, indexes.notes))
}

/// A recipe is UTF-8, and so is what is made of it.
fn utf8(text: OsString) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use offleash_core::spec::NetworkSpec;
    use offleash_core::template::Recipe;

    use super::*;
    use crate::templates::USUAL_DISK;

    #[test]
    fn each_script_of_a_recipe_is_a_step_of_the_superuser() {
        let request = |recipe| BuildRequest {
            name: "tools".parse().unwrap(),
            recipe,
            disk: USUAL_DISK,
            env: Vec::new(),
            network: NetworkSpec::default(),
            ids: None,
        };
        let recipe = Recipe {
            run: vec!["a".to_owned(), "b".to_owned()],
            env: [("K".to_owned(), "v".to_owned())].into(),
            ..Recipe::default()
        };
        let (build, _) = of_recipe(&request(recipe), BuildBase::Scratch).unwrap();
        let steps = &build.plan.stages[0].steps;
        let titles: Vec<&str> = steps.iter().map(|step| step.title.as_str()).collect();
        assert_eq!(titles, ["variable K", "command 1", "command 2"]);
        let StepAction::Run(run) = &steps[2].action else {
            panic!("{:?}", steps[2])
        };
        assert_eq!(run.command, ["/bin/sh", "-c", "b"]);
        assert_eq!(run.user.as_deref(), Some("root"));
        let (build, _) = of_recipe(&request(Recipe::default()), BuildBase::Image("box:t".to_owned())).unwrap();
        assert!(build.plan.stages[0].steps.is_empty());
    }
}
