//! Browsers in sandboxes: how one is started, what is said to it over the Chrome DevTools Protocol, what is recorded of it,
//! and how its profile is kept.
//!
//! `daemon` is its caller, and has the sandboxes. The browser is code in a sandbox like any other: no byte of it is
//! trusted, every answer has a bound and a time. Deliberately not here: which sessions there are, who may have them, and the
//! files inside a profile, which are packed and unpacked inside the sandbox alone.

mod archive;
mod bounds;
mod connection;
mod contexts;
mod endpoint;
mod error;
mod files;
mod har;
mod launch;
mod recorder;
mod session_log;

pub use self::archive::ArchiveKey;
pub use self::bounds::{
    MAX_CONTEXTS, MAX_ENTRIES_PER_SECOND, MAX_FRAMES_PER_SECOND, MAX_LOG, MAX_MESSAGE, MAX_PAGES, MAX_PROFILE,
    MAX_READ_PER_SECOND, MAX_RECORDING,
};
pub use self::connection::CdpConnection;
pub use self::contexts::{ContextError, ContextRecord, ContextStore, SavedProfile};
pub use self::endpoint::{EndpointPath, PageInfo, browser_path, pages};
pub use self::error::BrowserError;
pub use self::har::har;
pub use self::launch::{
    BrowserCommand, BrowserOptions, BrowserOptionsError, DOWNLOADS, LocaleTag, OwnSandbox, PORT, PROFILE, PROFILE_IN,
    PROFILE_OUT, TAG, TimeZoneName, UserAgent, Viewport, lacks_namespaces,
};
pub use self::recorder::{RecordedItem, Recorder, Taken};
pub use self::session_log::{SessionFiles, SessionLog};
