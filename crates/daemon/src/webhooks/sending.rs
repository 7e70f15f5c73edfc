//! Sends messages to one endpoint, each again after a while if it was not taken.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::Request;
use http::header::CONTENT_TYPE;
use offleash_images::{Connector, RegistryAddress, RegistrySettings};
use offleash_supervisor::clock::now_ms;
use ring::hmac;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

use super::WebhookCounts;
use super::message::{WebhookMessage, type_of};
use crate::error::DaemonError;
use crate::registry::{Change, EventRow, EventsQuery};
use crate::registry_handle::RegistryHandle;
use crate::webhook_config::WebhooksConfig;

/// How often a message is sent to an endpoint that is not there, is busy or has failed.
const MAX_TRIES: u32 = 10;
/// How often one is sent that the endpoint does not want.
const MAX_REFUSED: u32 = 5;
/// How long the first wait is between two tries; each further one is twice as long, up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How many events are read at once.
const AT_ONCE: u32 = 64;
/// How long it is until events are read again that could not be.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// The header with the time of sending, seconds since 1970.
const TIMESTAMP: &str = "offleash-timestamp";
/// The header with `v1=` and the HMAC-SHA256 of `TIMESTAMP.BODY`, in hexadecimal.
const SIGNATURE: &str = "offleash-signature";
/// The header with the message's id.
const ID: &str = "offleash-webhook-id";

/// What became of one try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendOutcome {
    /// It was taken.
    Taken,
    /// The endpoint is not there, is busy, or has failed: it may take it later.
    Unavailable,
    /// It was answered, and not taken.
    Refused,
}

/// The daemon is gone, and somebody else goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended;

/// Sends messages to one endpoint, as long as the daemon is there.
#[derive(Debug, Clone)]
pub(super) struct MessageSender {
    connector: Arc<Connector>,
    address: RegistryAddress,
    secret: Vec<u8>,
    answer_timeout: Duration,
    registry: Weak<RegistryHandle>,
    counts: Arc<WebhookCounts>,
}

impl MessageSender {
    /// `None` where no connections can be made at all.
    pub(super) fn new(
        address: RegistryAddress,
        config: &WebhooksConfig,
        registry: &Arc<RegistryHandle>,
        counts: &Arc<WebhookCounts>,
    ) -> Option<Self> {
        Some(Self {
            connector: Arc::new(Connector::new(&RegistrySettings::default()).ok()?),
            address,
            secret: config.secret.clone(),
            answer_timeout: config.answer_timeout,
            registry: Arc::downgrade(registry),
            counts: Arc::clone(counts),
        })
    }

    /// Sends what comes until nothing more can.
    pub(super) async fn send_all(self, mut waiting: Receiver<Arc<WebhookMessage>>) {
        while let Some(message) = waiting.recv().await {
            if self.deliver(&message).await.is_err() {
                return;
            }
        }
    }

    /// Sends a message as often as it takes, or until it is given up.
    async fn deliver(&self, message: &WebhookMessage) -> Result<(), Ended> {
        let (mut tries, mut wait) = (0, FIRST_WAIT);
        let outcome = loop {
            if self.registry.strong_count() == 0 {
                return Err(Ended);
            }
            tries += 1;
            let sent = timeout(self.answer_timeout, self.post(message)).await;
            let outcome = sent.unwrap_or(SendOutcome::Unavailable);
            let most = match outcome {
                SendOutcome::Taken => 0,
                SendOutcome::Refused => MAX_REFUSED,
                SendOutcome::Unavailable => MAX_TRIES,
            };
            if tries >= most {
                break outcome;
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        };
        let count = match outcome {
            SendOutcome::Taken => &self.counts.delivered,
            SendOutcome::Refused | SendOutcome::Unavailable => &self.counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sends it once. Of the answer the status alone is read, and no redirect is followed.
    async fn post(&self, message: &WebhookMessage) -> SendOutcome {
        let at = (now_ms() / 1000).to_string();
        let request = Request::post(self.address.path())
            .header(CONTENT_TYPE, "application/json")
            .header(TIMESTAMP, at.as_str())
            .header(SIGNATURE, signature(&self.secret, &at, &message.body))
            .header(ID, message.id.as_str())
            .body(Bytes::from(message.body.clone()));
        let Ok(request) = request else {
            return SendOutcome::Refused;
        };
        match self.connector.send(&self.address, request, "the webhook").await {
            Ok(response) if response.status().is_success() => SendOutcome::Taken,
            Ok(response) if !is_for_later(response.status().as_u16()) => SendOutcome::Refused,
            Ok(_) | Err(_) => SendOutcome::Unavailable,
        }
    }
}

/// Whether an answer says to try again later, by its number: 408, 425 and 429, and what begins with 5.
fn is_for_later(number: u16) -> bool {
    matches!(number, 408 | 425 | 429 | 500..=599)
}

/// Tells one endpoint of events, in their order, from where the last daemon came to.
#[derive(Debug)]
pub(super) struct EventSender {
    sender: MessageSender,
    /// What the endpoint is called in the registry.
    name: String,
    types: Vec<String>,
}

impl EventSender {
    pub(super) fn new(sender: MessageSender, name: String, types: Vec<String>) -> Self {
        Self { sender, name, types }
    }

    /// Goes on until the daemon is gone. `happening` says when there is something to be read.
    pub(super) async fn send_all(self, mut happening: broadcast::Receiver<EventRow>) {
        // Whoever comes first is told of what happens from now on.
        let mut told = None;
        loop {
            while happening.try_recv().is_ok() {}
            let Some(registry) = self.sender.registry.upgrade() else {
                return;
            };
            let read = self.read(&registry, told).await;
            drop(registry);
            let outcome = match read {
                Ok((from, events)) if events.is_empty() => {
                    told = Some(from);
                    match happening.recv().await {
                        Ok(_) | Err(RecvError::Lagged(_)) => Ok(()),
                        Err(RecvError::Closed) => Err(Ended),
                    }
                }
                Ok((from, events)) => self.tell(from, events, &mut told).await,
                // The registry cannot be read now.
                Err(_) => {
                    sleep(READ_AGAIN).await;
                    Ok(())
                }
            };
            if outcome == Err(Ended) {
                return;
            }
        }
    }

    /// The next events, and after which they are.
    async fn read(&self, registry: &RegistryHandle, told: Option<i64>) -> Result<(i64, Vec<EventRow>), DaemonError> {
        let name = self.name.clone();
        let (from, is_new, events) = registry
            .read("read events for a webhook", move |registry| {
                let known = match told {
                    Some(told) => Some(told),
                    None => registry.webhook_cursor(&name)?,
                };
                let from = match known {
                    Some(number) => number,
                    None => registry.last_event()?,
                };
                let query = EventsQuery {
                    after: from,
                    limit: AT_ONCE,
                    ..EventsQuery::default()
                };
                Ok((from, known.is_none(), registry.events(&query)?))
            })
            .await?;
        if is_new {
            self.note(registry, from).await?;
        }
        Ok((from, events))
    }

    async fn note(&self, registry: &RegistryHandle, number: i64) -> Result<(), DaemonError> {
        let endpoint = self.name.clone();
        Ok(registry
            .apply(vec![Change::SetWebhookCursor { endpoint, number }])
            .await?)
    }

    async fn tell(&self, from: i64, events: Vec<EventRow>, told: &mut Option<i64>) -> Result<(), Ended> {
        let mut before = from;
        for event in events {
            // What is not kept any more was too much for it.
            let missed = u64::try_from(event.number - before - 1).unwrap_or(0);
            self.sender.counts.dropped.fetch_add(missed, Ordering::Relaxed);
            before = event.number;
            let (kind, _) = type_of(event.kind);
            if self.types.is_empty() || self.types.iter().any(|word| word == kind) {
                self.sender.deliver(&WebhookMessage::of_event(&event)).await?;
            }
            *told = Some(event.number);
            let registry = self.sender.registry.upgrade().ok_or(Ended)?;
            // One that is not written down is told again later, by the same id.
            let _noted = self.note(&registry, event.number).await;
        }
        Ok(())
    }
}

/// The signature of a body that is sent at that time.
pub(super) fn signature(secret: &[u8], at: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signed = [at.as_bytes(), b".", body].concat();
    format!("v1={}", HEXLOWER.encode(hmac::sign(&key, &signed).as_ref()))
}
