//! The arguments of the tools.

use std::collections::BTreeMap;

use rmcp::model::JsonObject;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::ToolError;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCode {
    pub(super) code: String,
    pub(super) language: Option<String>,
    pub(super) context: Option<String>,
    pub(super) sandbox: Option<String>,
    pub(super) timeout_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    pub(super) command: String,
    pub(super) cwd: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) stdin: Option<String>,
    pub(super) user: Option<String>,
    pub(super) sandbox: Option<String>,
    pub(super) timeout_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    pub(super) path: String,
    pub(super) offset: Option<u64>,
    pub(super) length: Option<u64>,
    pub(super) sandbox: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    pub(super) path: String,
    pub(super) content: String,
    pub(super) encoding: Option<Encoding>,
    pub(super) sandbox: Option<String>,
}

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Encoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListFiles {
    pub(super) path: Option<String>,
    pub(super) depth: Option<u32>,
    pub(super) sandbox: Option<String>,
}

/// Those of tools that need to know no more than which sandbox.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichSandbox {
    pub(super) sandbox: Option<String>,
}

/// Those of `fork`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    pub(super) sandbox: Option<String>,
    pub(super) count: Option<u32>,
    pub(super) contexts: Option<String>,
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
