//! Files on their way in and out, piece by piece: none is ever at hand as a whole.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::{FileChannel, OwnedFileReader};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use super::toolbox::Toolbox;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::driven::{BodyFeed, driven};
use crate::http::json::RequestBody;
use crate::http::multipart::{FormError, UploadForm, boundary};
use crate::http::path::{MAX_PATH_LENGTH, name, text};
use crate::http::source::{PackedUpload, SourceError};

/// Files of one request.
const MAX_FILES: usize = 500;
/// What is read on after a failure, and for how long, so that a client that still sends can read the answer.
const DRAINED: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
struct UploadedFile {
    name: String,
    path: String,
    r#type: &'static str,
}

#[derive(Debug, Serialize)]
struct UploadAnswer {
    files: Vec<UploadedFile>,
    errors: [String; 0],
}

#[derive(Debug, Default, Deserialize)]
struct WantedFiles {
    paths: Option<Vec<String>>,
}

/// Takes the files of a form: `files[N].path` says where `files[N].file` goes.
pub(crate) async fn upload(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let content = asked.parts.headers.get(CONTENT_TYPE);
    let boundary = content.and_then(|content| boundary(content.as_bytes()));
    let boundary = boundary.ok_or_else(|| {
        let why = "expected multipart/form-data with a boundary";
        ApiRefusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why)
    })?;
    let missing = || ApiRefusal::bad_request("the body was read already");
    let mut source = PackedUpload::plain(body.into_incoming().ok_or_else(missing)?);
    let files = {
        let mut form = UploadForm::new(&mut source, &boundary);
        taken(&toolbox, &mut form).await
    };
    match files {
        Ok(files) => Ok(answer::json(StatusCode::OK, &UploadAnswer { files, errors: [] })),
        Err(refusal) => {
            // What does not come in time is not waited for.
            let _drained = tokio::time::timeout(DRAIN_TIME, source.drain(DRAINED)).await;
            Err(refusal)
        }
    }
}

async fn taken(
    toolbox: &Toolbox<'_>,
    form: &mut UploadForm<'_, PackedUpload<hyper::body::Incoming>>,
) -> Result<Vec<UploadedFile>, ApiRefusal> {
    let mut files = toolbox.files().await?;
    let mut paths: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    let (mut told, mut parts) = (Vec::new(), 0);
    while let Some(part) = form.next_part().await.map_err(wrong_form)? {
        parts += 1;
        if parts > 2 * MAX_FILES {
            let why = format!("a form may have {MAX_FILES} files");
            return Err(ApiRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        if let Some(file) = part.name.strip_suffix(b".path") {
            let path = short(form).await?;
            paths.insert(file.to_vec(), path);
        } else if let Some(file) = part.name.strip_suffix(b".file") {
            let path = paths.remove(file).or(part.file_name.as_deref().map(text));
            let path = path.ok_or_else(|| ApiRefusal::bad_request("a file of the form has no path"))?;
            let path = toolbox.resolve(&path)?;
            write(toolbox, &mut files, &path, form).await?;
            told.push(UploadedFile {
                name: name(&path),
                path: text(&path),
                r#type: "file",
            });
        }
    }
    match told.is_empty() {
        true => Err(ApiRefusal::bad_request("the form has no file")),
        false => Ok(told),
    }
}

/// A part that is a path.
async fn short(form: &mut UploadForm<'_, PackedUpload<hyper::body::Incoming>>) -> Result<String, ApiRefusal> {
    let mut whole = Vec::new();
    while let Some(piece) = form.data().await.map_err(wrong_form)? {
        whole.extend_from_slice(&piece);
        if whole.len() > MAX_PATH_LENGTH {
            return Err(ApiRefusal::bad_request(format!(
                "a path may have {MAX_PATH_LENGTH} bytes"
            )));
        }
    }
    String::from_utf8(whole).map_err(|_| ApiRefusal::bad_request("a path must be a text"))
}

async fn write(
    toolbox: &Toolbox<'_>,
    files: &mut FileChannel,
    path: &[u8],
    form: &mut UploadForm<'_, PackedUpload<hyper::body::Incoming>>,
) -> Result<(), ApiRefusal> {
    let refused = |error: SupervisorError| toolbox.refused(&error);
    let mut writer = files.write(path, Vec::new()).await.map_err(refused)?;
    while let Some(bytes) = form.data().await.map_err(wrong_form)? {
        writer.send(&bytes).await.map_err(refused)?;
    }
    writer.finish().await.map_err(refused)?;
    Ok(())
}

fn wrong_form(error: FormError) -> ApiRefusal {
    let status = match &error {
        FormError::Source(SourceError::Slow) => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::BAD_REQUEST,
    };
    ApiRefusal::new(status, error.to_string())
}

/// Gives one file as it is.
pub(crate) async fn download(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = toolbox.path_in_query("path")?;
    let reader = opened(&toolbox, &path).await?;
    let size = reader.entry().size;
    let mut response = Response::new(driven(move |feed| async move {
        give(reader, size, &feed).await;
    }));
    let encoded = utf8_percent_encode(&name(&path), NON_ALPHANUMERIC).to_string();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if size > 0 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{encoded}")) {
        headers.insert(CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

/// Gives files as the parts of a form, each called by the path that was asked for; why one is not there is its part.
pub(crate) async fn download_many(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let WantedFiles { paths } = body.read().await?;
    let paths = paths.unwrap_or_default();
    if paths.is_empty() || paths.len() > MAX_FILES {
        return Err(ApiRefusal::bad_request(format!(
            "paths: there must be 1 to {MAX_FILES}"
        )));
    }
    if paths.iter().any(|path| path.contains(char::is_control)) {
        return Err(ApiRefusal::bad_request("paths: none may have control characters"));
    }
    let toolbox = Toolbox::open(asked, given).await?;
    let boundary = new_boundary()?;
    let mut parts = Vec::new();
    for path in paths {
        let whole = toolbox.resolve(&path)?;
        parts.push((path, whole));
    }
    let content = format!("multipart/form-data; boundary={boundary}");
    let supervisor = toolbox.supervisor.clone();
    let mut response = Response::new(driven(move |feed| async move {
        for (path, whole) in parts {
            let opened = async { supervisor.files(None).await?.into_read(&whole, 0, None).await };
            let reader = match opened.await {
                Ok(reader) => reader,
                Err(error) => {
                    feed.send(Ok(failed_part(&boundary, &path, &error))).await;
                    continue;
                }
            };
            let size = reader.entry().size;
            let kind = match size {
                0 => "application/octet-stream".to_owned(),
                size => format!("application/octet-stream\r\nContent-Length: {size}"),
            };
            feed.send(Ok(part_head(&boundary, "file", &path, &kind))).await;
            if !give(reader, size, &feed).await {
                return;
            }
            feed.send(Ok(Bytes::from_static(b"\r\n"))).await;
        }
        feed.send(Ok(Bytes::from(format!("--{boundary}--\r\n")))).await;
    }));
    if let Ok(content) = HeaderValue::from_str(&content) {
        response.headers_mut().insert(CONTENT_TYPE, content);
    }
    Ok(response)
}

async fn opened(toolbox: &Toolbox<'_>, path: &[u8]) -> Result<OwnedFileReader, ApiRefusal> {
    let reader = toolbox.files().await?.into_read(path, 0, None).await;
    reader.map_err(|error| toolbox.refused(&error))
}

/// Gives so many bytes of a file; what it grew by is left out, and where it has become shorter the connection is cut. Of one that
/// says that it is empty, as those of `/proc` do, there is all that comes. Answers whether it was all.
async fn give(mut reader: OwnedFileReader, size: u64, feed: &BodyFeed) -> bool {
    let mut left = if size == 0 { u64::MAX } else { size };
    while left > 0 {
        let mut piece = match reader.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) if size == 0 => return true,
            Ok(None) => {
                feed.send(Err("the file has become shorter".into())).await;
                return false;
            }
            Err(error) => {
                feed.send(Err(error.into())).await;
                return false;
            }
        };
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= u64::try_from(piece.len()).unwrap_or(left);
        feed.send(Ok(Bytes::from(piece))).await;
    }
    true
}

/// A boundary that no file can know.
fn new_boundary() -> Result<String, ApiRefusal> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty());
    match filled {
        Ok(count) if count == bytes.len() => Ok(HEXLOWER.encode(&bytes)),
        _ => {
            let why = "the machine gives no random numbers";
            Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, why))
        }
    }
}

fn part_head(boundary: &str, kind: &str, path: &str, content: &str) -> Bytes {
    let quoted = path.replace('\\', "\\\\").replace('"', "\\\"");
    // What is no ASCII is read in the extended form alone.
    let extended = match path.is_ascii() {
        true => String::new(),
        false => format!("; filename*=UTF-8''{}", utf8_percent_encode(path, NON_ALPHANUMERIC)),
    };
    Bytes::from(format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"{kind}\"; filename=\"{quoted}\"{extended}\r\n\
         Content-Type: {content}\r\n\r\n"
    ))
}

fn failed_part(boundary: &str, path: &str, error: &SupervisorError) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct FailedFile {
        message: String,
        status_code: u16,
        code: &'static str,
    }
    let (status, code, message) = match error {
        SupervisorError::File { .. } => {
            let status = crate::http::failure::of_kind(offleash_core::error::Explained::kind(error));
            let code = match status {
                StatusCode::NOT_FOUND => "FILE_NOT_FOUND",
                StatusCode::FORBIDDEN => "FILE_ACCESS_DENIED",
                _ => "FILE_READ_FAILED",
            };
            (status, code, error.to_string())
        }
        // What these say is about the host.
        _ => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "FILE_READ_FAILED",
            "the sandbox did not give it".to_owned(),
        ),
    };
    let failed = FailedFile {
        message,
        status_code: status.as_u16(),
        code,
    };
    let mut part = part_head(boundary, "error", path, "application/json").to_vec();
    // Strings and a number: nothing that could fail.
    part.extend(serde_json::to_vec(&failed).unwrap_or_default());
    part.extend_from_slice(b"\r\n");
    Bytes::from(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_their_head() {
        let head = part_head("b", "file", "/a\"; x=\"\\", "text/plain");
        let head = String::from_utf8(head.to_vec()).unwrap();
        assert!(head.contains("filename=\"/a\\\"; x=\\\"\\\\\"\r\n"), "{head}");
        let head = part_head("b", "file", "/ä", "text/plain");
        assert!(
            head.windows(28).any(|part| part == b"filename*=UTF-8''%2F%C3%A4\r\n"),
            "{head:?}"
        );
    }

    #[test]
    fn boundaries_differ() {
        assert_ne!(new_boundary().unwrap(), new_boundary().unwrap());
    }

    #[test]
    fn why_a_file_is_not_there_is_told() {
        let step = "open".to_owned();
        let part = failed_part("b", "/a", &SupervisorError::File { step, errno: 2 });
        let text = String::from_utf8(part.to_vec()).unwrap();
        assert!(
            text.contains("name=\"error\"") && text.contains("\"statusCode\":404"),
            "{text}"
        );
    }
}
