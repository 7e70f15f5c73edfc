//! The arguments of the tools: what is read is what models are told, and what is said of each field is its doc comment.

use std::collections::BTreeMap;

use offleash_daemon::{CarriedContexts, MAX_FORKS};
use offleash_interpreter::language::Language;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::ToolError;
use super::files::{MAX_DEPTH, MAX_TEXT, USUAL_TEXT};

/// Those of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCodeArguments {
    /// The code, of at most 16 MiB. The value of its last expression is returned.
    pub(super) code: String,
    /// The language. Each has a state of its own.
    #[schemars(extend("enum" = language_names(), "default" = Language::Python.name()))]
    pub(super) language: Option<String>,
    /// A separate state: `new` makes one and returns its id, which further calls pass here (without `language`). Leave it out
    /// to use the usual one of the language.
    pub(super) context: Option<String>,
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
    /// Seconds after which it is stopped.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(super) timeout_seconds: Option<f64>,
}

/// Those of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommandArguments {
    /// The command line, for bash.
    pub(super) command: String,
    /// Directory to start in; relative ones are below the working directory, which is the default.
    pub(super) cwd: Option<String>,
    /// Variables of the environment, beside the usual ones.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// What the command reads on standard input; nothing if left out.
    pub(super) stdin: Option<String>,
    /// User to run as, such as `root` (inside the sandbox) where it has several.
    pub(super) user: Option<String>,
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
    /// Seconds after which it is stopped.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(super) timeout_seconds: Option<f64>,
}

/// Those of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFileArguments {
    /// Path in the sandbox; relative ones are below the working directory.
    pub(super) path: String,
    /// Byte to begin with.
    #[schemars(extend("default" = 0))]
    pub(super) offset: Option<u64>,
    /// How many bytes of text at most.
    #[schemars(range(min = 1, max = MAX_TEXT), extend("default" = USUAL_TEXT))]
    pub(super) length: Option<u64>,
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
}

/// Those of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFileArguments {
    /// Path in the sandbox; relative ones are below the working directory.
    pub(super) path: String,
    /// All that the file is to have.
    pub(super) content: String,
    /// What `content` is.
    #[schemars(extend("default" = "utf-8"))]
    pub(super) encoding: Option<ContentEncoding>,
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
}

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum ContentEncoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// Those of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListFilesArguments {
    /// The directory; the working directory if left out.
    pub(super) path: Option<String>,
    /// How many levels of directories.
    #[schemars(range(min = 1, max = MAX_DEPTH), extend("default" = 1))]
    pub(super) depth: Option<u32>,
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
}

/// Those of `create_sandbox` where nothing can be said of the sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NoArguments {}

/// Those of `kill_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillSandboxArguments {
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
}

/// Those of `fork`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkArguments {
    /// Id of the sandbox, as create_sandbox returned it. Leave it out to use the one of this session.
    pub(super) sandbox: Option<String>,
    /// How many copies.
    #[schemars(range(min = 1, max = MAX_FORKS), extend("default" = 1))]
    pub(super) count: Option<u32>,
    /// Which variables: `all`, and nothing is copied where something cannot be; those for which it is `possible`; `none`.
    #[schemars(extend("enum" = CarriedContexts::WORDS, "default" = "all"))]
    pub(super) contexts: Option<String>,
}

fn language_names() -> [&'static str; Language::ALL.len()] {
    Language::ALL.map(Language::name)
}

/// Reads arguments.
///
/// # Errors
/// What is wrong with them, for a model to mend.
pub(super) fn read<T: DeserializeOwned>(arguments: Option<JsonObject>) -> Result<T, ToolError> {
    serde_json::from_value(Value::Object(arguments.unwrap_or_default())).map_err(|error| {
        ToolError::new(format!("the arguments are not what the tool takes: {error}"))
            .with_hint("the input schema of the tool says which there are, and of which type")
    })
}
