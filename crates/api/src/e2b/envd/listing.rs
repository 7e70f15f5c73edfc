//! Lists of what is in a directory, within bounds of memory and time.
//!
//! Code in a sandbox can fill a directory with as much as its disk holds, and a list is in memory three times: as it came,
//! as it is told, and as it is written. So each is bounded in bytes, few large ones are made at a time, one of each key, and
//! a client that does not take one keeps neither it nor anybody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::Response;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::FileListing;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::entry::{bytes_of, entry_info};
use super::failure::ServiceFailure;
use super::messages::filesystem::ListDirResponse;
use crate::e2b::connect::{self, ConnectCode, ConnectError, MAX_ANSWER, MessageCodec};
use crate::http::body::Body;
use crate::http::driven::taken_within;
use crate::http::large::{LargeAnswers, OF_KEY};

/// From how many bytes on a list is a large one.
const SMALL: usize = 256 * 1024;
/// How many large ones are made at a time, of all sandboxes. A sandbox can take its time over one; so each key has one only.
const LARGE_AT_ONCE: usize = 3;
/// Bytes of large ones that wait to be read, of all sandboxes.
const UNREAD: usize = 3 * MAX_ANSWER;
/// How long a large one waits until it is its turn, and how long all of it may take.
const TURN: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_secs(180);
/// How long a client may take to read it.
const TAKEN: Duration = Duration::from_secs(120);

/// The turns of large lists, and those that wait to be read.
#[derive(Debug, Clone)]
pub(crate) struct ListingTurns {
    turns: Arc<Semaphore>,
    of_keys: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
    unread: LargeAnswers,
}

impl Default for ListingTurns {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            of_keys: Arc::default(),
            unread: LargeAnswers::within(OF_KEY, UNREAD),
        }
    }
}

/// A list, and what a large one has besides.
#[derive(Debug)]
pub(super) struct TakenListing {
    response: ListDirResponse,
    large: Option<LargeList>,
}

#[derive(Debug)]
struct LargeList {
    turn: ListingTurn,
    unread: LargeAnswers,
    key: String,
}

/// That of its key, and one of all.
#[derive(Debug)]
struct ListingTurn {
    _of_key: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl ListingTurns {
    /// Takes in a whole list of a sandbox of the key `key`.
    ///
    /// # Errors
    /// `resource_exhausted` for one that is too large, or when there are too many; `deadline_exceeded`; what the sandbox
    /// says.
    pub(super) async fn take(&self, key: &str, listing: FileListing<'_>) -> Result<TakenListing, ListingFailure> {
        let late = |_| {
            ListingFailure::Told(ConnectError::new(
                ConnectCode::DeadlineExceeded,
                "the directory takes too long to list",
            ))
        };
        timeout(WHOLE, self.taken(key, listing)).await.map_err(late)?
    }

    async fn taken(&self, key: &str, mut listing: FileListing<'_>) -> Result<TakenListing, ListingFailure> {
        let (mut entries, mut bytes, mut turn) = (Vec::new(), 0, None);
        while let Some(piece) = listing.next().await? {
            for entry in &piece {
                let entry = entry_info(entry);
                bytes += bytes_of(&entry);
                entries.push(entry);
            }
            if bytes > MAX_ANSWER {
                let text = format!("the directory has more entries than fit {MAX_ANSWER} bytes");
                return Err(ListingFailure::Told(ConnectError::new(
                    ConnectCode::ResourceExhausted,
                    text,
                )));
            }
            if bytes > SMALL && turn.is_none() {
                turn = Some(self.turn(key).await?);
            }
        }
        let response = ListDirResponse { entries };
        let large = turn.map(|turn| LargeList {
            turn,
            unread: self.unread.clone(),
            key: key.to_owned(),
        });
        Ok(TakenListing { response, large })
    }

    async fn turn(&self, key: &str) -> Result<ListingTurn, ListingFailure> {
        let (own, all) = (self.turns_of(key), Arc::clone(&self.turns));
        // In this order, so that whoever waits for a turn of its key keeps nobody else waiting.
        let both = async move {
            Some(ListingTurn {
                _of_key: own.acquire_owned().await.ok()?,
                _of_all: all.acquire_owned().await.ok()?,
            })
        };
        timeout(TURN, both).await.ok().flatten().ok_or_else(|| {
            let text = "too many large directories are listed at this moment; ask again later";
            ListingFailure::Told(ConnectError::new(ConnectCode::ResourceExhausted, text))
        })
    }

    /// The turns of one key; they are there as long as somebody has one or waits for one.
    fn turns_of(&self, key: &str) -> Arc<Semaphore> {
        let mut all = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = all.get(key).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Semaphore::new(1));
        all.insert(key.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

/// Why a list was not taken in.
#[derive(Debug)]
pub(super) enum ListingFailure {
    /// The sandbox says so.
    Supervisor(SupervisorError),
    /// It is for the caller.
    Told(ConnectError),
}

impl From<SupervisorError> for ListingFailure {
    fn from(error: SupervisorError) -> Self {
        Self::Supervisor(error)
    }
}

/// The answer with a list.
pub(super) fn answer(codec: MessageCodec, listed: TakenListing) -> Result<Response<Body>, ServiceFailure> {
    let TakenListing { response, large } = listed;
    let written = codec.encode(&response)?;
    drop(response);
    let Some(LargeList { turn, unread, key }) = large else {
        return Ok(connect::written(codec, crate::http::body::full(written)));
    };
    // What is written waits for its client alone.
    drop(turn);
    let share = unread
        .take(&key, written.len())
        .map_err(|full| ConnectError::new(ConnectCode::ResourceExhausted, full.message()))?;
    Ok(connect::written(codec, taken_within(written, TAKEN, share)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_a_moment<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Its clock goes on by itself while everything waits.
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(work)
    }

    async fn listed(listings: &ListingTurns, key: &str) -> Result<TakenListing, ListingFailure> {
        Ok(TakenListing {
            response: ListDirResponse::default(),
            large: Some(LargeList {
                turn: listings.turn(key).await?,
                unread: listings.unread.clone(),
                key: key.to_owned(),
            }),
        })
    }

    #[test]
    fn one_key_holds_one_turn_and_no_client_holds_any() {
        in_a_moment(async {
            let listings = ListingTurns::default();
            let held = listings.turn("a").await.unwrap();
            // The sandboxes of a key wait for each other, and for nobody else.
            assert!(matches!(listings.turn("a").await, Err(ListingFailure::Told(_))));
            let others = [listings.turn("b").await.unwrap(), listings.turn("c").await.unwrap()];
            assert!(matches!(listings.turn("d").await, Err(ListingFailure::Told(_))));
            drop((held, others));
            // Lists that nobody reads.
            let mut unread = Vec::new();
            for number in 0..2 * LARGE_AT_ONCE {
                let listed = listed(&listings, &format!("k{number}")).await.unwrap();
                unread.push(answer(MessageCodec::Json, listed).unwrap());
            }
            assert_eq!(listings.turns.available_permits(), LARGE_AT_ONCE);
            listings.turn("a").await.unwrap();
            assert_eq!(listings.of_keys.lock().unwrap().len(), 1);
        });
    }

    #[test]
    fn what_nobody_reads_is_bounded_for_each_key() {
        in_a_moment(async {
            let listings = ListingTurns::default();
            let first = listings.unread.take("a", OF_KEY).unwrap();
            let refused = answer(MessageCodec::Json, listed(&listings, "a").await.unwrap()).unwrap_err();
            assert!(matches!(refused, ServiceFailure::Told(error) if error.code == ConnectCode::ResourceExhausted));
            answer(MessageCodec::Json, listed(&listings, "b").await.unwrap()).unwrap();
            drop(first);
            answer(MessageCodec::Json, listed(&listings, "a").await.unwrap()).unwrap();
        });
    }
}
