//! Holding a sandbox still while one client looks at what it wrote: nothing in it moves, and nobody else is heard.

use std::time::{Duration, Instant};

use super::SocketClients;
use offleash_isolation::error::IsolationError;

use super::carry_out::{Outcome, failed};
use crate::sandbox_loop::LoopSandbox;
use crate::service::executions::Client;
use crate::service::message::SupervisorReply;

/// A sandbox that is held still.
#[derive(Debug)]
pub(super) struct StillHold {
    by: Client,
    since: Instant,
    longest: Duration,
}

impl StillHold {
    /// When it goes on at the latest.
    pub(super) fn ends(&self) -> Instant {
        self.since + self.longest
    }
}

impl SocketClients {
    /// Stops every process until `client` is gone. Connections to the outside stay: it is for a moment.
    pub(super) fn hold_still(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Outcome {
        self.check_running()?;
        held.sandbox.hold_still().map_err(failed)?;
        self.hold = Some(StillHold {
            by: client,
            since: Instant::now(),
            longest: self.service.longest_hold,
        });
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.reply(&SupervisorReply::Done);
        }
        Ok(())
    }

    /// Whether nothing in the sandbox moves.
    pub(super) fn is_still(&self) -> bool {
        self.paused_since.is_some() || self.hold.is_some()
    }

    /// Whether it is `client`'s turn to say something.
    pub(super) fn is_heard(&self, client: Client) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.by == client)
    }

    /// Lets the sandbox go on if `client`, who is gone, held it.
    pub(super) fn let_go(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Result<(), IsolationError> {
        let Some(hold) = self.hold.take_if(|hold| hold.by == client) else {
            return Ok(());
        };
        // What does not go on is of no use to anybody.
        held.sandbox.resume()?;
        let elapsed = hold.since.elapsed();
        self.executions.postpone(elapsed);
        for connection in self.connections.values_mut() {
            connection.since += elapsed;
        }
        Ok(())
    }

    /// Hangs up on who holds the sandbox for too long.
    pub(super) fn end_hold(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        let late = self.hold.as_ref().filter(|hold| Instant::now() >= hold.ends());
        match late.map(|hold| hold.by) {
            Some(by) => self.leave(held, by),
            None => Ok(()),
        }
    }
}
