//! What happens to a cell, as E2B's SDKs are told of it.

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_interpreter::cell::{CellEnd, CellEvent, Death};
use serde_json::{Value, json};

use super::lines::Told;
use crate::time;

/// What shows that a cell which says nothing is alive.
pub(super) fn keepalive() -> Value {
    json!({ "type": "keepalive" })
}

/// An event in E2B's shape, and what that lacks in a shape of its own, which its SDKs pass over.
pub(super) fn told(event: CellEvent) -> Told {
    Told::Lines(vec![match event {
        CellEvent::Begin { count } => json!({ "type": "number_of_executions", "execution_count": count }),
        CellEvent::Output { stream, text, at } => output(stream, &text, &time::text(at)),
        CellEvent::Result(result) => {
            let mut fields = result.into_fields();
            fields.insert("type".to_owned(), "result".into());
            Value::Object(fields)
        }
        CellEvent::Error(found) => error(&found.name, &found.value, &found.traceback),
        CellEvent::OutputTruncated { limit } => {
            return truncated("output", limit);
        }
        CellEvent::ResultsTruncated { limit } => {
            return truncated("results", limit);
        }
        CellEvent::End(end) => return last(&end),
    }])
}

fn output(stream: OutputStream, text: &str, at: &str) -> Value {
    let kind = match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    json!({ "type": kind, "text": text, "timestamp": at })
}

fn error(name: &str, value: &str, traceback: &str) -> Value {
    json!({ "type": "error", "name": name, "value": value, "traceback": traceback })
}

/// As an event of its own, and in words for whoever knows only those of E2B.
fn truncated(what: &str, limit: u64) -> Told {
    let words = format!("[the {what} of this cell are cut: they may have {limit} bytes]\n");
    let words = words.replace(
        "the output of this cell are cut: they",
        "the output of this cell is cut: it",
    );
    let now = time::text(std::time::SystemTime::now());
    Told::Lines(vec![
        json!({ "type": "truncated", "what": what, "limit": limit }),
        output(OutputStream::Stderr, &words, &now),
    ])
}

/// A sandbox that was ended by whoever may, or whose time is up, cuts the connection: E2B's SDKs take that for what it is, and
/// raise a timeout. One that is at its end for another reason says so.
fn last(end: &CellEnd) -> Told {
    let mut lines = Vec::new();
    match end {
        CellEnd::Died(Death::SandboxGone { why: None } | Death::Ended(ExecEnd::Lost)) => return Told::Cut,
        CellEnd::Done | CellEnd::Interrupted => {}
        CellEnd::TimedOut => lines.push(error("TimeoutError", "the time of the cell was over", "")),
        CellEnd::Died(death) => lines.push(error(
            "ContextDied",
            &format!("the context has lost its state: {death}"),
            "",
        )),
        CellEnd::DiedBefore(death) => lines.push(error(
            "ContextDied",
            &format!("the cell was not run, because the context had lost its state before: {death}; the next cell finds a new one"),
            "",
        )),
    }
    lines.push(json!({ "type": "end_of_execution" }));
    Told::Last(lines)
}
