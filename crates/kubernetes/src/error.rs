//! Why there is no controller, or no longer.

use offleash_core::error::{ErrorKind, Explained};

/// Why there is no controller, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The program was built without it.
    #[error("this build has no controller for Kubernetes")]
    NotInThisBuild,
    /// Something that was said, or that the pod has, cannot be used.
    #[error("{what}: {reason}")]
    Settings {
        /// Which setting.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The API server does not answer, or refuses.
    #[error("cannot {tried}: {reason}")]
    ApiServer {
        /// What was tried, as in `list sandboxes`.
        tried: &'static str,
        /// What came of it.
        reason: String,
        /// Whether it said no.
        is_refusal: bool,
    },
    /// Another controller holds the Lease, or this one could not renew it in time.
    #[error("the Lease `{lease}` is {holder}: this controller leads no more")]
    LeadershipLost {
        /// The Lease.
        lease: String,
        /// Who has it, in words.
        holder: String,
    },
}

impl Explained for ControllerError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotInThisBuild => ErrorKind::Unsupported,
            Self::Settings { .. } => ErrorKind::Invalid,
            Self::ApiServer { is_refusal: true, .. } => ErrorKind::Denied,
            Self::ApiServer { .. } | Self::LeadershipLost { .. } => ErrorKind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotInThisBuild => Some("build it with the Cargo feature `kubernetes`".to_owned()),
            Self::ApiServer { is_refusal: true, .. } => Some(
                "the kinds are those of kubernetes-sigs/agent-sandbox, whose definitions the cluster needs; the roles are in the Helm chart"
                    .to_owned(),
            ),
            Self::LeadershipLost { .. } => Some("it is started again by its Deployment, and waits for the Lease".to_owned()),
            Self::Settings { .. } | Self::ApiServer { .. } => None,
        }
    }
}
