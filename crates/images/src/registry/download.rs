//! Fetches blobs, and goes on where they broke off.

use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use hyper::Response;
use hyper::body::Incoming;

use super::connection::{broken_off, is_broken_off};
use super::{MAX_ATTEMPTS, Question, Repository};
use crate::digest::{DigestHasher, ImageDigest};
use crate::error::ImageError;
use crate::manifest::Descriptor;
use crate::progress::{ImageProgress, ProgressStep};
use crate::store::{ImageStore, PartialBlob};

const WAITING_INTERVAL: Duration = Duration::from_millis(100);
/// How often a blob may break off, however much came in between.
pub(super) const MAX_RESUMPTIONS: u32 = 200;

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
            return self.prove(store, what, blob).await;
        };
        let source = self.source();
        // What somebody else sent is no part of what this one does.
        let is_ours = store.proof(&digest).partial_source.as_deref() == Some(&*source);
        if partial.length() > blob.bytes() || !is_ours {
            partial.restart()?;
        }
        store.note_partial_source(&digest, &source)?;
        let mut had = partial.length();
        progress.step(ProgressStep::Fetching {
            digest,
            bytes: blob.bytes(),
            had,
        });
        let mut attempt = 0;
        let mut resumptions = 0;
        // What is sent a second time is no progress: a registry that has it begun anew again and again would never end.
        let mut furthest = partial.length();
        loop {
            let fetched = self.fetch_rest(what, blob, &mut partial, progress).await;
            if partial.length() > furthest {
                (furthest, attempt) = (partial.length(), 0);
            }
            match fetched {
                Ok(()) => match partial.finish(what, &digest, blob.bytes(), || store.note_source(&digest, &source)) {
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
                Err(error) if is_broken_off(&error) && attempt < MAX_ATTEMPTS && resumptions < MAX_RESUMPTIONS => {
                    progress.step(ProgressStep::Resuming { digest });
                    tokio::time::sleep(self.settings.pause(attempt)).await;
                    attempt += 1;
                    resumptions += 1;
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
            // It may not be given to who asks now.
            match self.ask_for(what, blob).await? {
                true => return Ok(()),
                false => partial.restart()?,
            }
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
        let begun = partial.length();
        let mut take = |data: &[u8]| {
            partial.append(data)?;
            progress.step(ProgressStep::Fetched {
                digest: blob.digest,
                bytes: data.len() as u64,
            });
            Ok(())
        };
        let received = self.receive(what, blob, response, begun, &mut take).await;
        if matches!(received, Err(ImageError::OtherSize { .. })) {
            partial.restart()?;
        }
        received
    }

    /// Reads what an answer holds of a blob from byte `length` on.
    async fn receive(
        &self,
        what: &'static str,
        blob: &Descriptor,
        response: Response<Incoming>,
        mut length: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let mut body = response.into_body();
        while let Some(data) = self.connector.next(&mut body, &self.name).await? {
            let data = data.map_err(|error| broken_off(&self.name, &error))?;
            length += data.len() as u64;
            if length > blob.bytes() {
                return Err(ImageError::OtherSize {
                    what,
                    digest: blob.digest,
                    expected: blob.bytes(),
                    found: length,
                });
            }
            take(&data)?;
        }
        match length == blob.bytes() {
            true => Ok(()),
            false => Err(ImageError::Unreachable {
                registry: self.name.clone(),
                reason: "it ended too early".to_owned(),
            }),
        }
    }

    /// That this repository would give a blob that is here already. One that has given it is believed, and so is its registry
    /// when it says that another repository has it; any other has to send all of it, since saying so proves nothing.
    ///
    /// # Errors
    /// `MissingBlob`, `Denied`, `OtherDigest`; as fetching it.
    async fn prove(&self, store: &ImageStore, what: &'static str, blob: &Descriptor) -> Result<(), ImageError> {
        let (source, sources) = (self.source(), store.proof(&blob.digest).sources);
        if sources.contains(&source) {
            return Ok(());
        }
        let authority = self.base.authority();
        let is_same_registry = sources.iter().any(|known| known.split('/').next() == Some(&*authority));
        let is_proved = is_same_registry && self.ask_for(what, blob).await?;
        if !is_proved {
            self.receive_again(what, blob).await?;
        }
        store.note_source(&blob.digest, &source)
    }

    /// Whether the registry says that it would give a blob; not every one answers that.
    async fn ask_for(&self, what: &'static str, blob: &Descriptor) -> Result<bool, ImageError> {
        let question = Question {
            is_head: true,
            ..Question::default()
        };
        let response = self.get(&format!("blobs/{}", blob.digest), &question).await?;
        match response.status() {
            StatusCode::OK => self.check_length(what, blob, &response).map(|()| true),
            StatusCode::NOT_FOUND => Err(ImageError::MissingBlob {
                what,
                digest: blob.digest,
            }),
            _ => Ok(false),
        }
    }

    /// Has a blob sent that is here, and keeps nothing of it.
    async fn receive_again(&self, what: &'static str, blob: &Descriptor) -> Result<(), ImageError> {
        let mut attempt = 0;
        loop {
            let received = self.digest_of_blob(what, blob).await;
            match received {
                Ok(found) if found == blob.digest => return Ok(()),
                Ok(found) => {
                    return Err(ImageError::OtherDigest {
                        what,
                        expected: blob.digest,
                        found,
                    });
                }
                Err(error) if is_broken_off(&error) && attempt < MAX_ATTEMPTS => {
                    tokio::time::sleep(self.settings.pause(attempt)).await;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn digest_of_blob(&self, what: &'static str, blob: &Descriptor) -> Result<ImageDigest, ImageError> {
        let response = self
            .get(&format!("blobs/{}", blob.digest), &Question::default())
            .await?;
        match response.status() {
            StatusCode::OK => self.check_length(what, blob, &response)?,
            StatusCode::NOT_FOUND => {
                return Err(ImageError::MissingBlob {
                    what,
                    digest: blob.digest,
                });
            }
            _ => return Err(self.status(response).await),
        }
        let mut hasher = DigestHasher::default();
        self.receive(what, blob, response, 0, &mut |data| {
            hasher.update(data);
            Ok(())
        })
        .await?;
        Ok(hasher.finish())
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
