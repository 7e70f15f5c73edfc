//! A recipe as a file, `offleash-template.toml`: typed, every key known, errors with line and column.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{PythonModule, Recipe, TemplateName};
use crate::network::{NetworkRule, RuleVerdict};
use crate::policy::PolicyError;
use crate::units::Bytes;
use crate::written::{self, WrongText, all, one, wrong};

/// A recipe with what else its file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecipeFile {
    /// What the template is called.
    pub name: Option<TemplateName>,
    /// What it is built from.
    pub recipe: Recipe,
    /// What it may take on disk.
    pub disk: Option<Bytes>,
}

/// One key of a recipe's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecipeKeyDoc {
    /// The key.
    pub key: &'static str,
    /// What it takes.
    pub kind: &'static str,
    /// What it is, as one sentence without a full stop.
    pub doc: &'static str,
    /// A valid value, as TOML.
    pub example: &'static str,
}

/// Every key of a recipe's file, in the order in which they are done.
pub fn reference() -> [RecipeKeyDoc; 11] {
    let row = |key, kind, doc, example| RecipeKeyDoc {
        key,
        kind,
        doc,
        example,
    };
    [
        row(
            "name",
            "name",
            "what the template is called; `--name` wins",
            "\"analysis\"",
        ),
        row(
            "apt",
            "list of packages",
            "packages of the distribution; they need a superuser inside: root, or subordinate ids",
            "[\"graphviz\"]",
        ),
        row(
            "pip",
            "list of requirements",
            "packages for the Python that `python3` is inside",
            "[\"pandas>=2,<3\", \"polars\"]",
        ),
        row(
            "npm",
            "list of packages",
            "packages for Node, installed globally",
            "[\"typescript@5\"]",
        ),
        row(
            "run",
            "list of commands",
            "commands for `sh -c`, run after all packages, as root",
            "[\"python3 -c 'import pandas'\"]",
        ),
        row(
            "optional",
            "list of `apt`, `npm`",
            "package managers whose packages may fail: the build then leaves them out and says so; without this key it fails",
            "[\"apt\"]",
        ),
        row(
            "index_url",
            "URL",
            "where pip looks instead of PyPI",
            "\"https://index.example/simple\"",
        ),
        row(
            "allow",
            "list of rules",
            "what the build may reach beside the indexes of its packages, as `network.allow` of a policy has it",
            "[\"files.example:443\"]",
        ),
        row("disk", "size", "what the template may take on disk", "\"4G\""),
        row(
            "env",
            "table",
            "variables of every command in sandboxes of the template, and of the commands of `run`",
            "{ MPLBACKEND = \"agg\" }",
        ),
        row(
            "imports",
            "list of modules",
            "modules that are imported ahead, in a Python that waits for `run --python --warm` and in contexts that a \
             server makes ready; without this key they are `numpy`, `pandas` and `matplotlib.pyplot` where IPython is \
             among `pip`; where it is not, no context is made ready",
            "[\"polars\"]",
        ),
    ]
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RecipeToml {
    name: Option<Spanned<String>>,
    apt: Vec<Spanned<String>>,
    pip: Vec<Spanned<String>>,
    npm: Vec<Spanned<String>>,
    run: Vec<Spanned<String>>,
    optional: Vec<Spanned<String>>,
    index_url: Option<Spanned<String>>,
    allow: Vec<Spanned<String>>,
    disk: Option<Spanned<String>>,
    env: BTreeMap<Spanned<String>, Spanned<String>>,
    imports: Option<Vec<Spanned<String>>>,
}

impl RecipeFile {
    /// Reads the text of a recipe.
    ///
    /// # Errors
    /// Where the text is no TOML, a key is unknown, or a value is not what its key takes.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let file: RecipeToml = toml::from_str(text)
            .map_err(|error| PolicyError::at(text, error.span().map_or(0, |span| span.start), error.message()))?;
        file.into_recipe()
            .map_err(|(start, message)| PolicyError::at(text, start, &message))
    }
}

impl RecipeToml {
    fn into_recipe(self) -> Result<RecipeFile, WrongText> {
        let env = written::variables(&self.env)?;
        for command in &self.run {
            if command.get_ref().trim().is_empty() || command.get_ref().contains('\0') {
                return Err(wrong(command, &"a command is empty, or has a NUL in it"));
            }
        }
        for rule in &self.allow {
            NetworkRule::parse(RuleVerdict::Allow, rule.get_ref()).map_err(|error| wrong(rule, &error))?;
        }
        let imports: Option<Vec<PythonModule>> = self.imports.as_deref().map(all).transpose()?;
        let plain = |list: Vec<Spanned<String>>| list.into_iter().map(Spanned::into_inner).collect();
        Ok(RecipeFile {
            name: self.name.as_ref().map(one).transpose()?,
            disk: self.disk.as_ref().map(one).transpose()?,
            recipe: Recipe {
                apt: all(&self.apt)?,
                pip: all(&self.pip)?,
                npm: all(&self.npm)?,
                index_url: self.index_url.as_ref().map(one).transpose()?,
                run: plain(self.run),
                optional: all(&self.optional)?,
                allow: plain(self.allow),
                env,
                imports,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_as_it_is_documented() {
        let text: String = reference()
            .iter()
            .map(|row| format!("{} = {}\n", row.key, row.example))
            .collect();
        let read = RecipeFile::parse(&text).unwrap();
        assert_eq!(read.name.unwrap().as_str(), "analysis");
        assert_eq!(read.disk, Some(Bytes(4 << 30)));
        let recipe = read.recipe;
        assert_eq!(
            recipe.summary(),
            "apt graphviz; pip pandas>=2,<3, polars; npm typescript@5; 1 command"
        );
        assert_eq!(recipe.env["MPLBACKEND"], "agg");
        assert_eq!(recipe.optional, [crate::template::PackageManager::Apt]);
        assert_eq!(recipe.index_url.unwrap().host_and_port(), "index.example:443");
        assert_eq!(recipe.allow, ["files.example:443"]);
        assert_eq!(RecipeFile::parse("").unwrap(), RecipeFile::default());
    }

    #[test]
    fn what_is_wrong_is_named_where_it_stands() {
        for (text, line, column, part) in [
            ("pip = [\"a\"]\npop = 1\n", 2, 1, "unknown field `pop`"),
            ("pip = [\"a\",\n  \"-r x\"]\n", 2, 3, "neither a letter nor a digit"),
            ("name = \"Base\"", 1, 8, "not a template's name"),
            ("env = { \"A=B\" = \"x\" }", 1, 9, "A=B"),
            ("allow = [\"*.com\"]", 1, 10, ""),
            ("disk = \"much\"", 1, 8, "much"),
            ("run = [\" \"]", 1, 8, "empty"),
            ("optional = [\"apt\", \"pip\"]", 1, 20, "`pip` cannot be optional"),
            ("index_url = \"https://u:p@h/\"", 1, 13, "user"),
            ("pip = ", 1, 7, ""),
        ] {
            let error = RecipeFile::parse(text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(part), "{text}: {error}");
        }
    }
}
