//! The fields that E2B's SDKs know the forms of a result by.

use offleash_interpreter::result::{CellResult, ResultForm};
use serde_json::{Map, Value};

/// MIME types with a field of their own. All others are in [`EXTRA`].
const FIELDS: [(&str, &str); 12] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
    ("e2b/data", "data"),
    ("e2b/chart", "chart"),
];

const EXTRA: &str = "extra";

/// The key in `extra` for forms that were too large: an object of MIME types and sizes in bytes.
const OMITTED: &str = "offleash/omitted";

/// The fields that it has in E2B's shape; those that it lacks are absent.
pub(super) fn fields(result: CellResult) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut extra = Map::new();
    for (mime, form) in result.forms {
        let field = FIELDS.iter().find(|(known, _)| *known == mime).map(|(_, field)| *field);
        let value = match form {
            ResultForm::Text(text) if field == Some("text") => Value::String(without_quotes(text)),
            ResultForm::Text(text) => Value::String(text),
            ResultForm::Json(value) => value,
        };
        match field {
            Some(field) => fields.insert(field.to_owned(), value),
            None => extra.insert(mime, value),
        };
    }
    if !result.omitted.is_empty() {
        let omitted = result.omitted.into_iter().map(|(mime, bytes)| (mime, bytes.into()));
        extra.insert(OMITTED.to_owned(), Value::Object(omitted.collect()));
    }
    if !extra.is_empty() {
        fields.insert(EXTRA.to_owned(), Value::Object(extra));
    }
    fields.insert("is_main_result".to_owned(), result.is_main.into());
    fields
}

/// The text of a string in place of how Python writes it, as E2B has it.
fn without_quotes(text: String) -> String {
    let inner = ['\'', '"']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.map_or_else(|| text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form_has_its_field() {
        let mut result = CellResult {
            is_main: true,
            ..CellResult::default()
        };
        for (mime, _) in FIELDS {
            result.forms.insert(mime.to_owned(), ResultForm::Text(mime.to_owned()));
        }
        let figure = json!({ "data": [1] });
        result.forms.insert(
            "application/vnd.plotly.v1+json".to_owned(),
            ResultForm::Json(figure.clone()),
        );
        result.omitted.insert("image/gif".to_owned(), 7);
        let found = fields(result);
        for (mime, field) in FIELDS {
            assert_eq!(found[field], mime);
        }
        assert_eq!(
            found["extra"],
            json!({ "application/vnd.plotly.v1+json": figure, "offleash/omitted": { "image/gif": 7 } })
        );
        assert_eq!(found["is_main_result"], true);
    }

    #[test]
    fn the_text_of_a_string_has_no_quotes() {
        for (text, expected) in [
            ("'a'", "a"),
            ("\"it's\"", "it's"),
            ("'", "'"),
            ("''", ""),
            ("'a\"", "'a\""),
            ("b'a'", "b'a'"),
            ("['a']", "['a']"),
        ] {
            assert_eq!(without_quotes(text.to_owned()), expected);
        }
    }
}
