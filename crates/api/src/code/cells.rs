//! What happens to a cell, as a line of JSON each.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use offleash_core::exec::OutputStream;
use offleash_interpreter::cell::{CellEnd, CellEvent};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::body::Body;
use crate::driven::driven;
use crate::time;

/// How often a cell that says nothing shows that it is alive.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// What a client is told of an event.
#[derive(Debug)]
enum Told {
    /// Something, and more may follow.
    Lines(Vec<Value>),
    /// The last.
    Last(Vec<Value>),
}

/// The events of a cell, as they come; a client that goes away interrupts the cell.
pub(super) fn streamed(mut events: Receiver<CellEvent>) -> Response<Body> {
    let body = driven(|feed| async move {
        let mut silent_until = Instant::now() + KEEPALIVE;
        loop {
            let lines = tokio::select! {
                event = events.recv() => match event.map(told) {
                    Some(Told::Lines(lines)) => lines,
                    Some(Told::Last(lines)) => {
                        feed.send(Ok(bytes(&lines))).await;
                        return;
                    }
                    // What runs cells is gone: nobody must take this for the whole.
                    None => {
                        feed.send(Err("the cell was given up".into())).await;
                        return;
                    }
                },
                () = sleep_until(silent_until) => vec![json!({ "type": "keepalive" })],
            };
            feed.send(Ok(bytes(&lines))).await;
            silent_until = Instant::now() + KEEPALIVE;
        }
    });
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn bytes(lines: &[Value]) -> Bytes {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.to_string());
        text.push('\n');
    }
    text.into()
}

/// An event in E2B's shape, and what that lacks in a shape of its own, which its SDKs pass over.
fn told(event: CellEvent) -> Told {
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

fn last(end: &CellEnd) -> Told {
    let mut lines = Vec::new();
    match end {
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
