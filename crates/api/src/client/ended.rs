//! Sandboxes that are not there any more: what is still known of them.

use std::time::{Duration, Instant};

use offleash_core::error::{ErrorKind, Explained as _};
use serde_json::Value;

use super::{Client, ClientError, MAX_PAGES, encoded, malformed};

/// The most events that a daemon tells at once.
const PAGE: i64 = 1000;
/// How long it is waited for the account of an end, and how often it is asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(100);

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Which one.
    pub id: String,
    /// What it was called.
    pub name: Option<String>,
    /// What it was made from.
    pub template: String,
    /// When, in the words of the daemon.
    pub at: String,
    /// `killed` or `died`.
    pub end: String,
    /// Why.
    pub reason: String,
}

impl Client {
    /// How the sandbox `id` ended; `None` if that is not known, or it has not.
    ///
    /// # Errors
    /// `NotRunning`, `Refused`, `Malformed`.
    pub fn ended(&self, id: &str) -> Result<Option<Ended>, ClientError> {
        let events = self.get(&format!("/v1/audit?sandbox={}&limit=1", encoded(id)))?;
        Ok(events["events"].get(0).and_then(end_of))
    }

    /// How sandboxes ended of which the daemon still knows, the earliest first.
    ///
    /// # Errors
    /// As [`Self::ended`].
    pub fn all_ended(&self) -> Result<Vec<Ended>, ClientError> {
        let (mut all, mut after) = (Vec::new(), 0);
        for _ in 0..MAX_PAGES {
            let page = self.get(&format!("/v1/audit?after={after}&limit={PAGE}"))?;
            let events = page["events"].as_array().map(Vec::as_slice).unwrap_or_default();
            all.extend(events.iter().filter_map(end_of));
            let last = events.last().and_then(|event| event["number"].as_i64());
            match last {
                Some(last) if last > after => after = last,
                _ => return Ok(all),
            }
        }
        Err(malformed("/v1/audit", format!("it has more than {MAX_PAGES} pages")))
    }

    /// What was answered about the sandbox `id`; that it is not there is made `Ended` if it was.
    ///
    /// # Errors
    /// Those of `answered`, and `Ended`.
    pub fn known<T>(&self, id: &str, answered: Result<T, ClientError>) -> Result<T, ClientError> {
        match answered {
            Err(ClientError::Refused {
                message,
                kind: ErrorKind::NotFound,
            }) => Err(match self.ended(id) {
                Ok(Some(Ended { id, reason, .. })) => ClientError::Ended { id, reason },
                _ => ClientError::Refused {
                    message,
                    kind: ErrorKind::NotFound,
                },
            }),
            answered => answered,
        }
    }

    /// Why the answer about a command in the sandbox `id` was cut; waits a moment for the account of an end.
    pub fn why_cut(&self, id: &str, cut: ClientError) -> ClientError {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.running(id) {
                Err(ClientError::NotRunning { .. }) => return ClientError::ServerEnded { id: id.to_owned() },
                Err(unreachable @ ClientError::Unreachable { .. }) => return unreachable,
                Err(ended @ (ClientError::Ended { .. } | ClientError::Paused { .. })) => return ended,
                // What is left of it is being removed, or its supervisor was not seen to end yet.
                Ok(_) | Err(_) if Instant::now() < deadline => std::thread::sleep(EVERY),
                Err(error) if error.kind() == ErrorKind::NotFound => return error,
                Ok(_) | Err(_) => return cut,
            }
        }
    }
}

fn end_of(event: &Value) -> Option<Ended> {
    let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    matches!(text("kind").as_str(), "killed" | "died").then(|| Ended {
        id: text("sandbox"),
        name: event["name"].as_str().map(str::to_owned),
        template: text("template"),
        at: text("at"),
        end: text("kind"),
        reason: text("reason"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_ends_are_ends() {
        let event = |kind: &str| json!({"number": 1, "sandbox": "iabc", "kind": kind, "reason": "by key `k`"});
        assert_eq!(end_of(&event("paused")), None);
        assert_eq!(end_of(&event("died")).unwrap().reason, "by key `k`");
        assert_eq!(end_of(&event("killed")).unwrap().id, "iabc");
    }
}
