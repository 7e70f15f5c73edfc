//! What the configuration file says of images: which keys may use which, and how they are pulled.

use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_daemon::{ImageRule, ImagesConfig, PullMode};
use offleash_images::{ImagePattern, MirrorSetting, PatternError, RegistrySettings};

use super::keys::Images;
use super::set;
use super::written::Wrong;

pub(super) fn images(table: &Images, config: &mut ImagesConfig) -> Result<(), Wrong> {
    set(&mut config.wait, table.wait_seconds.map(Duration::from_secs));
    config.registries = registries(table)?;
    let usual = config.rule.clone();
    config.rule = rule("images", table.allow.as_ref(), table.pull.as_ref(), &usual)?;
    if config.rule.pull == PullMode::Missing && table.allow.is_none() {
        return Err(too_much("images"));
    }
    for (id, own) in table.keys.iter().flatten() {
        let key = format!("images.keys.{id}");
        let rule = rule(&key, own.allow.as_ref(), own.pull.as_ref(), &config.rule)?;
        if rule.pull == PullMode::Missing && own.allow.is_none() && table.allow.is_none() {
            return Err(too_much(&key));
        }
        config.keys.insert(id.clone(), rule);
    }
    Ok(())
}

/// Whoever has keys pulled for says which images.
fn too_much(table: &str) -> Wrong {
    Wrong::new(
        format!("{table}.pull"),
        "images are pulled for keys, and no list says which",
    )
    .with_hint("`allow` names them, as in `allow = [\"python\", \"ghcr.io/owner/*\"]`; `[\"*\"]` is every image")
}

fn rule(
    table: &str,
    allow: Option<&Vec<String>>,
    pull: Option<&String>,
    usual: &ImageRule,
) -> Result<ImageRule, Wrong> {
    let pattern = |(number, text): (usize, &String)| {
        let parsed = text.parse::<ImagePattern>();
        parsed.map_err(|error: PatternError| {
            Wrong::item(format!("{table}.allow"), number, error)
                .with_hint("patterns are like `python`, `python:3.*`, `ghcr.io/owner/*` or `*`")
        })
    };
    let allow = allow.map(|patterns| patterns.iter().enumerate().map(pattern).collect::<Result<Vec<_>, _>>());
    let pull = match pull.map(String::as_str) {
        None => usual.pull,
        Some("never") => PullMode::Never,
        Some("missing") => PullMode::Missing,
        Some(word) => {
            let message = format!("`{}` means nothing", word.escape_debug());
            return Err(Wrong::new(format!("{table}.pull"), message).with_hint("it is `never` or `missing`"));
        }
    };
    Ok(ImageRule {
        allow: allow.transpose()?.unwrap_or_else(|| usual.allow.clone()),
        pull,
    })
}

fn registries(table: &Images) -> Result<RegistrySettings, Wrong> {
    let own = RegistrySettings::of_this_process();
    let mut mirrors = Vec::new();
    for (registry, url) in table.mirrors.iter().flatten() {
        if !url.starts_with("https://") && !url.starts_with("http://") {
            let key = format!("images.mirrors.{registry}");
            return Err(Wrong::new(key, "it is no address").with_hint("write it as `https://mirror.example`"));
        }
        mirrors.push(MirrorSetting {
            registry: registry.clone(),
            url: url.clone(),
        });
    }
    Ok(RegistrySettings {
        authorities: table.registry_ca.iter().flatten().map(|path| whole(path)).collect(),
        plain_http: table.plain_http.unwrap_or(false),
        mirrors,
        docker_config: table
            .docker_config
            .as_ref()
            .or(own.docker_config.as_ref())
            .map(|path| whole(path)),
        ..own
    })
}

/// Whoever pulls has another directory.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
