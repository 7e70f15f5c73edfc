//! The daemon: sandboxes that outlive the call that made them, for many callers at once.
//!
//! `api` is its door. Each sandbox is held by a keeper, a process of its own that outlives the daemon; what the daemon
//! must not forget is in the registry of `store`, written before it is acted on. So `kill -9` at any moment loses
//! nothing: the next daemon adopts what lives, ends what was half made, and removes what is left of the rest.
//! Deliberately not here: HTTP, what goes on inside a sandbox (`keeper`), and printing.

mod admission;
mod adoption;
mod code;
mod config;
mod copying;
mod creating;
mod ending;
mod error;
mod expiry;
mod filling;
mod forking;
mod history;
mod inner;
mod keys;
mod launch;
mod listing;
mod names;
mod network;
mod pool;
mod random;
mod readiness;
mod records;
mod remains;
mod request;
mod sampling;
mod secrets;
mod shares;
mod spares;
mod specification;
mod table;
mod templates;
mod transitions;
mod view;
mod way_out;
mod withdrawal;
mod zygotes;

use std::sync::Arc;

pub(crate) use self::code::contexts_of;
pub use self::code::{SandboxContexts, SandboxProcesses, SandboxStream, is_driver_tag};
pub use self::config::{
    AdmissionConfig, DaemonConfig, ForksConfig, PoolConfig, TemplatePool, TemplatesConfig, ZygotesConfig,
};
pub use self::error::DaemonError;
pub use self::forking::{CarriedContexts, ForkRequest, Forks, MOST_FORKS};
use self::inner::Inner;
pub use self::keys::Keys;
pub(crate) use self::launch::{OWN_PROGRAM, Process};
pub use self::names::Called;
pub use self::readiness::Missing;
pub use self::records::LogsWanted;
pub use self::request::{
    ALLOW_PTRACE, CreateRequest, EgressProxy, LimitsRequest, ListFilter, MOST_LISTED, NAME, NetworkSettings, OnTimeout,
};
pub use self::secrets::SecretView;
pub use self::view::{
    Access, Caller, Counts, Event, Interpreter, LOCAL_KEY, Limits, LogLine, Metric, Page, SandboxView, State,
};
pub use offleash_store::registry::{ApiKey, EventKind, KeyRow, LogLevel, Quota, Scope, Scopes};

/// The template that is always there.
pub const BASE_TEMPLATE: &str = "base";

/// Which version of the file and process services sandboxes have, in E2B's count: SDKs choose what they use by it.
pub const ENVD_VERSION: &str = "0.6.13";

/// The daemon of one state directory; clones are the same one. Must be used within an event loop of tokio.
///
/// When the last clone is dropped the daemon ends and its sandboxes go on.
#[derive(Debug, Clone)]
pub struct Daemon {
    inner: Arc<Inner>,
}

impl Daemon {
    /// Becomes the daemon of a state directory: takes its lock, opens its registry, adopts the sandboxes that live and
    /// removes what is left of those that do not.
    ///
    /// # Errors
    /// `AlreadyRunning`, `State`, `Store`, `Host`.
    pub async fn open(config: DaemonConfig) -> Result<Self, DaemonError> {
        let inner = Inner::open(config).await?;
        adoption::adopt_all(&inner).await?;
        expiry::start(&inner);
        filling::start(&inner);
        sampling::start(&inner);
        Ok(Self { inner })
    }

    /// Who has `key`. Keys are looked up each time, so that a revoked one is refused at once.
    ///
    /// # Errors
    /// `Unauthorized`, `Store`.
    pub fn authenticate(&self, key: &str) -> Result<Caller, DaemonError> {
        keys::authenticate(&self.inner.registry, key)
    }

    /// How many sandboxes there are.
    pub fn counts(&self) -> Counts {
        self.inner.counts()
    }

    /// How many sandboxes of each template wait to be handed out.
    pub fn waiting(&self) -> Vec<(String, usize)> {
        self.inner.pool.waiting()
    }

    /// The templates of which an interpreter is ready to be copied into new sandboxes, once no sandbox of them waits any
    /// more that was made without it.
    pub fn with_zygote(&self) -> Vec<String> {
        let mut ready = self.inner.zygotes.ready();
        ready.retain(|(template, zygote)| self.inner.pool.are_below(template, *zygote));
        ready.into_iter().map(|(template, _)| template).collect()
    }

    /// What the owner set.
    pub fn config(&self) -> &DaemonConfig {
        &self.inner.config
    }

    /// Makes no more sandboxes, and waits until what is being done with sandboxes has been done. Sandboxes live
    /// on, but for those that were made ahead.
    pub async fn drain(&self) {
        self.inner.drain().await;
    }
}
