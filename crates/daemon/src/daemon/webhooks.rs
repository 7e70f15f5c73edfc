//! What callers ask of their webhooks.

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::webhooks::{WebhookRequest, WebhookUpdate, WebhookView};

impl Daemon {
    /// Registers a webhook of the caller's.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `QuotaExceeded`, `Store`.
    pub async fn register_webhook(&self, caller: &Caller, request: WebhookRequest) -> Result<WebhookView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.webhooks.register(caller, request).await
    }

    /// The caller's webhooks, the oldest first.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub fn webhooks(&self, caller: &Caller) -> Result<Vec<WebhookView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.webhooks.registered(caller)
    }

    /// One of the caller's webhooks.
    ///
    /// # Errors
    /// `Forbidden`; `UnknownWebhook`, also for another key's; `Store`.
    pub fn webhook(&self, caller: &Caller, id: &str) -> Result<WebhookView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.webhooks.webhook(caller, id)
    }

    /// Has one of the caller's webhooks be different from now on.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownWebhook`, `Invalid`, `Store`.
    pub async fn update_webhook(
        &self,
        caller: &Caller,
        id: &str,
        update: WebhookUpdate,
    ) -> Result<WebhookView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.webhooks.update(caller, id, update).await
    }

    /// Removes one of the caller's webhooks.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownWebhook`, `Store`.
    pub async fn remove_webhook(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.webhooks.remove(caller, id).await
    }
}
