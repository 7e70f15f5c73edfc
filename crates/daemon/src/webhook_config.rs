//! Where messages of webhooks go, and with what they are signed.

use std::fmt;
use std::time::Duration;

use offleash_images::RegistryAddress;

/// All types of messages.
pub(crate) const TYPES: [&str; 8] = [
    "sandbox.lifecycle.created",
    "sandbox.lifecycle.updated",
    "sandbox.lifecycle.paused",
    "sandbox.lifecycle.resumed",
    "sandbox.lifecycle.timed_out",
    "sandbox.lifecycle.killed",
    "sandbox.alert",
    "sandbox.approval.requested",
];

/// Those of events that are on record: all but questions, which are asked of the sandboxes.
pub(crate) const REGISTRY_TYPES: [&str; 7] = {
    let [created, updated, paused, resumed, timed_out, killed, alert, _] = TYPES;
    [created, updated, paused, resumed, timed_out, killed, alert]
};

/// How long an endpoint may take, if nothing else is said.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where messages go.
#[derive(Clone)]
pub struct WebhooksConfig {
    /// The endpoints.
    pub urls: Vec<String>,
    /// What messages are signed with.
    pub secret: Vec<u8>,
    /// Of which types they are told; of all when empty.
    pub types: Vec<String>,
    /// How long an endpoint may take until its answer begins.
    pub answer_timeout: Duration,
}

impl Default for WebhooksConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            secret: Vec::new(),
            types: Vec::new(),
            answer_timeout: ANSWER_TIMEOUT,
        }
    }
}

impl fmt::Debug for WebhooksConfig {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhooksConfig({:?}, ****, {:?})", self.urls, self.types)
    }
}

/// An endpoint that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// It is no address.
    #[error("`{}` is no address of a webhook: {reason}", .url.escape_debug())]
    Url {
        /// What was given.
        url: String,
        /// Why.
        reason: String,
    },
    /// It would be told in the open.
    #[error("`{}` is not encrypted, and not on this machine", .0.escape_debug())]
    InTheOpen(String),
    /// Anybody could make messages up.
    #[error("messages of webhooks are signed, and there is no secret of {MIN_SECRET} bytes or more to sign them with")]
    Secret,
    /// There is no such type.
    #[error("`{}` is no type of message ({})", .0.escape_debug(), TYPES.join(", "))]
    Type(String),
}

/// The shortest secret, in bytes.
pub const MIN_SECRET: usize = 16;

impl WebhooksConfig {
    /// Whether messages of this type are wanted.
    pub(crate) fn wants(&self, kind: &str) -> bool {
        self.types.is_empty() || self.types.iter().any(|word| word == kind)
    }

    /// Checks that messages can be sent like that.
    ///
    /// # Errors
    /// What cannot be.
    pub fn check(&self) -> Result<(), WebhookError> {
        for url in &self.urls {
            endpoint(url)?;
        }
        if !self.urls.is_empty() && self.secret.len() < MIN_SECRET {
            return Err(WebhookError::Secret);
        }
        let unknown = self.types.iter().find(|word| !TYPES.contains(&word.as_str()));
        unknown.map_or(Ok(()), |word| Err(WebhookError::Type(word.clone())))
    }
}

/// The address of an endpoint.
///
/// # Errors
/// When it is none, or messages would be sent in the open.
pub(crate) fn endpoint(url: &str) -> Result<RegistryAddress, WebhookError> {
    let address = RegistryAddress::parse(url).map_err(|reason| WebhookError::Url {
        url: url.to_owned(),
        reason: reason.to_string(),
    })?;
    match address.is_encrypted() || address.is_loopback() {
        true => Ok(address),
        false => Err(WebhookError::InTheOpen(url.to_owned())),
    }
}
