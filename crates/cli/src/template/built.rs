//! Templates that keys built: the server knows whose they are and what their keys call them.

use std::collections::BTreeMap;
use std::path::Path;

use offleash_api::client::{Client, SOCKET, encoded};
use offleash_store::StateDirectory;
use offleash_supervisor::templates::TemplateListing;
use serde_json::Value;

use crate::failure::Failure;
use crate::server_at::ServerAt;

/// What keys call what they built, by the names that the state directory has.
#[derive(Debug, Default)]
pub(super) struct BuiltNames(BTreeMap<String, String>);

impl BuiltNames {
    /// Those of the templates that are listed; none if no server runs, or no key has built anything.
    pub(super) fn of(state: Option<&StateDirectory>, listed: &[TemplateListing]) -> Self {
        let is_of_key = |listing: &TemplateListing| listing.record.name.as_str().contains('_');
        let Some(state) = state.filter(|_| listed.iter().any(is_of_key)) else {
            return Self::default();
        };
        let asked = Client::new(&state.path().join(SOCKET)).and_then(|client| client.get("/v1/templates"));
        Self(asked.map(|answer| names_in(&answer)).unwrap_or_default())
    }

    pub(super) fn of_template(&self, listing: &TemplateListing) -> Option<String> {
        self.0.get(listing.record.name.as_str()).cloned()
    }
}

/// `KEY/NAME:TAG,…` of each build that is there.
fn names_in(answer: &Value) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for template in answer["templates"].as_array().into_iter().flatten() {
        for build in template["builds"].as_array().into_iter().flatten() {
            let Some(stored) = build["stored_as"].as_str() else {
                continue;
            };
            let tags = template["tags"].as_object().into_iter().flatten();
            let tags: Vec<&str> = tags
                .filter(|(_, meant)| **meant == build["id"])
                .map(|(tag, _)| tag.as_str())
                .collect();
            let tags = match tags.as_slice() {
                [] => String::new(),
                tags => format!(":{}", tags.join(",")),
            };
            names.insert(stored.to_owned(), format!("{}{tags}", called(template)));
        }
    }
    names
}

fn called(template: &Value) -> String {
    let text = |field: &str| template[field].as_str().unwrap_or_default();
    format!("{}/{}", text("key"), text("name"))
}

/// Whether that is `KEY/NAME`, as no template of the machine is called.
pub(super) fn is_of_key(name: &str) -> bool {
    // What begins with a dot is a path that somebody meant.
    let key = name.split_once('/').map(|(key, _)| key);
    key.is_some_and(|key| !key.is_empty() && !key.starts_with('.'))
}

/// What the server says of templates that are all named by their keys; `None` if none is.
pub(super) fn inspect(names: &[String], state: Option<&Path>) -> Result<Option<Vec<Value>>, Failure> {
    match names.iter().filter(|name| is_of_key(name)).count() {
        0 => Ok(None),
        count if count == names.len() => {
            let server = ServerAt::Here(state).client()?;
            names
                .iter()
                .map(|name| find(&server, name))
                .collect::<Result<_, _>>()
                .map(Some)
        }
        _ => Err(
            Failure::new("templates of keys and of the machine are not shown together")
                .with_hint("name one kind of them"),
        ),
    }
}

/// Removes a template that a key built.
pub(super) fn remove(name: &str, state: Option<&Path>) -> Result<(), Failure> {
    let server = ServerAt::Here(state).client()?;
    let id = find(&server, name)?["id"].as_str().unwrap_or_default().to_owned();
    Ok(server.delete(&format!("/v1/templates/{}", encoded(&id)))?)
}

fn find(server: &Client, name: &str) -> Result<Value, Failure> {
    // With a tag it is the same template.
    let wanted = name.split_once(':').map_or(name, |(name, _)| name);
    let answer = server.get("/v1/templates")?;
    let all = answer["templates"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|template| called(template) == wanted);
    found.ok_or_else(|| {
        Failure::new(format!("no key has built a template `{name}`"))
            .with_hint("`offleash template ls` lists them as KEY/NAME")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn builds_are_called_as_their_keys_call_them() {
        let answer = json!({ "templates": [{
            "key": "k1", "name": "app", "tags": { "default": "b1", "v1": "b1", "v0": "b0" },
            "builds": [
                { "id": "b2", "stored_as": null },
                { "id": "b1", "stored_as": "t1_b1" },
                { "id": "b0", "stored_as": "t1_b0" },
                { "id": "b3", "stored_as": "t1_b3" },
            ],
        }] });
        let names = names_in(&answer);
        let of = |stored: &str| names.get(stored).map(String::as_str);
        assert_eq!(of("t1_b1"), Some("k1/app:default,v1"));
        assert_eq!(
            (of("t1_b0"), of("t1_b3"), names.len()),
            (Some("k1/app:v0"), Some("k1/app"), 3)
        );
        assert!(is_of_key("k1/app") && !is_of_key("app"));
    }
}
