//! Files of a sandbox: what is there, to it and from it, in pieces and never as a whole.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::exec::local;
use super::transport::Transport;
use super::{Client, ClientError, ClientTarget, encoded, malformed, transport};
use crate::http::body;

/// How much of a file is on the way at once, in pieces.
const AHEAD: usize = 4;
/// The size of a piece in bytes.
const PIECE: usize = 256 << 10;

/// What is at a path inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, or something that is read like one.
    File,
    /// A directory.
    Directory,
    /// A symbolic link that leads to neither, or in a list one to a directory; or what is neither.
    Link,
}

impl Client {
    /// What is at `path`, as `user` sees it; `None` if nothing is.
    ///
    /// # Errors
    /// `NotRunning`, `Refused`, `Malformed`.
    pub fn stat(&self, id: &str, user: Option<&str>, path: &str) -> Result<Option<Kind>, ClientError> {
        let target = self.target(id, user)?;
        let message = json!({ "path": path });
        let asked = target.call(&self.transport, "filesystem.Filesystem/Stat", &message);
        match self.runtime.block_on(asked) {
            Ok(answer) => Ok(Some(kind_of(&answer["entry"]))),
            Err(ClientError::Refused {
                kind: offleash_core::error::ErrorKind::NotFound,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is in the directory `path`: names and kinds.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn entries(&self, id: &str, user: Option<&str>, path: &str) -> Result<Vec<(String, Kind)>, ClientError> {
        const METHOD: &str = "filesystem.Filesystem/ListDir";
        let target = self.target(id, user)?;
        let message = json!({ "path": path, "depth": 1 });
        let asked = target.call(&self.transport, METHOD, &message);
        let answer = self.runtime.block_on(asked)?;
        // Nothing in it leaves the list out.
        let entries = answer
            .get("entries")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let named = |entry: &Value| Some((entry.get("name")?.as_str()?.to_owned(), kind_in_list(entry)));
        entries
            .iter()
            .map(|entry| named(entry).ok_or_else(|| malformed(METHOD, "an entry has no name")))
            .collect()
    }

    /// Makes a directory; that it is there already is no error.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn make_directory(&self, id: &str, user: Option<&str>, path: &str) -> Result<(), ClientError> {
        let target = self.target(id, user)?;
        let message = json!({ "path": path });
        let asked = target.call(&self.transport, "filesystem.Filesystem/MakeDir", &message);
        match self.runtime.block_on(asked) {
            Ok(_)
            | Err(ClientError::Refused {
                kind: offleash_core::error::ErrorKind::Conflict,
                ..
            }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Copies the file `path` of the sandbox to `to`; answers how many bytes it has.
    ///
    /// # Errors
    /// As [`Self::stat`], and `Local` when it cannot be written here.
    pub fn download(&self, id: &str, user: Option<&str>, path: &str, to: &mut impl Write) -> Result<u64, ClientError> {
        let target = self.target(id, user)?;
        let uri = files_uri(path, user);
        self.copied(target.request(Method::GET, &uri, ""), &uri, to)
    }

    /// Copies what is at `path` of the server to `to`; answers how many bytes it has. What was written when that fails is not all.
    ///
    /// # Errors
    /// `NotRunning`, `Refused`, `Malformed`, and `Local` when it cannot be written here.
    pub fn download_from(&self, path: &str, to: &mut impl Write) -> Result<u64, ClientError> {
        self.copied(own_request(Method::GET, path), path, to)
    }

    /// Sends `from` to `path` of the server, and reads the answer.
    ///
    /// # Errors
    /// As [`Self::download_from`], and `Local` when it cannot be read here.
    pub fn upload_to(&self, path: &str, kind: &str, from: File) -> Result<Value, ClientError> {
        let request = own_request(Method::POST, path).header("content-type", kind);
        let answer = self.runtime.block_on(sent(&self.transport, request, path, from))?;
        super::parsed(&answer, path)
    }

    fn copied(&self, request: http::request::Builder, uri: &str, to: &mut impl Write) -> Result<u64, ClientError> {
        let request = transport::built(request.body(body::empty()), uri)?;
        self.runtime.block_on(async {
            let mut answer = self.transport.send(request, uri).await?;
            let mut length = 0;
            while let Some(piece) = answer.piece().await? {
                to.write_all(&piece).map_err(local("write the file"))?;
                length += piece.len() as u64;
            }
            Ok(length)
        })
    }

    /// Copies `from` to the file `path` of the sandbox, which is made or overwritten.
    ///
    /// # Errors
    /// As [`Self::stat`], and `Local` when it cannot be read here.
    pub fn upload(&self, id: &str, user: Option<&str>, from: File, path: &str) -> Result<(), ClientError> {
        let target = self.target(id, user)?;
        self.runtime
            .block_on(upload(&self.transport, &target, user, from, path))
    }
}

/// Copies a file to `path` inside, in pieces that a thread of its own reads.
pub(super) async fn upload(
    transport: &Transport,
    target: &ClientTarget,
    user: Option<&str>,
    from: File,
    path: &str,
) -> Result<(), ClientError> {
    let uri = files_uri(path, user);
    let request = target.request(Method::POST, &uri, "application/octet-stream");
    sent(transport, request, &uri, from).await.map(drop)
}

/// Sends a file as the body of a request, in pieces that a thread of its own reads; answers what is answered.
async fn sent(
    transport: &Transport,
    request: http::request::Builder,
    uri: &str,
    from: File,
) -> Result<Bytes, ClientError> {
    let (send, pieces) = mpsc::channel::<io::Result<Bytes>>(AHEAD);
    let reader = std::thread::Builder::new()
        .name("upload".to_owned())
        .spawn(move || read_pieces(from, &send))
        .map_err(local("start a thread for the file"))?;
    let body = FilePieces(pieces).map_err(Into::into).boxed_unsync();
    let request = transport::built(request.body(body), uri)?;
    let answered = match transport.send(request, uri).await {
        Ok(answer) => answer.bytes().await,
        Err(error) => Err(error),
    };
    let read = reader.join();
    match (answered, read) {
        (_, Ok(Err(error))) => Err(local("read the file")(error)),
        (answered, _) => answered,
    }
}

/// A request to the server itself.
fn own_request(method: Method, path: &str) -> http::request::Builder {
    http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
}

pub(super) fn files_uri(path: &str, user: Option<&str>) -> String {
    let user = user
        .map(|user| format!("&username={}", encoded(user)))
        .unwrap_or_default();
    format!("/files?path={}{user}", encoded(path))
}

/// Reads a file to its end; answers why it could not be.
fn read_pieces(mut from: File, to: &mpsc::Sender<io::Result<Bytes>>) -> io::Result<()> {
    loop {
        let mut piece = vec![0; PIECE];
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                piece.truncate(length);
                if to.blocking_send(Ok(piece.into())).is_err() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                // The request is broken off, so that no part is taken for the whole.
                let _gone = to.blocking_send(Err(io::Error::from(error.kind())));
                return Err(error);
            }
        }
    }
}

/// A file on its way.
struct FilePieces(mpsc::Receiver<io::Result<Bytes>>);

impl Body for FilePieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

pub(super) fn kind_of(entry: &Value) -> Kind {
    match entry.get("type").and_then(Value::as_str) {
        Some("FILE_TYPE_DIRECTORY") => Kind::Directory,
        Some("FILE_TYPE_FILE") => Kind::File,
        _ => Kind::Link,
    }
}

/// A link to a directory is a link: who goes down a tree by its lists comes to no place twice.
pub(super) fn kind_in_list(entry: &Value) -> Kind {
    match kind_of(entry) {
        Kind::Directory if entry["isSymlink"] == true => Kind::Link,
        kind => kind,
    }
}
