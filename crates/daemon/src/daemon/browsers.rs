//! What callers ask of sessions of browsers.

use offleash_browser::{ContextRecord, EndpointPath, PageInfo};

use super::Daemon;
use crate::browsers::{self, BrowserRequest, BrowserSessionView};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;

impl Daemon {
    /// Makes a session of a browser, and answers when the browser does.
    ///
    /// # Errors
    /// `Forbidden`, those of a sandbox that is made, `UnknownContext`, `ContextInUse`, `NoBrowser`, `Failed`.
    pub async fn create_session(
        &self,
        caller: &Caller,
        request: BrowserRequest,
    ) -> Result<BrowserSessionView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.browsers.create(caller, request).await
    }

    /// The caller's sessions, the newest first, everybody's for one with the scope `admin`: also those that have ended, as far
    /// as they are kept.
    ///
    /// # Errors
    /// `Forbidden`, `Host`.
    pub async fn sessions(&self, caller: &Caller) -> Result<Vec<BrowserSessionView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.list(caller).await
    }

    /// A session, which may have ended.
    ///
    /// # Errors
    /// `Forbidden`; `UnknownSession`, also for another key's; `Host`.
    pub async fn session(&self, caller: &Caller, id: &str) -> Result<BrowserSessionView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.get(caller, id).await
    }

    /// The pages of a session that lives, as its browser says.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSession`, `Failed`.
    pub async fn session_pages(&self, caller: &Caller, id: &str) -> Result<Vec<PageInfo>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.pages(caller, id).await
    }

    /// The lines of a session's log, JSON each, the oldest first.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSession`, `Host`.
    pub async fn session_log(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.log(caller, id).await
    }

    /// The requests of a session's log, as a document of HAR 1.2.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSession`, `Host`.
    pub async fn session_har(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.har(caller, id).await
    }

    /// The pictures of a session, as lines of JSON, the oldest first.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSession`, `Host`.
    pub async fn session_recording(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.recording(caller, id).await
    }

    /// Ends a session. When this returns its context is saved, if it was to be, and no process of it is left.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSession`; `Conflict` while it is being started or ended.
    pub async fn release_session(&self, caller: &Caller, id: &str) -> Result<BrowserSessionView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.browsers.release(caller, id).await
    }

    /// Where the browser of a session is, for the data plane, which has checked who asks.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Failed`.
    pub async fn session_endpoint(&self, id: &str) -> Result<EndpointPath, DaemonError> {
        browsers::endpoint(&self.supervisor_unless_paused(id).await?).await
    }

    /// Makes a context of browsers.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `ContextExists`, `Host`.
    pub async fn create_browser_context(
        &self,
        caller: &Caller,
        name: Option<String>,
    ) -> Result<ContextRecord, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.browsers.create_context(caller, name).await
    }

    /// The caller's own contexts of browsers.
    ///
    /// # Errors
    /// `Forbidden`, `Host`.
    pub async fn browser_contexts(&self, caller: &Caller) -> Result<Vec<ContextRecord>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.list_contexts(caller).await
    }

    /// One of them, by its id or its name.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownContext`, `Host`.
    pub async fn browser_context(&self, caller: &Caller, which: &str) -> Result<ContextRecord, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.browsers.find_context(caller, which).await
    }

    /// Removes one of them.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownContext`, `ContextInUse`, `Host`.
    pub async fn remove_browser_context(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.browsers.remove_context(caller, which).await
    }
}
