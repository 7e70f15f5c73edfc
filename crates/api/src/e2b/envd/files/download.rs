//! Files on their way out.

use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, HeaderValue, LAST_MODIFIED, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use offleash_protocol::files::FileEntry;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::OwnedFileReader;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::filesystem::FileCaller;
use super::super::headers::wants_gzip;
use super::super::range::{FilePart, FileVersion, is_conditional, part};
use super::{FileFailure, wrong_method};
use crate::http::body::{self, Body};
use crate::http::driven::{BodyFeed, driven};
use crate::http::path::name;
use crate::http::query;

/// Gives a file, or a part of it.
pub(super) async fn answer(caller: &FileCaller<'_>, parts: &Parts) -> Result<Response<Body>, FileFailure> {
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Ok(wrong_method());
    }
    let Some(packed) = wants_gzip(&parts.headers) else {
        let text = "no acceptable encoding found, supported: gzip, identity";
        return Err(FileFailure::told(StatusCode::NOT_ACCEPTABLE, text));
    };
    let path = query::bytes(parts.uri.query(), "path").unwrap_or_default();
    let path = caller.resolve(&path).await?;
    let about = |error| FileFailure::about(error, &path);
    let conditional = is_conditional(&parts.headers);
    let is_head = parts.method == Method::HEAD;
    // What is to be read depends on the size, where only a part is wanted.
    let first = (conditional || is_head).then_some(0);
    let files = caller.open().await.map_err(about)?;
    let reader = files.into_read(&path, 0, first).await.map_err(about)?;
    let entry = reader.entry().clone();
    let wanted = if conditional {
        part(&parts.headers, entry.size, &version(&entry))
    } else {
        FilePart::Whole
    };
    let mut response = Response::new(body::empty());
    describe(response.headers_mut(), &path, &entry);
    match wanted {
        FilePart::NotModified => *response.status_mut() = StatusCode::NOT_MODIFIED,
        FilePart::Unsatisfiable => {
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            insert(
                response.headers_mut(),
                CONTENT_RANGE,
                &format!("bytes */{}", entry.size),
            );
        }
        FilePart::Bytes { offset, length } => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {offset}-{}/{}", offset + length - 1, entry.size);
            insert(response.headers_mut(), CONTENT_RANGE, &range);
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
            if !is_head {
                let files = caller.open().await.map_err(about)?;
                let reader = files.into_read(&path, offset, Some(length)).await.map_err(about)?;
                *response.body_mut() = exactly(FileContents { reader, begin: None }, length);
            }
        }
        FilePart::Whole if is_head => {
            response
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(entry.size));
        }
        FilePart::Whole => {
            let reader = match first {
                None => reader,
                Some(_) => {
                    let files = caller.open().await.map_err(about)?;
                    files.into_read(&path, 0, None).await.map_err(about)?
                }
            };
            let size = reader.entry().size;
            let mut contents = FileContents { reader, begin: None };
            // Files of /proc say that they are empty and are not.
            let is_empty = size == 0 && !contents.begins().await.map_err(about)?;
            if packed && !conditional && !is_empty {
                let encoding = HeaderValue::from_static("gzip");
                response.headers_mut().insert(CONTENT_ENCODING, encoding);
                *response.body_mut() = gzip(contents);
            } else if size > 0 || is_empty {
                response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(size));
                *response.body_mut() = exactly(contents, size);
            } else {
                *response.body_mut() = all(contents);
            }
        }
    }
    Ok(response)
}

fn version(entry: &FileEntry) -> FileVersion {
    FileVersion {
        tag: format!("\"{:x}-{:x}-{:x}\"", entry.modified_s, entry.modified_ns, entry.size),
        modified_s: entry.modified_s,
    }
}

fn describe(headers: &mut HeaderMap, path: &[u8], entry: &FileEntry) {
    let name = name(path);
    insert(headers, ETAG, &version(entry).tag);
    if let Some(modified) = u64::try_from(entry.modified_s)
        .ok()
        .and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
        // Later years have no date of HTTP.
        .filter(|_| entry.modified_s < 253_402_300_800)
    {
        insert(headers, LAST_MODIFIED, &httpdate::fmt_http_date(modified));
    }
    let encoded = utf8_percent_encode(&name, NON_ALPHANUMERIC);
    insert(
        headers,
        CONTENT_DISPOSITION,
        &format!("inline; filename*=UTF-8''{encoded}"),
    );
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(&name)));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    // What a sandbox wrote is no page of this server's.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
}

fn insert(headers: &mut HeaderMap, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn content_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" | "md" | "py" | "sh" | "rs" | "go" | "ts" | "toml" | "yaml" | "yml" => {
            "text/plain; charset=utf-8"
        }
        "csv" => "text/csv; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "text/xml; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "wasm" => "application/wasm",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}

/// The pieces of a file, of which one may have been read already.
struct FileContents {
    reader: OwnedFileReader,
    begin: Option<Bytes>,
}

impl FileContents {
    /// Whether there is anything.
    async fn begins(&mut self) -> Result<bool, SupervisorError> {
        self.begin = self.reader.next().await?.map(Bytes::from);
        Ok(self.begin.is_some())
    }

    /// The next piece, empty at the end; `None` after an error, which goes to the client's connection and cuts it.
    async fn next(&mut self, feed: &BodyFeed) -> Option<Bytes> {
        if let Some(piece) = self.begin.take() {
            return Some(piece);
        }
        match self.reader.next().await {
            Ok(piece) => Some(piece.map(Bytes::from).unwrap_or_default()),
            Err(error) => {
                feed.send(Err(error.into())).await;
                None
            }
        }
    }
}

/// So many bytes; the connection is cut if the file has become shorter, and what it grew by is left out.
fn exactly(mut contents: FileContents, length: u64) -> Body {
    driven(move |feed| async move {
        let mut left = length;
        while left > 0 {
            let Some(mut piece) = contents.next(&feed).await else {
                return;
            };
            if piece.is_empty() {
                feed.send(Err("the file has become shorter".into())).await;
                return;
            }
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= u64::try_from(piece.len()).unwrap_or(left);
            feed.send(Ok(piece)).await;
        }
    })
}

/// Everything, however much it turns out to be.
fn all(mut contents: FileContents) -> Body {
    driven(move |feed| async move {
        while let Some(piece) = contents.next(&feed).await
            && !piece.is_empty()
        {
            feed.send(Ok(piece)).await;
        }
    })
}

/// Everything, packed.
fn gzip(mut contents: FileContents) -> Body {
    driven(move |feed| async move {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        while let Some(piece) = contents.next(&feed).await {
            let written = if piece.is_empty() {
                encoder.try_finish()
            } else {
                encoder.write_all(&piece)
            };
            let packed = std::mem::take(encoder.get_mut());
            if !packed.is_empty() {
                feed.send(written.map(|()| Bytes::from(packed)).map_err(Into::into))
                    .await;
            }
            if piece.is_empty() {
                return;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_their_header() {
        let mut headers = HeaderMap::new();
        let entry = FileEntry {
            modified_s: i64::MAX,
            ..FileEntry::default()
        };
        describe(&mut headers, b"/x/a\r\nSet-Cookie: b=\"c\".html", &entry);
        let disposition = headers[CONTENT_DISPOSITION].to_str().unwrap();
        assert_eq!(
            disposition,
            "inline; filename*=UTF-8''a%0D%0ASet%2DCookie%3A%20b%3D%22c%22%2Ehtml"
        );
        assert_eq!(headers[CONTENT_SECURITY_POLICY], "sandbox");
        assert!(!headers.contains_key(LAST_MODIFIED));
    }
}
