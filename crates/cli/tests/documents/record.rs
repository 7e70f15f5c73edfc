//! The reference of records, made from the source of core's record: the one place where they are described.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use super::support::{self, Site};
use super::{MADE, assert_committed, cell, root};

/// A struct or a variant of core's record, as its source documents it.
struct Described {
    name: String,
    doc: String,
    fields: Vec<(String, String, String)>,
}

/// The structs of core's record, and the variants of `Outcome`, read from the source: the one place where they are
/// described.
fn described() -> Vec<Described> {
    let source = fs::read_to_string(root().join("crates/core/src/record.rs")).unwrap();
    let mut found: Vec<Described> = Vec::new();
    let mut doc = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            doc = format!("{doc}{words}").trim().to_owned();
        } else if let Some(name) = opened(line) {
            found.push(Described {
                name,
                doc: std::mem::take(&mut doc),
                fields: Vec::new(),
            });
        } else if let Some((name, kind)) = line
            .strip_prefix("pub ")
            .unwrap_or(line)
            .trim_end_matches(',')
            .split_once(": ")
        {
            if !doc.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
                found
                    .last_mut()
                    .unwrap()
                    .fields
                    .push((name.to_owned(), kind.to_owned(), std::mem::take(&mut doc)));
            }
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    found
}

/// The name of the struct or of the variant with fields that a line opens.
fn opened(line: &str) -> Option<String> {
    let head = line.strip_suffix(" {")?;
    let name = head.strip_prefix("pub struct ").unwrap_or(head);
    let is_name = name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then(|| name.to_owned())
}

fn kind_in_json(kind: &str) -> &'static str {
    match kind {
        "u8" | "u16" | "u32" | "u64" | "i32" => "number",
        "Option<u16>" | "Option<u64>" | "Option<i32>" => "number or null",
        "String" | "Level" | "LimitName" | "LimitEffect" | "RunId" | "ConnectionVerdict" | "NetworkLossCause"
        | "MonitorFigure" | "MonitorAction" => "string",
        "Option<String>" | "Option<IpAddr>" | "Option<ApprovalAnswer>" => "string or null",
        "bool" => "boolean",
        "Text" => "text",
        "Vec<Text>" => "list of texts",
        "Vec<String>" => "list of strings",
        "Vec<SecretUse>" => "list of [uses of secrets](#secretuse)",
        "BTreeMap<String, String>" => "object of strings",
        "BTreeMap<String, u64>" => "object of numbers",
        "Outcome" => "[outcome](#outcome)",
        "CapturedOutput" => "[captured](#capturedoutput)",
        "RunUsage" => "[usage](#runusage)",
        "Vec<LimitHit>" => "list of [limit hits](#limithit)",
        "Vec<DenialRecord>" => "list of [denials](#denialrecord)",
        "Option<ChangeSummary>" => "[change summary](#changesummary) or null",
        "Option<NetworkUse>" => "[use of the network](#networkuse) or null",
        "Option<NetworkLoss>" => "[loss of the network](#networkloss) or null",
        "Vec<AlertRecord>" => "list of [alerts](#alertrecord)",
        "Vec<ToolUse>" => "list of [uses of tools](#tooluse)",
        "Option<ImageUse>" => "[image](#imageuse) or null",
        "Vec<PublishedPort>" => "list of [published ports](#publishedport)",
        "Vec<InboundConnection>" => "list of [inbound connections](#inboundconnection)",
        "Vec<ConnectionRecord>" => "list of [connections](#connectionrecord)",
        "Vec<RequestSeen>" => "list of [requests](#requestseen)",
        other => panic!("docs/record.md does not know how `{other}` looks in JSON"),
    }
}

const OUTCOMES: [&str; 10] = [
    "Exited",
    "Signaled",
    "LimitExceeded",
    "OutOfMemory",
    "CommandNotFound",
    "NotExecutable",
    "EndedByRule",
    "CommandDenied",
    "Interrupted",
    "Failed",
];

fn in_snake_case(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(character.to_ascii_lowercase());
    }
    text
}

fn record_document() -> String {
    let described = described();
    let find = |name: &str| {
        described
            .iter()
            .find(|found| found.name == name)
            .unwrap_or_else(|| panic!("{name} is not described"))
    };
    let mut text = format!("# The record of a run\n\n{MADE}\n");
    text.push_str(
        "`offleash run --json` prints one record as one line of JSON instead of the command's output; `--report FILE` writes\n\
         it beside the output. A field that changes its meaning raises `version`; fields may be added.\n\n\
         A *text* is a string where it is UTF-8 and `{\"base64\": \"…\"}` where it is not: Linux does not require names and\n\
         arguments to be UTF-8.\n",
    );
    for name in [
        "RunRecord",
        "CapturedOutput",
        "RunUsage",
        "LimitHit",
        "DenialRecord",
        "ChangeSummary",
        "NetworkUse",
        "ConnectionRecord",
        "RequestSeen",
        "SecretUse",
        "PublishedPort",
        "InboundConnection",
        "NetworkLoss",
        "ToolUse",
        "ImageUse",
        "AlertRecord",
    ] {
        let Described { doc, fields, .. } = find(name);
        let title = if name == "RunRecord" { "Record" } else { name };
        write!(
            text,
            "\n## {title}\n\n{doc}\n\n| field | is | meaning |\n|---|---|---|\n"
        )
        .unwrap();
        for (field, kind, doc) in fields {
            writeln!(text, "| `{field}` | {} | {} |", kind_in_json(kind), cell(doc)).unwrap();
        }
        if name == "RunRecord" {
            text.push_str(
                "\n## Outcome\n\nHow a run ended. `kind` is one of these; the other fields depend on it.\n\n",
            );
            text.push_str("| kind | meaning | further fields |\n|---|---|---|\n");
            for variant in OUTCOMES.map(find) {
                let fields: Vec<_> = variant
                    .fields
                    .iter()
                    .map(|(field, kind, doc)| format!("`{field}` ({}): {}", kind_in_json(kind), cell(doc)))
                    .collect();
                writeln!(
                    text,
                    "| `{}` | {} | {} |",
                    in_snake_case(&variant.name),
                    cell(&variant.doc),
                    fields.join(" ")
                )
                .unwrap();
            }
        }
    }
    text
}

#[test]
fn the_reference_of_records_is_what_core_describes() {
    assert_committed("record.md", &record_document());
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn a_real_record_has_exactly_the_fields_that_are_described() {
    let site = Site::new();
    let mut command = site.offleash(["run", "--json", "--output", "10", "--", "sh", "-c", "echo x > x; yes"]);
    let record = support::record_of(&command.env("A_TOKEN", "x").output().unwrap());
    let described = described();
    let fields = |name: &str| -> BTreeSet<String> {
        let found = described.iter().find(|found| found.name == name).unwrap();
        found.fields.iter().map(|(field, ..)| field.clone()).collect()
    };
    assert_eq!(keys(&record), fields("RunRecord"));
    assert_eq!(keys(&record["stdout"]), fields("CapturedOutput"));
    assert_eq!(keys(&record["usage"]), fields("RunUsage"));
    assert_eq!(keys(&record["limits_hit"][0]), fields("LimitHit"));
    assert_eq!(keys(&record["denials"][0]), fields("DenialRecord"));
    assert_eq!(keys(&record["changes"]), fields("ChangeSummary"));
    let mut outcome = fields("LimitExceeded");
    outcome.insert("kind".to_owned());
    assert_eq!(keys(&record["outcome"]), outcome);
    assert_eq!(record["outcome"]["kind"], "limit_exceeded");
}

#[test]
fn no_kind_of_outcome_is_left_out() {
    use offleash_core::record::Outcome;
    // Whoever adds a kind is sent here by the compiler.
    let described = |outcome: &Outcome| match outcome {
        Outcome::Exited { .. } => "Exited",
        Outcome::Signaled { .. } => "Signaled",
        Outcome::LimitExceeded { .. } => "LimitExceeded",
        Outcome::OutOfMemory { .. } => "OutOfMemory",
        Outcome::CommandNotFound { .. } => "CommandNotFound",
        Outcome::NotExecutable { .. } => "NotExecutable",
        Outcome::EndedByRule { .. } => "EndedByRule",
        Outcome::CommandDenied { .. } => "CommandDenied",
        Outcome::Interrupted { .. } => "Interrupted",
        Outcome::Failed { .. } => "Failed",
    };
    for name in OUTCOMES {
        let kind = in_snake_case(name);
        let json = serde_json::json!({
            "kind": kind, "code": 0, "signal": 1, "name": "", "limit": if name == "LimitExceeded" { "memory".into() } else { Value::from(1) },
            "value": 1, "hint": null, "reason": "", "rule": "", "message": "",
        });
        let outcome: Outcome = serde_json::from_value(json).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(described(&outcome), name);
    }
}

// ---- links
