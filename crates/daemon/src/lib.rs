//! The daemon: sandboxes that outlive the call that made them, for many callers at once.
//!
//! `api` is its door. Each sandbox is held by a keeper, a process of its own that outlives the daemon; what the daemon
//! must not forget is in the [`registry`], written before it is acted on. So `kill -9` at any moment loses
//! nothing: the next daemon adopts what lives, ends what was half made, and removes what is left of the rest.
//! Deliberately not here: HTTP, what goes on inside a sandbox (`keeper`), and printing.

mod admission;
mod adoption;
mod caller;
mod code;
mod config;
mod copying;
mod core;
mod create_spec;
mod creating;
mod daemon;
mod ending;
mod error;
mod expiry;
mod filling;
mod forking;
mod history;
mod host;
mod jobs;
mod key_revocation;
mod keys;
mod launch;
mod leftovers;
mod listing;
pub mod local;
mod maintenance;
mod making;
mod network;
mod origin;
mod pool;
mod random;
mod readiness;
mod records;
pub mod registry;
mod registry_handle;
mod remains;
mod request;
mod sampling;
mod sandboxes;
mod secret_use;
mod secrets;
mod shares;
mod spares;
mod specification;
mod template_removal;
mod templates;
mod transitions;
mod view;
mod way_out;
mod zygotes;

pub use self::caller::{Caller, LOCAL_KEY};
pub use self::code::{SandboxContexts, SandboxProcesses, SandboxStream, is_driver_tag};
pub use self::config::{
    AdmissionConfig, DaemonConfig, ForksConfig, PoolConfig, TemplatePool, TemplatesConfig, ZygotesConfig,
};
pub use self::daemon::Daemon;
pub use self::error::DaemonError;
pub use self::forking::{CarriedContexts, ForkRequest, Forks, MOST_FORKS};
pub use self::keys::Keys;
pub use self::listing::{ListFilter, MOST_LISTED};
pub use self::origin::BASE_TEMPLATE;
pub use self::readiness::Missing;
pub use self::records::LogsRequest;
pub use self::registry::{ApiKey, EventKind, KeyRow, Quota, Scope, Scopes};
pub use self::request::{ALLOW_PTRACE, CreateRequest, EgressProxy, LimitsRequest, NAME, NetworkSettings, OnTimeout};
pub use self::secrets::SecretView;
pub use self::view::{
    Access, Called, Counts, ENVD_VERSION, Event, Interpreter, Limits, LogLine, Metric, Page, SandboxView, State,
};
pub use offleash_core::log_level::LogLevel;
