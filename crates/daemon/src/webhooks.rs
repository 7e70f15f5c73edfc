//! Tells other programs of what happens to sandboxes, by signed requests over HTTP.
//!
//! Nobody waits for them: each endpoint has a queue of its own that is bounded, and a task that sends one message after the
//! other. One that is down, slow or answers nonsense costs its own messages and nothing else.

mod message;
mod sending;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use offleash_images::RegistryAddress;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{self, Sender};

use crate::approvals::open_approvals;
use crate::daemon_core::DaemonCore;
use crate::registry::EventRow;
use crate::webhook_config::{WebhooksConfig, endpoint};
use message::WebhookMessage;

/// How many messages wait for an endpoint; further ones are dropped.
const MAX_QUEUED: usize = 1024;
/// How often questions that wait for a person are looked for.
const ASKING: Duration = Duration::from_secs(2);
/// How many questions are remembered as told.
const MAX_TOLD: usize = 4096;

/// What became of messages since the daemon began.
#[derive(Debug, Default)]
pub(crate) struct WebhookCounts {
    pub(crate) delivered: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

/// Sends messages.
#[derive(Debug)]
pub(crate) struct Webhooks {
    core: DaemonCore,
    config: WebhooksConfig,
    counts: Arc<WebhookCounts>,
}

impl Webhooks {
    pub(crate) fn new(core: DaemonCore, config: WebhooksConfig) -> Self {
        let counts = Arc::default();
        Self { core, config, counts }
    }

    /// How many messages were delivered, given up, and dropped.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let WebhookCounts {
            delivered,
            failed,
            dropped,
        } = &*self.counts;
        BTreeMap::from([
            ("delivered", of(delivered)),
            ("failed", of(failed)),
            ("dropped", of(dropped)),
        ])
    }

    /// Begins to send, until the daemon is gone; nothing where there is no endpoint.
    pub(crate) fn start(self: &Arc<Self>) {
        let endpoints: Vec<RegistryAddress> = self.config.urls.iter().filter_map(|url| endpoint(url).ok()).collect();
        if endpoints.is_empty() {
            return;
        }
        let queues: Vec<Sender<Arc<WebhookMessage>>> = endpoints
            .into_iter()
            .map(|address| {
                let (queue, waiting) = mpsc::channel(MAX_QUEUED);
                let (secret, counts) = (self.config.secret.clone(), Arc::clone(&self.counts));
                tokio::spawn(sending::send_all(address, secret, waiting, counts));
                queue
            })
            .collect();
        let events = self.core.registry.feed().listen();
        tokio::spawn(pass_on(
            events,
            queues.clone(),
            self.config.types.clone(),
            Arc::clone(&self.counts),
        ));
        self.ask_in_background(queues);
    }

    /// Looks for questions that wait for a person, as long as the daemon is there.
    fn ask_in_background(self: &Arc<Self>, queues: Vec<Sender<Arc<WebhookMessage>>>) {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut told: HashSet<String> = HashSet::new();
            loop {
                tokio::time::sleep(ASKING).await;
                let Some(webhooks) = weak.upgrade() else { return };
                for message in webhooks.questions(&mut told).await {
                    put(&queues, &webhooks.config.types, message, &webhooks.counts);
                }
            }
        });
    }

    /// The questions of which nobody was told.
    async fn questions(&self, told: &mut HashSet<String>) -> Vec<WebhookMessage> {
        let mut new = Vec::new();
        if told.len() > MAX_TOLD {
            told.clear();
        }
        for entry in self.core.sandboxes.all() {
            for question in open_approvals(&self.core, &entry).await {
                if told.insert(question.id.clone()) {
                    new.push(WebhookMessage::of_question(&entry.row(), &question));
                }
            }
        }
        new
    }
}

/// Passes events on as messages.
async fn pass_on(
    mut events: Receiver<EventRow>,
    queues: Vec<Sender<Arc<WebhookMessage>>>,
    types: Vec<String>,
    counts: Arc<WebhookCounts>,
) {
    loop {
        match events.recv().await {
            Ok(event) => put(&queues, &types, WebhookMessage::of_event(&event), &counts),
            Err(RecvError::Lagged(missed)) => {
                counts.dropped.fetch_add(missed, Ordering::Relaxed);
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn put(queues: &[Sender<Arc<WebhookMessage>>], types: &[String], message: WebhookMessage, counts: &WebhookCounts) {
    if !types.is_empty() && !types.iter().any(|word| *word == message.kind) {
        return;
    }
    let message = Arc::new(message);
    for queue in queues {
        if queue.try_send(Arc::clone(&message)).is_err() {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
