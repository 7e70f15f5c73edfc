//! Files on their way in.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::FileChannel;
use serde::Serialize;

use super::super::filesystem::FileCaller;
use super::super::headers::{Pairs, metadata};
use super::FileFailure;
use crate::http::answer;
use crate::http::body::Body;
use crate::http::multipart::{FormError, UploadForm, boundary};
use crate::http::path::{below, name, text};
use crate::http::query;
use crate::http::source::{PackedUpload, SourceError, UploadSource};

/// The field of a form that a file is in.
const FIELD: &[u8] = b"file";
/// Parts that a form may have.
const MAX_PARTS: usize = 1000;
/// Bytes that the answer to a form may have.
const MAX_ANSWER_LENGTH: usize = 4 * 1024 * 1024;
/// What is read on after a failure, and for how long, so that a client that still sends can read the answer.
const DRAINED: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// A file that was written.
#[derive(Debug, Serialize)]
struct WrittenFile<'a> {
    name: String,
    r#type: &'static str,
    path: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: &'a BTreeMap<String, String>,
}

/// What was written, as it is told: everything that is kept of a form, so that it can be bounded.
#[derive(Debug)]
struct WrittenFiles {
    list: Vec<u8>,
    metadata: BTreeMap<String, String>,
}

impl WrittenFiles {
    fn of(metadata: &Pairs) -> Self {
        Self {
            list: vec![b'['],
            metadata: metadata.iter().map(|(key, value)| (text(key), text(value))).collect(),
        }
    }

    /// Takes note of a file, before it is written.
    fn add(&mut self, path: &[u8]) -> Result<(), FileFailure> {
        let written = WrittenFile {
            name: name(path),
            r#type: "file",
            path: text(path),
            metadata: &self.metadata,
        };
        // Strings alone: nothing that could fail.
        let written = serde_json::to_vec(&written).unwrap_or_default();
        if self.list.len() + written.len() > MAX_ANSWER_LENGTH {
            let text =
                format!("the paths and the metadata of the form's files have more than {MAX_ANSWER_LENGTH} bytes");
            return Err(FileFailure::told(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        if self.list.len() > 1 {
            self.list.push(b',');
        }
        self.list.extend_from_slice(&written);
        Ok(())
    }

    fn answer(mut self) -> Response<Body> {
        self.list.push(b']');
        answer::written(StatusCode::OK, self.list)
    }
}

/// Takes a file, or those of a form.
pub(super) async fn answer(
    caller: &FileCaller<'_>,
    parts: &Parts,
    body: Incoming,
) -> Result<Response<Body>, FileFailure> {
    let metadata = metadata(&parts.headers).map_err(FileFailure::bad_request)?;
    let mut source = packed_or_plain(parts, body)?;
    let result = match take(caller, parts, &mut source, &metadata).await {
        Ok(told) => Ok(told.answer()),
        Err(failure) => Err(failure),
    };
    if result.is_err() {
        // What does not come in time is not waited for.
        let _drained = tokio::time::timeout(DRAIN_TIME, source.drain(DRAINED)).await;
    }
    result
}

fn packed_or_plain(parts: &Parts, body: Incoming) -> Result<PackedUpload<Incoming>, FileFailure> {
    let encoding = parts
        .headers
        .get(CONTENT_ENCODING)
        .map(|encoding| encoding.to_str().unwrap_or("?").trim());
    match encoding.unwrap_or("identity").to_ascii_lowercase().as_str() {
        "identity" | "" => Ok(PackedUpload::plain(body)),
        "gzip" | "x-gzip" => Ok(PackedUpload::gzip(body)),
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
    caller: &FileCaller<'_>,
    parts: &Parts,
    source: &mut PackedUpload<Incoming>,
    metadata: &Pairs,
) -> Result<WrittenFiles, FileFailure> {
    let mut told = WrittenFiles::of(metadata);
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
        told.add(&path)?;
        write(&mut files, &path, metadata, source).await?;
        return Ok(told);
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
    let mut form = UploadForm::new(source, &boundary);
    let (mut parts, mut known) = (0, HashSet::new());
    while let Some(part) = form.next_part().await? {
        parts += 1;
        if parts > MAX_PARTS {
            let text = format!("a form may have {MAX_PARTS} parts");
            return Err(FileFailure::told(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        if part.name != FIELD {
            continue;
        }
        let missing = "a file of the form has no name, and there is no path query parameter";
        let file = path
            .clone()
            .or(part.file_name)
            .ok_or_else(|| FileFailure::bad_request(missing))?;
        let file = caller.resolve(&file).await?;
        // However it is spelt; what is too long without being spelt out is refused when it is written.
        if !known.insert(below("", &file).unwrap_or_else(|_| file.clone())) {
            let shown = text(&file);
            let text = format!(
                "you cannot upload multiple files to the same path '{}' in one upload request, only the first specified \
                 file was uploaded",
                shown.escape_debug()
            );
            return Err(FileFailure::bad_request(text));
        }
        told.add(&file)?;
        write(&mut files, &file, metadata, &mut form).await?;
    }
    Ok(told)
}

/// The bytes of one file.
trait ContentPieces {
    async fn next(&mut self) -> Result<Option<Bytes>, FileFailure>;
}

impl ContentPieces for PackedUpload<Incoming> {
    async fn next(&mut self) -> Result<Option<Bytes>, FileFailure> {
        Ok(self.piece().await?)
    }
}

impl ContentPieces for UploadForm<'_, PackedUpload<Incoming>> {
    async fn next(&mut self) -> Result<Option<Bytes>, FileFailure> {
        Ok(self.data().await?)
    }
}

/// Writes one file.
async fn write(
    files: &mut FileChannel,
    path: &[u8],
    metadata: &Pairs,
    contents: &mut impl ContentPieces,
) -> Result<(), FileFailure> {
    let about = |error: SupervisorError| FileFailure::about(error, path);
    let mut writer = files.write(path, metadata.clone()).await.map_err(about)?;
    while let Some(bytes) = contents.next().await? {
        writer.send(&bytes).await.map_err(about)?;
    }
    writer.finish().await.map_err(about)?;
    Ok(())
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
