//! Which programs the settings of package managers and the like name.

use serde_json::Value as Json;
use toml::Value as Toml;

/// How settings are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettingsForm {
    /// `key = value` or `key value`, a line each.
    Lines,
    /// YAML, of which every word counts: what runs stands under many keys, and in flows and blocks.
    Yaml,
    /// TOML.
    Toml,
    /// JSON, perhaps with comments, of which every text counts.
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
            (Some(b".cargo"), b"config" | b"config.toml") | (Some(b".codex"), b"config.toml") | (_, b"bunfig.toml") => {
                Some(Self::Toml)
            }
            (_, b".mcp.json" | b"mcp.json" | b"devcontainer.json" | b".devcontainer.json")
            | (Some(b".claude" | b".gemini"), b"settings.json" | b"settings.local.json")
            | (Some(b".cursor"), b"hooks.json") => Some(Self::Json),
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
    // agents
    "command", "args", "notify",
];

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
        SettingsForm::Json => match serde_json::from_str(text) {
            Ok(value) => in_json(&value, "it", &mut found),
            Err(_) => yaml(text, &mut found),
        },
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
    let mut last = "it";
    for line in text.lines().map(str::trim_start) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let content = line.trim_start_matches("- ");
        let (key, value) = match content.split_once(':') {
            Some((key, value)) => (key.trim_matches(['"', '\'', '{', '[', ' ']), value),
            None => (last, content),
        };
        last = key;
        if !value.trim().is_empty() {
            found.push((key.to_owned(), value.into()));
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

fn in_json(value: &Json, key: &str, found: &mut Vec<(String, Vec<u8>)>) {
    match value {
        Json::Object(members) => members.iter().for_each(|(name, value)| in_json(value, name, found)),
        Json::Array(values) => values.iter().for_each(|value| in_json(value, key, found)),
        Json::String(text) => found.push((key.to_owned(), text.clone().into_bytes())),
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
                "nodeLinker: x\nyarnPath: y.cjs\n# other: z",
                vec!["nodeLinker: x", "yarnPath: y.cjs"],
            ),
            (
                Yaml,
                "plugins:\n  - path: a.cjs\n    spec: b\n- c.cjs\nlast: d",
                vec!["path: a.cjs", "spec: b", "spec:c.cjs", "last: d"],
            ),
            (
                Yaml,
                "hooks:\n  - {id: x, entry: s/x}\n  - args: [y]",
                vec!["id: x, entry: s/x}", "args: [y]"],
            ),
            (
                Yaml,
                "c:\n  run: |\n    s/one\n    s/two\n  x: y",
                vec!["run: |", "run:s/one", "run:s/two", "x: y"],
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
                vec!["args:s.js", "command:node", "x:y"],
            ),
            (
                Json,
                "{ // why\n\"apiKeyHelper\": \"s/k\" }",
                vec!["apiKeyHelper: \"s/k\" }", "it:{ // why"],
            ),
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
