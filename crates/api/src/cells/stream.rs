//! What happens to a cell, as lines of JSON that come as it does. The form of the lines is the caller's.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{CellEvents, RenderedEvent};
use crate::http::body::Body;
use crate::http::driven::driven;

/// The type of such an answer.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// How often a cell that says nothing shows that it is alive.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// What a client is told of an event.
#[derive(Debug)]
pub(crate) enum CellLines {
    /// Something, and more may follow.
    More(Vec<Value>),
    /// The last.
    Last(Vec<Value>),
    /// That there is nobody left who could tell more: the connection is cut, so that nobody takes what came for the whole.
    Cut,
}

/// A form of events in lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CellDialect {
    /// How an event is written.
    pub(crate) write: fn(RenderedEvent) -> CellLines,
    /// What shows that a cell which says nothing is alive.
    pub(crate) keepalive: fn() -> Value,
}

/// The events of a cell, as they come, in a form of their own; a client that goes away interrupts the cell.
pub(crate) fn streamed(mut events: CellEvents, dialect: CellDialect) -> Response<Body> {
    let body = driven(move |feed| async move {
        let mut silent_until = Instant::now() + KEEPALIVE;
        loop {
            let lines = tokio::select! {
                event = events.next() => match event.map(dialect.write) {
                    Some(CellLines::More(lines)) => lines,
                    Some(CellLines::Last(lines)) => {
                        feed.send(Ok(bytes(&lines))).await;
                        return;
                    }
                    // What runs cells is gone: nobody must take this for the whole.
                    Some(CellLines::Cut) | None => {
                        feed.send(Err("the cell was given up".into())).await;
                        return;
                    }
                },
                () = sleep_until(silent_until) => vec![(dialect.keepalive)()],
            };
            feed.send(Ok(bytes(&lines))).await;
            silent_until = Instant::now() + KEEPALIVE;
        }
    });
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}

/// Characters that end a line for some clients (`str.splitlines` of Python, by which its SDK reads), though not in JSON:
/// they are escaped. They occur in strings alone.
const LINE_ENDS: [(char, &str); 3] = [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];

fn bytes(lines: &[Value]) -> Bytes {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.to_string());
        text.push('\n');
    }
    for (end, escape) in LINE_ENDS {
        if text.contains(end) {
            text = text.replace(end, escape);
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_in_a_line_ends_it() {
        let all: String = (0..=0x3000).filter_map(char::from_u32).collect();
        let value = json!({ "text": all });
        let written = bytes(&[value.clone(), json!(1)]);
        let written = std::str::from_utf8(&written).unwrap();
        // What Python's `str.splitlines` takes for the end of a line.
        let ends = [
            '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}',
        ];
        let lines: Vec<&str> = written.split(ends).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(serde_json::from_str::<Value>(lines[0]).unwrap(), value);
        assert_eq!(&lines[1..], ["1", ""]);
    }
}
