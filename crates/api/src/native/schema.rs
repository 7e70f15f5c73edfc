//! JSON types that describe themselves: what they look like on the wire and in the OpenAPI document is written once.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The named types of a document.
pub(super) type Definitions = BTreeMap<&'static str, Value>;

/// A type that JSON has, as OpenAPI describes it.
pub(super) trait Schema {
    /// Whether a field of this type may be absent.
    const OPTIONAL: bool = false;

    /// The description, or a reference to one that is put into `definitions`.
    fn schema(definitions: &mut Definitions) -> Value;
}

macro_rules! simple {
    ($($name:ty => $schema:tt),+ $(,)?) => {
        $(impl Schema for $name {
            fn schema(_: &mut Definitions) -> Value {
                json!($schema)
            }
        })+
    };
}

simple! {
    bool => { "type": "boolean" },
    String => { "type": "string" },
    u16 => { "type": "integer", "minimum": 0, "maximum": 65535 },
    u32 => { "type": "integer", "format": "int64", "minimum": 0 },
    u64 => { "type": "integer", "format": "int64", "minimum": 0 },
    i32 => { "type": "integer", "format": "int32" },
    i64 => { "type": "integer", "format": "int64" },
    // Whatever JSON has.
    Value => {},
}

impl<T: Schema> Schema for Option<T> {
    const OPTIONAL: bool = true;

    fn schema(definitions: &mut Definitions) -> Value {
        T::schema(definitions)
    }
}

impl<T: Schema> Schema for Vec<T> {
    fn schema(definitions: &mut Definitions) -> Value {
        json!({ "type": "array", "items": T::schema(definitions) })
    }
}

impl<T: Schema> Schema for BTreeMap<String, T> {
    fn schema(definitions: &mut Definitions) -> Value {
        json!({ "type": "object", "additionalProperties": T::schema(definitions) })
    }
}

/// The description of an object that is put into `definitions` once; a reference to it.
pub(super) fn object(
    definitions: &mut Definitions,
    name: &'static str,
    make: impl FnOnce(&mut Definitions) -> Object,
) -> Value {
    if !definitions.contains_key(name) {
        // Whoever asks while it is made is answered with the reference.
        definitions.insert(name, Value::Null);
        let object = make(definitions);
        definitions.insert(name, object.into_schema());
    }
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object whose fields are being told.
#[derive(Debug)]
pub(super) struct Object {
    doc: String,
    strict: bool,
    properties: Map<String, Value>,
    required: Vec<&'static str>,
}

impl Object {
    /// `strict`: fields that it does not have are refused.
    pub(super) fn new(doc: &[&str], strict: bool) -> Self {
        Self {
            doc: joined(doc),
            strict,
            properties: Map::new(),
            required: Vec::new(),
        }
    }

    pub(super) fn field<T: Schema>(mut self, definitions: &mut Definitions, name: &'static str, doc: &[&str]) -> Self {
        let mut schema = T::schema(definitions);
        if let Value::Object(fields) = &mut schema {
            fields.insert("description".to_owned(), joined(doc).into());
        }
        self.properties.insert(name.to_owned(), schema);
        if !T::OPTIONAL {
            self.required.push(name);
        }
        self
    }

    fn into_schema(self) -> Value {
        let mut schema = json!({
            "type": "object",
            "description": self.doc,
            "properties": self.properties,
            "required": self.required,
        });
        if self.strict {
            schema["additionalProperties"] = false.into();
        }
        schema
    }
}

fn joined(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Objects of requests (read, and strict about their fields) and of answers (written).
macro_rules! objects {
    ($($kind:ident $(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)+
    })+) => {
        $(objects!(@$kind $(#[doc = $doc])+ $name { $($(#[doc = $field_doc])+ $field: $type,)+ });

        impl $crate::native::schema::Schema for $name {
            fn schema(definitions: &mut $crate::native::schema::Definitions) -> serde_json::Value {
                $crate::native::schema::object(definitions, stringify!($name), |definitions| {
                    let object = $crate::native::schema::Object::new(&[$($doc),+], stringify!($kind) == "request");
                    $(let object = object.field::<$type>(definitions, stringify!($field), &[$($field_doc),+]);)+
                    object
                })
            }
        })+
    };
    (@request $(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name { $($(#[doc = $field_doc])+ pub(super) $field: $type,)+ }
    };
    (@answer $(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, serde::Serialize)]
        pub(super) struct $name { $(
            $(#[doc = $field_doc])+
            pub(super) $field: $type,
        )+ }
    };
}

pub(super) use objects;
