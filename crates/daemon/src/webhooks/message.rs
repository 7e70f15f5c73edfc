//! What a message says. Its fields are those of E2B's webhooks, where they have one for it.

use data_encoding::HEXLOWER;
use offleash_core::approval::ApprovalSubject;
use offleash_core::text::Text;
use offleash_store::rfc3339;
use offleash_supervisor::clock::{from_ms, now_ms};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::approvals::ApprovalView;
use crate::history::{alert_in, reason_in};
use crate::registry::{EventFacts, EventKind, EventRow, SandboxRow};
use crate::template_names;

/// The type of messages about questions that wait for a person.
pub(super) const QUESTION: &str = "sandbox.approval.requested";
/// How long an id is, in bytes.
const ID_BYTES: usize = 16;

/// A message, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WebhookMessage {
    /// Its type, one of [`TYPES`](crate::webhook_config::TYPES).
    pub(super) kind: &'static str,
    /// Its id, which is the same each time it is sent, by whatever daemon.
    pub(super) id: String,
    /// The body, JSON.
    pub(super) body: Vec<u8>,
}

impl WebhookMessage {
    /// That something happened to a sandbox.
    pub(super) fn of_event(event: &EventRow) -> Self {
        let (kind, label) = type_of(event.kind);
        let mut data = json!({ "kind": event.kind.as_str(), "reason": reason_in(event.detail.as_deref()) });
        if let Some(alert) = alert_in(event.detail.as_deref()) {
            data["alert"] = json!(alert);
        }
        let about = About {
            sandbox: &event.sandbox,
            name: event.name.as_deref(),
            template: &event.template,
            key: event.key_id.as_deref(),
            at_ms: event.at_ms,
        };
        let id = id_of(&[
            "event",
            &event.sandbox,
            &event.number.to_string(),
            &event.at_ms.to_string(),
        ]);
        about.message(id, kind, label, &data)
    }

    /// The same for a webhook that a key registered, with the fields of E2B's. Its id is of the webhook, too: each is told once.
    pub(super) fn of_key(webhook: &str, event: &EventRow, facts: Option<&EventFacts>) -> Self {
        let (kind, label) = type_of(event.kind);
        let mut data = json!({
            "sandbox_metadata": facts.map(|facts| &facts.metadata),
            "kind": event.kind.as_str(),
            "reason": reason_in(event.detail.as_deref()),
        });
        if let Some(alert) = alert_in(event.detail.as_deref()) {
            data["alert"] = json!(alert);
        }
        let is_of_run = matches!(event.kind, EventKind::Paused | EventKind::Killed | EventKind::Died);
        if let Some(facts) = facts.filter(|_| is_of_run) {
            data["execution"] = json!({
                "started_at": rfc3339(from_ms(facts.started_ms)),
                "execution_time": (event.at_ms - facts.started_ms).max(0),
            });
        }
        let (number, at) = (event.number.to_string(), event.at_ms.to_string());
        let id = id_of(&["webhook", webhook, &event.sandbox, &number, &at]);
        let body = json!({
            "id": id,
            "version": "v2",
            "type": kind,
            "timestamp": rfc3339(from_ms(event.at_ms)),
            "event_category": if event.kind == EventKind::Alert { label } else { "lifecycle" },
            "event_label": label,
            "event_data": data,
            "sandbox_id": event.sandbox,
            "sandbox_name": event.name,
            "sandbox_template_id": template_names::shown(&event.template),
            "sandbox_team_id": event.key_id,
            // Nothing here is called so.
            "sandbox_build_id": null,
            "sandbox_execution_id": null,
        });
        Self {
            kind,
            id,
            body: body.to_string().into_bytes(),
        }
    }

    /// That a question waits for a person.
    pub(super) fn of_question(row: &SandboxRow, question: &ApprovalView) -> Self {
        let about = match &question.about {
            ApprovalSubject::Connection { host, port, .. } => json!({ "host": host.to_string(), "port": port }),
            ApprovalSubject::ToolCall { tool, parameters } => {
                let parameters: Value = serde_json::from_str(parameters).unwrap_or_default();
                json!({ "tool": tool, "parameters": parameters })
            }
            ApprovalSubject::Command { argv } => json!({ "command": shown(argv) }),
            ApprovalSubject::Restore { checkpoint } => json!({ "checkpoint": checkpoint }),
        };
        let left_ms = u64::try_from(question.left.as_millis()).unwrap_or(u64::MAX);
        let data = json!({ "approval": question.id, "about": about, "rule": question.rule, "left_ms": left_ms });
        let about = About {
            sandbox: &row.id,
            name: row.metadata.get(crate::request::NAME_LABEL).map(String::as_str),
            template: &row.template,
            key: row.key_id.as_deref(),
            at_ms: now_ms(),
        };
        // A sandbox that was put away asks anew by another supervisor, which counts from one again.
        let supervisor = row
            .supervisor
            .map_or((0, 0), |process| (process.pid, process.start_ticks));
        let id = id_of(&["question", &question.id, &format!("{supervisor:?}")]);
        about.message(id, QUESTION, "approval", &data)
    }
}

/// What a message is about.
struct About<'a> {
    sandbox: &'a str,
    name: Option<&'a str>,
    template: &'a str,
    key: Option<&'a str>,
    at_ms: i64,
}

impl About<'_> {
    fn message(&self, id: String, kind: &'static str, label: &str, data: &Value) -> WebhookMessage {
        let category = if kind.starts_with("sandbox.lifecycle.") {
            "lifecycle"
        } else {
            label
        };
        let body = json!({
            "id": id,
            "version": "v1",
            "type": kind,
            "timestamp": rfc3339(from_ms(self.at_ms)),
            "event_category": category,
            "event_label": label,
            "event_data": data,
            "sandbox_id": self.sandbox,
            "sandbox_name": self.name,
            "sandbox_template_id": template_names::shown(self.template),
            "key_id": self.key,
        });
        WebhookMessage {
            kind,
            id,
            body: body.to_string().into_bytes(),
        }
    }
}

/// The id of a message about what these words name, which nothing else has: ids of sandboxes are drawn by lot.
/// A command in one line.
fn shown(argv: &[Text]) -> String {
    let words: Vec<String> = argv.iter().map(ToString::to_string).collect();
    words.join(" ")
}

fn id_of(words: &[&str]) -> String {
    let digest = Sha256::digest(words.join("\0").as_bytes());
    HEXLOWER.encode(digest.get(..ID_BYTES).unwrap_or_default())
}

/// The type and the label of an event; one that ended by itself is killed to E2B, too.
pub(super) fn type_of(kind: EventKind) -> (&'static str, &'static str) {
    match kind {
        EventKind::Created => ("sandbox.lifecycle.created", "create"),
        EventKind::Updated => ("sandbox.lifecycle.updated", "update"),
        EventKind::Paused => ("sandbox.lifecycle.paused", "pause"),
        EventKind::Resumed => ("sandbox.lifecycle.resumed", "resume"),
        EventKind::TimedOut => ("sandbox.lifecycle.timed_out", "timeout"),
        EventKind::Killed | EventKind::Died => ("sandbox.lifecycle.killed", "kill"),
        EventKind::Alert => ("sandbox.alert", "alert"),
    }
}
