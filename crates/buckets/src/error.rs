//! Why a volume and its bucket cannot be brought to the same, and why one object of it is left as it is.

use offleash_core::bucket::BucketSpecError;
use offleash_core::error::{ErrorKind, Explained};
use offleash_images::ImageError;
use offleash_store::VolumeError;

/// Why synchronising ended.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// What is asked for goes not together, or the credentials are none.
    #[error(transparent)]
    Spec(#[from] BucketSpecError),
    /// The volume has no bucket.
    #[error("volume `{name}` has no bucket")]
    NoBucket {
        /// The volume.
        name: String,
    },
    /// Nothing may be written to the bucket.
    #[error("nothing is written to the bucket of volume `{name}`, which is read-only")]
    ReadOnly {
        /// The volume.
        name: String,
    },
    /// The server cannot be reached, or hung up.
    #[error("cannot reach `{endpoint}`: {reason}")]
    Unreachable {
        /// The server.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// Nothing came for a while.
    #[error("`{endpoint}` did not answer for {seconds} s")]
    Stalled {
        /// The server.
        endpoint: String,
        /// How long.
        seconds: u64,
    },
    /// The credentials do not do, or there are none.
    #[error("`{endpoint}` refused access to {what}: {said}")]
    Denied {
        /// The server.
        endpoint: String,
        /// The bucket, or an object.
        what: String,
        /// What it said.
        said: String,
    },
    /// There is no such bucket.
    #[error("`{endpoint}` has no bucket `{bucket}`")]
    Missing {
        /// The server.
        endpoint: String,
        /// The bucket.
        bucket: String,
    },
    /// It sends us elsewhere, where nobody follows.
    #[error("`{endpoint}` sends requests elsewhere, which are not followed: {said}")]
    Redirected {
        /// The server.
        endpoint: String,
        /// What it said.
        said: String,
    },
    /// A status that helps nobody.
    #[error("`{endpoint}` answered with status {status}: {said}")]
    Status {
        /// The server.
        endpoint: String,
        /// The status.
        status: u16,
        /// What it said.
        said: String,
    },
    /// An answer that is none.
    #[error("`{endpoint}` answered with what cannot be understood: {reason}")]
    BadAnswer {
        /// The server.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// It does not write under conditions.
    #[error("`{endpoint}` does not write under conditions (`If-Match`)")]
    NoConditions {
        /// The server.
        endpoint: String,
    },
    /// There are more objects than are synchronised.
    #[error("there are more than {most} objects in {location}")]
    TooMany {
        /// The bucket.
        location: String,
        /// The bound.
        most: usize,
    },
    /// The connection cannot be made as asked.
    #[error("connections to buckets cannot be made")]
    Setting(#[source] ImageError),
    /// The volume cannot be read or written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// What volume and bucket have in common cannot be read or written.
    #[error("cannot keep what volume `{name}` has in common with its bucket")]
    Baseline {
        /// The volume.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A call failed.
    #[error("cannot begin to synchronise")]
    Host(#[source] std::io::Error),
}

/// Why one object or file is left as it is, while others are not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectFault {
    /// Another version of the object is there than was listed.
    #[error("the object was changed or removed meanwhile")]
    ChangedThere,
    /// The file was written to.
    #[error("the file was changed meanwhile")]
    ChangedHere,
    /// Less came than was listed.
    #[error("{found} of {expected} bytes came")]
    Truncated {
        /// As listed.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// What came is not what its `ETag` says.
    #[error("what came is not what its ETag says")]
    OtherDigest,
    /// The answer is for another version than was asked for.
    #[error("the answer has the ETag {found}, and {expected} was asked for")]
    OtherTag {
        /// As listed.
        expected: String,
        /// As answered.
        found: String,
    },
    /// This object is nobody's to read or to write.
    #[error("access is refused: {0}")]
    Denied(String),
    /// Something of the volume stands in its way.
    #[error("{0}")]
    Volume(String),
}

impl BucketError {
    /// What a failure of the connection is, in words of buckets.
    pub(crate) fn of_connection(endpoint: &str, error: ImageError) -> Self {
        let endpoint = endpoint.to_owned();
        match error {
            ImageError::Unreachable { reason, .. } => Self::Unreachable { endpoint, reason },
            ImageError::Stalled { seconds, .. } => Self::Stalled { endpoint, seconds },
            ImageError::TooLarge { limit, .. } => Self::BadAnswer {
                endpoint,
                reason: format!("it has more than {limit} bytes"),
            },
            error => Self::Setting(error),
        }
    }

    /// Whether it may be otherwise a moment later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Stalled { .. } => true,
            Self::Status { status, .. } => matches!(status, 429 | 500 | 502..=504),
            _ => false,
        }
    }
}

impl Explained for BucketError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Spec(error) => error.kind(),
            Self::NoBucket { .. } => ErrorKind::Invalid,
            Self::ReadOnly { .. } | Self::Denied { .. } => ErrorKind::Denied,
            Self::Unreachable { .. } | Self::Status { .. } => ErrorKind::Unavailable,
            Self::Stalled { .. } => ErrorKind::Timeout,
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Redirected { .. } | Self::NoConditions { .. } => ErrorKind::Unsupported,
            Self::BadAnswer { .. } | Self::Host(_) => ErrorKind::Internal,
            Self::TooMany { .. } => ErrorKind::Exhausted,
            Self::Setting(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Baseline { .. } => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Spec(error) => return error.hint(),
            Self::Setting(error) => return error.hint(),
            Self::Volume(error) => return error.hint(),
            Self::NoBucket { .. } => "make a volume with `offleash volume create NAME --bucket s3://BUCKET`",
            Self::ReadOnly { .. } => "synchronise with `--pull` alone",
            Self::Unreachable { .. } | Self::Stalled { .. } | Self::Status { .. } => {
                "check the endpoint and the network and try again; what has come or gone so far stays"
            }
            Self::Denied { .. } => "check the credentials, the region, and what they may do with the bucket",
            Self::Missing { .. } => "check the name of the bucket, the endpoint and the region",
            Self::Redirected { .. } => "name the endpoint and the region that the bucket is in",
            Self::NoConditions { .. } => "such a server could lose what others write; synchronise with `--pull` alone",
            Self::TooMany { .. } => "name a prefix with fewer objects, as in `s3://my-bucket/models`",
            Self::BadAnswer { .. } => "check that the endpoint is a server of S3",
            Self::Baseline { .. } | Self::Host(_) => return None,
        };
        Some(hint.to_owned())
    }
}
