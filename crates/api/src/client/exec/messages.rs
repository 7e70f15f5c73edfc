//! The stream of a command's events, as the process service writes it, read.

use offleash_core::exec::OutputStream;
use serde_json::Value;

use super::News;
use crate::client::transport::Answer;
use crate::client::{ClientError, malformed, parsed};
use crate::e2b::connect::EXIT_CODE;

/// The largest message of a stream.
const MAX_MESSAGE: usize = 8 << 20;
/// The last message of a stream.
const END_OF_STREAM: u8 = 2;

/// The messages of a stream.
pub(super) struct MessageStream {
    answer: Answer,
    held: Vec<u8>,
}

impl MessageStream {
    /// Those of an answer that begins.
    pub(super) fn of(answer: Answer) -> Self {
        Self {
            answer,
            held: Vec::new(),
        }
    }

    /// The next message; `None` when the stream has ended well.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        const ASKED: &str = "the command's stream";
        loop {
            if let Some((header, rest)) = self.held.split_first_chunk::<5>() {
                let [flags, length @ ..] = *header;
                let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                if length > MAX_MESSAGE {
                    return Err(malformed(ASKED, format!("a message of {length} bytes")));
                }
                if let Some(message) = rest.get(..length) {
                    let message: Value = parsed(message, ASKED)?;
                    self.held.drain(..header.len() + length);
                    return match flags & END_OF_STREAM {
                        0 => Ok(Some(message)),
                        _ => ended(&message).map(|()| None),
                    };
                }
            }
            let cut = |reason: String| ClientError::Cut { reason };
            match self.answer.piece().await.map_err(|error| cut(error.to_string()))? {
                Some(piece) => self.held.extend_from_slice(&piece),
                None => return Err(cut("it ended in the middle".to_owned())),
            }
        }
    }
}

fn ended(message: &Value) -> Result<(), ClientError> {
    let Some(error) = message.get("error") else {
        return Ok(());
    };
    let text = error.get("message").and_then(Value::as_str).unwrap_or("it failed");
    let exit_code = &message["metadata"][EXIT_CODE][0];
    if let Some(exit_code) = exit_code.as_str().and_then(|code| code.parse().ok()) {
        return Err(ClientError::NotStarted {
            message: text.to_owned(),
            exit_code,
        });
    }
    let kind = match error.get("code").and_then(Value::as_str) {
        Some("not_found") => offleash_core::error::ErrorKind::NotFound,
        Some("invalid_argument") => offleash_core::error::ErrorKind::Invalid,
        Some("unauthenticated" | "permission_denied") => offleash_core::error::ErrorKind::Denied,
        Some("unavailable") => offleash_core::error::ErrorKind::Unavailable,
        _ => offleash_core::error::ErrorKind::Internal,
    };
    Err(ClientError::Refused {
        message: text.to_owned(),
        kind,
    })
}

/// What an event says of the command; `None` for what says nothing of it.
pub(super) fn news_of(message: &Value) -> Option<News> {
    let event = message.get("event")?;
    if let Some(start) = event.get("start") {
        let pid = start.get("pid").and_then(Value::as_u64)?;
        return Some(News::Started(u32::try_from(pid).ok()?));
    }
    if let Some(data) = event.get("data") {
        let (stream, text) = [
            ("stdout", OutputStream::Stdout),
            ("stderr", OutputStream::Stderr),
            ("pty", OutputStream::Stdout),
        ]
        .into_iter()
        .find_map(|(name, stream)| Some((stream, data.get(name)?.as_str()?)))?;
        let bytes = data_encoding::BASE64.decode(text.as_bytes()).ok()?;
        return Some(News::Output(stream, bytes));
    }
    let end = event.get("end")?;
    let status = end.get("status").and_then(Value::as_str).unwrap_or_default();
    let code = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
    Some(News::Ended(match u8::try_from(code) {
        Ok(code) => code,
        Err(_) => killed(status),
    }))
}

/// 128 and the signal's number, from a status such as `signal: killed`.
fn killed(status: &str) -> u8 {
    let name = status.strip_prefix("signal: ").unwrap_or_default();
    let number = match name {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "trace/breakpoint trap" => 5,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "user defined signal 1" => 10,
        "segmentation fault" => 11,
        "user defined signal 2" => 12,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        "CPU time limit exceeded" => 24,
        "file size limit exceeded" => 25,
        "bad system call" => 31,
        // Those that have no name there have a number; of what is neither, the one that cannot be caught.
        _ => {
            let number = name.strip_prefix("signal ").and_then(|number| number.parse().ok());
            number.filter(|number| (1..=64).contains(number)).unwrap_or(9)
        }
    };
    128 + number
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_read_as_they_are_written() {
        let started = news_of(&json!({"event": {"start": {"pid": 7}}}));
        assert!(matches!(started, Some(News::Started(7))));
        let output = news_of(&json!({"event": {"data": {"stderr": "aGk="}}}));
        assert!(matches!(output, Some(News::Output(OutputStream::Stderr, bytes)) if bytes == b"hi"));
        let screen = news_of(&json!({"event": {"data": {"pty": "aGk="}}}));
        assert!(matches!(screen, Some(News::Output(OutputStream::Stdout, _))));
        for (end, code) in [
            (json!({"exitCode": 3, "exited": true, "status": "exit status 3"}), 3),
            (json!({"exited": true, "status": "exit status 0"}), 0),
            (json!({"exitCode": -1, "status": "signal: killed"}), 137),
            (json!({"exitCode": -1, "status": "signal: terminated"}), 143),
            (
                json!({"exitCode": -1, "status": "signal: file size limit exceeded"}),
                153,
            ),
            (json!({"exitCode": -1, "status": "signal: signal 34"}), 162),
            (json!({"exitCode": -1, "status": "signal: signal 999"}), 137),
        ] {
            let news = news_of(&json!({"event": {"end": end}}));
            assert!(matches!(news, Some(News::Ended(seen)) if seen == code), "{news:?}");
        }
        assert!(news_of(&json!({"event": {"keepalive": {}}})).is_none());
        assert!(news_of(&json!({"event": {"data": {"stdout": "not base64"}}})).is_none());
    }

    #[test]
    fn the_end_of_a_stream_says_whether_it_was_well() {
        assert!(ended(&json!({})).is_ok());
        let error = ended(&json!({"error": {"code": "not_found", "message": "no such thing"}})).unwrap_err();
        assert_eq!(error.to_string(), "no such thing");
        let missing = json!({
            "error": {"code": "invalid_argument", "message": "there is no such command"},
            "metadata": {"offleash-exit-code": ["127"]},
        });
        let error = ended(&missing).unwrap_err();
        assert!(
            matches!(error, ClientError::NotStarted { exit_code: 127, .. }),
            "{error:?}"
        );
    }
}
