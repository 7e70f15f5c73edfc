//! The daemon: sandboxes that outlive the call that made them, for many callers at once.
//!
//! `api` is its door. Each sandbox is held by a supervisor, a process of its own that outlives the daemon; what the daemon
//! must not forget is in the [`registry`], written before it is acted on. So `kill -9` at any moment loses
//! nothing: the next daemon adopts what lives, ends what was half made, and removes what is left of the rest.
//! Deliberately not here: HTTP, what goes on inside a sandbox (`supervisor`), and printing.

mod admission;
mod adoption;
mod alerts;
mod allowed_hosts;
mod approvals;
mod browser_pool;
mod browsers;
mod built_templates;
mod caller;
mod carrying;
mod changes;
mod config;
mod contexts;
mod copying;
mod create_spec;
mod creating;
mod daemon;
mod daemon_core;
mod desktops;
mod egress_route;
mod ending;
mod error;
mod event_feed;
mod event_listener;
mod expiry;
mod filling;
mod forking;
mod helper_process;
mod history;
mod host;
mod idle;
mod images;
mod inspection_error;
mod jobs;
mod key_revocation;
mod keys;
mod launch;
mod leftovers;
mod lifecycle;
mod listing;
pub mod local;
mod machine;
mod maintenance;
mod making;
mod network;
mod one_order;
mod origin;
mod origins;
mod overview;
mod pool;
mod pool_shares;
mod putting_away;
mod questions;
mod random;
mod readiness;
mod records;
pub mod registry;
mod registry_handle;
mod remains;
mod request;
mod sampling;
mod sandbox_sources;
mod sandbox_tools;
mod sandboxes;
mod secret_use;
mod secrets;
mod session_error;
mod snapshots;
mod specification;
mod starting;
mod still;
mod supervisor_pool;
mod template_builds;
mod template_names;
mod template_removal;
mod templates;
mod transfers;
mod transitions;
mod view;
mod view_only;
mod volume_mounts;
mod volume_sync;
mod volumes;
mod webhook_config;
mod webhooks;
mod zygotes;

pub use self::allowed_hosts::{AllowedHost, MAX_ALLOWED_HOSTS};
pub use self::approvals::ApprovalView;
pub use self::browsers::{BrowserRequest, BrowserSessionView, ContextChoice, SessionStatus};
pub use self::caller::{Caller, LOCAL_KEY};
pub use self::carrying::CarriedContexts;
pub use self::changes::{
    AppliedChanges, ApplyOrder, ChangeList, ChangeView, DiffView, KeptRun, MAX_CHANGES, MAX_DIFF, MAX_RUNS,
};
pub use self::config::{
    AdmissionConfig, DaemonConfig, ForksConfig, ImageRule, ImagesConfig, PoolConfig, PullMode, SnapshotsConfig,
    TemplatePool, TemplatesConfig, VolumesConfig, ZygotesConfig,
};
pub use self::contexts::{SandboxContexts, SandboxProcesses, SandboxStream, is_driver_tag};
pub use self::daemon::{AuditVerification, ClientCall, ClientCalls, Daemon, SeenProcesses};
pub use self::desktops::{DesktopRequest, DesktopView};
pub use self::error::DaemonError;
pub use self::event_listener::{EventListener, HeardEvent};
pub use self::forking::{ForkRequest, ForkResults, MAX_FORKS};
pub use self::inspection_error::InspectionError;
pub use self::keys::KeyStore;
pub use self::lifecycle::{
    ASK_BEFORE_LABEL, ASK_BEFORE_RESTORE_LABEL, CHECKPOINT_BEFORE_LABEL, CHECKPOINT_EVERY_LABEL, CHECKPOINT_KEEP_LABEL,
    IDLE_LABEL, IDLE_MODE_LABEL, Lifecycle, LifecycleConfig, LifecycleRequest, PauseMode,
};
pub use self::listing::{ListFilter, MAX_LISTED};
pub use self::origin::{BASE_TEMPLATE, IMAGE_PREFIX};
pub use self::overview::{DrainState, MAX_OVERVIEW, SandboxOverview, SandboxSummary};
pub use self::readiness::ReadinessObstacle;
pub use self::records::LogsRequest;
pub use self::registry::{ApiKey, BadApiKey, EventKind, KeyRow, Quota, Scope, Scopes};
pub use self::request::{
    ALLOW_PTRACE_LABEL, BROWSER_LABEL, CreateRequest, DESKTOP_LABEL, EgressProxy, LEVEL_LABEL, LimitsRequest,
    NAME_LABEL, NetworkSettings, OWN_LABELS, OnTimeout,
};
pub use self::sandbox_tools::{AnsweredTool, TOOLS_LABEL, ToolsConfig, ToolsRequest};
pub use self::secrets::SecretView;
pub use self::session_error::SessionError;
pub use self::snapshots::{
    SnapshotExport, SnapshotFilter, SnapshotImport, SnapshotPage, SnapshotRequest, SnapshotView,
};
pub use self::template_builds::{
    BuildInstructions, BuildLogLine, BuildReason, BuildRequest, BuiltTemplateView, InstructionsBase, MAX_BUILDING,
    MAX_BUILDING_OF_KEY, MAX_LOG_PAGE, MAX_QUEUED_OF_KEY, MAX_TEMPLATES_OF_KEY, MAX_UPLOAD_BYTES, MAX_UPLOADS_OF_KEY,
    RequestedBuild, TemplateBuildView, TemplateTagView, UploadState, UploadWriter,
};
pub use self::transfers::SandboxTransfer;
pub use self::view::{
    AccessRules, ENVD_VERSION, InterpreterOrigin, LogLine, NameMatches, SandboxCounts, SandboxEvent, SandboxLimits,
    SandboxPage, SandboxView, UsageSample, VisibleState,
};
pub use self::view_only::view_only_token;
pub use self::volume_mounts::{BucketRequest, SandboxVolume, VolumeMountRequest, VolumeRequest, VolumeView};
pub use self::webhook_config::{MIN_SECRET, WebhookError, WebhooksConfig};
pub use self::webhooks::{WebhookRequest, WebhookUpdate, WebhookView};
pub use offleash_browser::{
    BrowserOptions, ContextRecord, EndpointPath, LocaleTag, OwnSandbox, PORT as BROWSER_PORT, PageInfo, TimeZoneName,
    UserAgent, Viewport,
};
pub use offleash_core::log_level::LogLevel;
pub use offleash_desktop::{DesktopOptions, Dpi, Resolution, STREAM_PORT as DESKTOP_PORT};
pub use offleash_images::{ImageError, client_tls};
