//! Holding a sandbox still while one client looks at what it wrote: nothing in it moves, and nobody else is heard.

use std::time::{Duration, Instant};

use super::Loop;
use super::carry_out::{Outcome, failed};
use crate::keeper::executions::Client;
use crate::keeper::message::KeeperReply;

/// A sandbox that is held still.
#[derive(Debug)]
pub(super) struct Held {
    by: Client,
    since: Instant,
    longest: Duration,
}

impl Held {
    /// When it goes on at the latest.
    pub(super) fn ends(&self) -> Instant {
        self.since + self.longest
    }
}

impl Loop {
    /// Stops every process until `client` is gone. Connections to the outside stay: it is for a moment.
    pub(super) fn hold_still(&mut self, client: Client) -> Outcome {
        self.check_running()?;
        self.serving.sandbox.hold_still().map_err(failed)?;
        self.held = Some(Held {
            by: client,
            since: Instant::now(),
            longest: self.serving.longest_hold,
        });
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.reply(&KeeperReply::Done);
        }
        Ok(())
    }

    /// Whether nothing in the sandbox moves.
    pub(super) fn is_still(&self) -> bool {
        self.paused_since.is_some() || self.held.is_some()
    }

    /// Whether it is `client`'s turn to say something.
    pub(super) fn is_heard(&self, client: Client) -> bool {
        self.held.as_ref().is_none_or(|held| held.by == client)
    }

    /// Lets the sandbox go on if `client`, who is gone, held it.
    pub(super) fn let_go(&mut self, client: Client) {
        let Some(held) = self.held.take_if(|held| held.by == client) else {
            return;
        };
        if let Err(error) = self.serving.sandbox.resume() {
            // What does not go on is of no use to anybody.
            self.end_for(crate::keeper::message::EndReason::Failed(
                offleash_core::error::with_causes(&error),
            ));
        }
        let elapsed = held.since.elapsed();
        self.executions.postpone(elapsed);
        for connection in self.connections.values_mut() {
            connection.since += elapsed;
        }
    }

    /// Hangs up on who holds the sandbox for too long.
    pub(super) fn end_hold(&mut self) {
        let late = self.held.as_ref().filter(|held| Instant::now() >= held.ends());
        if let Some(by) = late.map(|held| held.by) {
            self.leave(by);
        }
    }
}
