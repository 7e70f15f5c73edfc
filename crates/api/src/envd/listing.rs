//! Lists of what is in a directory, within bounds of memory and time.
//!
//! Code in a sandbox can fill a directory with as much as its disk holds, and a list is in memory three times: as it came,
//! as it is told, and as it is written. So each is bounded in bytes, few large ones are made at a time, and a client that
//! does not take one does not keep it.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use offleash_manager::keeper::error::KeeperError;
use offleash_manager::keeper::files::FileListing;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::entry::{bytes_of, entry_info};
use super::failure::Failure;
use super::filesystem_messages::ListDirResponse;
use crate::body::Body;
use crate::connect::{self, Code, Codec, ConnectError, MAX_ANSWER};
use crate::driven::taken_within;

/// From how many bytes on a list is a large one.
const SMALL: usize = 256 * 1024;
/// How many large ones there are at a time, of all sandboxes.
const LARGE_AT_ONCE: usize = 2;
/// How long a large one waits until it is its turn, and how long all of it may take.
const TURN: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_secs(180);
/// How long a client may take to read it.
const TAKEN: Duration = Duration::from_secs(120);

/// The turns of large lists.
#[derive(Debug, Clone)]
pub(crate) struct Listings(Arc<Semaphore>);

impl Default for Listings {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_AT_ONCE)))
    }
}

/// A list, and the turn of a large one.
#[derive(Debug)]
pub(super) struct Listed {
    response: ListDirResponse,
    turn: Option<OwnedSemaphorePermit>,
}

impl Listings {
    /// Takes in a whole list.
    ///
    /// # Errors
    /// `resource_exhausted` for one that is too large, or when there are too many; `deadline_exceeded`; what the sandbox
    /// says.
    pub(super) async fn take(&self, listing: FileListing<'_>) -> Result<Listed, Taken> {
        let late = |_| {
            Taken::Told(ConnectError::new(
                Code::DeadlineExceeded,
                "the directory takes too long to list",
            ))
        };
        timeout(WHOLE, self.taken(listing)).await.map_err(late)?
    }

    async fn taken(&self, mut listing: FileListing<'_>) -> Result<Listed, Taken> {
        let (mut entries, mut bytes, mut turn) = (Vec::new(), 0, None);
        while let Some(piece) = listing.next().await? {
            for entry in &piece {
                let entry = entry_info(entry);
                bytes += bytes_of(&entry);
                entries.push(entry);
            }
            if bytes > MAX_ANSWER {
                let text = format!("the directory has more entries than fit {MAX_ANSWER} bytes");
                return Err(Taken::Told(ConnectError::new(Code::ResourceExhausted, text)));
            }
            if bytes > SMALL && turn.is_none() {
                turn = Some(self.turn().await?);
            }
        }
        let response = ListDirResponse { entries };
        Ok(Listed { response, turn })
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Taken> {
        let turn = timeout(TURN, Arc::clone(&self.0).acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            let text = "too many large directories are listed at this moment; ask again later";
            Taken::Told(ConnectError::new(Code::ResourceExhausted, text))
        })
    }
}

/// Why a list was not taken in.
#[derive(Debug)]
pub(super) enum Taken {
    /// The sandbox says so.
    Keeper(KeeperError),
    /// It is for the caller.
    Told(ConnectError),
}

impl From<KeeperError> for Taken {
    fn from(error: KeeperError) -> Self {
        Self::Keeper(error)
    }
}

/// The answer with a list.
pub(super) fn answer(codec: Codec, listed: Listed) -> Result<Response<Body>, Failure> {
    let Listed { response, turn } = listed;
    let written = codec.encode(&response)?;
    drop(response);
    let body = match turn {
        Some(turn) => taken_within(written, TAKEN, turn),
        None => crate::body::full(written),
    };
    Ok(connect::written(codec, body))
}
