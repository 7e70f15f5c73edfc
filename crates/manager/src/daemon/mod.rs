//! The daemon: sandboxes that outlive the call that made them, for many callers at once.
//!
//! `api` is its door. Each sandbox is held by a keeper, a process of its own that outlives the daemon; what the daemon
//! must not forget is in the registry of `store`, written before it is acted on. Deliberately not here: HTTP, what goes
//! on inside a sandbox (`keeper`), and printing.

mod config;
mod error;
mod request;
mod view;

pub use self::config::{AdmissionConfig, DaemonConfig, PoolConfig};
pub use self::error::DaemonError;
pub use self::request::{CreateRequest, LimitsRequest, ListFilter, MOST_LISTED, NetworkSettings, OnTimeout};
pub use self::view::{Access, Caller, Counts, Event, LOCAL_KEY, Limits, LogLine, Metric, Page, SandboxView, State};
pub use offleash_store::registry::{ApiKey, EventKind, KeyRow, LogLevel, Quota, Scope, Scopes};

/// The template that is always there.
pub const BASE_TEMPLATE: &str = "base";

/// Which version of the file and process services sandboxes have, in E2B's count: SDKs choose what they use by it.
pub const ENVD_VERSION: &str = "0.6.13";
