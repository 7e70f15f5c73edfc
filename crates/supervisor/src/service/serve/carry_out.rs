//! What clients ask for, carried out.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::exec::{ExecRequest, TerminalSize};
use offleash_core::log_level::LogLevel;
use offleash_core::spec::ZygoteRole;
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::ExecId;

use super::SocketClients;
use crate::sandbox_loop::{Ending, LoopSandbox};
use crate::service::ends::{self, EndRetention};
use crate::service::executions::{Client, Execution, FedInput, InputFeed};
use crate::service::message::{
    Hello, INPUT_CHUNK, ProcessInfo, Selector, StartExec, SupervisorFailure, SupervisorReply, SupervisorRequest,
};
use crate::service::{reached, zygote};
use offleash_core::error::with_causes;

/// Most commands at once that were asked for; what they start themselves does not count.
const MAX_EXECUTIONS: usize = 4096;
/// Most pieces of input that wait for one command to read: each is a connection, of which a supervisor has a number, and up to
/// [`INPUT_CHUNK`] bytes of its memory.
const MAX_FEEDS: usize = 64;
/// What is remembered of the arguments of a command, and of its variables, in bytes, and of those of all that run.
const REMEMBERED: usize = 16 * 1024;
const REMEMBERED_OF_ALL: usize = 8 * 1024 * 1024;
/// How much input may wait for commands that do not read, in bytes.
const MAX_WAITING: usize = 32 * 1024 * 1024;
/// Signals that there are (signal(7)).
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;
/// Longer than anything runs.
const MAX_LENGTH: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// What a command is made of.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// Its program.
    Program,
    /// The process of the zygote.
    Zygote,
}

pub(super) type Outcome = Result<(), SupervisorFailure>;

impl SocketClients {
    /// Answers a request, or notes who is to be answered when.
    pub(super) fn carry_out(
        &mut self,
        held: &mut LoopSandbox<'_>,
        client: Client,
        request: SupervisorRequest,
    ) -> Outcome {
        match request {
            SupervisorRequest::Hello => self.hello(client),
            SupervisorRequest::Start(start) => return self.start(held, client, &start, Origin::Program),
            SupervisorRequest::StartCopy(start) => return self.start(held, client, &start, Origin::Zygote),
            SupervisorRequest::First => return self.first(held, client),
            SupervisorRequest::Attach(which) => return self.attach(client, &which),
            SupervisorRequest::Processes => self.processes(client),
            SupervisorRequest::Input { which, bytes } => {
                if bytes.len() > INPUT_CHUNK {
                    return Err(invalid("more input than one request may have"));
                }
                return self.take_feed(client, &which, FedInput::Bytes { bytes, sent: 0 });
            }
            SupervisorRequest::CloseInput(which) => return self.take_feed(client, &which, FedInput::End),
            SupervisorRequest::Signal { which, signal } => return self.signal(held, client, &which, signal),
            SupervisorRequest::Resize { which, rows, columns } => {
                return self.resize(held, client, &which, TerminalSize { rows, columns });
            }
            SupervisorRequest::Kill => {
                if let Some(connection) = self.connections.get_mut(&client) {
                    connection.waits_for_the_end = true;
                }
                held.end(Ending::Killed);
            }
            SupervisorRequest::Files { user } => return self.files(held, client, user.as_deref()),
            SupervisorRequest::Port(port) => return self.port(held, client, port),
            SupervisorRequest::Usage => self.usage(held, client),
            SupervisorRequest::SetNetwork(network) => return self.set_network(held, client, &network),
            SupervisorRequest::Pause => return self.pause(held, client),
            SupervisorRequest::Resume => return self.resume(held, client),
            SupervisorRequest::Authority => return self.authority(held, client),
            SupervisorRequest::Hold => return self.hold_still(held, client),
            SupervisorRequest::Ends => self.ends(client),
            SupervisorRequest::Approvals => self.approvals(client),
            SupervisorRequest::Decide { question, answer } => return self.decide(held, client, question, answer),
            SupervisorRequest::Alerts { after } => self.alerts(held, client, after),
            SupervisorRequest::NoteEnd { tag, note } => return self.note_end(client, &tag, note),
            SupervisorRequest::Refusals { after } => {
                // What a command met that has ended was told before that.
                self.note_network(held);
                if held.gateway.is_none() {
                    self.refusals.note_strays(held.sandbox.found_no_route());
                }
                self.answer(client, &SupervisorReply::Refusals(self.refusals.after(after)));
            }
            SupervisorRequest::Reached => {
                let reached = held.gateway.map(reached::told).unwrap_or_default();
                self.answer(client, &SupervisorReply::Reached(reached));
            }
        }
        Ok(())
    }

    fn hello(&mut self, client: Client) {
        let hello = Hello {
            paused: self.paused_since.is_some(),
            ..self.service.hello.clone()
        };
        self.answer(client, &SupervisorReply::Hello(hello));
    }

    fn first(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Outcome {
        let first = held.sandbox.first_process();
        let first = first.ok_or_else(|| SupervisorFailure::Unsupported {
            operation: "have a first process of its own".to_owned(),
        })?;
        self.answer(client, &SupervisorReply::First(first));
        Ok(())
    }

    /// A copy of the zygote's process for that request, if it is to be had.
    fn copy(&mut self, held: &mut LoopSandbox<'_>, request: &ExecRequest) -> Option<ExecId> {
        let ZygoteRole::Below(zygote) = self.service.descent else {
            return None;
        };
        let mut connect = || {
            let connected = zygote::connect(zygote);
            connected.map_err(|error| io::Error::new(error.kind(), format!("its zygote cannot be reached: {error}")))
        };
        match held.sandbox.enter(request, &mut connect) {
            Ok(exec) => Some(exec),
            Err(error) => {
                let line = format!("an interpreter was started anew: {}", with_causes(&error));
                self.service.log.note(LogLevel::Warn, &line);
                None
            }
        }
    }

    fn start(&mut self, held: &mut LoopSandbox<'_>, client: Client, start: &StartExec, origin: Origin) -> Outcome {
        let asked = Instant::now();
        self.check_running()?;
        if self.executions.count() >= MAX_EXECUTIONS {
            return Err(SupervisorFailure::Exhausted {
                what: "commands at once".to_owned(),
            });
        }
        let (request, user) = self.service.users.request(start)?;
        let copied = match origin {
            Origin::Zygote => self.copy(held, &request),
            Origin::Program => None,
        };
        let exec = match copied {
            Some(exec) => exec,
            None => held.sandbox.exec(&request).map_err(failed)?,
        };
        let room = REMEMBERED_OF_ALL.saturating_sub(self.executions.remembered());
        let (argv, of_argv) = first_bytes(&start.argv, room, Vec::len);
        let (env, of_env) = first_bytes(&start.env, room.saturating_sub(of_argv), |(name, value)| {
            name.len() + value.len()
        });
        let process = ProcessInfo {
            pid: 0,
            tag: start.tag.clone(),
            argv,
            env,
            cwd: request.cwd.into_os_string().into_encoded_bytes(),
            user,
            tty: start.tty.is_some(),
        };
        let timeout = start.timeout_ms.map(|time| Duration::from_millis(time).min(MAX_LENGTH));
        self.executions.add(
            exec,
            Execution {
                asked,
                process,
                remembered: of_argv + of_env,
                takes_input: start.stdin,
                followers: Vec::new(),
                held: false,
                deadline: timeout.map(|timeout| Instant::now() + timeout),
                timed_out: false,
                feeds: VecDeque::new(),
                wanted: EndRetention::default(),
            },
        );
        self.follow(client, exec);
        Ok(())
    }

    fn attach(&mut self, client: Client, which: &Selector) -> Outcome {
        if let Some((exec, execution)) = self.executions.find(which) {
            let pid = execution.process.pid;
            if let Some(connection) = self.connections.get_mut(&client) {
                connection.reply(&SupervisorReply::Started { pid });
            }
            self.follow(client, exec);
            return Ok(());
        }
        let exited = self.executions.find_exited(which).ok_or(SupervisorFailure::NoProcess)?;
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.reply(&SupervisorReply::Started { pid: exited.pid });
        }
        self.tell_end(client, exited.timed_out, &exited.end, exited.took);
        Ok(())
    }

    fn processes(&mut self, client: Client) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        for (_, execution) in self.executions.all() {
            if execution.process.pid != 0 {
                connection.reply(&SupervisorReply::Process(execution.process.clone()));
            }
        }
        connection.answer(&SupervisorReply::Done);
    }

    fn ends(&mut self, client: Client) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        for exited in self.executions.ends() {
            connection.reply(&SupervisorReply::Exited(exited.clone()));
        }
        connection.answer(&SupervisorReply::Done);
    }

    /// What is said of an end comes before what makes it: so it waits for what a paused sandbox cannot do.
    fn note_end(&mut self, client: Client, tag: &str, note: Option<String>) -> Outcome {
        self.check_running()?;
        if !ends::fits(tag, note.as_deref()) {
            return Err(invalid("the note on an end is too long"));
        }
        self.executions.note_end(tag, note);
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    /// Input is passed on in the order in which it came.
    fn take_feed(&mut self, client: Client, which: &Selector, what: FedInput) -> Outcome {
        self.check_running()?;
        let waiting = self.executions.waiting();
        let (_, execution) = self.executions.find(which).ok_or(SupervisorFailure::NoProcess)?;
        if !execution.takes_input {
            return Err(SupervisorFailure::InputClosed);
        }
        if execution.feeds.len() >= MAX_FEEDS {
            return Err(SupervisorFailure::Exhausted {
                what: "callers that wait for one process to read its input".to_owned(),
            });
        }
        if matches!(what, FedInput::End) {
            execution.takes_input = false;
        }
        if matches!(&what, FedInput::Bytes { bytes, .. } if bytes.len() > MAX_WAITING.saturating_sub(waiting)) {
            return Err(SupervisorFailure::Exhausted {
                what: "input that commands do not read".to_owned(),
            });
        }
        execution.feeds.push_back(InputFeed { client, what });
        Ok(())
    }

    fn signal(&mut self, held: &mut LoopSandbox<'_>, client: Client, which: &Selector, signal: i32) -> Outcome {
        self.check_running()?;
        if !SIGNALS.contains(&signal) {
            return Err(invalid("there is no such signal"));
        }
        let exec = self.exec_of(which)?;
        held.sandbox.signal(exec, signal).map_err(failed)?;
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    fn resize(&mut self, held: &mut LoopSandbox<'_>, client: Client, which: &Selector, size: TerminalSize) -> Outcome {
        self.check_running()?;
        let (exec, execution) = self.executions.find(which).ok_or(SupervisorFailure::NoProcess)?;
        if !execution.process.tty {
            return Err(SupervisorFailure::NoTerminal);
        }
        held.sandbox.resize(exec, size).map_err(failed)?;
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    fn files(&mut self, held: &mut LoopSandbox<'_>, client: Client, user: Option<&str>) -> Outcome {
        self.check_running()?;
        let user = self.service.users.find(user)?;
        let ids = self.service.users.ids(user);
        let socket = held.sandbox.open_files(ids).map_err(failed)?;
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.answer_with(&SupervisorReply::Files, socket);
        }
        Ok(())
    }

    fn exec_of(&mut self, which: &Selector) -> Result<ExecId, SupervisorFailure> {
        let (exec, _) = self.executions.find(which).ok_or(SupervisorFailure::NoProcess)?;
        Ok(exec)
    }

    pub(super) fn check_running(&self) -> Outcome {
        match self.paused_since {
            Some(_) => Err(SupervisorFailure::Paused),
            None => Ok(()),
        }
    }
}

/// As many of `list` as take no more than [`REMEMBERED`] bytes and than there is `room`, and how many bytes they take;
/// one that is empty takes some, too.
fn first_bytes<T: Clone>(list: &[T], room: usize, length: impl Fn(&T) -> usize) -> (Vec<T>, usize) {
    let most = REMEMBERED.min(room);
    let mut taken = 0;
    let fits = |entry: &&T| {
        let bytes = size_of::<T>() + length(entry);
        let fits = bytes <= most - taken;
        taken += if fits { bytes } else { 0 };
        fits
    };
    let first = list.iter().take_while(fits).cloned().collect();
    (first, taken)
}

pub(super) fn invalid(reason: &str) -> SupervisorFailure {
    SupervisorFailure::Invalid {
        reason: reason.to_owned(),
    }
}

/// A sandbox that is gone says so; everything else is the host's.
pub(super) fn failed(error: IsolationError) -> SupervisorFailure {
    match error {
        IsolationError::Guest { reason } => SupervisorFailure::Invalid { reason },
        error if error.kind() == ErrorKind::Unsupported => SupervisorFailure::Unsupported {
            operation: error.to_string(),
        },
        error => SupervisorFailure::Failed {
            reason: with_causes(&error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_of_a_command_is_bounded() {
        let word = |length: usize| vec![b'x'; length];
        let kept = |list: &[Vec<u8>], room| {
            let (first, taken) = first_bytes(list, room, Vec::len);
            assert!(taken <= REMEMBERED.min(room));
            first.len()
        };
        assert_eq!(kept(&[word(10), word(20)], usize::MAX), 2);
        assert_eq!(kept(&[word(10), word(REMEMBERED), word(1)], usize::MAX), 1);
        assert!(kept(&vec![Vec::new(); 1_000_000], usize::MAX) <= REMEMBERED / size_of::<Vec<u8>>());
        assert_eq!(kept(&[word(10), word(10)], 40), 1);
        assert_eq!(kept(&[word(0)], 0), 0);
    }
}
