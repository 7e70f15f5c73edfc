//! Results: the forms that a value can be shown in.

use std::collections::BTreeMap;

use serde_json::Value;

/// One form of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum ResultForm {
    /// As text; base64 where the type is an image or a PDF.
    Text(String),
    /// As JSON.
    Json(Value),
}

/// What a cell has for a value, or what it displayed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CellResult {
    /// Its forms, by MIME type.
    pub forms: BTreeMap<String, ResultForm>,
    /// Forms that were larger than what a cell may have, and how many bytes they were.
    pub omitted: BTreeMap<String, u64>,
    /// Whether it is the value of the cell's last expression.
    pub is_main: bool,
}
