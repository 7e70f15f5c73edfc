//! Templates: roots of sandboxes with more in them than the host has, and the recipes that they are built from.
//!
//! Pure: a recipe is read and checked here; building it is the supervisor's.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::{ErrorKind, Explained};

mod file;
mod items;
mod ready;

pub use self::file::{RecipeFile, RecipeKeyDoc, reference};
pub use self::items::{AptPackage, ItemError, NpmPackage, PipIndex, PipRequirement, PythonModule, split_requirements};
pub use self::ready::{ReadyRecipe, UnknownRecipe};

/// The name of a template: 1 to 64 characters of `[a-z0-9_-]`, the first a letter or a digit, safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

/// Longest name of a template, bytes.
const MAX_NAME: usize = 64;

/// Names that mean something else.
const RESERVED: [&str; 2] = ["base", "system"];

/// The template of the code interpreter.
pub const CODE_INTERPRETER: &str = "code-interpreter";

/// What E2B's SDK for the code interpreter calls it.
pub const CODE_INTERPRETER_ALIAS: &str = "code-interpreter-v1";

/// The template in which E2B's SDKs have servers of the Model Context Protocol started.
pub const MCP_GATEWAY: &str = "mcp-gateway";

/// A string that cannot be the name of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateNameError {
    /// It has other characters, or too many.
    #[error(
        "`{}` is not a template's name: expected 1 to {MAX_NAME} characters a-z, 0-9, `-` and `_`, the first a letter or digit",
        .0.escape_debug()
    )]
    Form(String),
    /// It is ours.
    #[error("`{0}` is built in: no template can be built, shown or removed under that name")]
    Reserved(String),
}

impl TemplateName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The template that a caller means who asks for `name`: `code-interpreter-v1` is `code-interpreter`.
    ///
    /// # Errors
    /// When no template can have that name.
    pub fn meant_by(name: &str) -> Result<Self, TemplateNameError> {
        let meant = if name == CODE_INTERPRETER_ALIAS {
            CODE_INTERPRETER
        } else {
            name
        };
        meant.parse()
    }

    /// Whether it is the code interpreter's.
    pub fn is_code_interpreter(&self) -> bool {
        self.0 == CODE_INTERPRETER
    }

    /// The code interpreter's.
    pub fn code_interpreter() -> Self {
        Self(CODE_INTERPRETER.to_owned())
    }
}

impl FromStr for TemplateName {
    type Err = TemplateNameError;

    fn from_str(text: &str) -> Result<Self, TemplateNameError> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let starts_well = text.bytes().next().is_some_and(is_plain);
        let rest_well = text.bytes().all(|byte| is_plain(byte) || byte == b'-' || byte == b'_');
        if !starts_well || !rest_well || text.len() > MAX_NAME {
            return Err(TemplateNameError::Form(text.to_owned()));
        }
        if RESERVED.contains(&text) || text == CODE_INTERPRETER_ALIAS {
            return Err(TemplateNameError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for TemplateName {
    type Error = TemplateNameError;

    fn try_from(text: String) -> Result<Self, TemplateNameError> {
        text.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Explained for TemplateNameError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some("`offleash template ls` lists the templates that there are".to_owned())
    }
}

/// What a server starts in a sandbox of a template before anybody has it, and when that is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StartCommand {
    /// A line for a shell, which goes on.
    pub start: Option<String>,
    /// A line for a shell that succeeds once the sandbox is ready; it is run again until then.
    pub ready: Option<String>,
}

impl StartCommand {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.start.is_none() && self.ready.is_none()
    }
}

/// What a sandbox of a template may use on a server whose creator does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TemplateLimits {
    /// CPUs at once.
    pub cpus: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
}

/// What a template is built from, on top of the host's system.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// Packages of the distribution; only where sandboxes have a superuser of their own.
    pub apt: Vec<AptPackage>,
    /// Packages for the Python that `python3` is inside.
    pub pip: Vec<PipRequirement>,
    /// Packages for Node, installed globally.
    pub npm: Vec<NpmPackage>,
    /// Commands for `sh -c`, run last, as root.
    pub run: Vec<String>,
    /// Variables of every command in sandboxes of this template, and of the commands of `run`.
    pub env: BTreeMap<String, String>,
    /// Where pip looks instead of PyPI.
    pub index_url: Option<PipIndex>,
    /// What a build may reach beside the indexes of its packages, as `--allow` of `run` has it.
    pub allow: Vec<String>,
    /// Whose packages are left out, and said to be, where they cannot be installed; without it a build fails of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub optional: Vec<PackageManager>,
    /// What contexts of Python have imported that are made ready before anybody asks; see [`Recipe::ready_imports`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imports: Option<Vec<PythonModule>>,
}

/// A manager of packages that a machine may lack, or a user's sandboxes cannot use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageManager {
    /// That of the distribution.
    Apt,
    /// That of Node.
    Npm,
}

/// Not the name of one that may be optional.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` cannot be optional: `apt` and `npm` can", .0.escape_debug())]
pub struct PackageLifecycleError(String);

impl std::str::FromStr for PackageManager {
    type Err = PackageLifecycleError;

    fn from_str(text: &str) -> Result<Self, PackageLifecycleError> {
        match text {
            "apt" => Ok(Self::Apt),
            "npm" => Ok(Self::Npm),
            other => Err(PackageLifecycleError(other.chars().take(60).collect())),
        }
    }
}

/// The packages of the code interpreter: what its drivers need, what nearly every cell imports, and what plotly shows figures
/// by. Much code is written in words of Matplotlib that 3.11 does not know any more.
const CODE_INTERPRETER_PIP: [&str; 8] = [
    "numpy",
    "pandas",
    "matplotlib<3.11",
    "scipy",
    "scikit-learn",
    "ipython",
    "plotly",
    "nbformat",
];

/// Characters of Chinese, Japanese and Korean (16 MB; Noto's are 91), and symbols and emoji in outlines, which alone Matplotlib
/// draws (3 MB).
const CODE_INTERPRETER_APT: [&str; 2] = ["fonts-wqy-zenhei", "fonts-symbola"];

/// What takes types out of TypeScript where Node does not.
const CODE_INTERPRETER_NPM: &str = "typescript@5";

/// Has Matplotlib look for characters in those fonts which its own lacks, where they are installed, in the settings that all
/// others win over.
const CODE_INTERPRETER_RUN: &str = r#"python3 - <<'END' || echo "offleash: Matplotlib is left as it is" >&2
import os
import re
import matplotlib
from matplotlib import font_manager

installed = {font.name for font in font_manager.fontManager.ttflist}
found = [name for name in ("WenQuanYi Zen Hei", "Symbola") if name in installed]
if found:
    path = os.path.join(matplotlib.get_data_path(), "matplotlibrc")
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(re.sub(r"(?m)^#?font\.family:.*$", "font.family: sans-serif, " + ", ".join(found), text))
END"#;

/// What ready contexts of Python have imported where a recipe does not say, as far as it is installed.
const READY_IMPORTS: [&str; 3] = ["numpy", "pandas", "matplotlib.pyplot"];

/// What contexts of Python run their cells in, so that who installs it means to run some.
const SHELL: &str = "ipython";

/// The program that starts the servers and speaks for them.
const GATEWAY: &str = include_str!("template/mcp_gateway.py");
const GATEWAY_PLACE: &str = "/usr/local/bin/mcp-gateway";

impl Recipe {
    /// What `mcp-gateway` is built from when somebody asks for it who did not build it: the program, and nothing of any registry.
    /// What a server is made of is installed in the sandbox that is asked for it.
    pub fn mcp_gateway() -> Self {
        let end = "end of mcp-gateway";
        Self {
            run: vec![format!(
                "cat >{GATEWAY_PLACE} <<'{end}'\n{GATEWAY}{end}\nchmod 755 {GATEWAY_PLACE} && {GATEWAY_PLACE} check"
            )],
            ..Self::default()
        }
    }

    /// What `code-interpreter` is built from when somebody asks for it who did not build it.
    pub fn code_interpreter() -> Self {
        Self {
            apt: CODE_INTERPRETER_APT
                .iter()
                .filter_map(|name| name.parse().ok())
                .collect(),
            pip: CODE_INTERPRETER_PIP
                .iter()
                .filter_map(|name| name.parse().ok())
                .collect(),
            npm: CODE_INTERPRETER_NPM.parse().into_iter().collect(),
            run: vec![CODE_INTERPRETER_RUN.to_owned()],
            optional: vec![PackageManager::Apt, PackageManager::Npm],
            ..Self::default()
        }
    }

    /// What contexts of Python have imported that are made ready before anybody asks; `None` if none are to be made,
    /// because the recipe neither says what nor installs IPython.
    pub fn ready_imports(&self) -> Option<Vec<PythonModule>> {
        let has_shell = || self.pip.iter().any(|requirement| requirement.name() == SHELL);
        match &self.imports {
            Some(imports) => Some(imports.clone()),
            None => has_shell().then(Self::usual_imports),
        }
    }

    /// What they have imported where nothing says what.
    pub fn usual_imports() -> Vec<PythonModule> {
        let names = READY_IMPORTS.iter();
        names.filter_map(|name| name.parse().ok()).collect()
    }

    /// Whether nothing is installed, run or set.
    pub fn is_empty(&self) -> bool {
        let Self {
            apt,
            pip,
            npm,
            run,
            env,
            ..
        } = self;
        apt.is_empty() && pip.is_empty() && npm.is_empty() && run.is_empty() && env.is_empty()
    }

    /// What it installs, in a line.
    pub fn summary(&self) -> String {
        let list =
            |name: &str, packages: Vec<&str>| (!packages.is_empty()).then(|| format!("{name} {}", packages.join(", ")));
        let parts = [
            list("apt", self.apt.iter().map(AptPackage::as_str).collect()),
            list("pip", self.pip.iter().map(PipRequirement::as_str).collect()),
            list("npm", self.npm.iter().map(NpmPackage::as_str).collect()),
            (!self.run.is_empty()).then(|| {
                format!(
                    "{} command{}",
                    self.run.len(),
                    if self.run.len() == 1 { "" } else { "s" }
                )
            }),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            "nothing".to_owned()
        } else {
            parts.join("; ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_file_names_and_mean_one_thing() {
        for good in ["a", "code-interpreter", "my_template-2", "0"] {
            assert_eq!(good.parse::<TemplateName>().unwrap().as_str(), good);
        }
        let long = "a".repeat(65);
        for bad in [
            "",
            ".",
            "..",
            "-a",
            "_a",
            "A",
            "a/b",
            "a b",
            "a:1",
            "ä",
            "base",
            "system",
            "code-interpreter-v1",
            &long,
        ] {
            assert!(bad.parse::<TemplateName>().is_err(), "{bad:?}");
        }
        assert_eq!(
            TemplateName::meant_by("code-interpreter-v1"),
            Ok(TemplateName::code_interpreter())
        );
        assert!(TemplateName::code_interpreter().is_code_interpreter());
    }

    #[test]
    fn contexts_are_made_ready_where_the_recipe_says_so_or_installs_their_shell() {
        let names = |recipe: &Recipe| {
            let imports = recipe.ready_imports()?;
            Some(imports.iter().map(|module| module.to_string()).collect::<Vec<_>>())
        };
        let pip = |requirement: &str| Recipe {
            pip: vec![requirement.parse().unwrap()],
            ..Recipe::default()
        };
        assert_eq!(names(&Recipe::default()), None);
        assert_eq!(names(&pip("ipykernel")), None);
        for requirement in ["ipython", "IPython[all]>=8", "ipython ; python_version > '3'"] {
            assert_eq!(names(&pip(requirement)).unwrap(), READY_IMPORTS, "{requirement}");
        }
        let said = Recipe {
            imports: Some(vec!["polars".parse().unwrap()]),
            ..pip("ipython")
        };
        assert_eq!(names(&said).unwrap(), ["polars"]);
        assert!(names(&Recipe::code_interpreter()).is_some());
    }

    #[test]
    fn the_usual_recipe_is_one_that_could_be_written() {
        let recipe = Recipe::code_interpreter();
        assert_eq!(recipe.pip.len(), CODE_INTERPRETER_PIP.len());
        assert_eq!(
            recipe.summary(),
            "apt fonts-wqy-zenhei, fonts-symbola; pip numpy, pandas, matplotlib<3.11, scipy, scikit-learn, ipython, plotly, \
             nbformat; npm typescript@5; 1 command"
        );
        assert!(!recipe.is_empty() && Recipe::default().is_empty());
        let text = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&text).unwrap(), recipe);
    }
}
