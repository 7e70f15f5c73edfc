//! Tells whoever listens of events of sandboxes as soon as they are on record.
//!
//! Nobody is waited for: who does not keep up misses some, and the registry has them all.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::broadcast;

use crate::registry::{Change, EventKind, EventRow};

/// How many events wait for who listens.
const MAX_WAITING: usize = 1024;
/// How many rules of monitoring are counted apart; an owner has fewer.
const MAX_COUNTED: usize = 256;

/// Passes events on.
#[derive(Debug)]
pub(crate) struct EventFeed {
    sender: broadcast::Sender<EventRow>,
    alerts: Mutex<BTreeMap<String, u64>>,
}

impl Default for EventFeed {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(MAX_WAITING),
            alerts: Mutex::default(),
        }
    }
}

impl EventFeed {
    /// What happens from now on.
    pub(crate) fn listen(&self) -> broadcast::Receiver<EventRow> {
        self.sender.subscribe()
    }

    /// How often each rule of monitoring has fired since the daemon began.
    pub(crate) fn alerts(&self) -> BTreeMap<String, u64> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those among `batch`, which are to be told once it is on record.
    pub(crate) fn among(batch: &[Change]) -> Vec<EventRow> {
        let event = |change: &Change| match change {
            Change::AddEvent(row) => Some(row.clone()),
            _ => None,
        };
        batch.iter().filter_map(event).collect()
    }

    /// Tells of them.
    pub(crate) fn tell(&self, events: Vec<EventRow>) {
        for event in events {
            if event.kind == EventKind::Alert {
                self.count(&event);
            }
            // It is no failure that nobody listens.
            let _listening = self.sender.send(event);
        }
    }

    fn count(&self, event: &EventRow) {
        let Some(alert) = crate::history::alert_in(event.detail.as_deref()) else {
            return;
        };
        let mut alerts = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        if alerts.len() < MAX_COUNTED || alerts.contains_key(&alert.rule) {
            let count = alerts.entry(alert.rule).or_default();
            *count = count.saturating_add(1);
        }
    }
}
