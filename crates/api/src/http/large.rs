//! LargeAnswers answers that wait to be read, within bounds of memory and time.
//!
//! An answer is at hand as a whole until its client has taken it, and a client need not. So those that are not small have
//! a time to be taken, and there is a bound on their bytes, of each key and of all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::driven::taken_within;

/// Up to how many bytes an answer is a small one.
const SMALL: usize = 64 * 1024;
/// Bytes of large ones that wait, of a key's clients and of all.
pub(crate) const OF_KEY: usize = 8 * 1024 * 1024;
const OF_ALL: usize = 64 * 1024 * 1024;
/// How long a client may take to read one.
const TAKEN: Duration = Duration::from_secs(60);
/// When it is worth asking again.
const SOON: Duration = Duration::from_secs(1);

/// What waits, and how much may.
#[derive(Debug, Clone)]
pub(crate) struct LargeAnswers {
    waiting: Arc<Mutex<WaitingBytes>>,
    of_key: usize,
    of_all: usize,
}

impl Default for LargeAnswers {
    fn default() -> Self {
        Self::within(OF_KEY, OF_ALL)
    }
}

/// Why an answer is not given: too much waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooMuchWaiting {
    OfKey,
    OfAll,
}

impl TooMuchWaiting {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::OfKey => "too many large answers wait to be read by clients of this key",
            Self::OfAll => "too many large answers wait to be read",
        }
    }
}

impl From<TooMuchWaiting> for ApiRefusal {
    fn from(full: TooMuchWaiting) -> Self {
        let status = match full {
            TooMuchWaiting::OfKey => StatusCode::TOO_MANY_REQUESTS,
            TooMuchWaiting::OfAll => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, full.message()).retry_after(SOON)
    }
}

#[derive(Debug, Default)]
struct WaitingBytes {
    of_all: usize,
    of_keys: BTreeMap<String, usize>,
}

/// The bytes of one answer, until it was read or given up.
#[derive(Debug)]
pub(crate) struct AnswerShare {
    large: LargeAnswers,
    key: String,
    bytes: usize,
}

impl LargeAnswers {
    /// With these bounds on the bytes that wait for a key's clients, of which one answer is always given, and for all.
    pub(crate) fn within(of_key: usize, of_all: usize) -> Self {
        let waiting = Arc::default();
        Self {
            waiting,
            of_key,
            of_all,
        }
    }

    /// `response`, given to a client of `key` within the bounds. One whose length is not known is made while it is read and
    /// left as it is.
    ///
    /// # Errors
    /// 429 when too much waits for other clients of the key, 503 when too much waits for all.
    pub(crate) async fn bounded(&self, key: &str, response: Response<Body>) -> Result<Response<Body>, ApiRefusal> {
        let length = response.body().size_hint().exact();
        let length = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length <= SMALL {
            return Ok(response);
        }
        let share = self.take(key, length)?;
        let (head, body) = response.into_parts();
        let failed = |_| ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed");
        let bytes = body.collect().await.map_err(failed)?.to_bytes();
        Ok(Response::from_parts(head, taken_within(bytes, TAKEN, share)))
    }

    fn lock(&self) -> MutexGuard<'_, WaitingBytes> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to keep `bytes` until a client of `key` has read them.
    pub(crate) fn take(&self, key: &str, bytes: usize) -> Result<AnswerShare, TooMuchWaiting> {
        let mut waiting = self.lock();
        let of_key = waiting.of_keys.get(key).copied().unwrap_or(0);
        // One by itself is always given.
        if of_key > 0 && bytes > self.of_key.saturating_sub(of_key) {
            return Err(TooMuchWaiting::OfKey);
        }
        if waiting.of_all > 0 && bytes > self.of_all.saturating_sub(waiting.of_all) {
            return Err(TooMuchWaiting::OfAll);
        }
        waiting.of_all += bytes;
        waiting.of_keys.insert(key.to_owned(), of_key + bytes);
        drop(waiting);
        Ok(AnswerShare {
            large: self.clone(),
            key: key.to_owned(),
            bytes,
        })
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        let mut waiting = self.large.lock();
        waiting.of_all -= self.bytes;
        if let Some(of_key) = waiting.of_keys.get_mut(&self.key) {
            *of_key -= self.bytes;
            if *of_key == 0 {
                waiting.of_keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body;

    #[test]
    fn what_nobody_reads_is_bounded_for_each_key_and_for_all() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Its clock goes on by itself while everything waits.
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let large = LargeAnswers::default();
            let asked =
                async |key: &str, bytes: usize| large.bounded(key, Response::new(body::full(vec![1; bytes]))).await;
            let half = OF_KEY / 2;
            let held = [asked("a", half).await.unwrap(), asked("a", half).await.unwrap()];
            let status =
                |outcome: Result<Response<Body>, ApiRefusal>| outcome.map(|_| ()).map_err(|refusal| refusal.status);
            assert_eq!(status(asked("a", half).await), Err(StatusCode::TOO_MANY_REQUESTS));
            assert_eq!(status(asked("a", SMALL).await), Ok(()));
            // Another one's clients read theirs whole.
            let read = asked("b", OF_KEY * 2).await.unwrap().into_body().collect().await;
            assert_eq!(read.unwrap().to_bytes().len(), OF_KEY * 2);
            // After a time nothing is kept for those who do not read.
            tokio::time::sleep(TAKEN * 2).await;
            assert_eq!(status(asked("a", half).await), Ok(()));
            drop(held);
            tokio::time::sleep(TAKEN * 2).await;
            let mut all = Vec::new();
            for number in 0..OF_ALL / OF_KEY {
                all.push(asked(&number.to_string(), OF_KEY).await.unwrap());
            }
            assert_eq!(status(asked("more", half).await), Err(StatusCode::SERVICE_UNAVAILABLE));
            drop(all);
            tokio::time::sleep(TAKEN * 2).await;
            let waiting = large.lock();
            assert_eq!((waiting.of_all, waiting.of_keys.len()), (0, 0));
        });
    }
}
