//! The JSON of the code interpreter.

use std::collections::BTreeMap;

use offleash_interpreter::contexts::ContextInfo;
use serde::{Deserialize, Serialize};

/// A cell.
#[derive(Debug, Deserialize)]
pub(super) struct ExecuteBody {
    pub(super) code: String,
    pub(super) context_id: Option<String>,
    pub(super) language: Option<String>,
    pub(super) env_vars: Option<BTreeMap<String, String>>,
}

/// A context that is asked for.
#[derive(Debug, Deserialize)]
pub(super) struct NewContextBody {
    pub(super) language: Option<String>,
    pub(super) cwd: Option<String>,
}

/// A context.
#[derive(Debug, Serialize)]
pub(super) struct CodeContext {
    id: String,
    language: &'static str,
    cwd: String,
}

impl From<ContextInfo> for CodeContext {
    fn from(info: ContextInfo) -> Self {
        Self {
            id: info.id,
            language: info.language.name(),
            cwd: info.cwd,
        }
    }
}
