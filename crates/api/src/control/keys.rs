//! The keys of a server, as they are made and revoked.

use std::path::PathBuf;

use offleash_daemon::{DaemonError, KeyStore};

/// Where the keys are.
#[derive(Debug)]
pub(crate) struct KeyService {
    state: Option<PathBuf>,
}

impl KeyService {
    /// Those in the state directory of a daemon; in the usual one if absent.
    pub(super) fn new(state: Option<PathBuf>) -> Self {
        Self { state }
    }

    /// Work with the keys, away from the threads that answer requests: their file may have to be waited for.
    pub(crate) fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(KeyStore) -> Result<T, DaemonError> + Send + 'static,
    ) -> impl Future<Output = Result<T, DaemonError>> + Send + 'static {
        let state = self.state.clone();
        async move {
            let opened = move || KeyStore::open(state.as_deref()).and_then(work);
            let done = tokio::task::spawn_blocking(opened).await;
            done.unwrap_or_else(|error| {
                let (tried, source) = ("work with the keys", error.into());
                Err(DaemonError::Host { tried, source })
            })
        }
    }
}
