//! Schemas of JSON types, made of the types that are read and written, in the form that documents and tools are given.
//!
//! The derive macro says exactly what `serde` does. What few readers understand is written as they expect it here: see
//! [`plain`].

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// The schema of a type, which puts those that it refers to into the generator's definitions.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The schema of `T`.
pub(crate) const fn schema_of<T: JsonSchema>() -> SchemaOf {
    SchemaGenerator::subschema_for::<T>
}

/// What makes schemas whose definitions are at `path` of a document.
pub(crate) fn generator(settings: SchemaSettings, path: &'static str) -> SchemaGenerator {
    let settings = settings.with(|settings| {
        settings.definitions_path = path.into();
        settings.meta_schema = None;
    });
    settings.with_transform(plain).into_generator()
}

/// The schema of an object that is read, with everything that it refers to in its place.
pub(crate) fn object_schema<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().for_deserialize().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    plain(&mut schema);
    without_formats(&mut schema);
    for key in ["title", "description"] {
        schema.remove(key);
    }
    let mut fields = match schema.to_value() {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    // Agent hosts look for it where nothing can be said, too.
    fields.entry("properties").or_insert_with(|| Map::new().into());
    fields
}

/// Takes out the sizes of numbers, which tell a model nothing.
fn without_formats(schema: &mut Schema) {
    schema.remove("format");
    transform_subschemas(&mut without_formats, schema);
}

/// Writes a schema, and those in it, in plain words: descriptions in one line; a field that may be left out without the
/// `null` that may stand for it, too; integers in formats that OpenAPI knows.
pub(crate) fn plain(schema: &mut Schema) {
    if let Some(fields) = schema.as_object_mut() {
        one_line(fields);
        known_format(fields);
        let required: Vec<Value> = match fields.get("required") {
            Some(Value::Array(names)) => names.clone(),
            _ => Vec::new(),
        };
        let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
        for (name, property) in properties.into_iter().flatten() {
            if let Value::Object(property) = property
                && !required.iter().any(|known| known == name)
            {
                without_null(property);
            }
        }
    }
    transform_subschemas(&mut plain, schema);
}

fn one_line(fields: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
    }
}

/// `uint64` and its like are no formats of OpenAPI; what generators of clients take their place for is often too small.
fn known_format(fields: &mut Map<String, Value>) {
    let known = match fields.get("format").and_then(Value::as_str) {
        Some("uint32" | "uint64") => Some("int64"),
        Some("uint8" | "uint16" | "double") => None,
        _ => return,
    };
    match known {
        Some(known) => fields.insert("format".to_owned(), known.into()),
        None => fields.remove("format"),
    };
}

/// Takes out of a schema that `null` would do.
fn without_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(choices)) = fields.get_mut("anyOf") else {
        return;
    };
    choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
    if let [Value::Object(only)] = &choices[..] {
        let only = only.clone();
        fields.remove("anyOf");
        fields.extend(only);
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    /// Of the object.
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "its schema is what is looked at")]
    struct Sample {
        /// In two
        /// lines.
        text: String,
        /// May be absent.
        number: Option<u64>,
        /// Is an object.
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "its schema is what is looked at")]
    struct Inner {
        port: u16,
        word: Option<Word>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        One,
        Two,
    }

    #[test]
    fn schemas_are_written_in_plain_words() {
        let expected = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["text"],
            "properties": {
                "text": { "type": "string", "description": "In two lines." },
                "number": { "type": "integer", "minimum": 0, "description": "May be absent." },
                "inner": {
                    "type": "object",
                    "description": "Is an object.",
                    "required": ["port"],
                    "properties": {
                        "port": { "type": "integer", "minimum": 0, "maximum": 65535 },
                        "word": { "type": "string", "enum": ["one", "two"] },
                    },
                },
            },
        });
        assert_eq!(Value::Object(object_schema::<Sample>()), expected);
    }

    #[test]
    fn definitions_are_where_the_document_has_them() {
        let mut generator = generator(SchemaSettings::draft2020_12(), "/components/schemas");
        let reference = generator.subschema_for::<Sample>();
        assert_eq!(
            reference,
            schemars::json_schema!({ "$ref": "#/components/schemas/Sample" })
        );
        let definitions = generator.take_definitions(true);
        let sample = &definitions["Sample"]["properties"];
        assert_eq!(sample["number"]["format"], "int64");
        assert_eq!(
            sample["inner"],
            json!({ "$ref": "#/components/schemas/Inner", "description": "Is an object." })
        );
    }
}
