//! Events of sandboxes as they come, for whoever passes them on.

use offleash_core::record::AlertRecord;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::history::alert_in;
use crate::records::told;
use crate::registry::EventRow;
use crate::view::SandboxEvent;

/// Hears of events of all sandboxes. Who does not keep up misses some.
#[derive(Debug)]
pub struct EventListener(Receiver<EventRow>);

/// What is heard.
#[derive(Debug, Clone)]
pub enum HeardEvent {
    /// Something happened. It has no number yet.
    Event {
        /// What.
        event: Box<SandboxEvent>,
        /// The rule of monitoring that fired, where one did.
        alert: Option<Box<AlertRecord>>,
    },
    /// So many were missed.
    Missed(u64),
}

impl EventListener {
    pub(crate) fn new(events: Receiver<EventRow>) -> Self {
        Self(events)
    }

    /// What comes next; `None` once the daemon is gone.
    pub async fn next(&mut self) -> Option<HeardEvent> {
        match self.0.recv().await {
            Ok(row) => {
                let alert = alert_in(row.detail.as_deref()).map(Box::new);
                let event = Box::new(told(row));
                Some(HeardEvent::Event { event, alert })
            }
            Err(RecvError::Lagged(missed)) => Some(HeardEvent::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}
