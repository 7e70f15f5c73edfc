//! Processes of a sandbox that no guest has started: their streams are ours, and so are the signals for them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use offleash_core::exec::{ExecEnd, ExecEvent, OutputStream};
use offleash_protocol::{INPUT_WINDOW, OUTPUT_CHUNK};
use offleash_sys::{process, socket};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::error::IsolationError;
use crate::guest_link::running;
use crate::sandbox::{DescriptorInterest, ExecId, SandboxEvent};

/// The most pieces of output that are taken of one process in one turn.
const PIECES: usize = 8;
const SIGKILL: i32 = 9;
const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// One that has come in.
#[derive(Debug)]
pub(crate) struct EnteredProcess {
    pidfd: OwnedFd,
    /// Its process id inside.
    pid: u32,
    input: Option<OwnedFd>,
    /// Bytes for its input that it has not taken.
    unwritten: VecDeque<u8>,
    /// Whether no more input follows.
    closing: bool,
    outputs: [Option<OwnedFd>; 2],
    held: bool,
    /// Where its end is told; `None` afterwards.
    zygote: Option<OwnedFd>,
    end: Option<ExecEnd>,
}

impl EnteredProcess {
    /// A process, by its pidfd, with our ends of its streams, which do not block.
    pub(crate) fn new(
        pidfd: OwnedFd,
        pid: u32,
        input: Option<OwnedFd>,
        outputs: [OwnedFd; 2],
        zygote: OwnedFd,
    ) -> Self {
        Self {
            pidfd,
            pid,
            input,
            unwritten: VecDeque::new(),
            closing: false,
            outputs: outputs.map(Some),
            held: false,
            zygote: Some(zygote),
            end: None,
        }
    }

    /// Its process id inside.
    pub(crate) fn number(&self) -> u32 {
        self.pid
    }

    /// Its pidfd.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Writes what it takes now; answers how many bytes are done with.
    fn write(&mut self) -> usize {
        let mut done = 0;
        while let Some(input) = self.input.as_ref().filter(|_| !self.unwritten.is_empty()) {
            match rustix::io::write(input, self.unwritten.as_slices().0) {
                Ok(length) => {
                    self.unwritten.drain(..length);
                    done += length;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // It reads no more.
                Err(_) => self.input = None,
            }
        }
        if self.input.is_none() {
            done += self.unwritten.len();
            self.unwritten.clear();
        } else if self.closing && self.unwritten.is_empty() {
            self.input = None;
        }
        done
    }

    fn read(&mut self, events: &mut Vec<ExecEvent>) {
        let mut buffer = Vec::new();
        for (output, stream) in self.outputs.iter_mut().zip(STREAMS) {
            for _ in 0..PIECES {
                let Some(open) = output else { break };
                buffer.resize(OUTPUT_CHUNK, 0);
                match rustix::io::read(open, &mut buffer) {
                    Ok(0) => *output = None,
                    Ok(length) => events.push(ExecEvent::Output {
                        stream,
                        bytes: buffer[..length].to_vec(),
                    }),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => *output = None,
                }
            }
        }
    }

    /// Whether nothing of its output is there that was not taken.
    fn is_drained(&self) -> bool {
        let mut waiting: Vec<PollFd<'_>> = self
            .outputs
            .iter()
            .flatten()
            .map(|output| PollFd::new(output, PollFlags::IN))
            .collect();
        let looked = rustix::event::poll(&mut waiting, Some(&Timespec::default()));
        looked.is_ok() && waiting.iter().all(|output| !output.revents().contains(PollFlags::IN))
    }

    /// Hears of its end, if that has come.
    fn listen(&mut self) {
        let Some(zygote) = &self.zygote else { return };
        let mut waiting = [PollFd::new(zygote, PollFlags::IN)];
        if !matches!(rustix::event::poll(&mut waiting, Some(&Timespec::default())), Ok(1)) {
            return;
        }
        let mut buffer = [0; 64];
        let said = socket::receive(zygote.as_fd(), &mut buffer).map_or(0, |(length, _)| length);
        // A zygote that is gone cannot say how it ended, and nobody would hear of its end.
        self.end = Some(parse_end(&buffer[..said]).unwrap_or_else(|| {
            let _killed = process::kill(self.pidfd.as_fd());
            ExecEnd::Signaled { signal: SIGKILL }
        }));
        self.zygote = None;
    }
}

/// `exited CODE` or `signaled NUMBER`.
fn parse_end(said: &[u8]) -> Option<ExecEnd> {
    let text = std::str::from_utf8(said).ok()?;
    let (how, number) = text.split_once(' ')?;
    match how {
        "exited" => Some(ExecEnd::Exited {
            code: number.parse().ok()?,
        }),
        "signaled" => Some(ExecEnd::Signaled {
            signal: number.parse().ok()?,
        }),
        _ => None,
    }
}

/// All of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct EnteredProcesses {
    running: BTreeMap<u32, EnteredProcess>,
    /// Those of whose start nobody was told yet.
    new: Vec<(u32, u32)>,
    /// What stays open for processes that those which ended left behind, so that they are not killed by SIGPIPE.
    leftovers: Vec<OwnedFd>,
}

impl EnteredProcesses {
    pub(crate) fn add(&mut self, exec: ExecId, process: EnteredProcess) {
        self.new.push((exec.0, process.pid));
        self.running.insert(exec.0, process);
    }

    pub(crate) fn has(&self, exec: ExecId) -> bool {
        self.running.contains_key(&exec.0)
    }

    pub(crate) fn input_window(&self, exec: ExecId) -> usize {
        let found = self.running.get(&exec.0);
        found.map_or(0, |process| INPUT_WINDOW.saturating_sub(process.unwritten.len()))
    }

    /// Takes bytes for its input; that they were taken is told with the next turn.
    pub(crate) fn input(&mut self, exec: ExecId, bytes: &[u8]) {
        if let Some(process) = self.running.get_mut(&exec.0) {
            process.unwritten.extend(bytes);
        }
    }

    pub(crate) fn close_input(&mut self, exec: ExecId) {
        if let Some(process) = self.running.get_mut(&exec.0) {
            process.closing = true;
            process.write();
        }
    }

    pub(crate) fn signal(&self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        match self.running.get(&exec.0) {
            Some(process) if process.end.is_none() => {
                process::signal_group(process.pidfd.as_fd(), signal).map_err(running("send a signal"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn hold(&mut self, exec: ExecId, held: bool) {
        if let Some(process) = self.running.get_mut(&exec.0) {
            process.held = held;
        }
    }

    pub(crate) fn wait_on(&self, take_output: bool) -> Vec<DescriptorInterest<'_>> {
        let mut interests = Vec::new();
        for process in self.running.values() {
            let outputs = process
                .outputs
                .iter()
                .flatten()
                .filter(|_| take_output && !process.held);
            for descriptor in outputs.chain(&process.zygote) {
                interests.push(DescriptorInterest {
                    descriptor: descriptor.as_fd(),
                    writable: false,
                });
            }
            if let Some(input) = process.input.as_ref().filter(|_| !process.unwritten.is_empty()) {
                interests.push(DescriptorInterest {
                    descriptor: input.as_fd(),
                    writable: true,
                });
            }
        }
        interests
    }

    pub(crate) fn turn(&mut self, take_output: bool) -> Vec<SandboxEvent> {
        let mut told: Vec<(u32, ExecEvent)> = Vec::new();
        for (exec, pid) in self.new.drain(..) {
            told.push((exec, ExecEvent::Started { pid }));
        }
        let mut over = Vec::new();
        for (exec, process) in &mut self.running {
            let mut events = Vec::new();
            let count = process.write();
            if count > 0 {
                events.push(ExecEvent::InputTaken { count });
            }
            process.listen();
            if take_output && !process.held {
                process.read(&mut events);
                if let Some(end) = process.end.clone().filter(|_| process.is_drained()) {
                    events.push(ExecEvent::Ended(end));
                    over.push(*exec);
                }
            }
            told.extend(events.into_iter().map(|event| (*exec, event)));
        }
        for exec in over {
            let ended = self.running.remove(&exec);
            let open = ended.into_iter().flat_map(|ended| ended.outputs).flatten();
            self.leftovers.extend(open);
        }
        let event = |(exec, event)| SandboxEvent::Exec {
            exec: ExecId(exec),
            event,
        };
        told.into_iter().map(event).collect()
    }
}

/// The error of a process that could not come in.
pub(crate) fn not_entered(source: io::Error) -> IsolationError {
    IsolationError::Running {
        action: "move a copy of a zygote's process into the sandbox",
        source,
    }
}
