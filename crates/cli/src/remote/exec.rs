//! `offleash exec`: a command in a sandbox of the daemon, with this terminal.

use std::collections::BTreeMap;
use std::process::ExitCode;

use offleash_api::client::{Client, ClientError, Exec, ExecStart, News};
use offleash_core::exec::TerminalSize;
use offleash_core::text::Text;
use offleash_supervisor::run_client::{ExecIo as _, ExecIoEvent};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::args::ExecArgs;
use crate::failure::Failure;
use crate::terminal::{Destination, Prompt, TerminalIo};

/// The signals that ask first and kill when they come again.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// When the terminal holds this much, no more output is taken.
const MAX_PENDING: usize = 1 << 20;

pub(super) fn exec(client: &Client, arguments: ExecArgs) -> Result<ExitCode, Failure> {
    let mut env = BTreeMap::new();
    for text in &arguments.env {
        let (name, value) = super::assignment("--env", text)?;
        env.insert(name, value);
    }
    let program = Text::from(arguments.command.first().map(String::as_str).unwrap_or_default());
    let tty = arguments
        .tty
        .then(|| TerminalIo::size().unwrap_or(TerminalSize { rows: 24, columns: 80 }));
    let start = ExecStart {
        argv: arguments.command,
        env,
        cwd: arguments.workdir,
        user: arguments.user,
        tty,
        stdin: arguments.interactive,
    };
    let prompt = Prompt::new(&program, arguments.tty, None);
    // First, because signals are waited for only by threads that were started afterwards; others would end of them.
    // Keys that are not passed on stay those of this terminal, so that Ctrl-C is a signal here.
    let takes_keys = arguments.tty && arguments.interactive;
    let mut door = TerminalIo::open(Destination::Streams, takes_keys, prompt)
        .map_err(|error| crate::run::terminal_failure(&error))?;
    let exec = match client.exec(&arguments.id, start) {
        Ok(exec) => exec,
        Err(error) => {
            door.close();
            return Err(error.into());
        }
    };
    let driven = Driven {
        exec,
        takes_input: arguments.interactive,
        asked_to_end: None,
    }
    .run(&mut door);
    door.close();
    match driven? {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(ClientError::NotStarted { message, exit_code }) => Err(Failure::new(message).with_code(exit_code)),
        Err(cut @ ClientError::Cut { .. }) => Err(client.why_cut(&arguments.id, cut).into()),
        Err(error) => Err(error.into()),
    }
}

/// A command between the daemon and the terminal.
struct Driven {
    exec: Exec,
    takes_input: bool,
    /// By which signal it was first asked to end.
    asked_to_end: Option<i32>,
}

impl Driven {
    /// Until the command ends and its output is written; answers its code, or why it is not known.
    fn run(mut self, door: &mut TerminalIo) -> Result<Result<u8, ClientError>, Failure> {
        let mut ended = None;
        loop {
            while ended.is_none() && door.pending() < MAX_PENDING {
                match self.exec.take() {
                    Ok(Some(News::Output(stream, bytes))) => door.write(stream, bytes),
                    Ok(Some(News::Ended(code))) => ended = Some(Ok(self.code(code))),
                    Ok(Some(News::Started(_))) => {}
                    Ok(None) => break,
                    Err(error) => ended = Some(Err(error)),
                }
            }
            if door.pending() == 0
                && let Some(ended) = ended.take()
            {
                return Ok(ended);
            }
            self.wait(door, ended.is_some())?;
            let window = if self.takes_input { self.exec.window() } else { 0 };
            for event in door
                .turn(window)
                .map_err(|error| crate::run::terminal_failure(&error))?
            {
                if self.pass_on(event) {
                    return Ok(ended.unwrap_or(Ok(128 + 13)));
                }
            }
        }
    }

    /// A command that had to be killed ended of the signal that asked it first, which is what its caller did.
    fn code(&self, code: u8) -> u8 {
        let first = self.asked_to_end.and_then(|signal| u8::try_from(signal).ok());
        match first {
            Some(signal) if i32::from(code) == 128 + SIGKILL => 128 + signal,
            _ => code,
        }
    }

    fn wait(&self, door: &TerminalIo, has_ended: bool) -> Result<(), Failure> {
        let takes_input = self.takes_input && self.exec.window() > 0 && !has_ended;
        let mut waiting = Vec::with_capacity(6);
        if !has_ended && door.pending() < MAX_PENDING {
            waiting.push(PollFd::from_borrowed_fd(self.exec.wait_on(), PollFlags::IN));
        }
        for (descriptor, flags) in door.interests(takes_input) {
            waiting.push(PollFd::from_borrowed_fd(descriptor, flags));
        }
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::new(format!("cannot wait for the command: {error}"))),
        }
    }

    /// Whether nobody takes the output any more.
    fn pass_on(&mut self, event: ExecIoEvent) -> bool {
        match event {
            ExecIoEvent::Input(bytes) => self.exec.input(bytes),
            ExecIoEvent::EndOfInput => {
                self.takes_input = false;
                self.exec.close_input();
            }
            // It is asked once, by the same signal, and killed when it is said again.
            ExecIoEvent::Signal(signal @ (SIGHUP | SIGINT | SIGQUIT | SIGTERM)) => match self.asked_to_end {
                None => {
                    self.asked_to_end = Some(signal);
                    self.exec.signal(signal);
                }
                Some(_) => self.exec.signal(SIGKILL),
            },
            ExecIoEvent::Resize(size) => self.exec.resize(size),
            ExecIoEvent::OutputClosed | ExecIoEvent::CallerGone => return true,
            ExecIoEvent::Signal(_) | ExecIoEvent::Answer(..) => {}
        }
        false
    }
}
