//! JSON bodies of requests, read within bounds of size, time and depth.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use serde::de::DeserializeOwned;

use crate::answer::Refusal;

/// The most that a body of the control plane may have.
const MAX_BODY: usize = 1024 * 1024;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads a body that must be a JSON object of the shape of `T`; no body at all stands for `{}`.
///
/// Fields that `T` does not have are ignored, because newer SDKs send some. How deep it may nest is serde's bound
/// (128).
///
/// # Errors
/// 413 when it is too large (before anything is read, if it says so), 408 when it takes too long, 400 when it is no
/// such JSON.
pub(crate) async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let bytes = bytes(body, MAX_BODY).await?;
    let text = if bytes.is_empty() { b"{}" } else { &bytes[..] };
    serde_json::from_slice(text)
        .map_err(|error| Refusal::bad_request(format!("the body is not what it must be: {error}")))
}

/// Reads a body of at most `most` bytes.
async fn bytes(body: Incoming, most: usize) -> Result<Bytes, Refusal> {
    let announced = body.size_hint().lower();
    if announced > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large(most));
    }
    let collected = tokio::time::timeout(PATIENCE, Limited::new(body, most).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(most)),
        Ok(Err(_)) => Err(Refusal::bad_request(
            "the body ended early or is not what its head announced",
        )),
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long").closing()),
    }
}

fn too_large(most: usize) -> Refusal {
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body may have {most} bytes")).closing()
}
