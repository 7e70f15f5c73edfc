//! Arguments of a command, as parameters of its tool.

use serde_json::{Map, Value};

use crate::answer::CallFailure;

/// What a command was called for.
#[derive(Debug, PartialEq)]
pub(crate) enum CommandMeaning {
    /// To say how it is called.
    Help,
    /// To call the tool.
    Call(Value),
}

/// Reads `--name value`, `--name=value`, `--flag`, a JSON object, `-` for one on standard input, and values of required
/// parameters in their order.
pub(crate) fn read(schema: &Value, arguments: &[String], input: Option<&str>) -> Result<CommandMeaning, CallFailure> {
    if matches!(arguments, [only] if only == "--help" || only == "-h") {
        return Ok(CommandMeaning::Help);
    }
    let mut parameters = Map::new();
    let mut bare = Vec::new();
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        if word == "-" {
            parameters.extend(object(input.unwrap_or_default(), "standard input")?);
        } else if let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) {
            let (name, given) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let kind = kind_of(schema, name);
            let value = match given {
                Some(value) => value,
                None if kind == Some("boolean") => {
                    let next = words.next_if(|next| *next == "true" || *next == "false");
                    next.map_or_else(|| "true".to_owned(), String::clone)
                }
                None => words
                    .next()
                    .cloned()
                    .ok_or_else(|| CallFailure::Invalid(format!("`--{name}` takes a value")))?,
            };
            parameters.insert(name.to_owned(), value_of(kind, name, &value)?);
        } else if word.starts_with('{') && kind_of_first(schema) != Some("string") {
            parameters.extend(object(word, "an argument")?);
        } else {
            bare.push(word);
        }
    }
    let mut places = required(schema)
        .filter(|name| !parameters.contains_key(*name))
        .collect::<Vec<_>>()
        .into_iter();
    let mut placed = Vec::new();
    for word in bare {
        let name = places
            .next()
            .ok_or_else(|| CallFailure::Invalid(format!("`{word}` is one argument too many")))?;
        placed.push((name.to_owned(), value_of(kind_of(schema, name), name, word)?));
    }
    parameters.extend(placed);
    Ok(CommandMeaning::Call(Value::Object(parameters)))
}

/// How a tool is called, in a few lines.
pub(crate) fn usage(tool: &str, description: &str, schema: &Value) -> String {
    let mut text = format!("{}\n\nusage: {tool}", description.trim_end());
    let properties = schema.get("properties").and_then(Value::as_object);
    let needed: Vec<_> = required(schema).collect();
    let mut lines = String::new();
    for (name, property) in properties.into_iter().flatten() {
        let kind = property.get("type").and_then(Value::as_str).unwrap_or("value");
        let (open, close) = if needed.contains(&name.as_str()) {
            ("", "")
        } else {
            ("[", "]")
        };
        text.push_str(&format!(" {open}--{name} {}{close}", kind.to_uppercase()));
        if let Some(said) = property.get("description").and_then(Value::as_str) {
            lines.push_str(&format!("  --{name}  {said}\n"));
        }
    }
    text.push_str(&format!(
        "\n       {tool} JSON | -   (parameters as a JSON object; `-` reads it from standard input)\n"
    ));
    text + &lines
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn kind_of_first(schema: &Value) -> Option<&str> {
    required(schema).next().and_then(|name| kind_of(schema, name))
}

fn kind_of<'s>(schema: &'s Value, name: &str) -> Option<&'s str> {
    schema.get("properties")?.get(name)?.get("type")?.as_str()
}

fn object(text: &str, origin: &str) -> Result<Map<String, Value>, CallFailure> {
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(CallFailure::Invalid(format!("{origin} is no JSON object"))),
        Err(error) => Err(CallFailure::Invalid(format!("{origin} is no JSON object: {error}"))),
    }
}

fn value_of(kind: Option<&str>, name: &str, text: &str) -> Result<Value, CallFailure> {
    let parsed = || serde_json::from_str::<Value>(text);
    match kind {
        Some("string") => Ok(Value::String(text.to_owned())),
        Some(kind) => {
            parsed().map_err(|_| CallFailure::Invalid(format!("`{name}` is of type {kind}, which `{text}` is not")))
        }
        None => Ok(parsed().unwrap_or_else(|_| Value::String(text.to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["to", "amount"],
            "properties": {
                "to": { "type": "string" }, "amount": { "type": "number", "description": "how much" },
                "urgent": { "type": "boolean" }, "tags": { "type": "array" }, "free": {},
            },
        })
    }

    fn parameters(words: &[&str]) -> Result<Value, String> {
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        match read(&schema(), &words, Some("{\"to\": \"in\"}")) {
            Ok(CommandMeaning::Call(parameters)) => Ok(parameters),
            Ok(CommandMeaning::Help) => Err("help".to_owned()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn words_become_parameters_of_the_types_that_the_schema_says() {
        assert_eq!(
            parameters(&["--to", "12", "--amount=3.5"]),
            Ok(json!({"to": "12", "amount": 3.5}))
        );
        assert_eq!(
            parameters(&["ann", "7", "--urgent"]),
            Ok(json!({"to": "ann", "amount": 7, "urgent": true}))
        );
        assert_eq!(
            parameters(&["--urgent", "false", "ann"]),
            Ok(json!({"to": "ann", "urgent": false}))
        );
        assert_eq!(
            parameters(&["--tags", "[1]", "--free", "x", "--more", "2"]),
            Ok(json!({"tags": [1], "free": "x", "more": 2}))
        );
        assert_eq!(
            parameters(&["-", "--amount", "1"]),
            Ok(json!({"to": "in", "amount": 1}))
        );
        assert_eq!(parameters(&["--help"]), Err("help".to_owned()));
        assert_eq!(parameters(&[]), Ok(json!({})));
    }

    #[test]
    fn words_that_make_no_sense_are_refused() {
        for (words, said) in [
            (&["--amount"][..], "takes a value"),
            (&["--amount", "many"], "of type number"),
            (&["a", "1", "b"], "one argument too many"),
        ] {
            assert!(parameters(words).is_err_and(|error| error.contains(said)), "{words:?}");
        }
    }

    #[test]
    fn an_object_is_one_where_no_string_comes_first() {
        let schema = json!({"required": ["n"], "properties": {"n": {"type": "integer"}}});
        let read = read(&schema, &["{\"n\": 1}".to_owned()], None);
        assert_eq!(read, Ok(CommandMeaning::Call(json!({"n": 1}))));
        assert!(usage("pay", "Pays.", &self::schema()).contains("[--urgent BOOLEAN]"));
    }
}
