//! What commands write and get: to everybody who follows, no faster than the slowest takes it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEnd, ExecEvent, StartFailure};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::ExecId;
use rustix::io::Errno;

use super::SocketClients;
use crate::sandbox_loop::LoopSandbox;
use crate::service::connection::{ConnectionStage, frame};
use crate::service::executions::{Client, Execution, FedInput};
use crate::service::message::{SupervisorFailure, SupervisorReply};

/// What a client may leave unread before the command that it follows has to wait.
const MAX_UNREAD: usize = 256 * 1024;
/// Where all together leave so much unread, everybody's share is smaller.
const MANY_UNREAD: usize = 8 * 1024 * 1024;
const SMALL_SHARE: usize = 16 * 1024;
const SIGKILL: i32 = 9;

impl SocketClients {
    /// Tells everybody who follows an execution what happened to it.
    pub(super) fn tell(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, event: ExecEvent) {
        match event {
            ExecEvent::InputTaken { .. } => {}
            ExecEvent::Started { pid } => {
                if let Some(execution) = self.executions.get(exec) {
                    execution.process.pid = pid;
                    self.service.log.started(&execution.process);
                }
                self.tell_followers(exec, &frame(&SupervisorReply::Started { pid }));
            }
            ExecEvent::Output { stream, bytes } => {
                self.tell_followers(exec, &frame(&SupervisorReply::Output { stream, bytes }));
            }
            ExecEvent::Ended(end) => self.take_end(held, exec, end),
        }
    }

    fn tell_followers(&mut self, exec: ExecId, frame: &Rc<[u8]>) {
        let Some(execution) = self.executions.get(exec) else {
            return;
        };
        for follower in &execution.followers {
            if let Some(connection) = self.connections.get_mut(follower) {
                connection.put(Rc::clone(frame));
            }
        }
    }

    fn take_end(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, end: ExecEnd) {
        let end = self.with_reason(held, exec, end);
        let Some(execution) = self.executions.end(exec, &end) else {
            return;
        };
        self.service.log.ended(&execution.process, execution.timed_out, &end);
        for feed in &execution.feeds {
            self.answer(feed.client, &SupervisorReply::Failed(SupervisorFailure::NoProcess));
        }
        if end == ExecEnd::Lost {
            // The sandbox ends now; whoever follows hears why, once that is known.
            return;
        }
        let Execution {
            asked,
            followers,
            timed_out,
            ..
        } = execution;
        for follower in followers {
            self.tell_end(follower, timed_out, &end, asked.elapsed());
        }
    }

    /// Says of a command that was killed, by nobody who asked us to, whether that was for want of memory.
    fn with_reason(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, end: ExecEnd) -> ExecEnd {
        let is_asked_for = self.executions.get(exec).is_none_or(|execution| execution.timed_out);
        if is_asked_for || end != (ExecEnd::Signaled { signal: SIGKILL }) {
            return end;
        }
        let limit = held.sandbox.was_out_of_memory();
        limit.map_or(end, |limit| ExecEnd::OutOfMemory { limit })
    }

    /// The end of an execution that `took` so long, to one client.
    pub(super) fn tell_end(&mut self, client: Client, timed_out: bool, end: &ExecEnd, took: Duration) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        if timed_out {
            connection.reply(&SupervisorReply::TimedOut);
        }
        connection.answer(&match end {
            ExecEnd::Lost => SupervisorReply::Gone { why: None },
            ExecEnd::NotStarted(failure) => SupervisorReply::Failed(failure_of(failure)),
            end => SupervisorReply::Ended {
                end: end.clone(),
                took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            },
        });
    }

    /// Has a client follow an execution that runs.
    pub(super) fn follow(&mut self, client: Client, exec: ExecId) {
        if let (Some(connection), Some(execution)) = (self.connections.get_mut(&client), self.executions.get(exec)) {
            connection.stage = ConnectionStage::Following(exec);
            execution.followers.push(client);
        }
    }

    /// Kills commands whose time is over.
    pub(super) fn kill_what_is_late(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        if self.is_still() {
            return Ok(());
        }
        let now = Instant::now();
        for (exec, execution) in self.executions.all() {
            if !execution.timed_out && execution.deadline.is_some_and(|deadline| now >= deadline) {
                execution.timed_out = true;
                held.sandbox.signal(exec, SIGKILL)?;
            }
        }
        Ok(())
    }

    /// Passes on input as far as there is room for it.
    pub(super) fn feed(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        if self.is_still() {
            return Ok(());
        }
        let sandbox = &mut *held.sandbox;
        let mut fed = Vec::new();
        for (exec, execution) in self.executions.all() {
            while let Some(feed) = execution.feeds.front_mut() {
                match &mut feed.what {
                    FedInput::End => sandbox.close_input(exec)?,
                    FedInput::Bytes { bytes, sent } => {
                        let room = sandbox.input_window(exec);
                        let rest = bytes.get(*sent..).unwrap_or_default();
                        let piece = rest.get(..room.min(rest.len())).unwrap_or_default();
                        if !piece.is_empty() {
                            sandbox.input(exec, piece)?;
                            *sent += piece.len();
                        }
                        if *sent < bytes.len() {
                            break;
                        }
                    }
                }
                fed.push(feed.client);
                execution.feeds.pop_front();
            }
        }
        for client in fed {
            self.answer(client, &SupervisorReply::Done);
        }
        Ok(())
    }

    /// Lets commands wait whose output is not taken, and go on when it was.
    pub(super) fn hold_and_release(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        let all: usize = self.connections.values().map(|connection| connection.unsent()).sum();
        let most = if all > MANY_UNREAD { SMALL_SHARE } else { MAX_UNREAD };
        for (exec, execution) in self.executions.all() {
            let unread = execution
                .followers
                .iter()
                .filter_map(|follower| self.connections.get(follower));
            let unread = unread.map(|connection| connection.unsent()).max().unwrap_or(0);
            let waits = match execution.held {
                true => unread > most / 2,
                false => unread > most,
            };
            if waits != execution.held {
                execution.held = waits;
                match waits {
                    true => held.sandbox.hold_output(exec)?,
                    false => held.sandbox.release_output(exec)?,
                }
            }
        }
        Ok(())
    }
}

fn failure_of(failure: &StartFailure) -> SupervisorFailure {
    match failure {
        StartFailure::NotFound => SupervisorFailure::NotFound,
        StartFailure::NotExecutable { errno } => SupervisorFailure::NotExecutable { errno: *errno },
        StartFailure::Directory { errno } => SupervisorFailure::Directory { errno: *errno },
        // What is too many now may be fine later, and is nobody's failure.
        StartFailure::Other { errno, .. } if *errno == Errno::AGAIN.raw_os_error() => SupervisorFailure::Exhausted {
            what: "commands and processes at once".to_owned(),
        },
        StartFailure::Other { step, errno } => SupervisorFailure::NotStarted {
            step: step.clone(),
            errno: *errno,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_too_many_is_told_from_one_that_cannot_be_started() {
        let failed = |errno: Errno| {
            failure_of(&StartFailure::Other {
                step: "fork".to_owned(),
                errno: errno.raw_os_error(),
            })
        };
        assert!(matches!(failed(Errno::AGAIN), SupervisorFailure::Exhausted { .. }));
        assert!(matches!(failed(Errno::IO), SupervisorFailure::NotStarted { .. }));
    }
}
