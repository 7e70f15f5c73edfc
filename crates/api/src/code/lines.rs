//! What happens to a cell, as lines of JSON that come as it does.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use offleash_interpreter::cell::CellEvent;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::body::Body;
use crate::driven::driven;

/// The type of such an answer.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// How often a cell that says nothing shows that it is alive.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// What a client is told of an event.
#[derive(Debug)]
pub(crate) enum Told {
    /// Something, and more may follow.
    Lines(Vec<Value>),
    /// The last.
    Last(Vec<Value>),
}

/// The events of a cell, as they come, in the words of `told`; a client that goes away interrupts the cell.
pub(crate) fn streamed(
    mut events: Receiver<CellEvent>,
    told: fn(CellEvent) -> Told,
    keepalive: fn() -> Value,
) -> Response<Body> {
    let body = driven(move |feed| async move {
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
                () = sleep_until(silent_until) => vec![keepalive()],
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

fn bytes(lines: &[Value]) -> Bytes {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.to_string());
        text.push('\n');
    }
    text.into()
}
