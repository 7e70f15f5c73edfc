//! What callers ask of desktops.

use super::Daemon;
use crate::caller::Caller;
use crate::desktops::{DesktopRequest, DesktopView};
use crate::error::DaemonError;
use crate::registry::Scope;

impl Daemon {
    /// Makes a desktop, and answers when its screen can be looked at.
    ///
    /// # Errors
    /// `Forbidden`, those of a sandbox that is made, `NoDesktop`, `DesktopFailed`.
    pub async fn create_desktop(&self, caller: &Caller, request: DesktopRequest) -> Result<DesktopView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.desktops.create(caller, request).await
    }

    /// The caller's desktops, the newest first, everybody's for one with the scope `admin`: also those that have ended, as far
    /// as they are kept.
    ///
    /// # Errors
    /// `Forbidden`, `Host`.
    pub async fn desktops(&self, caller: &Caller) -> Result<Vec<DesktopView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.desktops.list(caller).await
    }

    /// A desktop, which may have ended.
    ///
    /// # Errors
    /// `Forbidden`; `UnknownDesktop`, also for another key's; `Host`.
    pub async fn desktop(&self, caller: &Caller, id: &str) -> Result<DesktopView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.desktops.get(caller, id).await
    }

    /// The pictures of a desktop's screen, as lines of JSON, the oldest first.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownDesktop`, `Host`.
    pub async fn desktop_recording(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.desktops.recording(caller, id).await
    }

    /// Ends a desktop. When this returns no process of it is left.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownDesktop`, `Host`.
    pub async fn release_desktop(&self, caller: &Caller, id: &str) -> Result<DesktopView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.desktops.release(caller, id).await
    }
}
