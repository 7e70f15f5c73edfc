//! The services of one sandbox, for who asks several things at once on an event loop of its own.

use std::fs::File;

use http::header::RANGE;
use http::{Method, StatusCode};
use offleash_core::error::ErrorKind;
use serde_json::{Value, json};

use super::files::{self, Kind, files_uri};
use super::transport::{self, Transport};
use super::{ClientError, ClientTarget, malformed, unix_ms};
use crate::http::body;

/// The services of a sandbox, asked as one user.
#[derive(Debug, Clone)]
pub struct SandboxServices {
    pub(super) transport: Transport,
    pub(super) target: ClientTarget,
}

/// What is at a path inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Where it is, as the sandbox writes it.
    pub path: String,
    /// What it is; a link is what it leads to, in a list of a directory one to a directory is a link.
    pub kind: Kind,
    /// Whether it is a link.
    pub is_link: bool,
    /// Where it leads to, if it is a link.
    pub target: Option<String>,
    /// Its size in bytes.
    pub size: u64,
    /// The nine bits of permissions.
    pub mode: u32,
    /// When it was changed, in seconds since the beginning of 1970.
    pub modified_s: i64,
}

impl SandboxServices {
    pub(super) fn new(transport: Transport, target: ClientTarget) -> Self {
        Self { transport, target }
    }

    /// The same for another event loop.
    pub fn for_another_loop(&self) -> Self {
        Self::new(self.transport.for_another_loop(), self.target.clone())
    }

    /// The same as `user`.
    pub fn as_user(&self, user: &str) -> Self {
        Self::new(self.transport.clone(), self.target.as_user(Some(user)))
    }

    /// What is at `path`; `None` if nothing is.
    ///
    /// # Errors
    /// `NotRunning`, `Unreachable`, `Refused`, `Malformed`.
    pub async fn entry(&self, path: &str) -> Result<Option<FileEntry>, ClientError> {
        const METHOD: &str = "filesystem.Filesystem/Stat";
        match self.call(METHOD, &json!({ "path": path })).await {
            Ok(answer) => entry_of(&answer["entry"], files::kind_of).map(Some),
            Err(ClientError::Refused {
                kind: ErrorKind::NotFound,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is in the directory `path`.
    ///
    /// # Errors
    /// As [`Self::entry`].
    pub async fn list(&self, path: &str) -> Result<Vec<FileEntry>, ClientError> {
        let answer = self
            .call("filesystem.Filesystem/ListDir", &json!({ "path": path, "depth": 1 }))
            .await?;
        // Nothing in it leaves the list out.
        let entries = answer.get("entries").and_then(Value::as_array);
        let entries = entries.map(Vec::as_slice).unwrap_or_default();
        entries
            .iter()
            .map(|entry| entry_of(entry, files::kind_in_list))
            .collect()
    }

    /// Makes a directory, and those that lead to it.
    ///
    /// # Errors
    /// As [`Self::entry`]; `Refused` with `Conflict` if something is there.
    pub async fn make_directory(&self, path: &str) -> Result<(), ClientError> {
        let message = json!({ "path": path });
        self.call("filesystem.Filesystem/MakeDir", &message).await.map(drop)
    }

    /// Removes what is at `path`, with all below it.
    ///
    /// # Errors
    /// As [`Self::entry`].
    pub async fn remove(&self, path: &str) -> Result<(), ClientError> {
        let message = json!({ "path": path });
        self.call("filesystem.Filesystem/Remove", &message).await.map(drop)
    }

    /// Gives what is at `from` the path `to`.
    ///
    /// # Errors
    /// As [`Self::entry`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), ClientError> {
        let message = json!({ "source": from, "destination": to });
        self.call("filesystem.Filesystem/Move", &message).await.map(drop)
    }

    /// At most `length` bytes of the file `path` from `offset` on; none at its end.
    ///
    /// # Errors
    /// As [`Self::entry`].
    pub async fn read(&self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, ClientError> {
        let uri = files_uri(path, self.target.user.as_deref());
        let last = offset.saturating_add(length).saturating_sub(1);
        let request = self
            .target
            .request(Method::GET, &uri, "")
            .header(RANGE, format!("bytes={offset}-{last}"))
            .body(body::empty());
        let request = transport::built(request, &uri)?;
        let mut answer = match self
            .transport
            .send_but(StatusCode::RANGE_NOT_SATISFIABLE, request, &uri)
            .await?
        {
            Some(answer) => answer,
            // Nothing is there any more, as at the end of a file.
            None => return Ok(Vec::new()),
        };
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if answer.is_partial() {
            let bytes = answer.bytes().await?;
            return Ok(bytes.get(..wanted.min(bytes.len())).unwrap_or_default().to_vec());
        }
        // A server that gives the whole file gives what is before, too.
        let (mut skipped, mut bytes) = (offset, Vec::new());
        while let Some(piece) = answer.piece().await? {
            let skip = usize::try_from(skipped).unwrap_or(usize::MAX).min(piece.len());
            skipped -= skip as u64;
            let piece = piece.get(skip..).unwrap_or_default();
            let room = wanted - bytes.len();
            bytes.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
            if bytes.len() >= wanted {
                break;
            }
        }
        Ok(bytes)
    }

    /// Copies `from` to the file `path`, which is made or overwritten.
    ///
    /// # Errors
    /// As [`Self::entry`], and `Local` when it cannot be read here.
    pub async fn upload(&self, from: File, path: &str) -> Result<(), ClientError> {
        files::upload(&self.transport, &self.target, self.target.user.as_deref(), from, path).await
    }

    async fn call(&self, method: &str, message: &Value) -> Result<Value, ClientError> {
        self.target.call(&self.transport, method, message).await
    }
}

fn entry_of(entry: &Value, kind: impl Fn(&Value) -> Kind) -> Result<FileEntry, ClientError> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let name = text("name").ok_or_else(|| malformed("an entry", "it has no name"))?;
    // 64 bits are text in JSON of protobuf.
    let number = |name: &str| match entry.get(name) {
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_u64(),
        None => None,
    };
    let modified = text("modifiedTime").and_then(unix_ms).unwrap_or(0);
    Ok(FileEntry {
        name: name.to_owned(),
        path: text("path").unwrap_or_default().to_owned(),
        kind: kind(entry),
        is_link: entry["isSymlink"] == true,
        target: text("symlinkTarget").map(str::to_owned),
        size: number("size").unwrap_or(0),
        mode: u32::try_from(number("mode").unwrap_or(0)).unwrap_or(0) & 0o777,
        modified_s: modified.div_euclid(1000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_the_file_service_writes_it() {
        let entry = json!({
            "name": "a", "type": "FILE_TYPE_FILE", "size": "5000000000", "mode": 0o100_755,
            "modifiedTime": "2026-01-02T03:04:05.500Z", "symlinkTarget": "b", "isSymlink": true,
        });
        let read = entry_of(&entry, files::kind_of).unwrap();
        assert_eq!((read.size, read.mode, read.kind), (5_000_000_000, 0o755, Kind::File));
        assert_eq!((read.target.as_deref(), read.is_link), (Some("b"), true));
        assert_eq!(unix_ms("2026-01-02T03:04:05Z"), Some(read.modified_s * 1000));
        assert!(entry_of(&json!({ "type": "FILE_TYPE_FILE" }), files::kind_of).is_err());
    }
}
