//! What the configuration file says of templates: which wait in the pool, and what is built when it is asked for.

use std::time::Duration;

use offleash_core::network::{NetworkRule, RuleVerdict};
use offleash_core::template::{ItemError, PythonModule, Recipe, TemplateName};
use offleash_daemon::{BASE_TEMPLATE, DaemonConfig, PoolConfig, TemplatePool, TemplatesConfig};
use offleash_store::{HostIdentity, StateDirectory};

use super::keys::{Pool, Templates};
use super::set;
use super::written::Wrong;
use crate::failure::Failure;

pub(super) fn warm_pool(table: &Pool, usual: PoolConfig) -> Result<PoolConfig, Wrong> {
    let mut config = PoolConfig {
        max_total: table.max_total,
        ..usual
    };
    set(&mut config.min, table.min);
    set(&mut config.max, table.max);
    set(&mut config.max_creating, table.max_creating);
    set(&mut config.max_age, table.max_age_seconds.map(Duration::from_secs));
    // A default of `min` gives way to a `max` that was written, not the other way round.
    check_bounds("pool", table.min, config.max)?;
    for (name, own) in table.templates.iter().flatten() {
        let key = key_of(name);
        let meant = match name.as_str() {
            BASE_TEMPLATE => name.clone(),
            name => TemplateName::meant_by(name)
                .map_err(|error| Wrong::new(&key, error))?
                .to_string(),
        };
        check_bounds(&key, own.min, own.max.unwrap_or(config.max))?;
        let imports = own.imports.as_ref().map(|names| {
            let parsed = names.iter().enumerate().map(|(number, name)| {
                let module = name.parse::<PythonModule>();
                module.map_err(|error| Wrong::item(format!("{key}.imports"), number, error))
            });
            parsed.collect::<Result<Vec<_>, _>>()
        });
        let own = TemplatePool {
            min: own.min,
            max: own.max,
            interpreter: own.interpreter,
            imports: imports.transpose()?,
        };
        config.templates.insert(meant, own);
    }
    let (least, most) = (config.least_total(), config.max_total());
    // Only who says how many there are of all can have meant less than the least of each.
    if table.max_total.is_some_and(|most| most > 0) && least > most {
        let message = format!("it is {most}, and at least {least} are to wait of all templates together");
        return Err(Wrong::new("pool.max_total", message)
            .with_hint("raise it, or lower `min` of the pool or of some templates"));
    }
    Ok(config)
}

fn key_of(template: &str) -> String {
    format!("pool.templates.{template}")
}

/// Refuses a written `min` that is more than `max`.
fn check_bounds(table: &str, min: Option<usize>, max: usize) -> Result<(), Wrong> {
    match min.filter(|min| *min > max) {
        None => Ok(()),
        Some(min) => {
            let message = format!("it is {min}, more than `max`, which is {max}");
            Err(Wrong::new(format!("{table}.min"), message))
        }
    }
}

pub(super) fn built(table: &Templates, config: &mut TemplatesConfig) -> Result<(), Wrong> {
    set(&mut config.build_on_first_use, table.build_on_first_use);
    set(&mut config.own_indexes, table.own_indexes);
    set(&mut config.max_mib, table.max_mib);
    set(&mut config.wait, table.wait_seconds.map(Duration::from_secs));
    let recipe = &mut config.code_interpreter;
    if let Some(pip) = &table.pip {
        let parse = |(number, text): (usize, &String)| {
            text.parse()
                .map_err(|error: ItemError| Wrong::item("templates.pip", number, error))
        };
        // That and nothing else.
        *recipe = Recipe {
            pip: pip.iter().enumerate().map(parse).collect::<Result<_, _>>()?,
            ..Recipe::default()
        };
    }
    if let Some(url) = &table.index_url {
        let parsed = url.parse();
        recipe.index_url = Some(parsed.map_err(|error: ItemError| Wrong::new("templates.index_url", error))?);
    }
    for (number, rule) in table.allow.iter().flatten().enumerate() {
        NetworkRule::parse(RuleVerdict::Allow, rule).map_err(|error| Wrong::item("templates.allow", number, error))?;
        recipe.allow.push(rule.clone());
    }
    for (number, given) in table.build_env.iter().flatten().enumerate() {
        let variables = crate::template::build_env(&[given.into()]).map_err(|failure| {
            let (message, hint) = failure.into_words();
            let wrong = Wrong::item("templates.build_env", number, message);
            match hint {
                Some(hint) => wrong.with_hint(hint),
                None => wrong,
            }
        })?;
        config.build_env.extend(variables);
    }
    Ok(())
}

/// Tables of the pool whose templates are not there, and are not built when they are asked for.
///
/// # Errors
/// When the templates that are there cannot be looked at.
pub(super) fn missing(config: &DaemonConfig) -> Result<Vec<Wrong>, Failure> {
    let named: Vec<&String> = config
        .pool
        .templates
        .keys()
        .filter(|name| *name != BASE_TEMPLATE)
        .collect();
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let host = HostIdentity::of_this_process();
    let mut missing = Vec::new();
    for name in named {
        let template = TemplateName::meant_by(name)?;
        let comes_when_asked_for = config.templates.build_on_first_use && template.is_code_interpreter();
        if !comes_when_asked_for && !StateDirectory::has_template(config.state.as_deref(), &host, &template)? {
            let message = "there is no template of this name, so none of its sandboxes wait";
            missing.push(Wrong::new(key_of(name), message).with_hint(format!(
                "`offleash template ls` lists those that are there; `offleash template build --name {name} …` makes it, \
                 and a server that runs takes it up"
            )));
        }
    }
    Ok(missing)
}
