//! Large files go into a bucket in parts, and are there as a whole or not at all.

use bytes::Bytes;
use http::StatusCode;
use rusty_s3::actions::{CompleteMultipartUpload, CompleteMultipartUploadResponse, CreateMultipartUpload};

use super::{BucketClient, Condition, Failed, MAX_ANSWER, quoted};
use crate::digests::{Digester, Digests};
use crate::error::{BucketError, ObjectFault};
use crate::local::LocalFile;

/// What a part has, and what goes in one piece at most. No part but the last may have less than 5 MiB.
pub(crate) const PART: u64 = 8 << 20;
/// How many parts an object may have.
const MAX_PARTS: u64 = 10_000;

impl BucketClient {
    /// Writes an object in parts; answers its version and what the file comes to.
    ///
    /// # Errors
    /// `ChangedThere` where the condition does not hold, `ChangedHere` where the file was written to. What has come of the object
    /// is removed then.
    pub(crate) async fn put_in_parts(
        &self,
        name: &str,
        file: &mut LocalFile,
        condition: Condition<'_>,
    ) -> Result<(String, Digests), Failed> {
        let key = self.key(name);
        let upload = self.begin(name, &key).await?;
        let written = self.parts(name, &key, &upload, file, condition).await;
        if written.is_err() {
            let abort = self.bucket.abort_multipart_upload(self.credentials(), &key, &upload);
            // A server forgets what nobody finishes, if its owner says so.
            let _aborted = self.answered(&abort, &[], Bytes::new()).await;
        }
        written
    }

    async fn begin(&self, name: &str, key: &str) -> Result<String, Failed> {
        let action = self.bucket.create_multipart_upload(self.credentials(), key);
        let response = self.answered(&action, &[], Bytes::new()).await?;
        if response.status() != StatusCode::OK {
            return Err(self.object_refused(response, name).await);
        }
        let text = self.text(response, MAX_ANSWER).await?;
        let parsed = CreateMultipartUpload::parse_response(&text);
        let parsed = parsed.map_err(|error| self.bad(error.to_string()))?;
        Ok(parsed.upload_id().to_owned())
    }

    async fn parts(
        &self,
        name: &str,
        key: &str,
        upload: &str,
        file: &mut LocalFile,
        condition: Condition<'_>,
    ) -> Result<(String, Digests), Failed> {
        let size = PART.max(file.length().div_ceil(MAX_PARTS));
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut digester = Digester::default();
        let mut tags = Vec::new();
        for number in 1_u16.. {
            let bytes = file.next(size)?;
            if bytes.is_empty() {
                break;
            }
            if u64::from(number) > MAX_PARTS {
                return Err(ObjectFault::ChangedHere.into());
            }
            digester.update(&bytes);
            let digest = Digests::of(&bytes).content_md5();
            let digest = http::HeaderValue::from_str(&digest).map_err(|error| self.bad(error.to_string()))?;
            let headers = [(http::HeaderName::from_static("content-md5"), digest)];
            let action = self.bucket.upload_part(self.credentials(), key, number, upload);
            let response = self.answered(&action, &headers, bytes.into()).await?;
            tags.push(self.written(response, name).await?);
        }
        // What was sent is one state of the file.
        file.check()?;
        let action =
            self.bucket
                .complete_multipart_upload(self.credentials(), key, upload, tags.iter().map(String::as_str));
        let url_action: CompleteMultipartUpload<'_, _> = action.clone();
        let body = action.body();
        let response = self.answered(&url_action, &[condition.header()?], body.into()).await?;
        if response.status() != StatusCode::OK {
            // As for an object of one piece.
            return match self.written(response, name).await {
                Ok(_) => Err(self.bad("parts became no object".to_owned()).into()),
                Err(failed) => Err(failed),
            };
        }
        let text = self.text(response, MAX_ANSWER).await?;
        if text.contains("<Code>PreconditionFailed</Code>") || text.contains("<Code>ConditionalRequestConflict</Code>")
        {
            return Err(ObjectFault::ChangedThere.into());
        }
        let parsed = CompleteMultipartUploadResponse::parse(&text);
        let parsed = parsed.map_err(|_| BucketError::BadAnswer {
            endpoint: self.endpoint.clone(),
            reason: "the parts of an object were not put together".to_owned(),
        })?;
        Ok((quoted(parsed.etag()), digester.finish()))
    }
}
