//! What waits to be sent: bounded, together, and nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::TelemetrySignal;
use super::collector::Collector;
use super::lost::LostSignals;
use crate::journal::Journal;

/// Most that waits; what is more is dropped.
const MAX_WAITING: usize = 4096;
/// Most of one message, and how long the first of it waits for others.
const MAX_AT_ONCE: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
/// How long the end of the server waits for what is left.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// What waits to be sent of one signal.
#[derive(Debug)]
pub(super) struct SignalQueue<T> {
    waiting: mpsc::Sender<Waiting<T>>,
    lost: Arc<LostSignals>,
    signal: TelemetrySignal,
}

impl<T> Clone for SignalQueue<T> {
    fn clone(&self) -> Self {
        Self {
            waiting: self.waiting.clone(),
            lost: Arc::clone(&self.lost),
            signal: self.signal,
        }
    }
}

#[derive(Debug)]
enum Waiting<T> {
    Item(T),
    /// Whoever wants to hear that everything before was sent.
    Flush(oneshot::Sender<()>),
}

/// Sends what comes, until nobody can send any more.
pub(super) struct QueueSender<T> {
    pub(super) signal: TelemetrySignal,
    pub(super) collector: Collector,
    /// Makes a message of what is sent together.
    pub(super) message: fn(&Value, &[T]) -> Value,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) lost: Arc<LostSignals>,
}

impl<T: Send + 'static> SignalQueue<T> {
    /// Begins to send what comes.
    pub(super) fn start(sender: QueueSender<T>) -> Self {
        let (waiting, receiver) = mpsc::channel(MAX_WAITING);
        let (lost, signal) = (Arc::clone(&sender.lost), sender.signal);
        tokio::spawn(sender.send_all(receiver));
        Self { waiting, lost, signal }
    }

    /// Adds something. It is dropped where there is too much: nobody is to wait for a collector.
    pub(super) fn put(&self, item: T) {
        if self.waiting.try_send(Waiting::Item(item)).is_err() {
            self.lost.add(self.signal, 1);
        }
    }

    /// Waits until what is there was sent, for a moment.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        let all = async {
            if self.waiting.send(Waiting::Flush(done)).await.is_ok() {
                let _flushed = flushed.await;
            }
        };
        let _in_time = timeout(LINGER_TIMEOUT, all).await;
    }
}

impl<T> QueueSender<T> {
    async fn send_all(self, mut waiting: mpsc::Receiver<Waiting<T>>) {
        while let Some(first) = waiting.recv().await {
            let (items, flushed) = gather(first, &mut waiting).await;
            if !items.is_empty() {
                let message = (self.message)(&self.collector.resource, &items);
                let outcome = self.collector.send(&message).await;
                self.lost.sent(&*self.journal, (self.signal, items.len()), outcome);
            }
            if let Some(flushed) = flushed {
                // Who does not wait any more need not hear it.
                let _heard = flushed.send(());
            }
        }
    }
}

/// What comes within a moment, or until somebody waits for it.
async fn gather<T>(
    first: Waiting<T>,
    waiting: &mut mpsc::Receiver<Waiting<T>>,
) -> (Vec<T>, Option<oneshot::Sender<()>>) {
    let deadline = Instant::now() + EVERY;
    let mut items = Vec::new();
    let mut next = Some(first);
    loop {
        match next {
            Some(Waiting::Item(item)) => items.push(item),
            Some(Waiting::Flush(flushed)) => return (items, Some(flushed)),
            None => return (items, None),
        }
        if items.len() >= MAX_AT_ONCE {
            return (items, None);
        }
        next = timeout_at(deadline, waiting.recv()).await.ok().flatten();
    }
}
