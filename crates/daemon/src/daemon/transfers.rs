//! What admins ask of sandboxes that go from one machine to another.

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::transfers::SandboxTransfer;
use crate::view::SandboxView;

impl Daemon {
    /// Says all of a sandbox, beside its files, that another machine has to know.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `NotFound`, `Conflict` for one that has something that stays on this machine, `Store`.
    pub fn describe_transfer(&self, caller: &Caller, id: &str) -> Result<SandboxTransfer, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.transfers.describe(caller, id)
    }

    /// Makes a sandbox of what another machine said of it, over a snapshot with its files, under the id that it had there; it runs,
    /// or is paused with its files alone.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `Invalid`, `Conflict` where there is one of that id, `UnknownSnapshot`; those of
    /// [`Self::create`].
    pub async fn take_transfer(
        &self,
        caller: &Caller,
        snapshot: &str,
        description: &str,
        is_paused: bool,
    ) -> Result<SandboxView, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services
            .transfers
            .take(caller, snapshot, description, is_paused)
            .await
    }

    /// Ends a paused sandbox that is elsewhere now, unless it has changed since it was described.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `NotFound`, `Conflict`.
    pub async fn end_transfer(&self, caller: &Caller, id: &str, changes: i64) -> Result<(), DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.transfers.end(caller, id, changes).await
    }
}
