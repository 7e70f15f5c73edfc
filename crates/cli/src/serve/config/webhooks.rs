//! Whom a server tells of what happens to sandboxes.

use std::time::Duration;

use offleash_daemon::{WebhookError, WebhooksConfig};

use super::keys::WebhookKeys;
use super::written::Wrong;

/// How long an endpoint may take.
const TIMEOUTS: std::ops::RangeInclusive<u64> = 1..=60;

/// What the table says.
///
/// # Errors
/// When an address, the secret or a type is none.
pub(super) fn webhooks(table: &WebhookKeys, config: &mut WebhooksConfig) -> Result<(), Wrong> {
    const SECRET: &str = "webhooks.secret";
    config.urls = table.urls.clone().unwrap_or_default();
    config.types = table.types.clone().unwrap_or_default();
    if let Some(seconds) = table.timeout_seconds {
        if !TIMEOUTS.contains(&seconds) {
            return Err(Wrong::new("webhooks.timeout_seconds", "it is from 1 to 60"));
        }
        config.answer_timeout = Duration::from_secs(seconds);
    }
    if let Some(origin) = &table.secret {
        let secret = secret(origin).map_err(|why| Wrong::new(SECRET, why))?;
        config.secret = secret.trim_ascii().to_vec();
    }
    config.check().map_err(|error| {
        let key = match &error {
            WebhookError::Url { .. } | WebhookError::InTheOpen(_) => "webhooks.urls",
            WebhookError::Secret => SECRET,
            WebhookError::Type(_) => "webhooks.types",
        };
        Wrong::new(key, error)
    })
}

/// The secret, of which nothing is in the file itself.
fn secret(origin: &str) -> Result<Vec<u8>, String> {
    if let Some(variable) = origin.strip_prefix("env:") {
        let value = std::env::var_os(variable).ok_or_else(|| format!("the variable `{variable}` is not set"))?;
        return Ok(value.into_encoded_bytes());
    }
    match origin.strip_prefix("file:") {
        Some(path) => std::fs::read(path).map_err(|error| format!("`{path}`: {error}")),
        None => Err("it is `env:VARIABLE` or `file:PATH`".to_owned()),
    }
}
