//! What happens to a cell, as E2B's SDKs are told of it.

use offleash_core::exec::OutputStream;
use serde_json::{Value, json};

use super::result;
use crate::cells::{CellDialect, CellLines, CellOutcome, RenderedEnd, RenderedEvent, TruncatedPart};
use crate::http::time;

/// E2B's form of events, and what that lacks in a form of its own, which its SDKs pass over.
pub(super) const DIALECT: CellDialect = CellDialect {
    write,
    keepalive: || json!({ "type": "keepalive" }),
};

fn write(event: RenderedEvent) -> CellLines {
    CellLines::More(vec![match event {
        RenderedEvent::Begin { count } => json!({ "type": "number_of_executions", "execution_count": count }),
        RenderedEvent::Output { stream, text, at } => output(stream, &text, &at),
        RenderedEvent::Result(result) => {
            let mut fields = result::fields(*result);
            fields.insert("type".to_owned(), "result".into());
            Value::Object(fields)
        }
        RenderedEvent::Error(found) => error(&found.name, &found.value, &found.traceback),
        RenderedEvent::Truncated { part, limit } => return truncated(part, limit),
        RenderedEvent::End(end) => return last(end),
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
fn truncated(part: TruncatedPart, limit: u64) -> CellLines {
    let cut = match part {
        TruncatedPart::Output => "output of this cell is cut: it",
        TruncatedPart::Results => "results of this cell are cut: they",
    };
    let now = time::text(std::time::SystemTime::now());
    CellLines::More(vec![
        json!({ "type": "truncated", "what": part.as_str(), "limit": limit }),
        output(
            OutputStream::Stderr,
            &format!("[the {cut} may have {limit} bytes]\n"),
            &now,
        ),
    ])
}

/// A sandbox that was ended by whoever may, or whose time is up, cuts the connection: E2B's SDKs take that for what it is, and
/// raise a timeout. One that is at its end for another reason says so.
fn last(end: RenderedEnd) -> CellLines {
    let reason = end.reason.unwrap_or_default();
    let failed = match end.outcome {
        CellOutcome::Died if end.lost_sandbox.is_some_and(|lost| lost.why.is_none()) => return CellLines::Cut,
        CellOutcome::Done | CellOutcome::Interrupted => None,
        CellOutcome::TimedOut => Some(error("TimeoutError", "the time of the cell was over", "")),
        CellOutcome::Died => Some(error(
            "ContextDied",
            &format!("the context has lost its state: {reason}"),
            "",
        )),
        CellOutcome::NotRun => Some(error(
            "ContextDied",
            &format!(
                "the cell was not run, because the context had lost its state before: {reason}; the next cell finds a new one"
            ),
            "",
        )),
    };
    let end = json!({ "type": "end_of_execution" });
    CellLines::Last(failed.into_iter().chain([end]).collect())
}

#[cfg(test)]
mod tests {
    use offleash_core::exec::ExecEnd;
    use offleash_interpreter::cell::{CellEnd, CellEvent, ContextDeath};

    use super::*;

    fn written(event: CellEvent) -> CellLines {
        write(event.into())
    }

    #[test]
    fn what_is_cut_is_said_in_words_too() {
        for (event, words) in [
            (
                CellEvent::OutputTruncated { limit: 5 },
                "[the output of this cell is cut: it may have 5 bytes]\n",
            ),
            (
                CellEvent::ResultsTruncated { limit: 6 },
                "[the results of this cell are cut: they may have 6 bytes]\n",
            ),
        ] {
            let CellLines::More(lines) = written(event) else {
                panic!("more follows");
            };
            assert_eq!(lines[0]["type"], "truncated");
            assert_eq!(
                (&lines[1]["type"], &lines[1]["text"]),
                (&json!("stderr"), &json!(words))
            );
        }
    }

    #[test]
    fn a_sandbox_that_was_ended_cuts_the_connection_and_one_that_fell_says_why() {
        let ends = |death| written(CellEvent::End(CellEnd::Died(death)));
        assert!(matches!(ends(ContextDeath::SandboxGone { why: None }), CellLines::Cut));
        assert!(matches!(ends(ContextDeath::Ended(ExecEnd::Lost)), CellLines::Cut));
        let why = Some("out of memory".to_owned());
        for (death, cause) in [
            (ContextDeath::SandboxGone { why }, "out of memory"),
            (ContextDeath::Restarted, "it was restarted"),
        ] {
            let CellLines::Last(lines) = ends(death) else {
                panic!("nothing follows");
            };
            assert_eq!(lines[0]["name"], "ContextDied");
            assert!(lines[0]["value"].as_str().unwrap().ends_with(cause), "{lines:?}");
            assert_eq!(lines[1], json!({ "type": "end_of_execution" }));
        }
        // Before a cell began nothing of it is lost, and the next may find another sandbox.
        let before = written(CellEvent::End(CellEnd::DiedBefore(ContextDeath::SandboxGone {
            why: None,
        })));
        assert!(matches!(before, CellLines::Last(_)));
    }
}
