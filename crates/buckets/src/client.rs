//! One bucket, as its server is asked for it.
//!
//! Requests are signed by `rusty-s3`, in the query (Signature Version 4). No redirect is followed, since credentials go
//! nowhere but to the endpoint. What passes is tried again a few times.

mod multipart;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, ETAG, IF_MATCH, IF_NONE_MATCH, LOCATION};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper::Response;
use hyper::body::Incoming;
use offleash_core::bucket::{BucketCredentials, BucketSpec};
use offleash_images::{Connector, RegistryAddress, RegistrySettings};
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

use crate::bounds::MAX_OBJECTS;
use crate::digests::{Digester, Digests};
use crate::error::{BucketError, ObjectFault};

pub(crate) use self::multipart::PART;

/// How long a signature is good: a request is sent at once.
const SIGNED_FOR: Duration = Duration::from_secs(900);
/// How often what passes is tried.
const MAX_ATTEMPTS: u32 = 4;
/// How many objects one page of a list has.
const PAGE: usize = 1000;
/// How many pages are asked for: they may have fewer objects.
const MAX_PAGES: usize = 4 * MAX_OBJECTS / PAGE;
/// Longest page, and longest other answer in XML, bytes.
const MAX_PAGE: u64 = 16 << 20;
pub(crate) const MAX_ANSWER: u64 = 64 << 10;
/// How much of what a server says is repeated, characters.
const SHOWN: usize = 200;

/// An object in the list of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its version, with the quotes around it.
    pub(crate) tag: String,
    /// Bytes.
    pub(crate) size: u64,
}

/// On what condition an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition<'a> {
    /// There is none.
    Absent,
    /// It is this version.
    Is(&'a str),
}

/// What came of a request about one object.
#[derive(Debug)]
pub(crate) enum Failed {
    /// This object stays as it is.
    Object(ObjectFault),
    /// Nothing more is asked.
    All(BucketError),
}

impl From<ObjectFault> for Failed {
    fn from(fault: ObjectFault) -> Self {
        Self::Object(fault)
    }
}

impl From<BucketError> for Failed {
    fn from(error: BucketError) -> Self {
        Self::All(error)
    }
}

/// One bucket and the credentials for it.
pub(crate) struct BucketClient {
    connector: Connector,
    pub(crate) bucket: Bucket,
    credentials: Option<Credentials>,
    pub(crate) endpoint: String,
    prefix: String,
    first_pause: Duration,
}

impl std::fmt::Debug for BucketClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BucketClient")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl BucketClient {
    pub(crate) fn new(
        spec: &BucketSpec,
        credentials: Option<BucketCredentials>,
        settings: &RegistrySettings,
    ) -> Result<Self, BucketError> {
        let endpoint = spec.endpoint.as_str().to_owned();
        let wrong = |reason: String| BucketError::Unreachable {
            endpoint: endpoint.clone(),
            reason,
        };
        let url = endpoint.parse().map_err(|_| wrong("it is no address".to_owned()))?;
        let name = spec.location.name().to_owned();
        let bucket = Bucket::new(url, UrlStyle::Path, name, spec.region.clone());
        let credentials = credentials.map(|given| match &given.token {
            Some(token) => Credentials::new_with_token(given.key_id.as_str(), given.key.as_str(), token.as_str()),
            None => Credentials::new(given.key_id.as_str(), given.key.as_str()),
        });
        Ok(Self {
            connector: Connector::new(settings).map_err(BucketError::Setting)?,
            bucket: bucket.map_err(|error| wrong(error.to_string()))?,
            credentials,
            endpoint,
            prefix: spec.location.prefix().to_owned(),
            first_pause: settings.first_pause,
        })
    }

    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The whole key of an object.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// All objects below the prefix, by their keys without that.
    ///
    /// # Errors
    /// `TooMany`, also for a list that does not end; as requests.
    pub(crate) async fn list(&self) -> Result<Vec<(String, Listed)>, BucketError> {
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut action = self.bucket.list_objects_v2(self.credentials());
            action.with_max_keys(PAGE);
            if !self.prefix.is_empty() {
                action.with_prefix(self.prefix.as_str());
            }
            if let Some(token) = &token {
                action.with_continuation_token(token.as_str());
            }
            let text = self.page(&action).await?;
            let page = ListObjectsV2::parse_response(&text).map_err(|error| self.bad(error.to_string()))?;
            for object in page.contents {
                let Some(name) = object.key.strip_prefix(&self.prefix) else {
                    return Err(self.bad("it lists what was not asked for".to_owned()));
                };
                if found.len() >= MAX_OBJECTS {
                    return Err(self.too_many());
                }
                let (Some(tag), Some(size)) = (object.etag, object.size) else {
                    return Err(self.bad("an object has no ETag or no size".to_owned()));
                };
                found.push((
                    name.to_owned(),
                    Listed {
                        tag: quoted(&tag),
                        size,
                    },
                ));
            }
            match page.next_continuation_token {
                None => return Ok(found),
                next if next == token => return Err(self.bad("its list does not go on".to_owned())),
                next => token = next,
            }
        }
        Err(self.too_many())
    }

    fn too_many(&self) -> BucketError {
        BucketError::TooMany {
            location: format!("s3://{}/{}", self.bucket.name(), self.prefix),
            most: MAX_OBJECTS,
        }
    }

    async fn page(&self, action: &ListObjectsV2<'_>) -> Result<String, BucketError> {
        let mut attempt = 0;
        loop {
            let page = async {
                let response = self.send(action, &[], Bytes::new()).await?;
                match response.status() {
                    StatusCode::OK => self.text(response, MAX_PAGE).await,
                    StatusCode::NOT_FOUND => Err(BucketError::Missing {
                        endpoint: self.endpoint.clone(),
                        bucket: self.bucket.name().to_owned(),
                    }),
                    _ => Err(self
                        .refused(response, &format!("bucket `{}`", self.bucket.name()))
                        .await),
                }
            };
            match page.await {
                Err(error) if self.goes_on(&error, &mut attempt).await => {}
                page => return page,
            }
        }
    }

    /// One object, as it is now; `None` where there is none.
    pub(crate) async fn object(&self, name: &str) -> Result<Option<Listed>, Failed> {
        let key = self.key(name);
        let action = self.bucket.head_object(self.credentials(), &key);
        let response = self.answered(&action, &[], Bytes::new()).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            _ => return Err(self.object_refused(response, name).await),
        }
        let size = response.headers().get(CONTENT_LENGTH);
        let size = size.and_then(|value| value.to_str().ok()?.parse().ok());
        match (tag_of(&response), size) {
            (Some(tag), Some(size)) => Ok(Some(Listed { tag, size })),
            _ => Err(self.bad("an object has no ETag or no size".to_owned()).into()),
        }
    }

    /// Fetches the version of an object that was listed; each piece goes to `take`.
    ///
    /// # Errors
    /// A fault of the object, among them that it is another version by now; what `take` says.
    pub(crate) async fn get(
        &self,
        name: &str,
        listed: &Listed,
        mut take: impl FnMut(&[u8]) -> Result<(), Failed>,
    ) -> Result<Digests, Failed> {
        let key = self.key(name);
        let action = self.bucket.get_object(self.credentials(), &key);
        let condition = [(IF_MATCH, header(&listed.tag)?)];
        let response = self.send(&action, &condition, Bytes::new()).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::PRECONDITION_FAILED => return Err(ObjectFault::ChangedThere.into()),
            _ => return Err(self.object_refused(response, name).await),
        }
        let tag = tag_of(&response);
        if let Some(tag) = tag.filter(|tag| *tag != listed.tag) {
            return Err(ObjectFault::OtherTag {
                expected: listed.tag.clone(),
                found: tag,
            }
            .into());
        }
        let said = response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(found) = said.filter(|found: &u64| *found != listed.size) {
            return Err(ObjectFault::Truncated {
                expected: listed.size,
                found,
            }
            .into());
        }
        let has_own_key = has_own_key(&response);
        let mut body = response.into_body();
        let mut digester = Digester::default();
        let mut length = 0;
        while let Some(piece) = self.next(&mut body).await? {
            length += piece.len() as u64;
            if length > listed.size {
                break;
            }
            digester.update(&piece);
            take(&piece)?;
        }
        if length != listed.size {
            return Err(ObjectFault::Truncated {
                expected: listed.size,
                found: length,
            }
            .into());
        }
        let digests = digester.finish();
        match digests.are_of_tag(&listed.tag) {
            Some(false) if !has_own_key => Err(ObjectFault::OtherDigest.into()),
            _ => Ok(digests),
        }
    }

    /// Writes an object of one piece; answers its version.
    ///
    /// # Errors
    /// `ChangedThere` where the condition does not hold.
    pub(crate) async fn put(
        &self,
        name: &str,
        bytes: Bytes,
        digests: &Digests,
        condition: Condition<'_>,
    ) -> Result<String, Failed> {
        let key = self.key(name);
        let action = self.bucket.put_object(self.credentials(), &key);
        let digest = (HeaderName::from_static("content-md5"), header(&digests.content_md5())?);
        let headers = [condition.header()?, digest];
        let response = self.answered(&action, &headers, bytes).await?;
        self.written(response, name).await
    }

    /// Removes the version `tag` of an object, where the server knows conditions for that.
    pub(crate) async fn delete(&self, name: &str, tag: &str) -> Result<(), Failed> {
        let key = self.key(name);
        let action = self.bucket.delete_object(self.credentials(), &key);
        let response = self
            .answered(&action, &[(IF_MATCH, header(tag)?)], Bytes::new())
            .await?;
        match response.status() {
            StatusCode::NO_CONTENT | StatusCode::OK | StatusCode::NOT_FOUND => Ok(()),
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Err(ObjectFault::ChangedThere.into()),
            _ => Err(self.object_refused(response, name).await),
        }
    }

    /// The version of an object that was written.
    pub(crate) async fn written(&self, response: Response<Incoming>, name: &str) -> Result<String, Failed> {
        match response.status() {
            StatusCode::OK | StatusCode::CREATED => {
                let missing = || self.bad("it does not say the ETag of what was written".to_owned());
                Ok(tag_of(&response).ok_or_else(missing)?)
            }
            // That which was to be replaced may be gone.
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_FOUND => {
                Err(ObjectFault::ChangedThere.into())
            }
            StatusCode::NOT_IMPLEMENTED => Err(BucketError::NoConditions {
                endpoint: self.endpoint.clone(),
            }
            .into()),
            _ => Err(self.object_refused(response, name).await),
        }
    }

    /// The answer to a request, which is sent again where none comes, or one that passes.
    pub(crate) async fn answered<'a>(
        &self,
        action: &impl S3Action<'a>,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<Incoming>, BucketError> {
        let mut attempt = 0;
        loop {
            let answered = match self.send(action, headers, body.clone()).await {
                Ok(response) if is_passing(response.status()) => Err(self.refused(response, "the bucket").await),
                answered => answered,
            };
            match answered {
                Err(error) if self.goes_on(&error, &mut attempt).await => {}
                answered => return answered,
            }
        }
    }

    async fn send<'a, A: S3Action<'a>>(
        &self,
        action: &A,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<Incoming>, BucketError> {
        let url = action.sign(SIGNED_FOR);
        let address = RegistryAddress::parse(url.as_str()).map_err(|reason| self.bad(reason))?;
        let method = Method::from_bytes(A::METHOD.to_str().as_bytes()).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(address.path());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(|error| self.bad(error.to_string()))?;
        let sent = self.connector.send(&address, request, &self.endpoint).await;
        sent.map_err(|error| BucketError::of_connection(&self.endpoint, error))
    }

    /// Waits for another attempt, if there is one.
    async fn goes_on(&self, error: &BucketError, attempt: &mut u32) -> bool {
        *attempt += 1;
        let goes_on = error.is_passing() && *attempt < MAX_ATTEMPTS;
        if goes_on {
            tokio::time::sleep(self.first_pause * 2_u32.pow(*attempt - 1)).await;
        }
        goes_on
    }

    /// Whether a fault of an object that came is worth another attempt.
    pub(crate) async fn tries_again(&self, failed: &Failed, attempt: &mut u32) -> bool {
        match failed {
            Failed::All(error) => self.goes_on(error, attempt).await,
            Failed::Object(ObjectFault::Truncated { .. }) => {
                *attempt += 1;
                *attempt < MAX_ATTEMPTS
            }
            Failed::Object(_) => false,
        }
    }

    async fn next(&self, body: &mut Incoming) -> Result<Option<Bytes>, BucketError> {
        match self.connector.next(body, &self.endpoint).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(piece))) => Ok(Some(piece)),
            Ok(Some(Err(error))) => Err(BucketError::Unreachable {
                endpoint: self.endpoint.clone(),
                reason: format!("the answer broke off: {error}"),
            }),
            Err(error) => Err(BucketError::of_connection(&self.endpoint, error)),
        }
    }

    /// A short answer.
    pub(crate) async fn text(&self, response: Response<Incoming>, most: u64) -> Result<String, BucketError> {
        let read = self.connector.read(response, most, &self.endpoint).await;
        let bytes = read.map_err(|error| BucketError::of_connection(&self.endpoint, error))?;
        String::from_utf8(bytes).map_err(|_| self.bad("it is no text".to_owned()))
    }

    pub(crate) fn bad(&self, reason: String) -> BucketError {
        BucketError::BadAnswer {
            endpoint: self.endpoint.clone(),
            reason,
        }
    }

    /// What an answer about one object means that is no success.
    pub(crate) async fn object_refused(&self, response: Response<Incoming>, name: &str) -> Failed {
        match self.refused(response, name).await {
            BucketError::Denied { said, .. } => ObjectFault::Denied(said).into(),
            error => error.into(),
        }
    }

    /// What an answer means that is no success.
    async fn refused(&self, response: Response<Incoming>, what: &str) -> BucketError {
        let endpoint = self.endpoint.clone();
        let status = response.status();
        let to = response
            .headers()
            .get(LOCATION)
            .and_then(|to| to.to_str().ok())
            .map(shown);
        let body = self.text(response, MAX_ANSWER).await.unwrap_or_default();
        let said = said(&body).unwrap_or_else(|| status.canonical_reason().unwrap_or_default().to_owned());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => BucketError::Denied {
                endpoint,
                what: what.to_owned(),
                said,
            },
            status if status.is_redirection() => BucketError::Redirected {
                endpoint,
                said: to.unwrap_or(said),
            },
            status => BucketError::Status {
                endpoint,
                status: status.as_u16(),
                said,
            },
        }
    }
}

impl Condition<'_> {
    pub(crate) fn header(self) -> Result<(HeaderName, HeaderValue), Failed> {
        Ok(match self {
            Self::Absent => (IF_NONE_MATCH, HeaderValue::from_static("*")),
            Self::Is(tag) => (IF_MATCH, header(tag)?),
        })
    }
}

fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || matches!(status.as_u16(), 500 | 502..=504)
}

/// A version, or what else was made of what a server said.
fn header(text: &str) -> Result<HeaderValue, Failed> {
    let malformed = |_| ObjectFault::Denied(format!("its ETag `{}` can be sent to nobody", shown(text)));
    HeaderValue::from_str(text).map_err(malformed).map_err(Failed::from)
}

fn tag_of(response: &Response<Incoming>) -> Option<String> {
    let tag = response.headers().get(ETAG)?.to_str().ok()?;
    Some(quoted(tag))
}

/// Some servers leave the quotes out at one place or the other.
pub(crate) fn quoted(tag: &str) -> String {
    format!("\"{}\"", tag.trim().trim_start_matches("W/").trim_matches('"'))
}

/// Whether an object is encrypted with a key of its owner, so that its version is no digest of it.
fn has_own_key(response: &Response<Incoming>) -> bool {
    let headers = response.headers();
    let by_service = headers.get("x-amz-server-side-encryption");
    by_service.is_some_and(|value| value.as_bytes().starts_with(b"aws:"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
}

/// What the error of a server says: `<Code>` and `<Message>`.
fn said(body: &str) -> Option<String> {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (text, _) = rest.split_once(&format!("</{name}>"))?;
        Some(shown(text))
    };
    let code = element("Code")?;
    Some(match element("Message").filter(|message| !message.is_empty()) {
        Some(message) => format!("{code}: {message}"),
        None => code,
    })
}

fn shown(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(SHOWN)
        .collect()
}
