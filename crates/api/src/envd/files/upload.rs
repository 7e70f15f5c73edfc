//! Files on their way in.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use offleash_manager::keeper::error::KeeperError;
use offleash_manager::keeper::files::FileChannel;
use serde::Serialize;

use super::super::filesystem::Caller;
use super::super::headers::{Pairs, metadata};
use super::super::multipart::{Form, FormError, boundary};
use super::super::path::{name, text};
use super::super::source::{Source, SourceError, Upload};
use super::FileFailure;
use crate::answer;
use crate::body::Body;
use crate::query;

/// The field of a form that a file is in.
const FIELD: &[u8] = b"file";
/// What is read on after a failure, and for how long, so that a client that still sends can read the answer.
const DRAINED: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// A file that was written.
#[derive(Debug, Serialize)]
struct Written {
    name: String,
    r#type: &'static str,
    path: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

/// Takes a file, or those of a form.
pub(super) async fn answer(caller: &Caller<'_>, parts: &Parts, body: Incoming) -> Result<Response<Body>, FileFailure> {
    let metadata = metadata(&parts.headers).map_err(FileFailure::bad_request)?;
    let mut source = packed_or_plain(parts, body)?;
    let result = match take(caller, parts, &mut source, &metadata).await {
        Ok(written) => Ok(answer::json(StatusCode::OK, &written)),
        Err(failure) => Err(failure),
    };
    if result.is_err() {
        // What does not come in time is not waited for.
        let _drained = tokio::time::timeout(DRAIN_TIME, source.drain(DRAINED)).await;
    }
    result
}

fn packed_or_plain(parts: &Parts, body: Incoming) -> Result<Upload<Incoming>, FileFailure> {
    let encoding = parts
        .headers
        .get(CONTENT_ENCODING)
        .map(|encoding| encoding.to_str().unwrap_or("?").trim());
    match encoding.unwrap_or("identity").to_ascii_lowercase().as_str() {
        "identity" | "" => Ok(Upload::plain(body)),
        "gzip" | "x-gzip" => Ok(Upload::gzip(body)),
        other => {
            let text = format!(
                "unsupported Content-Encoding: {}, supported: [gzip]",
                other.escape_debug()
            );
            Err(FileFailure::bad_request(text))
        }
    }
}

async fn take(
    caller: &Caller<'_>,
    parts: &Parts,
    source: &mut Upload<Incoming>,
    metadata: &Pairs,
) -> Result<Vec<Written>, FileFailure> {
    let content = parts
        .headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], |content| content.as_bytes());
    let path = query::bytes(parts.uri.query(), "path");
    let kind = content
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    if kind.eq_ignore_ascii_case(b"application/octet-stream") {
        let text = "path query parameter is required for raw body upload";
        let path = path.ok_or_else(|| FileFailure::bad_request(text))?;
        let path = caller.resolve(&path).await?;
        let mut files = caller.open().await.map_err(|error| FileFailure::about(error, &path))?;
        let written = write(&mut files, path, metadata, source).await?;
        return Ok(vec![written]);
    }
    let Some(boundary) = boundary(content) else {
        let content = String::from_utf8_lossy(content);
        let text = format!(
            "unsupported content type: {}, expected multipart/form-data with a boundary or application/octet-stream",
            content.escape_debug()
        );
        return Err(FileFailure::bad_request(text));
    };
    let mut files = caller.open().await.map_err(|error| FileFailure::about(error, b""))?;
    let mut form = Form::new(source, &boundary);
    let mut all: Vec<Written> = Vec::new();
    while let Some(part) = form.next_part().await? {
        if part.name != FIELD {
            continue;
        }
        let missing = "a file of the form has no name, and there is no path query parameter";
        let file = path
            .clone()
            .or(part.file_name)
            .ok_or_else(|| FileFailure::bad_request(missing))?;
        let file = caller.resolve(&file).await?;
        let shown = text(&file);
        if all.iter().any(|written| written.path == shown) {
            let text = format!(
                "you cannot upload multiple files to the same path '{}' in one upload request, only the first specified \
                 file was uploaded",
                shown.escape_debug()
            );
            return Err(FileFailure::bad_request(text));
        }
        all.push(write(&mut files, file, metadata, &mut form).await?);
    }
    Ok(all)
}

/// The bytes of one file.
trait Contents {
    async fn next(&mut self) -> Result<Option<Bytes>, FileFailure>;
}

impl Contents for Upload<Incoming> {
    async fn next(&mut self) -> Result<Option<Bytes>, FileFailure> {
        Ok(self.piece().await?)
    }
}

impl Contents for Form<'_, Upload<Incoming>> {
    async fn next(&mut self) -> Result<Option<Bytes>, FileFailure> {
        Ok(self.data().await?)
    }
}

/// Writes one file.
async fn write(
    files: &mut FileChannel,
    path: Vec<u8>,
    metadata: &Pairs,
    contents: &mut impl Contents,
) -> Result<Written, FileFailure> {
    let about = |error: KeeperError| FileFailure::about(error, &path);
    let mut writer = files.write(&path, metadata.clone()).await.map_err(about)?;
    while let Some(bytes) = contents.next().await? {
        writer.send(&bytes).await.map_err(about)?;
    }
    writer.finish().await.map_err(about)?;
    Ok(Written {
        name: name(&path),
        r#type: "file",
        path: text(&path),
        metadata: metadata.iter().map(|(key, value)| (text(key), text(value))).collect(),
    })
}

impl From<SourceError> for FileFailure {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Slow => Self::told(StatusCode::REQUEST_TIMEOUT, error.to_string()),
            error => Self::bad_request(error.to_string()),
        }
    }
}

impl From<FormError> for FileFailure {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Source(error) => error.into(),
            error => Self::bad_request(error.to_string()),
        }
    }
}
