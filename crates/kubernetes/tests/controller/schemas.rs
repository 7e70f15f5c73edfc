//! What the definitions of kubernetes-sigs/agent-sandbox say of the objects that a controller writes (v1beta1, August 2026): fields,
//! words that are allowed, lengths. The definitions are in no package of the registries; these are facts of theirs, not their text.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Looks whether an object can be written, beside what is here.
pub(crate) type Checker = fn(&str, &Value) -> Result<(), String>;

/// Whether an object of a kind of agent-sandbox's is what its definition takes.
pub(crate) fn check_kind(kind: &str, object: &Value) -> Result<(), String> {
    let (spec, status): (&[&str], &[&str]) = match kind {
        "agents.x-k8s.io/sandboxes" => {
            one_of(&object["spec"]["operatingMode"], &["Running", "Suspended"])?;
            one_of(&object["spec"]["shutdownPolicy"], &["Delete", "Retain"])?;
            if object["spec"]["podTemplate"]["spec"]["containers"].as_array().is_none() {
                return Err("spec.podTemplate.spec.containers is required".to_owned());
            }
            (
                &[
                    "podTemplate",
                    "volumeClaimTemplates",
                    "service",
                    "shutdownTime",
                    "shutdownPolicy",
                    "operatingMode",
                ],
                &["serviceFQDN", "service", "conditions", "selector", "podIPs", "nodeName"],
            )
        }
        "extensions.agents.x-k8s.io/sandboxclaims" => {
            known("status.sandbox", &object["status"]["sandbox"], &["name", "podIPs"])?;
            (
                &[
                    "warmPoolRef",
                    "lifecycle",
                    "additionalPodMetadata",
                    "env",
                    "volumeClaimTemplates",
                ],
                &["conditions", "sandbox"],
            )
        }
        "extensions.agents.x-k8s.io/sandboxwarmpools" => {
            for name in ["replicas", "readyReplicas", "observedGeneration"] {
                let value = &object["status"][name];
                if !value.is_null() && value.as_u64().is_none() {
                    return Err(format!("status.{name} is no number from 0 on"));
                }
            }
            (
                &["replicas", "sandboxTemplateRef", "updateStrategy"],
                &["replicas", "readyReplicas", "selector", "observedGeneration"],
            )
        }
        _ => return Ok(()),
    };
    if object["apiVersion"]
        .as_str()
        .is_none_or(|version| !version.ends_with("/v1beta1"))
    {
        return Err("apiVersion is not v1beta1".to_owned());
    }
    known(
        "the object",
        object,
        &["apiVersion", "kind", "metadata", "spec", "status"],
    )?;
    known("spec", &object["spec"], spec)?;
    known("status", &object["status"], status)?;
    for label in object["metadata"]["labels"].as_object().into_iter().flatten() {
        if label.1.as_str().is_none_or(|value| value.len() > 63) {
            return Err(format!("label {} is no value of a label", label.0));
        }
    }
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .try_for_each(condition)
}

fn known(place: &str, value: &Value, names: &[&str]) -> Result<(), String> {
    let mut fields = value.as_object().into_iter().flatten();
    match fields.find(|(name, _)| !names.contains(&name.as_str())) {
        Some((name, _)) => Err(format!("{place} has no field `{name}`")),
        None => Ok(()),
    }
}

fn one_of(value: &Value, words: &[&str]) -> Result<(), String> {
    match value.is_null() || value.as_str().is_some_and(|word| words.contains(&word)) {
        true => Ok(()),
        false => Err(format!("{value} is none of {words:?}")),
    }
}

/// As `metav1.Condition` is defined: all but `observedGeneration` is required.
fn condition(condition: &Value) -> Result<(), String> {
    known(
        "a condition",
        condition,
        &[
            "type",
            "status",
            "reason",
            "message",
            "lastTransitionTime",
            "observedGeneration",
        ],
    )?;
    one_of(&condition["status"], &["True", "False", "Unknown"])?;
    let text = |name: &str| {
        condition[name]
            .as_str()
            .ok_or_else(|| format!("a condition has no {name}"))
    };
    let reason = text("reason")?;
    let is_word = reason
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte));
    if reason.is_empty() || reason.len() > 1024 || !is_word || !reason.as_bytes()[0].is_ascii_alphabetic() {
        return Err(format!("`{reason}` is no reason"));
    }
    if text("type")?.len() > 316 || text("message")?.len() > 32_768 || text("lastTransitionTime")?.len() < 20 {
        return Err("a condition is too long, or has no time".to_owned());
    }
    Ok(())
}

/// RFC 7386.
pub(crate) fn merge(there: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *there = patch.clone();
        return;
    };
    if !there.is_object() {
        *there = Value::Object(Map::new());
    }
    let map = there.as_object_mut().unwrap();
    for (name, value) in patch {
        match value {
            Value::Null => drop(map.remove(name)),
            value => merge(map.entry(name).or_insert(Value::Null), value),
        }
    }
}

/// An object as it is compared.
pub(crate) fn without_version(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object
}

/// Whether an object has the labels that a request selects.
pub(crate) fn matches(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let labels = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs.all(|(name, value)| object["metadata"]["labels"][name] == *value)
}
