//! Fetches blobs, and goes on where they broke off.

use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use hyper::Response;
use hyper::body::Incoming;

use super::connection::{broken_off, is_broken_off};
use super::{MAX_ATTEMPTS, Question, Repository};
use crate::error::ImageError;
use crate::manifest::Descriptor;
use crate::progress::{ImageProgress, ProgressStep};
use crate::store::{ImageStore, PartialBlob};

const WAITING_INTERVAL: Duration = Duration::from_millis(100);

impl Repository<'_> {
    /// Fetches a blob into the store, if it is not there.
    pub(crate) async fn fetch_blob(
        &self,
        store: &ImageStore,
        what: &'static str,
        blob: &Descriptor,
        progress: &dyn ImageProgress,
    ) -> Result<(), ImageError> {
        let digest = blob.digest;
        let Some(mut partial) = self.begin(store, blob, progress).await? else {
            return Ok(());
        };
        if partial.length() > blob.bytes() {
            partial.restart()?;
        }
        let mut had = partial.length();
        progress.step(ProgressStep::Fetching {
            digest,
            bytes: blob.bytes(),
            had,
        });
        let mut attempt = 0;
        loop {
            let before = partial.length();
            let fetched = self.fetch_rest(what, blob, &mut partial, progress).await;
            if partial.length() > before {
                attempt = 0;
            }
            match fetched {
                Ok(()) => match partial.finish(what, &digest, blob.bytes()) {
                    // What an earlier process left may have been damaged.
                    Err(ImageError::OtherDigest { .. }) if had > 0 => {
                        had = 0;
                        let begun = store.begin_blob(&digest)?;
                        partial = begun.ok_or(ImageError::Busy {
                            doing: "fetches the image",
                        })?;
                        progress.step(ProgressStep::Resuming { digest });
                    }
                    Err(error) => return Err(error),
                    Ok(()) => {
                        progress.step(ProgressStep::Complete { digest });
                        return Ok(());
                    }
                },
                Err(error) if is_broken_off(&error) && attempt < MAX_ATTEMPTS => {
                    progress.step(ProgressStep::Resuming { digest });
                    tokio::time::sleep(self.settings.pause(attempt)).await;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A blob that nobody else fetches; `None` when it is here.
    async fn begin(
        &self,
        store: &ImageStore,
        blob: &Descriptor,
        progress: &dyn ImageProgress,
    ) -> Result<Option<PartialBlob>, ImageError> {
        let (mut length, mut grown) = (0, Instant::now());
        let mut is_told = false;
        loop {
            if store.has_blob(&blob.digest) {
                return Ok(None);
            }
            if let Some(partial) = store.begin_blob(&blob.digest)? {
                if store.has_blob(&blob.digest) {
                    partial.abandon();
                    return Ok(None);
                }
                return Ok(Some(partial));
            }
            if !std::mem::replace(&mut is_told, true) {
                progress.step(ProgressStep::Waiting { digest: blob.digest });
            }
            let now = store.partial_length(&blob.digest);
            if now != length {
                (length, grown) = (now, Instant::now());
            }
            // It tries again itself for a while.
            if grown.elapsed() > self.settings.stall_timeout * 2 {
                return Err(ImageError::Busy {
                    doing: "fetches the image and gets nothing",
                });
            }
            tokio::time::sleep(WAITING_INTERVAL).await;
        }
    }

    async fn fetch_rest(
        &self,
        what: &'static str,
        blob: &Descriptor,
        partial: &mut PartialBlob,
        progress: &dyn ImageProgress,
    ) -> Result<(), ImageError> {
        if partial.length() == blob.bytes() && partial.length() > 0 {
            return Ok(());
        }
        let question = Question {
            from: partial.length(),
            ..Question::default()
        };
        let response = self.get(&format!("blobs/{}", blob.digest), &question).await?;
        match response.status() {
            StatusCode::OK => {
                partial.restart()?;
                self.check_length(what, blob, &response)?;
            }
            StatusCode::PARTIAL_CONTENT if starts_at(&response, partial.length()) => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if partial.length() > 0 => {
                partial.restart()?;
                return Err(ImageError::Unreachable {
                    registry: self.name.clone(),
                    reason: "it does not go on where it broke off".to_owned(),
                });
            }
            StatusCode::NOT_FOUND => {
                return Err(ImageError::MissingBlob {
                    what,
                    digest: blob.digest,
                });
            }
            _ => return Err(self.status(response).await),
        }
        let mut body = response.into_body();
        while let Some(data) = self.connector.next(&mut body, &self.name).await? {
            let data = data.map_err(|error| broken_off(&self.name, &error))?;
            let length = partial.length() + data.len() as u64;
            if length > blob.bytes() {
                partial.restart()?;
                return Err(ImageError::OtherSize {
                    what,
                    digest: blob.digest,
                    expected: blob.bytes(),
                    found: length,
                });
            }
            partial.append(&data)?;
            progress.step(ProgressStep::Fetched {
                digest: blob.digest,
                bytes: data.len() as u64,
            });
        }
        match partial.length() == blob.bytes() {
            true => Ok(()),
            false => Err(ImageError::Unreachable {
                registry: self.name.clone(),
                reason: "it ended too early".to_owned(),
            }),
        }
    }

    fn check_length(
        &self,
        what: &'static str,
        blob: &Descriptor,
        response: &Response<Incoming>,
    ) -> Result<(), ImageError> {
        let said = response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok());
        match said.and_then(|said| said.parse::<u64>().ok()) {
            Some(found) if found != blob.bytes() => Err(ImageError::OtherSize {
                what,
                digest: blob.digest,
                expected: blob.bytes(),
                found,
            }),
            _ => Ok(()),
        }
    }
}

/// Whether an answer goes on where we are (RFC 9110, 14.4).
fn starts_at(response: &Response<Incoming>, offset: u64) -> bool {
    let said = response
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|value| value.to_str().ok());
    let start = said.and_then(|said| said.strip_prefix("bytes ")?.split('-').next()?.parse::<u64>().ok());
    start == Some(offset)
}
