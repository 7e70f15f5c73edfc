//! E2B's API of what is in a volume: files, directories and what is known of them, for whoever shows the volume's token.
//!
//! Files are read and written on the host, by `store`, which follows no link and opens nothing but files. What blocks is
//! done on threads for that, piece by piece, so that none waits for a client.

use std::io::Read as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use offleash_core::error::{ErrorKind, Explained as _, with_causes};
use offleash_daemon::{Daemon, DaemonError};
use offleash_supervisor::volumes::{self, EntryOwner, HeldVolume, NodeKind, VolumeEntry, VolumeError, VolumePath};
use serde::{Deserialize, Serialize};

use crate::control::{ControlPlane, bearer};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::{self, Body};
use crate::http::driven::driven;
use crate::http::failure;
use crate::http::json::RequestBody;
use crate::http::query;
use crate::http::time;

/// How much is read or written at a time.
const PIECE: usize = 256 * 1024;
/// How long the next piece of a file that is written may take.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
/// Of each volume one file at a time gets its name; volumes share these by their ids.
static FINISHING: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];
/// What is read on after a failure, so that a client that still sends can read the answer.
const DRAINED: usize = 16 << 20;

/// A request for what is in a volume.
#[derive(Debug)]
pub(crate) struct ContentCall<'a> {
    pub(crate) control: &'a ControlPlane,
    pub(crate) parts: &'a Parts,
    /// The volume's id, as it stands in the path.
    pub(crate) volume: &'a str,
    pub(crate) body: RequestBody,
}

/// Why nothing is answered: the status, and the words that E2B has for it.
#[derive(Debug)]
pub(crate) struct ContentRefusal {
    status: StatusCode,
    kind: ErrorKind,
    message: String,
}

#[derive(Serialize)]
struct RefusalBody<'a> {
    code: ErrorKind,
    message: &'a str,
}

impl ContentRefusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: ErrorKind::Invalid,
            message: message.into(),
        }
    }

    pub(crate) fn answer(self) -> Response<Body> {
        let Self { status, kind, message } = self;
        answer::json(
            status,
            &RefusalBody {
                code: kind,
                message: &message,
            },
        )
    }
}

impl From<ApiRefusal> for ContentRefusal {
    fn from(refusal: ApiRefusal) -> Self {
        Self {
            status: refusal.status,
            kind: match refusal.status {
                StatusCode::UNAUTHORIZED => ErrorKind::Denied,
                StatusCode::BAD_REQUEST => ErrorKind::Invalid,
                _ => ErrorKind::Internal,
            },
            message: refusal.message,
        }
    }
}

impl ContentCall<'_> {
    /// The volume, if its token is shown.
    async fn open(&self) -> Result<HeldVolume, ContentRefusal> {
        let shown = self
            .parts
            .headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let token = shown.and_then(bearer).unwrap_or_default();
        let opened = self.daemon().open_volume(&query::decoded(self.volume), token).await;
        opened.map_err(|error| match error {
            DaemonError::Unauthorized => ContentRefusal {
                status: StatusCode::UNAUTHORIZED,
                kind: ErrorKind::Denied,
                message: "the token of the volume is missing or not valid".to_owned(),
            },
            error => failure::refusal(self.control.journal(), &error, false).into(),
        })
    }

    fn daemon(&self) -> &Daemon {
        self.control.daemon()
    }

    fn pairs(&self) -> Vec<(String, String)> {
        query::pairs(self.parts.uri.query())
    }

    fn path(&self) -> Result<VolumePath, ContentRefusal> {
        let given = query::bytes(self.parts.uri.query(), "path");
        let given = given.ok_or_else(|| ContentRefusal::invalid("path: must be there"))?;
        VolumePath::parse(&given).map_err(|error| self.refused(error))
    }

    /// What stands in the query of whom something is to belong to.
    fn owner(&self) -> Result<EntryOwner, ContentRefusal> {
        let pairs = self.pairs();
        Ok(EntryOwner {
            uid: query::number(&pairs, "uid", 0..=u32::MAX)?,
            gid: query::number(&pairs, "gid", 0..=u32::MAX)?,
            mode: query::number(&pairs, "mode", 0..=0o7777)?,
        })
    }

    fn refused(&self, error: VolumeError) -> ContentRefusal {
        let kind = error.kind();
        let status = failure::of_kind(kind);
        let is_ours = failure::is_ours(status);
        if is_ours {
            failure::record(self.control.journal(), "a volume cannot be used", &error);
        }
        ContentRefusal {
            status,
            kind,
            message: match error {
                VolumeError::File(_) | VolumeError::State(_) | VolumeError::Measuring { .. } if is_ours => {
                    "the volume cannot be used".to_owned()
                }
                VolumeError::File(error) => error.source.to_string(),
                error => with_causes(&error),
            },
        }
    }

    /// Does what blocks.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, ContentRefusal> {
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done.map_err(|error| self.refused(error)),
            Err(error) => {
                failure::record(self.control.journal(), "the request failed", &error);
                Err(ContentRefusal {
                    status: StatusCode::INTERNAL_SERVER_ERROR,
                    kind: ErrorKind::Internal,
                    message: "the request failed".to_owned(),
                })
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct ShownEntry {
    name: String,
    r#type: &'static str,
    path: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl ShownEntry {
    fn of(entry: &VolumeEntry) -> Self {
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        Self {
            name: entry
                .path
                .file_name()
                .map(|name| text(name.as_ref()))
                .unwrap_or_default(),
            r#type: match entry.kind {
                NodeKind::File => "file",
                NodeKind::Directory => "directory",
                NodeKind::Symlink => "symlink",
                NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => "unknown",
            },
            path: text(&std::path::Path::new("/").join(&entry.path)),
            size: entry.size,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            atime: time::text(entry.accessed),
            mtime: time::text(entry.modified),
            ctime: time::text(entry.changed),
            target: entry.target.as_deref().map(text),
        }
    }
}

/// What came of a call.
pub(crate) type ContentResult = Result<Response<Body>, ContentRefusal>;

pub(crate) async fn list(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let path = call.path()?;
    let depth = query::number(&call.pairs(), "depth", 0..=u32::MAX)?.unwrap_or(1);
    let depth = usize::try_from(depth).unwrap_or(usize::MAX);
    let listed = call.blocking(move || volume.content()?.list(&path, depth)).await?;
    let shown: Vec<ShownEntry> = listed.iter().map(ShownEntry::of).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) async fn stat(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let path = call.path()?;
    let entry = call.blocking(move || volume.content()?.entry(&path)).await?;
    Ok(answer::json(StatusCode::OK, &ShownEntry::of(&entry)))
}

pub(crate) async fn make_directory(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let (path, owner) = (call.path()?, call.owner()?);
    let parents = query::flag(&call.pairs(), "force")?;
    let made = call.blocking(move || {
        if volumes::room(&volume)?.entries < path.entries(parents) {
            return Err(volumes::full(volume.record()));
        }
        volume.content()?.make_directory(&path, owner, parents)
    });
    Ok(answer::json(StatusCode::CREATED, &ShownEntry::of(&made.await?)))
}

/// What is to be changed.
#[derive(Debug, Deserialize)]
struct ChangeBody {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

pub(crate) async fn change(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let path = call.path()?;
    let ContentCall {
        control,
        parts,
        volume: id,
        body,
        ..
    } = call;
    let ChangeBody { uid, gid, mode } = body.read().await?;
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err(ContentRefusal::invalid(
            "mode: must be at most 4095, which is 7777 in octal",
        ));
    }
    let call = ContentCall {
        control,
        parts,
        volume: id,
        body: RequestBody::none(),
    };
    let changed = call.blocking(move || volume.content()?.change(&path, EntryOwner { uid, gid, mode }));
    Ok(answer::json(StatusCode::OK, &ShownEntry::of(&changed.await?)))
}

pub(crate) async fn remove(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let path = call.path()?;
    call.blocking(move || volume.content()?.remove(&path)).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn read(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let path = call.path()?;
    // It stays as long as it is read from.
    let opened = call.blocking(move || Ok((volume.content()?.read(&path)?, volume)));
    let ((file, entry), volume) = opened.await?;
    let mut response = Response::new(contents(file, volume, entry.size));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(entry.size));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // What a sandbox wrote is no page of this server's.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    Ok(response)
}

/// So many bytes of a file; the connection is cut if it has become shorter.
fn contents(file: std::fs::File, volume: HeldVolume, size: u64) -> Body {
    if size == 0 {
        return body::empty();
    }
    driven(move |feed| async move {
        let _volume = volume;
        let (mut file, mut left) = (file, size);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; most];
                let read = file.read(&mut piece);
                read.map(|length| {
                    piece.truncate(length);
                    (file, piece)
                })
            });
            let (again, piece) = match read.await {
                Ok(Ok((_, piece))) if piece.is_empty() => {
                    return feed.send(Err("the file has become shorter".into())).await;
                }
                Ok(Ok(read)) => read,
                Ok(Err(error)) => return feed.send(Err(error.into())).await,
                Err(error) => return feed.send(Err(error.into())).await,
            };
            file = again;
            left -= u64::try_from(piece.len()).unwrap_or(left);
            feed.send(Ok(Bytes::from(piece))).await;
        }
    })
}

pub(crate) async fn write(call: ContentCall<'_>) -> ContentResult {
    let volume = call.open().await?;
    let (path, owner) = (call.path()?, call.owner()?);
    let parents = query::flag(&call.pairs(), "force")?;
    let begun = call.blocking(move || {
        let room = volumes::room(&volume)?;
        let full = volumes::full(volume.record());
        // A file that is replaced is counted until it is.
        if room.entries < path.entries(parents) {
            return Err(full);
        }
        let writer = volume.content()?.write(path, parents, room.bytes, full)?;
        Ok((writer, volume))
    });
    let (mut writer, volume) = begun.await?;
    let ContentCall {
        control,
        parts,
        volume: id,
        body,
        ..
    } = call;
    let call = ContentCall {
        control,
        parts,
        volume: id,
        body: RequestBody::none(),
    };
    let mut incoming = body.into_incoming();
    while let Some(piece) = next_piece(&mut incoming).await? {
        let written = call.blocking(move || {
            writer.write(&piece)?;
            Ok(writer)
        });
        writer = match written.await {
            Ok(writer) => writer,
            Err(refusal) => {
                drain(incoming).await;
                return Err(refusal);
            }
        };
    }
    let finished = call.blocking(move || {
        // Others may have filled the volume meanwhile: room is looked for again, and by one after the other.
        let place = volume.record().id.as_str().bytes().map(usize::from).sum::<usize>() % FINISHING.len();
        let _one_at_a_time = FINISHING[place].lock().unwrap_or_else(PoisonError::into_inner);
        if volumes::room(&volume)?.bytes < writer.written() {
            return Err(volumes::full(volume.record()));
        }
        writer.finish(owner)
    });
    Ok(answer::json(StatusCode::CREATED, &ShownEntry::of(&finished.await?)))
}

/// Some of what follows; `None` at the end.
async fn next_piece(incoming: &mut Option<Incoming>) -> Result<Option<Bytes>, ContentRefusal> {
    let mut piece = BytesMut::new();
    while let Some(body) = incoming.as_mut().filter(|_| piece.len() < PIECE) {
        match tokio::time::timeout(PIECE_TIMEOUT, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    piece.extend_from_slice(data);
                }
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(ContentRefusal::invalid("the body ended early")),
            Err(_) => {
                return Err(ContentRefusal {
                    status: StatusCode::REQUEST_TIMEOUT,
                    kind: ErrorKind::Timeout,
                    message: "the body took too long".to_owned(),
                });
            }
        }
    }
    Ok((!piece.is_empty()).then(|| piece.freeze()))
}

async fn drain(mut incoming: Option<Incoming>) {
    let mut left = DRAINED;
    while left > 0 {
        let Some(body) = incoming.as_mut() else { return };
        let Ok(Some(Ok(frame))) = tokio::time::timeout(Duration::from_secs(1), body.frame()).await else {
            return;
        };
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len).max(1));
    }
}
