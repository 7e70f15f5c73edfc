//! The OpenAPI document of the native REST, made from its table and its types.

use offleash_daemon::Scope;
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::{RouteEntry, RouteHandler};
use crate::cells::NDJSON;
use crate::http::schema::{SchemaOf, generator, schema_of};
use crate::native::{EVENTS, RefusalAnswer};

/// Parameters of a query, and what they are.
pub(crate) type QueryDocs = &'static [(&'static str, &'static str)];

/// Where the document has the schemas of its types.
const DEFINITIONS: &str = "/components/schemas";

/// What the document says of a route beside what every row of the table has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteSchemas {
    pub(crate) query: QueryDocs,
    pub(crate) request: Option<SchemaOf>,
    /// The type of a body that is read as it comes, and is no JSON.
    pub(crate) bytes: Option<&'static str>,
    pub(crate) status: u16,
    pub(crate) answer: AnswerSchema,
}

/// What is answered when all is well.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerSchema {
    /// Nothing that is described.
    Nothing,
    /// A JSON value.
    One(SchemaOf),
    /// Lines of a JSON value each, as they come.
    Lines(SchemaOf),
    /// Server-sent events with a JSON value each, as they come.
    Events(SchemaOf),
    /// Bytes of that type, as they come.
    Bytes(&'static str),
}

impl RouteSchemas {
    /// One that reads nothing, and answers with `status` and nothing that is described.
    pub(crate) const fn answers(status: u16) -> Self {
        Self {
            query: &[],
            request: None,
            bytes: None,
            status,
            answer: AnswerSchema::Nothing,
        }
    }

    /// One that reads a `T`.
    pub(crate) const fn reads<T: JsonSchema>(mut self) -> Self {
        self.request = Some(schema_of::<T>());
        self
    }

    /// One with parameters in its query.
    pub(crate) const fn with_query(mut self, query: QueryDocs) -> Self {
        self.query = query;
        self
    }

    /// One that answers with a `T`.
    pub(crate) const fn with<T: JsonSchema>(mut self) -> Self {
        self.answer = AnswerSchema::One(schema_of::<T>());
        self
    }

    /// One that reads bytes of that type.
    pub(crate) const fn reads_bytes(mut self, kind: &'static str) -> Self {
        self.bytes = Some(kind);
        self
    }

    /// One that answers with bytes of that type.
    pub(crate) const fn with_bytes(mut self, kind: &'static str) -> Self {
        self.answer = AnswerSchema::Bytes(kind);
        self
    }

    /// One that answers with lines, a `T` each.
    pub(crate) const fn with_lines<T: JsonSchema>(mut self) -> Self {
        self.answer = AnswerSchema::Lines(schema_of::<T>());
        self
    }

    /// One that answers with server-sent events, a `T` each.
    pub(crate) const fn with_events<T: JsonSchema>(mut self) -> Self {
        self.answer = AnswerSchema::Events(schema_of::<T>());
        self
    }
}

/// What makes the schemas of a document: types are described as they are read, or as they are written.
#[derive(Debug)]
struct DocumentSchemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    refused: Value,
}

impl DocumentSchemas {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12;
        let mut answers = generator(settings().for_serialize(), DEFINITIONS);
        let refused = answers.subschema_for::<RefusalAnswer>().to_value();
        Self {
            requests: generator(settings().for_deserialize(), DEFINITIONS),
            answers,
            refused,
        }
    }

    fn request(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.requests).to_value()
    }

    fn answer(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.answers).to_value()
    }

    /// All types that were referred to. No name is that of a request and of an answer.
    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        all
    }
}

/// The document.
pub(super) fn document(routes: &[RouteEntry]) -> Value {
    let mut types = DocumentSchemas::new();
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(schemas) = &route.schemas {
            let method = route.method.as_str().to_ascii_lowercase();
            path[method] = described(route, schemas, &mut types);
        }
    }
    let definitions = types.definitions();
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

fn described(route: &RouteEntry, schemas: &RouteSchemas, types: &mut DocumentSchemas) -> Value {
    let mut described = json!({
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": parameters(route, schemas.query),
        "responses": {
            "default": { "description": "Why the request was refused.", "content": content(types.refused.clone()) },
        },
    });
    let mut answer = json!({ "description": status_word(schemas.status) });
    match schemas.answer {
        AnswerSchema::Nothing => {}
        AnswerSchema::One(schema) => answer["content"] = content(types.answer(schema)),
        // The schema of such a type is that of each of its lines.
        AnswerSchema::Events(schema) => answer["content"] = json!({ (EVENTS): { "schema": types.answer(schema) } }),
        AnswerSchema::Lines(schema) => answer["content"] = json!({ (NDJSON): { "schema": types.answer(schema) } }),
        // Any bytes, as OpenAPI 3.1 says it.
        AnswerSchema::Bytes(kind) => answer["content"] = json!({ (kind): {} }),
    }
    described["responses"][schemas.status.to_string()] = answer;
    if let Some(schema) = schemas.request {
        described["requestBody"] = json!({ "required": true, "content": content(types.request(schema)) });
    }
    if let Some(kind) = schemas.bytes {
        described["requestBody"] = json!({ "required": true, "content": { (kind): {} } });
    }
    match route.handler {
        RouteHandler::Open(_) | RouteHandler::ByVolumeToken(_) | RouteHandler::ByUploadToken(_) => {
            described["security"] = json!([])
        }
        RouteHandler::Keyed(scope, _) => {
            described["description"] = format!("Needs the scope `{}`.", Scope::as_str(scope)).into()
        }
    }
    described
}

fn parameters(route: &RouteEntry, query: QueryDocs) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|segment| segment.strip_prefix('{'));
    let in_path = in_path.map(|name| {
        let name = name.trim_end_matches('}');
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let in_query = query
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

    fn whole() -> Value {
        document(&crate::routes::native::ROUTES)
    }

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
        let document = whole();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some_and(Value::is_object), "{reference}");
        }
    }

    #[test]
    fn a_field_that_is_always_there_may_be_null_and_one_that_may_be_absent_is_not() {
        let schemas = &whole()["components"]["schemas"];
        let signal = &schemas["RunResult"]["properties"]["signal"];
        assert_eq!(signal["type"], json!(["integer", "null"]));
        assert!(
            schemas["RunResult"]["required"]
                .as_array()
                .unwrap()
                .contains(&json!("signal"))
        );
        assert_eq!(
            schemas["NewRun"]["properties"]["sandbox"]["$ref"],
            "#/components/schemas/NewSandbox"
        );
        let event = &schemas["CellEvent"];
        assert_eq!(event["required"], json!(["kind"]));
        assert_eq!(event["properties"]["count"]["type"], "integer");
    }

    #[test]
    fn no_name_is_that_of_a_request_and_of_an_answer() {
        let mut types = DocumentSchemas::new();
        for schemas in crate::routes::native::ROUTES.iter().flat_map(|route| &route.schemas) {
            described(&crate::routes::native::ROUTES[0], schemas, &mut types);
        }
        let (requests, answers) = (types.requests.definitions(), types.answers.definitions());
        assert!(!requests.is_empty() && !answers.is_empty());
        assert!(requests.keys().all(|name| !answers.contains_key(name)));
    }

    #[test]
    fn every_route_says_what_it_is() {
        for operation in &crate::routes::native::ROUTES {
            let schemas = operation.schemas.as_ref().unwrap();
            let document = whole();
            let path = &document["paths"][operation.path];
            let described = &path[operation.method.as_str().to_ascii_lowercase()];
            assert!(described["summary"].as_str().unwrap().ends_with('.'), "{operation:?}");
            assert!(
                described["responses"][schemas.status.to_string()].is_object(),
                "{operation:?}"
            );
        }
    }

    #[test]
    fn what_comes_in_lines_has_the_type_of_lines() {
        let document = whole();
        let answers = &document["paths"]["/v1/sandboxes/{id}/contexts/{context}/execute"]["post"];
        assert_eq!(answers["parameters"][1]["name"], "context");
        let schema = &answers["responses"]["200"]["content"]["application/x-ndjson"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/CellEvent");
    }

    #[test]
    fn what_must_be_there_is_told_from_what_may() {
        let schema = &whole()["components"]["schemas"]["NewKey"];
        assert_eq!(schema["required"], json!(["name"]));
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["scopes"]["items"]["type"], "string");
    }
}
