//! Buckets: where the objects of a volume are outside, and by which credentials they are reached.
//!
//! Pure: what is written is read here; `buckets` speaks to servers.

use core::fmt;
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::network::host::Host;
use crate::network::secret::{SecretError, SecretSource};
use crate::text::Text;

/// The region where none is named. Servers of one's own mostly take any.
pub const USUAL_REGION: &str = "us-east-1";
/// Longest prefix, bytes: no key of an object is longer.
const MAX_PREFIX: usize = 1024;
const MAX_REGION: usize = 64;

/// A bucket, or the objects in it whose keys begin alike, as text `s3://BUCKET[/PREFIX]`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BucketLocation {
    name: String,
    /// Empty, or with a slash at its end.
    prefix: String,
}

/// Who has a bucket, as text `https://HOST[:PORT]`; without encryption this machine alone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BucketEndpoint(String);

/// What the objects of a volume are.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BucketSpec {
    /// The bucket.
    pub location: BucketLocation,
    /// Who has it.
    pub endpoint: BucketEndpoint,
    /// The region that requests are signed for.
    pub region: String,
    /// Whether nothing is written to it.
    pub read_only: bool,
    /// By what it is reached; by nothing, where everybody may read.
    pub credentials: Option<BucketSecret>,
}

/// Where the credentials of a bucket are, never what they are.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BucketSecret {
    /// With who synchronises it.
    Source(SecretSource),
    /// With the daemon, by the name that the owner of the volume gave them.
    Named(String),
}

/// Credentials, as text `ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]`. Nobody is shown them.
#[derive(Clone, PartialEq, Eq)]
pub struct BucketCredentials {
    /// The id of a key.
    pub key_id: String,
    /// The key.
    pub key: zeroize::Zeroizing<String>,
    /// The token of a temporary key.
    pub token: Option<zeroize::Zeroizing<String>>,
}

/// Which way objects and files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncDirection {
    /// Into the volume.
    Pull,
    /// Into the bucket.
    Push,
    /// Both: what has changed on one side goes to the other.
    #[default]
    Both,
}

/// How a volume and its bucket are brought to the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SyncChoice {
    /// Which way.
    pub direction: SyncDirection,
    /// What is gone on one side is removed on the other; it stays otherwise.
    pub delete: bool,
    /// Of what has changed on both sides, the side that things go to loses its own; both stay otherwise.
    pub overwrite: bool,
}

/// Text that names no bucket, or not how it is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketSpecError {
    /// It does not begin with `s3://`.
    #[error("`{0}` is not s3://BUCKET or s3://BUCKET/PREFIX")]
    Location(Text),
    /// No bucket has this name.
    #[error(
        "`{0}` is no name of a bucket: expected 3 to 63 characters a-z, 0-9, `.` and `-`, the first and last no `.` or `-`"
    )]
    Name(Text),
    /// A prefix that no paths come of.
    #[error("prefix `{prefix}` of a bucket {why}")]
    Prefix {
        /// The prefix.
        prefix: Text,
        /// What is wrong.
        why: &'static str,
    },
    /// It is no address of a server.
    #[error("`{0}` is no address of a server: expected https://HOST or https://HOST:PORT")]
    Endpoint(Text),
    /// It is not encrypted, and not on this machine.
    #[error("endpoint `{0}` is not encrypted")]
    PlainHttp(Text),
    /// It is no name of a region.
    #[error("`{0}` is no region")]
    Region(Text),
    /// The credentials are named in a way that is none.
    #[error(transparent)]
    Source(#[from] SecretError),
    /// What was found is none. It is not repeated.
    #[error("the credentials are not ACCESS_KEY_ID:SECRET_ACCESS_KEY or ACCESS_KEY_ID:SECRET_ACCESS_KEY:SESSION_TOKEN")]
    Credentials,
    /// A side has to be named that loses its own.
    #[error("which side is overwritten is not said")]
    Overwrite,
}

impl BucketLocation {
    /// The bucket's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the keys of its objects begin with: nothing, or something with a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl BucketEndpoint {
    /// That of Amazon in a region.
    pub fn amazon(region: &str) -> Self {
        Self(format!("https://s3.{region}.amazonaws.com"))
    }

    /// Without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl BucketSpec {
    /// A bucket from its parts, as they are written; without an endpoint it is Amazon's.
    ///
    /// # Errors
    /// [`BucketSpecError`] says what is wrong with one.
    pub fn from_parts(
        location: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
        read_only: bool,
        credentials: Option<BucketSecret>,
    ) -> Result<Self, BucketSpecError> {
        let region = region.unwrap_or(USUAL_REGION);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if region.is_empty() || region.len() > MAX_REGION || !region.bytes().all(is_plain) {
            return Err(BucketSpecError::Region(region.into()));
        }
        Ok(Self {
            location: location.parse()?,
            endpoint: match endpoint {
                Some(endpoint) => endpoint.parse()?,
                None => BucketEndpoint::amazon(region),
            },
            region: region.to_owned(),
            read_only,
            credentials,
        })
    }
}

impl BucketSecret {
    /// Credentials of who synchronises, as text `env:VARIABLE` or `file:PATH`.
    ///
    /// # Errors
    /// [`BucketSpecError::Source`].
    pub fn source(text: &str) -> Result<Self, BucketSpecError> {
        Ok(Self::Source(SecretSource::parse("bucket", text)?))
    }
}

impl SyncChoice {
    /// Nothing but what is new, into the volume.
    pub const PULL: Self = Self {
        direction: SyncDirection::Pull,
        delete: false,
        overwrite: false,
    };
    /// Nothing but what is new, into the bucket.
    pub const PUSH: Self = Self {
        direction: SyncDirection::Push,
        delete: false,
        overwrite: false,
    };

    /// Whether objects go into the volume.
    pub fn pulls(self) -> bool {
        self.direction != SyncDirection::Push
    }

    /// Whether files go into the bucket.
    pub fn pushes(self) -> bool {
        self.direction != SyncDirection::Pull
    }

    /// That it can be done.
    ///
    /// # Errors
    /// [`BucketSpecError::Overwrite`] where both sides would be overwritten.
    pub fn check(self) -> Result<Self, BucketSpecError> {
        match self.overwrite && self.direction == SyncDirection::Both {
            true => Err(BucketSpecError::Overwrite),
            false => Ok(self),
        }
    }
}

impl FromStr for BucketLocation {
    type Err = BucketSpecError;

    fn from_str(text: &str) -> Result<Self, BucketSpecError> {
        let rest = text
            .strip_prefix("s3://")
            .ok_or_else(|| BucketSpecError::Location(text.into()))?;
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_plain = |byte: u8| is_end(&byte) || byte == b'.' || byte == b'-';
        let ends = [name.as_bytes().first(), name.as_bytes().last()];
        let has_ends = ends.into_iter().all(|end| end.is_some_and(is_end));
        if !(3..=63).contains(&name.len()) || !has_ends || !name.bytes().all(is_plain) || name.contains("..") {
            return Err(BucketSpecError::Name(name.into()));
        }
        Ok(Self {
            name: name.to_owned(),
            prefix: parse_prefix(prefix)?,
        })
    }
}

fn parse_prefix(text: &str) -> Result<String, BucketSpecError> {
    let refuse = |why| {
        Err(BucketSpecError::Prefix {
            prefix: text.into(),
            why,
        })
    };
    let trimmed = text.strip_suffix('/').unwrap_or(text);
    if trimmed.is_empty() {
        return match text.is_empty() {
            true => Ok(String::new()),
            false => refuse("is a slash alone"),
        };
    }
    if trimmed.len() > MAX_PREFIX {
        return refuse("is too long");
    }
    if trimmed.chars().any(char::is_control) {
        return refuse("has a control character");
    }
    match trimmed.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some(_) => refuse("has an empty part, or one that is `.` or `..`"),
        None => Ok(format!("{trimmed}/")),
    }
}

impl FromStr for BucketEndpoint {
    type Err = BucketSpecError;

    fn from_str(text: &str) -> Result<Self, BucketSpecError> {
        let wrong = || BucketSpecError::Endpoint(text.into());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let has_port = authority
            .rsplit_once(':')
            .filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let (host, port) = match has_port {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let is_port = |port: &str| {
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        if port.is_some_and(|port| !is_port(port)) {
            return Err(wrong());
        }
        let host = Host::parse(host).map_err(|_| wrong())?;
        let is_here = match &host {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name.as_str() == "localhost" || name.as_str().ends_with(".localhost"),
        };
        match scheme {
            "https" => {}
            "http" if is_here => {}
            "http" => return Err(BucketSpecError::PlainHttp(text.into())),
            _ => return Err(wrong()),
        }
        let port = port.map_or(String::new(), |port| format!(":{port}"));
        Ok(Self(format!("{scheme}://{host}{port}")))
    }
}

impl FromStr for BucketCredentials {
    type Err = BucketSpecError;

    fn from_str(text: &str) -> Result<Self, BucketSpecError> {
        let mut parts = text.trim_end_matches(['\r', '\n']).split(':');
        let is_part = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
        let mut next = || {
            parts
                .next()
                .map(|part| Some(part).filter(is_part).ok_or(BucketSpecError::Credentials))
        };
        let missing = || Err(BucketSpecError::Credentials);
        let credentials = Self {
            key_id: next().unwrap_or_else(missing)?.to_owned(),
            key: next().unwrap_or_else(missing)?.to_owned().into(),
            token: next().transpose()?.map(|token| token.to_owned().into()),
        };
        match parts.next() {
            None => Ok(credentials),
            Some(_) => Err(BucketSpecError::Credentials),
        }
    }
}

impl fmt::Debug for BucketCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl fmt::Display for BucketLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        match self.prefix.strip_suffix('/') {
            Some(prefix) => write!(f, "/{prefix}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for BucketEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for BucketLocation {
    type Error = BucketSpecError;

    fn try_from(text: String) -> Result<Self, BucketSpecError> {
        text.parse()
    }
}

impl From<BucketLocation> for String {
    fn from(location: BucketLocation) -> String {
        location.to_string()
    }
}

impl TryFrom<String> for BucketEndpoint {
    type Error = BucketSpecError;

    fn try_from(text: String) -> Result<Self, BucketSpecError> {
        text.parse()
    }
}

impl From<BucketEndpoint> for String {
    fn from(endpoint: BucketEndpoint) -> String {
        endpoint.0
    }
}

impl Explained for BucketSpecError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::PlainHttp(_) => ErrorKind::Denied,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Location(_) | Self::Name(_) => "write it as in `s3://my-bucket/models`",
            Self::Prefix { .. } => "name a prefix of plain names, as in `s3://my-bucket/models`",
            Self::Endpoint(_) => "name the server alone; the bucket stands in `s3://BUCKET`",
            Self::PlainHttp(_) => "write https; without encryption only 127.0.0.1 and localhost are reached",
            Self::Region(_) => "write it as in `eu-west-1`",
            Self::Source(error) => return error.hint(),
            Self::Credentials => "put both parts into one line, with a colon between them",
            Self::Overwrite => {
                "name a direction, too: `--pull` overwrites what is in the volume, `--push` what is in the bucket"
            }
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_have_a_bucket_and_a_prefix_of_plain_names() {
        for (text, name, prefix, shown) in [
            ("s3://abc", "abc", "", "s3://abc"),
            ("s3://my-bucket.x/a", "my-bucket.x", "a/", "s3://my-bucket.x/a"),
            ("s3://abc/a b/ö/", "abc", "a b/ö/", "s3://abc/a b/ö"),
        ] {
            let location: BucketLocation = text.parse().unwrap();
            assert_eq!((location.name(), location.prefix()), (name, prefix));
            assert_eq!(location.to_string(), shown);
            assert_eq!(shown.parse(), Ok(location));
        }
        for text in [
            "",
            "abc",
            "http://abc",
            "s3://",
            "s3://ab",
            "s3://Abc",
            "s3://-abc",
            "s3://abc-",
            "s3://a..b",
            "s3://a_b",
            "s3://abc//",
            "s3://abc/../x",
            "s3://abc/a//b",
            "s3://abc/./a",
            "s3://abc/a\nb",
            "s3://abc//a",
        ] {
            assert!(text.parse::<BucketLocation>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_this_machine_is_reached_without_encryption() {
        for (text, shown) in [
            ("https://s3.example.com", "https://s3.example.com"),
            ("https://S3.Example.com:9000/", "https://s3.example.com:9000"),
            ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("http://localhost", "http://localhost"),
            ("http://[::1]:1", "http://[::1]:1"),
            ("https://[2001:db8::1]", "https://[2001:db8::1]"),
        ] {
            assert_eq!(
                text.parse::<BucketEndpoint>().map(String::from).as_deref(),
                Ok(shown),
                "{text}"
            );
        }
        for text in [
            "s3.example.com",
            "ftp://s3.example.com",
            "https://",
            "https://a.example/path",
            "https://me:x@a.example",
            "https://a.example?x",
            "https://a.example:0",
            "https://a.example:x",
            "https://a.example:",
            "https://a b",
        ] {
            assert!(
                matches!(text.parse::<BucketEndpoint>(), Err(BucketSpecError::Endpoint(_))),
                "{text}"
            );
        }
        for text in [
            "http://s3.example.com",
            "http://10.0.0.1",
            "http://localhost.example.com",
        ] {
            assert!(
                matches!(text.parse::<BucketEndpoint>(), Err(BucketSpecError::PlainHttp(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn credentials_are_read_and_shown_to_nobody() {
        let credentials: BucketCredentials = "AKIA0:se/cr+et=\n".parse().unwrap();
        assert_eq!(
            (credentials.key_id.as_str(), credentials.key.as_str()),
            ("AKIA0", "se/cr+et=")
        );
        assert_eq!(format!("{credentials:?}"), "****");
        let temporary: BucketCredentials = "a:b:c".parse().unwrap();
        assert_eq!(temporary.token.unwrap().as_str(), "c");
        for text in ["", "a", "a:", ":b", "a:b:", "a:b:c:d", "a b:c", "a:b\nc"] {
            let error = text.parse::<BucketCredentials>().unwrap_err();
            assert_eq!(error, BucketSpecError::Credentials, "{text:?}");
        }
    }

    #[test]
    fn both_sides_are_not_overwritten() {
        let choice = |direction| SyncChoice {
            direction,
            delete: false,
            overwrite: true,
        };
        assert!(choice(SyncDirection::Pull).check().is_ok() && choice(SyncDirection::Push).check().is_ok());
        assert_eq!(choice(SyncDirection::Both).check(), Err(BucketSpecError::Overwrite));
        assert!(SyncChoice::default().pulls() && SyncChoice::default().pushes());
        assert!(!SyncChoice::PULL.pushes() && !SyncChoice::PUSH.pulls());
    }
}
