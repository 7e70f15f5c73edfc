//! Which programs the settings of package managers and the like name.

use serde_json::Value as Json;
use toml::Value as Toml;

/// How settings are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettingsForm {
    /// `key = value` or `key value`, a line each.
    Lines,
    /// YAML, of which keys and what belongs to them is told by how far it is indented.
    Yaml,
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl SettingsForm {
    /// The form of the file at a path of these folded names, if it is known to name programs.
    pub(super) fn of(names: &[Vec<u8>]) -> Option<Self> {
        let (last, above) = names.split_last()?;
        let directory = above.last().map(Vec::as_slice);
        match (directory, last.as_slice()) {
            (_, b".npmrc" | b".yarnrc") | (Some(b".hg"), b"hgrc") => Some(Self::Lines),
            (
                _,
                b".yarnrc.yml"
                | b".pre-commit-config.yaml"
                | b".pre-commit-config.yml"
                | b"lefthook.yml"
                | b"lefthook.yaml"
                | b".lefthook.yml"
                | b".lefthook.yaml",
            ) => Some(Self::Yaml),
            (Some(b".cargo"), b"config" | b"config.toml") | (_, b"bunfig.toml") => Some(Self::Toml),
            (_, b".mcp.json" | b"mcp.json") | (Some(b".claude"), b"settings.json" | b"settings.local.json") => {
                Some(Self::Json)
            }
            _ => None,
        }
    }
}

/// Keys whose values are programs, or files of code that programs load, in small letters.
#[rustfmt::skip]
const KEYS: &[&str] = &[
    // npm, pnpm
    "script-shell", "shell", "node-options", "pnpmfile", "global-pnpmfile", "init-module", "onload-script", "git", "python",
    "editor", "viewer", "userconfig", "globalconfig",
    // yarn
    "yarn-path", "yarnpath", "path", "plugins", "spec",
    // Cargo
    "runner", "linker", "rustc", "rustc-wrapper", "rustc-workspace-wrapper", "rustdoc", "ar", "credential-provider",
    "global-credential-providers", "include",
    // Bun
    "preload",
    // pre-commit, lefthook
    "entry", "run", "script",
];

/// Such keys of agents.
const KEYS_OF_AGENTS: [&str; 2] = ["command", "args"];

/// What `text` names, with the key that names it. What stands there is to be split by [`super::words()`].
pub fn named_programs(form: SettingsForm, text: &[u8]) -> Vec<(String, Vec<u8>)> {
    let Ok(text) = std::str::from_utf8(text) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    match form {
        SettingsForm::Lines => lines(text, &mut found),
        SettingsForm::Yaml => yaml(text, &mut found),
        SettingsForm::Toml => {
            if let Ok(table) = text.parse::<toml::Table>() {
                in_toml(&Toml::Table(table), None, &mut found);
            }
        }
        SettingsForm::Json => {
            if let Ok(value) = serde_json::from_str(text) {
                in_json(&value, None, &mut found);
            }
        }
    }
    found
}

fn known(key: &str) -> bool {
    KEYS.iter().any(|known| known.eq_ignore_ascii_case(key))
}

fn lines(text: &str, found: &mut Vec<(String, Vec<u8>)>) {
    let mut in_hooks = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            // Mercurial: whatever the key is.
            in_hooks = ["hooks", "extensions", "alias"]
                .iter()
                .any(|name| section.starts_with(name));
            continue;
        }
        if let Some(included) = line.strip_prefix("%include") {
            found.push(("%include".to_owned(), included.trim().into()));
        }
        if line.starts_with(['#', ';', '%']) {
            continue;
        }
        let Some((key, value)) = line.split_once(|mark: char| mark == '=' || mark.is_ascii_whitespace()) else {
            continue;
        };
        let key = key.trim_matches(['"', '\'']);
        if known(key) || in_hooks {
            found.push((key.to_owned(), value.into()));
        }
    }
}

fn yaml(text: &str, found: &mut Vec<(String, Vec<u8>)>) {
    // The key that holds, and how far it is indented.
    let mut holds: Option<(usize, String)> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let content = trimmed.trim_start_matches("- ");
        let indent = line.len() - content.len();
        // An item of a list may stand right below its key.
        let is_item = content.len() < trimmed.len();
        let belongs = |(above, _): &(usize, String)| {
            line.len() - trimmed.len() > *above || is_item && line.len() - trimmed.len() == *above
        };
        holds = holds.filter(belongs);
        if let Some((_, key)) = &holds {
            found.push((key.clone(), content.into()));
        } else if let Some((key, value)) = content.split_once(':')
            && known(key.trim_matches(['"', '\'']))
        {
            found.push((key.to_owned(), value.into()));
            holds = Some((indent, key.to_owned()));
        }
    }
}

fn in_toml(value: &Toml, key: Option<&str>, found: &mut Vec<(String, Vec<u8>)>) {
    match value {
        Toml::Table(table) => {
            for (name, value) in table {
                in_toml(value, key.or_else(|| known(name).then_some(name)), found);
            }
        }
        Toml::Array(values) => values.iter().for_each(|value| in_toml(value, key, found)),
        Toml::String(text) => found.extend(key.map(|key| (key.to_owned(), text.clone().into_bytes()))),
        _ => {}
    }
}

fn in_json(value: &Json, key: Option<&str>, found: &mut Vec<(String, Vec<u8>)>) {
    match value {
        Json::Object(members) => {
            for (name, value) in members {
                in_json(
                    value,
                    key.or_else(|| KEYS_OF_AGENTS.contains(&name.as_str()).then_some(name)),
                    found,
                );
            }
        }
        Json::Array(values) => values.iter().for_each(|value| in_json(value, key, found)),
        Json::String(text) => found.extend(key.map(|key| (key.to_owned(), text.clone().into_bytes()))),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn programs_are_found_in_every_form() {
        use SettingsForm::{Json, Lines, Toml, Yaml};
        for (form, text, found) in [
            (
                Lines,
                "registry=https://x/\nscript-shell = ./sh\n",
                vec!["script-shell:= ./sh"],
            ),
            (Lines, "yarn-path \".yarn/y.js\"", vec!["yarn-path:\".yarn/y.js\""]),
            (
                Lines,
                "# shell=x\n[hooks]\ncommit = python:h.py:f\n",
                vec!["commit:= python:h.py:f"],
            ),
            (
                Yaml,
                "nodeLinker: x\nyarnPath: y.cjs\nother: z",
                vec!["yarnPath: y.cjs"],
            ),
            (
                Yaml,
                "plugins:\n  - path: a.cjs\n    spec: b\n- c.cjs\nlast: d",
                vec!["plugins:", "plugins:path: a.cjs", "plugins:spec: b", "plugins:c.cjs"],
            ),
            (
                Yaml,
                "repos:\n- repo: local\n  hooks:\n  - id: x\n    entry: s/x\n    args: [y]\n    files: z",
                vec!["entry: s/x"],
            ),
            (
                Yaml,
                "c:\n  run: |\n    s/one\n    s/two\n  x: y",
                vec!["run: |", "run:s/one", "run:s/two"],
            ),
            (
                Toml,
                "[target.x]\nrunner = [\"s/r\", \"q\"]\n[build]\ntarget = \"t\"",
                vec!["runner:s/r", "runner:q"],
            ),
            (Toml, "runner = ", vec![]),
            (
                Json,
                r#"{"mcpServers":{"a":{"command":"node","args":["s.js"],"env":{"x":"y"}}}}"#,
                vec!["args:s.js", "command:node"],
            ),
            (Json, "{", vec![]),
        ] {
            let named = named_programs(form, text.as_bytes());
            let mut named: Vec<String> = named
                .into_iter()
                .map(|(key, value)| format!("{key}:{}", String::from_utf8(value).unwrap()))
                .collect();
            if form == Json {
                named.sort();
            }
            assert_eq!(named, found, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>, lines in "(-|run:|run=| |\n|#|\\[|x){0,40}") {
            for form in [SettingsForm::Lines, SettingsForm::Yaml, SettingsForm::Toml, SettingsForm::Json] {
                let _ = named_programs(form, &text);
                let _ = named_programs(form, lines.as_bytes());
            }
        }
    }
}
