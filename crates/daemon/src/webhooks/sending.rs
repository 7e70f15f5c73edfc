//! Sends messages to one endpoint, each again after a while if it was not taken.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use http::Request;
use http::header::CONTENT_TYPE;
use offleash_images::{Connector, RegistryAddress, RegistrySettings};
use offleash_supervisor::clock::now_ms;
use ring::hmac;
use sha2::{Digest as _, Sha256};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

use super::WebhookCounts;
use super::message::{WebhookMessage, type_of};
use crate::caller::LOCAL_KEY;
use crate::error::DaemonError;
use crate::random;
use crate::registry::{Change, EventRow, EventsQuery, WebhookRow};
use crate::registry_handle::RegistryHandle;
use crate::webhook_config::{WebhooksConfig, endpoint};

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

/// The headers that E2B's receivers look at: the webhook, the try, the form of the signature, and the signature.
const E2B_WEBHOOK: &str = "e2b-webhook-id";
const E2B_DELIVERY: &str = "e2b-delivery-id";
const E2B_VERSION: &str = "e2b-signature-version";
const E2B_SIGNATURE: &str = "e2b-signature";

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

/// Why nothing more is sent like that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendStop {
    /// The daemon is gone, and somebody else goes on.
    Ended,
    /// The webhook is another one than when this was begun, or gone.
    Changed,
}

/// Sends messages to one endpoint, as long as the daemon is there.
#[derive(Debug, Clone)]
pub(super) struct MessageSender {
    connector: Arc<Connector>,
    address: RegistryAddress,
    secret: Vec<u8>,
    /// The webhook as it was registered, if a key did that.
    row: Option<Box<WebhookRow>>,
    answer_timeout: Duration,
    registry: Weak<RegistryHandle>,
    counts: Arc<WebhookCounts>,
}

impl MessageSender {
    /// One to an endpoint of the owner's; `None` where no connections can be made at all.
    pub(super) fn of_owner(
        address: RegistryAddress,
        config: &WebhooksConfig,
        registry: &Arc<RegistryHandle>,
        counts: &Arc<WebhookCounts>,
    ) -> Option<Self> {
        let connector = Connector::new(&RegistrySettings::default()).ok()?;
        Some(Self {
            connector: Arc::new(connector),
            address,
            secret: config.secret.clone(),
            row: None,
            answer_timeout: config.answer_timeout,
            registry: Arc::downgrade(registry),
            counts: Arc::clone(counts),
        })
    }

    /// One to an endpoint that a key registered, which is asked at public addresses alone. The owner's own is as those that he
    /// configures.
    pub(super) fn of_key(
        row: WebhookRow,
        config: &WebhooksConfig,
        registry: &Arc<RegistryHandle>,
        counts: &Arc<WebhookCounts>,
    ) -> Option<Self> {
        let mut sender = Self::of_owner(endpoint(&row.url).ok()?, config, registry, counts)?;
        if row.key_id != LOCAL_KEY {
            let connector = Connector::new(&RegistrySettings::default()).ok()?;
            sender.connector = Arc::new(connector.to_public());
        }
        sender.secret = row.secret.clone().into_bytes();
        sender.row = Some(Box::new(row));
        Some(sender)
    }

    /// The same to a webhook as it is now.
    fn renewed(&self, row: WebhookRow, registry: &Arc<RegistryHandle>) -> Option<Self> {
        let config = WebhooksConfig {
            answer_timeout: self.answer_timeout,
            ..WebhooksConfig::default()
        };
        Self::of_key(row, &config, registry, &self.counts)
    }

    /// Whether the webhook is as it was; those of the owner always are.
    fn is_current(&self, registry: &RegistryHandle) -> bool {
        let Some(row) = &self.row else { return true };
        // What cannot be read now is looked at again with the next try.
        let found = registry.look_up(|registry| registry.webhook(&row.id));
        found.map_or(true, |found| found.as_ref() == Some(&**row))
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
    async fn deliver(&self, message: &WebhookMessage) -> Result<(), SendStop> {
        let (mut tries, mut wait) = (0, FIRST_WAIT);
        let outcome = loop {
            let registry = self.registry.upgrade().ok_or(SendStop::Ended)?;
            if !self.is_current(&registry) {
                return Err(SendStop::Changed);
            }
            drop(registry);
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
        let mut request = Request::post(self.address.path())
            .header(CONTENT_TYPE, "application/json")
            .header(TIMESTAMP, at.as_str())
            .header(SIGNATURE, signature(&self.secret, &at, &message.body))
            .header(ID, message.id.as_str());
        if let Some(row) = &self.row {
            request = request
                .header(E2B_WEBHOOK, row.id.as_str())
                .header(E2B_DELIVERY, random::uuid().unwrap_or_default())
                .header(E2B_VERSION, "v1")
                .header(E2B_SIGNATURE, e2b_signature(&self.secret, &message.body));
        }
        let Ok(request) = request.body(Bytes::from(message.body.clone())) else {
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
    pub(super) async fn send_all(mut self, mut happening: broadcast::Receiver<EventRow>) {
        // Whoever comes first is told of what happens from now on.
        let mut told = None;
        loop {
            while happening.try_recv().is_ok() {}
            let Some(registry) = self.sender.registry.upgrade() else {
                return;
            };
            if !self.sender.is_current(&registry) && !self.renew(&registry) {
                return;
            }
            let read = self.read(&registry, told).await;
            drop(registry);
            let outcome = match read {
                Ok((from, events)) if events.is_empty() => {
                    told = Some(from);
                    match happening.recv().await {
                        Ok(_) | Err(RecvError::Lagged(_)) => Ok(()),
                        Err(RecvError::Closed) => Err(SendStop::Ended),
                    }
                }
                Ok((from, events)) => self.tell(from, events, &mut told).await,
                // The registry cannot be read now.
                Err(_) => {
                    sleep(READ_AGAIN).await;
                    Ok(())
                }
            };
            if outcome == Err(SendStop::Ended) {
                return;
            }
        }
    }

    /// Takes the webhook as it is registered now; `false` where it is not any more.
    fn renew(&mut self, registry: &Arc<RegistryHandle>) -> bool {
        let found = registry.look_up(|registry| registry.webhook(&self.name)).ok().flatten();
        let renewed = found.and_then(|row| {
            let types = row.types.clone();
            Some((self.sender.renewed(row, registry)?, types))
        });
        match renewed {
            Some((sender, types)) => {
                (self.sender, self.types) = (sender, types);
                true
            }
            None => false,
        }
    }

    /// The next events, and after which they are.
    async fn read(&self, registry: &RegistryHandle, told: Option<i64>) -> Result<(i64, Vec<EventRow>), DaemonError> {
        let name = self.name.clone();
        let key = self.sender.row.as_ref().map(|row| row.key_id.clone());
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
                    key_id: key.as_deref(),
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

    fn wants(&self, event: &EventRow) -> bool {
        let (kind, _) = type_of(event.kind);
        let is_enabled = self.sender.row.as_ref().is_none_or(|row| row.enabled);
        is_enabled && (self.types.is_empty() || self.types.iter().any(|word| word == kind))
    }

    fn message(&self, event: &EventRow) -> WebhookMessage {
        let registry = self.sender.registry.upgrade();
        match (&self.sender.row, registry) {
            (Some(row), Some(registry)) => {
                let facts = registry.look_up(|registry| registry.event_facts(&event.sandbox));
                WebhookMessage::of_key(&row.id, event, facts.ok().flatten().as_ref())
            }
            _ => WebhookMessage::of_event(event),
        }
    }

    async fn note(&self, registry: &RegistryHandle, number: i64) -> Result<(), DaemonError> {
        let endpoint = self.name.clone();
        Ok(registry
            .apply(vec![Change::SetWebhookCursor { endpoint, number }])
            .await?)
    }

    async fn tell(&self, from: i64, events: Vec<EventRow>, told: &mut Option<i64>) -> Result<(), SendStop> {
        let mut before = from;
        for event in events {
            // What is not kept any more was too much for it. Between those of one key are others'.
            if self.sender.row.is_none() {
                let missed = u64::try_from(event.number - before - 1).unwrap_or(0);
                self.sender.counts.dropped.fetch_add(missed, Ordering::Relaxed);
                before = event.number;
            }
            if self.wants(&event) {
                self.sender.deliver(&self.message(&event)).await?;
            }
            *told = Some(event.number);
            let registry = self.sender.registry.upgrade().ok_or(SendStop::Ended)?;
            // One that is not written down is told again later, by the same id.
            let _noted = self.note(&registry, event.number).await;
        }
        Ok(())
    }
}

/// The signature of E2B's webhooks, which is no MAC: whoever checks it trusts TLS for the rest. `SIGNATURE` goes with it.
pub(super) fn e2b_signature(secret: &[u8], body: &[u8]) -> String {
    BASE64URL_NOPAD.encode(&Sha256::new().chain_update(secret).chain_update(body).finalize())
}

/// The signature of a body that is sent at that time.
pub(super) fn signature(secret: &[u8], at: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signed = [at.as_bytes(), b".", body].concat();
    format!("v1={}", HEXLOWER.encode(hmac::sign(&key, &signed).as_ref()))
}
