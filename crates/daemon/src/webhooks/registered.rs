//! Webhooks that keys register: of their own sandboxes, signed as E2B signs, and never to where a key could not ask from outside.

use std::sync::Arc;
use std::time::SystemTime;

use offleash_supervisor::clock::{from_ms, own_ms};

use super::Webhooks;
use super::sending::{EventSender, MessageSender};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::random;
use crate::registry::{Change, RegistryError, WebhookRow};
use crate::webhook_config::{MIN_SECRET, REGISTRY_TYPES, WebhookError, endpoint};

/// Most webhooks of a key.
const MAX_WEBHOOKS: usize = 10;
const MAX_NAME: usize = 128;
const MAX_URL: usize = 2048;
const MAX_SECRET: usize = 256;

/// A webhook that is to be registered.
#[derive(Clone)]
pub struct WebhookRequest {
    /// What its owner calls it.
    pub name: String,
    /// Where messages go.
    pub url: String,
    /// Whether any do.
    pub enabled: bool,
    /// Of which types they are.
    pub types: Vec<String>,
    /// With what they are signed.
    pub secret: String,
}

/// What is to be different of a webhook; the rest stays.
#[derive(Clone, Default)]
pub struct WebhookUpdate {
    /// What its owner calls it.
    pub name: Option<String>,
    /// Where messages go.
    pub url: Option<String>,
    /// Whether any do.
    pub enabled: Option<bool>,
    /// Of which types they are.
    pub types: Option<Vec<String>>,
    /// With what they are signed.
    pub secret: Option<String>,
}

/// What is told of a webhook: not its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookView {
    /// Its id.
    pub id: String,
    /// The key that registered it.
    pub key: String,
    /// What its owner calls it.
    pub name: String,
    /// Where messages go.
    pub url: String,
    /// Whether any do.
    pub enabled: bool,
    /// Of which types they are.
    pub types: Vec<String>,
    /// When it was registered.
    pub created_at: SystemTime,
}

impl std::fmt::Debug for WebhookRequest {
    /// Without what may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebhookRequest({:?})", self.name)
    }
}

impl std::fmt::Debug for WebhookUpdate {
    /// Without what may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookUpdate")
    }
}

impl From<WebhookRow> for WebhookView {
    fn from(row: WebhookRow) -> Self {
        Self {
            id: row.id,
            key: row.key_id,
            name: row.name,
            url: row.url,
            enabled: row.enabled,
            types: row.types,
            created_at: from_ms(row.created_ms),
        }
    }
}

impl Webhooks {
    /// Begins to tell the webhooks that keys have registered.
    pub(super) fn start_registered(&self) {
        // Where the registry cannot be read the daemon does not begin either.
        let rows = self.core.registry.look_up(|registry| registry.webhooks(None));
        for row in rows.unwrap_or_default() {
            self.tell(row);
        }
    }

    /// Tells one as long as it is registered.
    fn tell(&self, row: WebhookRow) {
        let registry = &self.core.registry;
        let Some(sender) = MessageSender::of_key(row.clone(), &self.config, registry, &self.counts) else {
            return;
        };
        let events = EventSender::new(sender, row.id, row.types);
        tokio::spawn(events.send_all(registry.feed().listen()));
    }

    /// Registers a webhook of the caller's, which is told of what happens from now on.
    ///
    /// # Errors
    /// `Invalid`, `QuotaExceeded`, `Store`.
    pub(crate) async fn register(
        self: &Arc<Self>,
        caller: &Caller,
        request: WebhookRequest,
    ) -> Result<WebhookView, DaemonError> {
        let row = WebhookRow {
            id: random::webhook_id()?,
            key_id: caller.key_id.clone(),
            name: request.name,
            url: request.url,
            enabled: request.enabled,
            types: request.types,
            secret: request.secret,
            created_ms: own_ms(),
        };
        check(caller, &row)?;
        let _turn = self.registering.lock().await;
        let used = self.registered(caller)?.len();
        if used >= MAX_WEBHOOKS {
            return Err(DaemonError::QuotaExceeded {
                what: "webhooks",
                quota: MAX_WEBHOOKS as u64,
                used: used as u64,
                asked: 1,
            });
        }
        let change = Change::AddWebhook(Box::new(row.clone()));
        self.core.registry.apply(vec![change]).await?;
        self.tell(row.clone());
        Ok(row.into())
    }

    /// The caller's webhooks, the oldest first.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) fn registered(&self, caller: &Caller) -> Result<Vec<WebhookView>, DaemonError> {
        let rows = self
            .core
            .registry
            .look_up(|registry| registry.webhooks(Some(&caller.key_id)))?;
        Ok(rows.into_iter().map(WebhookView::from).collect())
    }

    /// One of the caller's webhooks.
    ///
    /// # Errors
    /// `UnknownWebhook`, also for another key's; `Store`.
    pub(crate) fn webhook(&self, caller: &Caller, id: &str) -> Result<WebhookView, DaemonError> {
        self.find(caller, id).map(WebhookView::from)
    }

    /// Has one of the caller's webhooks be different from now on. What was about to be sent goes where it says now.
    ///
    /// # Errors
    /// `UnknownWebhook`, `Invalid`, `Store`.
    pub(crate) async fn update(
        &self,
        caller: &Caller,
        id: &str,
        update: WebhookUpdate,
    ) -> Result<WebhookView, DaemonError> {
        let before = self.find(caller, id)?;
        let row = WebhookRow {
            name: update.name.unwrap_or(before.name),
            url: update.url.unwrap_or(before.url),
            enabled: update.enabled.unwrap_or(before.enabled),
            types: update.types.unwrap_or(before.types),
            secret: update.secret.unwrap_or(before.secret),
            ..before
        };
        check(caller, &row)?;
        match self
            .core
            .registry
            .apply(vec![Change::SetWebhook(Box::new(row.clone()))])
            .await
        {
            Err(RegistryError::Stale { .. }) => Err(unknown(id)),
            written => Ok(written.map(|()| row.into())?),
        }
    }

    /// Removes one of the caller's webhooks; nothing is sent to it any more.
    ///
    /// # Errors
    /// `UnknownWebhook`, `Store`.
    pub(crate) async fn remove(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        let id = self.find(caller, id)?.id;
        Ok(self.core.registry.apply(vec![Change::RemoveWebhook(id)]).await?)
    }

    fn find(&self, caller: &Caller, id: &str) -> Result<WebhookRow, DaemonError> {
        let found = self.core.registry.look_up(|registry| registry.webhook(id))?;
        let own = found.filter(|row| caller.is(Some(&row.key_id)));
        own.ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> DaemonError {
    DaemonError::UnknownWebhook { id: id.to_owned() }
}

/// That messages can be sent like that. A key has them go to public addresses alone, by TLS; the owner also to this machine.
fn check(caller: &Caller, row: &WebhookRow) -> Result<(), DaemonError> {
    if row.name.is_empty() || row.name.len() > MAX_NAME || row.name.chars().any(char::is_control) {
        return Err(DaemonError::invalid(
            "name",
            format!("has 1 to {MAX_NAME} bytes and no control characters"),
        ));
    }
    let wrong = |error: &WebhookError| DaemonError::invalid("url", error.to_string());
    if row.url.len() > MAX_URL {
        return Err(DaemonError::invalid("url", format!("has {MAX_URL} bytes at most")));
    }
    let address = endpoint(&row.url).map_err(|error| wrong(&error))?;
    let is_outside = address.is_encrypted() && address.may_be_public();
    if !caller.is_owner() && !is_outside {
        return Err(DaemonError::invalid(
            "url",
            "is to be `https://` and a public address".to_owned(),
        ));
    }
    if !(MIN_SECRET..=MAX_SECRET).contains(&row.secret.len()) {
        return Err(DaemonError::invalid(
            "signatureSecret",
            format!("has {MIN_SECRET} to {MAX_SECRET} bytes"),
        ));
    }
    if row.types.is_empty() {
        return Err(DaemonError::invalid("events", "names no type of event".to_owned()));
    }
    match row.types.iter().find(|word| !REGISTRY_TYPES.contains(&word.as_str())) {
        None => Ok(()),
        Some(word) => Err(DaemonError::invalid(
            "events",
            format!(
                "`{}` is no type of event that is sent ({})",
                word.escape_debug(),
                REGISTRY_TYPES.join(", ")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Quota, Scopes};

    fn row(url: &str) -> WebhookRow {
        WebhookRow {
            id: "w1".to_owned(),
            key_id: "k1".to_owned(),
            name: "mine".to_owned(),
            url: url.to_owned(),
            enabled: true,
            types: vec!["sandbox.lifecycle.created".to_owned()],
            secret: "0123456789abcdef".to_owned(),
            created_ms: 0,
        }
    }

    fn key() -> Caller {
        Caller {
            key_id: "k1".to_owned(),
            scopes: Scopes(Vec::new()),
            quota: Quota::default(),
            tools: None,
        }
    }

    #[test]
    fn keys_have_messages_sent_by_tls_to_public_addresses_alone() {
        for url in ["https://hooks.example/a?b=c", "https://1.1.1.1:8443/"] {
            check(&key(), &row(url)).unwrap();
        }
        for url in [
            "",
            "hooks.example",
            "ftp://hooks.example/",
            "http://hooks.example/",
            "http://127.0.0.1:3000/",
            "https://127.0.0.1/",
            "https://localhost/",
            "https://x.localhost/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[fd00::1]/",
            "https://0.0.0.0/",
            "https://user:password@hooks.example/",
        ] {
            let refused = check(&key(), &row(url)).unwrap_err();
            assert!(matches!(refused, DaemonError::Invalid { field: "url", .. }), "{url}");
        }
        check(&Caller::local(), &row("http://127.0.0.1:3000/")).unwrap();
        check(&Caller::local(), &row("http://hooks.example/")).unwrap_err();
    }

    #[test]
    fn what_cannot_be_signed_or_is_never_sent_is_refused() {
        let good = row("https://hooks.example/");
        for (bad, named) in [
            (
                WebhookRow {
                    secret: "short".to_owned(),
                    ..good.clone()
                },
                "signatureSecret",
            ),
            (
                WebhookRow {
                    name: String::new(),
                    ..good.clone()
                },
                "name",
            ),
            (
                WebhookRow {
                    name: "a\nb".to_owned(),
                    ..good.clone()
                },
                "name",
            ),
            (
                WebhookRow {
                    types: Vec::new(),
                    ..good.clone()
                },
                "events",
            ),
            (
                WebhookRow {
                    types: vec!["sandbox.lifecycle.checkpointed".to_owned()],
                    ..good.clone()
                },
                "events",
            ),
            (
                WebhookRow {
                    types: vec!["sandbox.approval.requested".to_owned()],
                    ..good
                },
                "events",
            ),
        ] {
            let refused = check(&key(), &bad).unwrap_err();
            assert!(
                matches!(refused, DaemonError::Invalid { field, .. } if field == named),
                "{named}: {refused}"
            );
        }
    }
}
