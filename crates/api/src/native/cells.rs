//! Cells of code in the native REST: what happens to one is told as it does, a line of JSON each.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Response;
use offleash_core::exec::OutputStream;
use offleash_daemon::SandboxContexts;
use offleash_interpreter::cell::{self, Cell};
use offleash_interpreter::result::{self, ResultForm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::contexts::{of, refused};
use crate::cells::{
    CellDialect, CellEvents, CellLines, CellOutcome, CellTarget, RenderedEnd, RenderedEvent, language, streamed,
};
use crate::control::ApiRequest;
use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;

/// A cell of code that is run in a context.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCell {
    /// The code, in the language of the context; at most 16 MiB.
    pub(crate) code: String,
    /// Variables of the environment for this cell alone.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// After how many milliseconds it is interrupted, at least 1; never if absent.
    pub(crate) timeout_ms: Option<u64>,
}

/// A cell of code that is run in the default context of a language.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDefaultCell {
    /// The code; at most 16 MiB.
    pub(crate) code: String,
    /// Its language; `python` if absent.
    pub(crate) language: Option<String>,
    /// Variables of the environment for this cell alone.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// After how many milliseconds it is interrupted, at least 1; never if absent.
    pub(crate) timeout_ms: Option<u64>,
}

/// What happens to a cell. Which fields there are depends on `kind`; an answer that does not end with an `end` was cut.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CellEvent {
    /// `begin`, `stdout`, `stderr`, `result`, `error`, `truncated`, `keepalive` (nothing happened for five seconds) or `end`.
    pub(crate) kind: String,
    /// `begin`: the number of the cell in its context, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// `stdout`, `stderr`: what was written; characters are whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// `stdout`, `stderr`: when that was heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
    /// `result`: a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<CellResult>,
    /// `error`: why the cell failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<CellError>,
    /// `truncated`: of what the rest is left out, `output` or `results`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) what: Option<String>,
    /// `truncated`: how many bytes a cell may have of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
    /// `end`: `done` (also after an error), `interrupted`, `timed_out`, `died` when the context has lost its state,
    /// `not_run` when it had lost it before and the cell was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<String>,
    /// `end`: how the context has lost its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// What a cell has for a value, or what it displays.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CellResult {
    /// Whether it is the value of the cell's last expression.
    pub(crate) is_main: bool,
    /// Its forms, by MIME type: text, base64 of images and of PDF, or JSON.
    pub(crate) forms: BTreeMap<String, Value>,
    /// Forms that were too large, and how many bytes they had.
    pub(crate) omitted: BTreeMap<String, u64>,
}

/// Why a cell failed, in its language's words.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CellError {
    /// As in `ValueError`.
    pub(crate) name: String,
    /// What it says.
    pub(crate) value: String,
    /// Where it was raised, lines with newlines between.
    pub(crate) traceback: String,
}

pub(crate) async fn execute(
    asked: &ApiRequest<'_>,
    [given, context, _]: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let contexts = of(asked, given).await?;
    let new: NewCell = body.read().await?;
    let cell = cell(new.code, new.env, new.timeout_ms)?;
    answered(asked, &contexts, CellTarget::Context(context), cell).await
}

pub(crate) async fn execute_in_default(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let contexts = of(asked, given).await?;
    let new: NewDefaultCell = body.read().await?;
    let language = language(new.language.as_deref()).map_err(|error| refused(asked, &error))?;
    let cell = cell(new.code, new.env, new.timeout_ms)?;
    answered(asked, &contexts, CellTarget::Default(language), cell).await
}

async fn answered(
    asked: &ApiRequest<'_>,
    contexts: &SandboxContexts,
    target: CellTarget<'_>,
    cell: Cell,
) -> Result<Response<Body>, ApiRefusal> {
    let events = CellEvents::begin(contexts, target, cell).await;
    let events = events.map_err(|error| refused(asked, &error))?;
    Ok(streamed(events, DIALECT))
}

fn cell(code: String, env: Option<BTreeMap<String, String>>, timeout_ms: Option<u64>) -> Result<Cell, ApiRefusal> {
    Ok(Cell {
        code,
        env: env.unwrap_or_default(),
        timeout: some_time(timeout_ms)?.map(Duration::from_millis),
    })
}

/// Refuses no time at all, in which nothing can be done and much may have begun.
pub(crate) fn some_time(timeout_ms: Option<u64>) -> Result<Option<u64>, ApiRefusal> {
    match timeout_ms {
        Some(0) => Err(ApiRefusal::bad_request(
            "`timeout_ms` must be at least 1; without it there is no such limit",
        )),
        other => Ok(other),
    }
}

/// The native form of events.
const DIALECT: CellDialect = CellDialect {
    write,
    keepalive: || CellEvent::of("keepalive").line(),
};

fn write(event: RenderedEvent) -> CellLines {
    let is_last = matches!(event, RenderedEvent::End(_));
    let line = vec![CellEvent::from(event).line()];
    match is_last {
        true => CellLines::Last(line),
        false => CellLines::More(line),
    }
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

    fn end(end: RenderedEnd) -> Self {
        let outcome = match end.outcome {
            CellOutcome::Done => "done",
            CellOutcome::Interrupted => "interrupted",
            CellOutcome::TimedOut => "timed_out",
            CellOutcome::Died => "died",
            CellOutcome::NotRun => "not_run",
        };
        Self {
            outcome: Some(outcome.to_owned()),
            reason: end.reason,
            ..Self::of("end")
        }
    }

    /// As JSON, without the fields that it lacks.
    fn line(&self) -> Value {
        // It is written without fail: keys are text, and nothing in it is unusual.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl From<RenderedEvent> for CellEvent {
    fn from(event: RenderedEvent) -> Self {
        match event {
            RenderedEvent::Begin { count } => Self {
                count: Some(count),
                ..Self::of("begin")
            },
            RenderedEvent::Output { stream, text, at } => Self {
                text: Some(text),
                at: Some(at),
                ..Self::of(match stream {
                    OutputStream::Stdout => "stdout",
                    OutputStream::Stderr => "stderr",
                })
            },
            RenderedEvent::Result(result) => Self {
                result: Some((*result).into()),
                ..Self::of("result")
            },
            RenderedEvent::Error(error) => Self {
                error: Some(error.into()),
                ..Self::of("error")
            },
            RenderedEvent::Truncated { part, limit } => Self {
                what: Some(part.as_str().to_owned()),
                limit: Some(limit),
                ..Self::of("truncated")
            },
            RenderedEvent::End(end) => Self::end(end),
        }
    }
}

impl From<cell::CellError> for CellError {
    fn from(error: cell::CellError) -> Self {
        Self {
            name: error.name,
            value: error.value,
            traceback: error.traceback,
        }
    }
}

impl From<result::CellResult> for CellResult {
    fn from(result: result::CellResult) -> Self {
        let value = |form| match form {
            ResultForm::Text(text) => Value::String(text),
            ResultForm::Json(value) => value,
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
    use offleash_interpreter::cell::{CellEnd, ContextDeath};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_has_the_fields_of_its_kind_alone() {
        let result = result::CellResult {
            forms: [
                ("text/plain".to_owned(), ResultForm::Text("'a'".to_owned())),
                ("application/json".to_owned(), ResultForm::Json(Value::Null)),
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
                cell::CellEvent::End(CellEnd::DiedBefore(ContextDeath::Restarted)),
                json!({ "kind": "end", "outcome": "not_run", "reason": "it was restarted" }),
            ),
        ] {
            assert_eq!(CellEvent::from(RenderedEvent::from(event)).line(), expected);
        }
        assert_eq!((DIALECT.keepalive)(), json!({ "kind": "keepalive" }));
    }
}
