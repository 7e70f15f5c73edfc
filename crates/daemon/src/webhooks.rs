//! Tells other programs of what happens to sandboxes, by signed requests over HTTP.
//!
//! Nobody waits for them. Each endpoint is told of the registry's events in their order, by a task of its own that writes down
//! how far it came: a daemon that begins anew goes on there, and what it says twice has the same id twice. Questions that
//! wait for a person are asked anew of the sandboxes by each daemon. An endpoint that is down costs its own messages. The owner's
//! endpoints are in the configuration and are told of everything; those that keys register are told of their sandboxes.

mod message;
mod registered;
mod sending;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::{self, Sender};

use crate::approvals::open_approvals;
use crate::daemon_core::DaemonCore;
use crate::registry::Change;
use crate::webhook_config::{WebhooksConfig, endpoint};
use message::WebhookMessage;
pub use registered::{WebhookRequest, WebhookUpdate, WebhookView};
use sending::{EventSender, MessageSender};

/// How many questions wait for an endpoint; further ones are dropped.
const MAX_QUEUED: usize = 1024;
/// How often questions that wait for a person are looked for.
const ASKING: Duration = Duration::from_secs(2);

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
    /// One is registered at a time, so that no key has more than it may.
    registering: tokio::sync::Mutex<()>,
}

impl Webhooks {
    pub(crate) fn new(core: DaemonCore, config: WebhooksConfig) -> Self {
        let counts = Arc::default();
        let registering = tokio::sync::Mutex::default();
        Self {
            core,
            config,
            counts,
            registering,
        }
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

    /// Begins to send, until the daemon is gone.
    pub(crate) fn start(self: &Arc<Self>) {
        let registry = &self.core.registry;
        let names = self.config.urls.iter().map(|url| name_of(url)).collect();
        registry.submit_droppable(Change::KeepWebhooks(names));
        self.start_registered();
        let mut questions = Vec::new();
        for url in &self.config.urls {
            let Ok(address) = endpoint(url) else { continue };
            let Some(sender) = MessageSender::of_owner(address, &self.config, registry, &self.counts) else {
                continue;
            };
            let (queue, waiting) = mpsc::channel(MAX_QUEUED);
            tokio::spawn(sender.clone().send_all(waiting));
            questions.push(queue);
            let events = EventSender::new(sender, name_of(url), self.config.types.clone());
            tokio::spawn(events.send_all(registry.feed().listen()));
        }
        if !questions.is_empty() && self.config.wants(message::QUESTION) {
            self.ask_in_background(questions);
        }
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
                    put(&queues, message, &webhooks.counts);
                }
            }
        });
    }

    /// The questions of which nobody was told. Those are remembered that are open still.
    async fn questions(&self, told: &mut HashSet<String>) -> Vec<WebhookMessage> {
        let (mut new, mut open) = (Vec::new(), HashSet::new());
        for entry in self.core.sandboxes.all() {
            for question in open_approvals(&self.core, &entry).await {
                let message = WebhookMessage::of_question(&entry.row(), &question);
                open.insert(message.id.clone());
                if !told.contains(&message.id) {
                    new.push(message);
                }
            }
        }
        *told = open;
        new
    }
}

/// What an endpoint is called in the registry.
fn name_of(url: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(url.as_bytes()))
}

fn put(queues: &[Sender<Arc<WebhookMessage>>], message: WebhookMessage, counts: &WebhookCounts) {
    let message = Arc::new(message);
    for queue in queues {
        if queue.try_send(Arc::clone(&message)).is_err() {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
