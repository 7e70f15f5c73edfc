//! Cells of code in the native REST: what happens to one is told as it does, a line of JSON each.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use offleash_core::exec::OutputStream;
use offleash_interpreter::cell::{self, Cell, CellEnd};
use offleash_interpreter::result::{self, Form};
use serde_json::Value;

use super::contexts::{of, refused};
use super::schema::objects;
use crate::answer::Refusal;
use crate::body::Body;
use crate::code::{self, MAX_BODY, Told, streamed};
use crate::control::Asked;
use crate::{json, time};

objects! {
    request
    /// A cell of code that is run in a context.
    NewCell {
        /// The code, in the language of the context; at most 16 MiB.
        code: String,
        /// Variables of the environment for this cell alone.
        env: Option<BTreeMap<String, String>>,
        /// After how many milliseconds it is interrupted, at least 1; never if absent.
        timeout_ms: Option<u64>,
    }

    request
    /// A cell of code that is run in the default context of a language.
    NewDefaultCell {
        /// The code; at most 16 MiB.
        code: String,
        /// Its language; `python` if absent.
        language: Option<String>,
        /// Variables of the environment for this cell alone.
        env: Option<BTreeMap<String, String>>,
        /// After how many milliseconds it is interrupted, at least 1; never if absent.
        timeout_ms: Option<u64>,
    }

    answer
    /// What happens to a cell. Which fields there are depends on `kind`; an answer that does not end with an `end` was cut.
    CellEvent {
        /// `begin`, `stdout`, `stderr`, `result`, `error`, `truncated`, `keepalive` (nothing happened for five seconds) or `end`.
        kind: String,
        /// `begin`: the number of the cell in its context, from 1.
        count: Option<u64>,
        /// `stdout`, `stderr`: what was written; characters are whole.
        text: Option<String>,
        /// `stdout`, `stderr`: when that was heard of.
        at: Option<String>,
        /// `result`: a value.
        result: Option<CellResult>,
        /// `error`: why the cell failed.
        error: Option<CellError>,
        /// `truncated`: of what the rest is left out, `output` or `results`.
        what: Option<String>,
        /// `truncated`: how many bytes a cell may have of it.
        limit: Option<u64>,
        /// `end`: `done` (also after an error), `interrupted`, `timed_out`, `died` when the context has lost its state,
        /// `not_run` when it had lost it before and the cell was not run.
        outcome: Option<String>,
        /// `end`: how the context has lost its state.
        reason: Option<String>,
    }

    answer
    /// What a cell has for a value, or what it displays.
    CellResult {
        /// Whether it is the value of the cell's last expression.
        is_main: bool,
        /// Its forms, by MIME type: text, base64 of images and of PDF, or JSON.
        forms: BTreeMap<String, Value>,
        /// Forms that were too large, and how many bytes they had.
        omitted: BTreeMap<String, u64>,
    }

    answer
    /// Why a cell failed, in its language's words.
    CellError {
        /// As in `ValueError`.
        name: String,
        /// What it says.
        value: String,
        /// Where it was raised, lines with newlines between.
        traceback: String,
    }
}

pub(super) async fn execute(
    asked: &Asked<'_>,
    given: &str,
    context: &str,
    body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let contexts = of(asked, given).await?;
    let new: NewCell = json::read_at_most(MAX_BODY, body).await?;
    let cell = cell(new.code, new.env, new.timeout_ms)?;
    let events = contexts.execute(context, cell).await;
    let events = events.map_err(|error| refused(asked, &error))?;
    Ok(streamed(events, told, keepalive))
}

pub(super) async fn execute_in_default(
    asked: &Asked<'_>,
    given: &str,
    body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let contexts = of(asked, given).await?;
    let new: NewDefaultCell = json::read_at_most(MAX_BODY, body).await?;
    let language = code::language(new.language.as_deref()).map_err(|error| refused(asked, &error))?;
    let cell = cell(new.code, new.env, new.timeout_ms)?;
    let events = contexts.execute_in_default(language, cell).await;
    let events = events.map_err(|error| refused(asked, &error))?;
    Ok(streamed(events, told, keepalive))
}

fn cell(code: String, env: Option<BTreeMap<String, String>>, timeout_ms: Option<u64>) -> Result<Cell, Refusal> {
    Ok(Cell {
        code,
        env: env.unwrap_or_default(),
        timeout: some_time(timeout_ms)?.map(Duration::from_millis),
    })
}

/// Refuses no time at all, in which nothing can be done and much may have begun.
pub(super) fn some_time(timeout_ms: Option<u64>) -> Result<Option<u64>, Refusal> {
    match timeout_ms {
        Some(0) => Err(Refusal::bad_request(
            "`timeout_ms` must be at least 1; without it there is no such limit",
        )),
        other => Ok(other),
    }
}

fn keepalive() -> Value {
    CellEvent::of("keepalive").line()
}

fn told(event: cell::CellEvent) -> Told {
    let is_last = matches!(event, cell::CellEvent::End(_));
    let line = vec![CellEvent::from(event).line()];
    if is_last { Told::Last(line) } else { Told::Lines(line) }
}

impl CellEvent {
    /// One with nothing but its kind.
    fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            count: None,
            text: None,
            at: None,
            result: None,
            error: None,
            what: None,
            limit: None,
            outcome: None,
            reason: None,
        }
    }

    fn truncated(what: &str, limit: u64) -> Self {
        Self {
            what: Some(what.to_owned()),
            limit: Some(limit),
            ..Self::of("truncated")
        }
    }

    fn end(outcome: &str, reason: Option<String>) -> Self {
        Self {
            outcome: Some(outcome.to_owned()),
            reason,
            ..Self::of("end")
        }
    }

    /// As JSON, without the fields that it lacks.
    fn line(&self) -> Value {
        // It is written without fail: keys are text, and nothing in it is unusual.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.retain(|_, field| !field.is_null());
        }
        value
    }
}

impl From<cell::CellEvent> for CellEvent {
    fn from(event: cell::CellEvent) -> Self {
        match event {
            cell::CellEvent::Begin { count } => Self {
                count: Some(count),
                ..Self::of("begin")
            },
            cell::CellEvent::Output { stream, text, at } => Self {
                text: Some(text),
                at: Some(time::text(at)),
                ..Self::of(match stream {
                    OutputStream::Stdout => "stdout",
                    OutputStream::Stderr => "stderr",
                })
            },
            cell::CellEvent::Result(result) => Self {
                result: Some((*result).into()),
                ..Self::of("result")
            },
            cell::CellEvent::Error(error) => Self {
                error: Some(CellError {
                    name: error.name,
                    value: error.value,
                    traceback: error.traceback,
                }),
                ..Self::of("error")
            },
            cell::CellEvent::OutputTruncated { limit } => Self::truncated("output", limit),
            cell::CellEvent::ResultsTruncated { limit } => Self::truncated("results", limit),
            cell::CellEvent::End(CellEnd::Done) => Self::end("done", None),
            cell::CellEvent::End(CellEnd::Interrupted) => Self::end("interrupted", None),
            cell::CellEvent::End(CellEnd::TimedOut) => Self::end("timed_out", None),
            cell::CellEvent::End(CellEnd::Died(death)) => Self::end("died", Some(death.to_string())),
            cell::CellEvent::End(CellEnd::DiedBefore(death)) => Self::end("not_run", Some(death.to_string())),
        }
    }
}

impl From<result::CellResult> for CellResult {
    fn from(result: result::CellResult) -> Self {
        let value = |form| match form {
            Form::Text(text) => Value::String(text),
            Form::Json(value) => value,
        };
        let forms = result.forms.into_iter().map(|(mime, form)| (mime, value(form)));
        Self {
            is_main: result.is_main,
            forms: forms.collect(),
            omitted: result.omitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use offleash_interpreter::cell::Death;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_has_the_fields_of_its_kind_alone() {
        let result = result::CellResult {
            forms: [
                ("text/plain".to_owned(), Form::Text("'a'".to_owned())),
                ("application/json".to_owned(), Form::Json(Value::Null)),
            ]
            .into(),
            omitted: [("image/png".to_owned(), 7)].into(),
            is_main: true,
        };
        for (event, expected) in [
            (
                cell::CellEvent::Begin { count: 3 },
                json!({ "kind": "begin", "count": 3 }),
            ),
            (
                cell::CellEvent::Result(Box::new(result)),
                json!({ "kind": "result", "result": {
                    "is_main": true,
                    "forms": { "text/plain": "'a'", "application/json": null },
                    "omitted": { "image/png": 7 },
                } }),
            ),
            (
                cell::CellEvent::ResultsTruncated { limit: 5 },
                json!({ "kind": "truncated", "what": "results", "limit": 5 }),
            ),
            (
                cell::CellEvent::End(CellEnd::Done),
                json!({ "kind": "end", "outcome": "done" }),
            ),
            (
                cell::CellEvent::End(CellEnd::DiedBefore(Death::Restarted)),
                json!({ "kind": "end", "outcome": "not_run", "reason": "it was restarted" }),
            ),
        ] {
            assert_eq!(CellEvent::from(event).line(), expected);
        }
        assert_eq!(keepalive(), json!({ "kind": "keepalive" }));
    }
}
