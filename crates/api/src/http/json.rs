//! JSON bodies of requests, read within bounds of size, time and depth.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use serde::de::DeserializeOwned;

use crate::http::answer::ApiRefusal;
use crate::http::body::BodyError;

/// The most that a body of the control plane may have.
pub(crate) const MAX_BODY: usize = 1024 * 1024;
/// How deep it may nest.
const MAX_DEPTH: usize = 64;
/// What is read on of a body that is too large, and for how long, so that a client that still sends can read the answer.
const DRAINED: usize = 16 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long all of it may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a request, and how much it may have: that is said by the request's route.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    max_bytes: usize,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, max_bytes: usize) -> Self {
        Self {
            incoming: Some(incoming),
            max_bytes,
        }
    }

    /// One that was read.
    pub(crate) fn none() -> Self {
        Self {
            incoming: None,
            max_bytes: 0,
        }
    }

    /// All that comes, for who bounds it by itself; nothing if it was read.
    pub(crate) fn into_incoming(self) -> Option<Incoming> {
        self.incoming
    }

    /// Reads it as [`read`] does, within its own bound.
    pub(crate) async fn read<T: DeserializeOwned>(self) -> Result<T, ApiRefusal> {
        match self.incoming {
            Some(incoming) => read_at_most(self.max_bytes, incoming).await,
            None => Err(ApiRefusal::bad_request("the body was read already")),
        }
    }
}

/// Reads a body that must be a JSON object of the shape of `T`; no body at all stands for `{}`.
///
/// Fields that `T` does not have are ignored, because newer SDKs send some; deep ones are refused all the same.
///
/// # Errors
/// 413 when it is too large (before anything is read, if it says so), 408 when it takes too long, 400 when it is no
/// such JSON.
pub(crate) async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, ApiRefusal> {
    read_at_most(MAX_BODY, body).await
}

/// The same for a body of at most `most` bytes.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_at_most<T: DeserializeOwned>(most: usize, body: Incoming) -> Result<T, ApiRefusal> {
    let bytes = unread(most, body).await?;
    let text = if bytes.is_empty() { b"{}" } else { &bytes[..] };
    serde_json::from_slice(text).map_err(|error| {
        let why = in_plain_words(&error.to_string());
        ApiRefusal::bad_request(format!("the body is not what it must be: {why}"))
    })
}

/// What a reader of JSON says, without the types of a program.
fn in_plain_words(why: &str) -> String {
    const TYPES: [(&str, &str); 6] = [
        ("expected u64", "expected a whole number, not negative"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u16", "expected a whole number from 0 to 65535"),
        ("expected i64", "expected a whole number"),
        ("expected i32", "expected a whole number from -2147483648 to 2147483647"),
        ("expected f64", "expected a number"),
    ];
    let found = TYPES.iter().find(|(name, _)| why.contains(name));
    found.map_or_else(|| why.to_owned(), |(name, words)| why.replacen(name, words, 1))
}

/// The same, for somebody else to read.
///
/// # Errors
/// As [`read`], but that it is no JSON is not found out.
pub(crate) async fn unread(most: usize, body: Incoming) -> Result<Bytes, ApiRefusal> {
    unread_while(most, body, |_| Ok(())).await
}

/// The same; `room` is asked before more bytes are held, and its refusal ends the reading.
///
/// # Errors
/// As [`unread`], and what `room` says.
pub(crate) async fn unread_while(
    most: usize,
    body: Incoming,
    room: impl FnMut(usize) -> Result<(), ApiRefusal>,
) -> Result<Bytes, ApiRefusal> {
    let bytes = bytes(body, most, room).await?;
    if depth(&bytes) > MAX_DEPTH {
        return Err(ApiRefusal::bad_request(format!("the body may nest {MAX_DEPTH} deep")));
    }
    Ok(bytes)
}

/// How deep brackets and braces nest, those in strings left out.
///
/// The reader's own limit, 128, does not do: it is about what is read, and fields that nobody knows are passed over at any depth.
fn depth(text: &[u8]) -> usize {
    let (mut deepest, mut depth) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Reads a body of at most `most` bytes.
///
/// Its frames are copied: each may hold a buffer that is larger than itself.
async fn bytes(
    mut body: Incoming,
    most: usize,
    mut room: impl FnMut(usize) -> Result<(), ApiRefusal>,
) -> Result<Bytes, ApiRefusal> {
    let announced = body.size_hint().lower();
    if announced > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large(most, body));
    }
    let mut read = BytesMut::new();
    let reading = async {
        let mut limited = Limited::new(&mut body, most);
        while let Some(frame) = limited.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if let Err(refusal) = room(data.len()) {
                return Ok(Some(refusal.closing()));
            }
            read.extend_from_slice(&data);
        }
        Ok::<_, BodyError>(None)
    };
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(None)) => Ok(read.freeze()),
        Ok(Ok(Some(refusal))) => Err(refusal),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(most, body)),
        Ok(Err(_)) => Err(ApiRefusal::bad_request(
            "the body ended early or is not what its head announced",
        )),
        Err(_) => Err(ApiRefusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long").closing()),
    }
}

/// Refuses a body, and reads on meanwhile: closing with bytes unread would take the answer back.
fn too_large(most: usize, mut body: Incoming) -> ApiRefusal {
    let refusal = ApiRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body may have {most} bytes")).closing();
    if body.size_hint().lower() > u64::try_from(DRAINED).unwrap_or(u64::MAX) {
        // It would not be read to its end anyway.
        return refusal;
    }
    let draining = async move {
        let mut taken = 0;
        while taken < DRAINED
            && let Some(Ok(frame)) = body.frame().await
        {
            taken += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    tokio::spawn(tokio::time::timeout(DRAIN_TIME, draining));
    refusal
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::service::service_fn;
    use hyper::{Request, server::conn::http1};
    use hyper_util::rt::TokioIo;
    use serde_json::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn numbers_are_asked_for_in_words() {
        let error = serde_json::from_str::<u64>("-5").unwrap_err().to_string();
        let told = in_plain_words(&error);
        assert!(told.contains("`-5`") && told.contains("not negative"), "{told}");
        assert_eq!(in_plain_words("missing field `a`"), "missing field `a`");
    }

    #[test]
    fn depth_is_that_of_brackets_outside_strings() {
        for (text, expected) in [
            ("", 0),
            ("3", 0),
            ("[]", 1),
            ("[[],{}]", 2),
            ("{\"[[[\":\"\\\"[[\"}", 1),
            ("]]][", 1),
            ("[[[[", 4),
        ] {
            assert_eq!(depth(text.as_bytes()), expected, "{text}");
        }
    }

    /// Should this fail one day, the reader's own limit will do.
    #[test]
    fn the_reader_passes_over_what_it_ignores_at_any_depth() {
        #[derive(Debug, serde::Deserialize)]
        struct Known {
            known: Option<Value>,
        }
        let nested = |name: &str| format!("{{\"{name}\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
        let ignored: Known = serde_json::from_str(&nested("other")).unwrap();
        assert_eq!(ignored.known, None);
        let error = serde_json::from_str::<Known>(&nested("known")).unwrap_err();
        assert!(error.to_string().contains("recursion limit"), "{error}");
    }

    /// The status of the answer to a request that is sent in pieces and never finished; the clock goes on by itself
    /// while everything waits.
    fn status_of(head: &'static str, piece: &'static str, pieces: usize) -> String {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
            let service = service_fn(|request: Request<Incoming>| async {
                let read = read::<Value>(request.into_body()).await;
                Ok::<_, Infallible>(read.unwrap_err().answer())
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(ours), service));
            theirs.write_all(head.as_bytes()).await.unwrap();
            for _ in 0..pieces {
                theirs.write_all(piece.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let mut line = [0; 12];
            theirs.read_exact(&mut line).await.unwrap();
            String::from_utf8(line.to_vec()).unwrap()
        })
    }

    #[test]
    fn a9_a_body_that_comes_too_slowly_is_given_up() {
        let announced = "POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n";
        assert_eq!(status_of(announced, " ", 20), "HTTP/1.1 408");
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(status_of(chunked, "1\r\n \r\n", 20), "HTTP/1.1 408");
    }
}
