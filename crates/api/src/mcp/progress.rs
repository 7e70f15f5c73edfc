//! What a host is told while a tool works, where it asked to be.

use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};

/// How often.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// Somebody who wants to be told.
#[derive(Debug)]
pub(super) struct ProgressTeller {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    began: Instant,
}

impl ProgressTeller {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        Self {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            began: Instant::now(),
        }
    }

    /// Tells how many seconds have passed of how many there may be, and what was written last.
    pub(super) async fn tell(&self, most: Duration, line: Option<String>) {
        let Some(token) = self.token.clone() else { return };
        let told =
            ProgressNotificationParam::new(token, self.began.elapsed().as_secs_f64()).with_total(most.as_secs_f64());
        let told = match line {
            Some(line) => told.with_message(line),
            None => told,
        };
        // A host that has gone needs no progress.
        let _told = self.peer.notify_progress(told).await;
    }
}
