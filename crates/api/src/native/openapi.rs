//! The OpenAPI document of the native REST, made from its table and its types.

use offleash_manager::daemon::Scope;
use serde_json::{Map, Value, json};

use super::operations::{Answer, OPERATIONS, Operation};
use super::schema::{Definitions, Schema as _};
use super::shapes::Refused;
use crate::code::NDJSON;

/// The document.
pub(super) fn document() -> Value {
    let mut definitions = Definitions::new();
    let refused = Refused::schema(&mut definitions);
    let mut paths = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = described(operation, &refused, &mut definitions);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "offleash",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What offleash has beside the API of E2B, which the same server speaks at the same address.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": { "key": { "type": "apiKey", "in": "header", "name": "X-API-KEY" } },
        },
    })
}

fn described(operation: &Operation, refused: &Value, definitions: &mut Definitions) -> Value {
    let mut described = json!({
        "operationId": format!("{:?}", operation.name),
        "summary": operation.summary,
        "parameters": parameters(operation),
        "responses": {
            "default": { "description": "Why the request was refused.", "content": content(refused.clone()) },
        },
    });
    let mut answer = json!({ "description": status_word(operation.status) });
    match operation.answer {
        Answer::Nothing => {}
        Answer::One(schema) => answer["content"] = content(schema(definitions)),
        // The schema of such a type is that of each of its lines.
        Answer::Lines(schema) => answer["content"] = json!({ (NDJSON): { "schema": schema(definitions) } }),
    }
    described["responses"][operation.status.to_string()] = answer;
    if let Some(schema) = operation.request {
        described["requestBody"] = json!({ "required": true, "content": content(schema(definitions)) });
    }
    match operation.scope {
        None => described["security"] = json!([]),
        Some(scope) => described["description"] = format!("Needs the scope `{}`.", Scope::as_str(scope)).into(),
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let in_path = operation
        .path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{'));
    let in_path = in_path.map(|name| {
        let name = name.trim_end_matches('}');
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let in_query = operation
        .query
        .iter()
        .map(|(name, doc)| json!({ "name": name, "in": "query", "description": doc, "schema": { "type": "string" } }));
    in_path.chain(in_query).collect()
}

fn content(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn status_word(status: u16) -> &'static str {
    let status = http::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or("Answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference in `value`.
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some_and(Value::is_object), "{reference}");
        }
    }

    #[test]
    fn every_route_says_what_it_is() {
        for operation in &OPERATIONS {
            let document = document();
            let path = &document["paths"][operation.path];
            let described = &path[operation.method.as_str().to_ascii_lowercase()];
            assert!(described["summary"].as_str().unwrap().ends_with('.'), "{operation:?}");
            assert!(
                described["responses"][operation.status.to_string()].is_object(),
                "{operation:?}"
            );
        }
    }

    #[test]
    fn what_comes_in_lines_has_the_type_of_lines() {
        let document = document();
        let answers = &document["paths"]["/v1/sandboxes/{id}/contexts/{context}/execute"]["post"];
        assert_eq!(answers["parameters"][1]["name"], "context");
        let schema = &answers["responses"]["200"]["content"]["application/x-ndjson"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/CellEvent");
    }

    #[test]
    fn what_must_be_there_is_told_from_what_may() {
        let schema = &document()["components"]["schemas"]["NewKey"];
        assert_eq!(schema["required"], json!(["name"]));
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["scopes"]["items"]["type"], "string");
    }
}
