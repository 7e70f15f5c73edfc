//! One driver: its process, the frames that it says, and how it is brought to a known state.

use std::collections::BTreeMap;
use std::time::Duration;

use offleash_core::exec::{ExecEnd, OutputStream};
use tokio::time::timeout;

use crate::cell::ContextDeath;
use crate::error::{ContextError, shortened};
use crate::id::HexId;
use crate::language::Language;
use crate::limits::CellLimits;
use crate::process::{MAX_INPUT, ProcessError, ProcessHost, ProcessNews, ProcessStart, ProcessStream};
use crate::protocol::{DriverDecoder, DriverFrame, FrameError, FrameKind, HostFrame, MAX_FROM_HOST, SyncScanner};

mod state;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// The status of a command that a shell did not find.
const MISSING: u8 = 127;

/// What is kept of what a driver says before it answers, in bytes.
const WORDS: usize = 4096;

/// Decimal digits of a number that a driver may give.
const MAX_DIGITS: usize = 20;

/// A driver that was started.
#[derive(Debug)]
pub(crate) struct DriverProcess<P: ProcessHost> {
    processes: P,
    stream: P::Stream,
    decoder: DriverDecoder,
    /// Bytes that came and are not decoded.
    waiting: Vec<u8>,
    /// How many of them are.
    taken: usize,
    /// What was looked for when waiting for an answer was given up, or a frame may be half there.
    unknown: bool,
    /// Whether it may have been started with other variables than processes are given now.
    other_variables: bool,
}

/// What comes of a driver.
#[derive(Debug)]
pub(crate) enum DriverNews {
    Frame(DriverFrame),
    Over(ContextDeath),
}

/// Why a driver does not answer.
#[derive(Debug)]
pub(crate) enum DriverSilence {
    /// It is busy.
    Busy,
    /// It is gone; with the last that it wrote.
    Gone(ContextDeath, String),
    /// It cannot be asked.
    Process(ProcessError),
}

impl<P: ProcessHost> DriverProcess<P> {
    /// Starts a driver and waits until it is ready.
    pub(crate) async fn start(
        processes: &P,
        language: Language,
        cwd: Option<String>,
        tag: String,
        limits: &CellLimits,
    ) -> Result<Self, ContextError> {
        let argv = language.command();
        let start = ProcessStart {
            language,
            argv,
            cwd: cwd.clone(),
            tag: tag.clone(),
        };
        let started = processes.start(start).await;
        let stream = started.map_err(|error| match error {
            ProcessError::NotFound => ContextError::NotInstalled {
                language,
                found: String::new(),
            },
            ProcessError::Directory { reason } => ContextError::Directory {
                cwd: shortened(&cwd.unwrap_or_default()),
                reason,
            },
            error => error.into(),
        })?;
        let mut driver = Self::over(processes, stream);
        match driver.set_up(language, limits.start).await {
            Ok(()) => Ok(driver),
            Err(error) => {
                // Whoever wanted it is told, and it may have ended by itself.
                let _noted = processes.note_end(&tag, None).await;
                let _killed = driver.kill().await;
                Err(error)
            }
        }
    }

    /// The driver of that process, in whichever state.
    pub(crate) async fn attach(processes: &P, pid: u32) -> Result<Self, ProcessError> {
        Ok(Self {
            // The daemon before may have meant to give it those of a sandbox that it had handed out.
            other_variables: true,
            ..Self::over(processes, processes.attach(pid).await?)
        })
    }

    /// Has it load modules, whoever will use it, and waits until it has.
    pub(crate) async fn import(
        &mut self,
        language: Language,
        modules: &[String],
        patience: Duration,
    ) -> Result<(), ContextError> {
        self.other_variables = true;
        let frame = HostFrame::Import(modules.join("\n").as_bytes())
            .encode()
            .map_err(too_large)?;
        self.answers(language, frame, patience).await
    }

    fn over(processes: &P, stream: P::Stream) -> Self {
        Self {
            processes: processes.clone(),
            stream,
            decoder: DriverDecoder::new(),
            waiting: Vec::new(),
            taken: 0,
            unknown: true,
            other_variables: false,
        }
    }

    async fn set_up(&mut self, language: Language, patience: Duration) -> Result<(), ContextError> {
        let source = HostFrame::Source(language.source()).encode().map_err(too_large)?;
        self.answers(language, source, patience).await
    }

    /// Gives it `first`, and waits until it is ready for a cell.
    async fn answers(&mut self, language: Language, first: Vec<u8>, patience: Duration) -> Result<(), ContextError> {
        match self.synchronise_after(first, patience).await {
            Ok(_) => Ok(()),
            Err(DriverSilence::Busy) => Err(ContextError::NotStarted {
                reason: format!("it was not ready after {} seconds", patience.as_secs()),
            }),
            Err(DriverSilence::Gone(death, _)) if death.is_of_the_sandbox() => Err(ProcessError::Gone.into()),
            // As a shell says it that was to start it; so do drivers that find something too old.
            Err(DriverSilence::Gone(ContextDeath::Ended(ExecEnd::Exited { code: MISSING }), words)) => {
                Err(ContextError::NotInstalled {
                    language,
                    found: words.trim().to_owned(),
                })
            }
            Err(DriverSilence::Gone(death, words)) => Err(ContextError::NotStarted {
                reason: format!("{death}; it wrote: {}", words.trim().escape_debug()),
            }),
            Err(DriverSilence::Process(error)) => Err(error.into()),
        }
    }

    /// Brings a driver that runs no cell to where it waits for one, and what it says to the beginning of a frame;
    /// answers how many cells it has run.
    pub(crate) async fn synchronise(&mut self, patience: Duration) -> Result<u64, DriverSilence> {
        self.synchronise_after(Vec::new(), patience).await
    }

    /// As [`Self::synchronise`], with `first` before it: each input costs a question and an answer.
    async fn synchronise_after(&mut self, mut first: Vec<u8>, patience: Duration) -> Result<u64, DriverSilence> {
        let id = HexId::random().map_err(|error| {
            DriverSilence::Process(ProcessError::Other {
                kind: offleash_core::error::ErrorKind::Internal,
                error: Box::new(error),
            })
        })?;
        self.unknown = true;
        self.decoder = DriverDecoder::new();
        self.waiting.clear();
        self.taken = 0;
        let mut words = Vec::new();
        let asked = async {
            first.extend(HostFrame::Sync(id).encode().map_err(|error| broken(error, &[]))?);
            let given = self.processes.input(self.stream.pid(), first).await;
            match given {
                // Why it ended comes with its output. One that ends at once takes no input.
                Ok(()) | Err(ProcessError::Ended) => {}
                Err(ProcessError::Gone) => {
                    return Err(DriverSilence::Gone(
                        ContextDeath::SandboxGone { why: None },
                        String::new(),
                    ));
                }
                Err(error) => return Err(DriverSilence::Process(error)),
            }
            self.find(id, &mut words).await
        };
        let answer = timeout(patience, asked).await.unwrap_or(Err(DriverSilence::Busy))?;
        self.unknown = false;
        Ok(answer)
    }

    /// The number in the answer to the `sync` of that id; what comes before is of no use any more.
    async fn find(&mut self, id: HexId, words: &mut Vec<u8>) -> Result<u64, DriverSilence> {
        let mut scanner = SyncScanner::new(id);
        loop {
            let bytes = match self.stream.next().await {
                Ok(Some(ProcessNews::Output(OutputStream::Stdout, bytes))) => bytes,
                Ok(Some(ProcessNews::Output(OutputStream::Stderr, bytes))) => {
                    keep_last(words, &bytes);
                    continue;
                }
                other => {
                    return Err(DriverSilence::Gone(
                        self.death(other),
                        String::from_utf8_lossy(words).into_owned(),
                    ));
                }
            };
            if let Some(rest) = scanner.push(&bytes) {
                self.waiting = rest;
                break;
            }
            keep_last(words, &bytes);
        }
        match self.next().await {
            DriverNews::Frame(DriverFrame {
                kind: FrameKind::Sync,
                payload,
                ..
            }) => number(&payload).ok_or_else(|| broken(FrameError::Line, words)),
            DriverNews::Frame(_) => Err(broken(FrameError::Kind, words)),
            DriverNews::Over(death) => Err(DriverSilence::Gone(death, String::from_utf8_lossy(words).into_owned())),
        }
    }

    /// What comes next. May be dropped and called again: nothing is lost.
    pub(crate) async fn next(&mut self) -> DriverNews {
        loop {
            let mut rest = self.waiting.get(self.taken..).unwrap_or_default();
            let before = rest.len();
            let decoded = self.decoder.next(&mut rest);
            self.taken += before - rest.len();
            match decoded {
                Ok(Some(frame)) => return DriverNews::Frame(frame),
                Ok(None) => {}
                Err(error) => {
                    return DriverNews::Over(ContextDeath::Protocol {
                        reason: error.to_string(),
                    });
                }
            }
            match self.stream.next().await {
                Ok(Some(ProcessNews::Output(OutputStream::Stdout, bytes))) => {
                    self.waiting = bytes;
                    self.taken = 0;
                }
                // Nothing of a driver is there once it has moved its streams.
                Ok(Some(ProcessNews::Output(OutputStream::Stderr, _))) => {}
                other => return DriverNews::Over(self.death(other)),
            }
        }
    }

    /// What of its process is neither output nor understood.
    fn death(&self, news: Result<Option<ProcessNews>, ProcessError>) -> ContextDeath {
        match news {
            Ok(Some(ProcessNews::Ended(end))) => ContextDeath::Ended(end),
            Ok(Some(ProcessNews::Output(..)) | None) | Err(ProcessError::Gone) => ContextDeath::SandboxGone {
                why: self.stream.why_gone(),
            },
            Err(ProcessError::Ended) => ContextDeath::Ended(ExecEnd::Lost),
            Err(error) => ContextDeath::Protocol {
                reason: error.to_string(),
            },
        }
    }

    /// Whether [`Self::synchronise`] is needed before a cell can run.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown
    }

    /// From here on its state is not known.
    pub(crate) fn lose_track(&mut self) {
        self.unknown = true;
    }

    /// What gives the driver a cell, to be done while its frames are taken.
    pub(crate) fn feed(
        &mut self,
        mut frames: Vec<Vec<u8>>,
    ) -> impl Future<Output = Result<(), ProcessError>> + Send + use<P> {
        let (processes, pid) = (self.processes.clone(), self.stream.pid());
        if std::mem::take(&mut self.other_variables) {
            frames.splice(0..0, variable_frames(&processes.environment()));
        }
        let frames = together(frames);
        async move {
            for frame in frames {
                processes.input(pid, frame).await?;
            }
            Ok(())
        }
    }

    /// Interrupts what runs.
    pub(crate) async fn interrupt(&self) -> Result<(), ProcessError> {
        self.processes.signal(self.stream.pid(), SIGINT).await
    }

    /// Ends it, and waits until it has ended.
    pub(crate) async fn kill(&mut self) -> Result<(), ProcessError> {
        match self.processes.signal(self.stream.pid(), SIGKILL).await {
            Ok(()) => {}
            Err(ProcessError::Ended | ProcessError::Gone) => return Ok(()),
            Err(error) => return Err(error),
        }
        while let Ok(Some(news)) = self.stream.next().await {
            if let ProcessNews::Ended(_) = news {
                break;
            }
        }
        Ok(())
    }
}

/// The frames that give a driver its variables; those that fit in none are passed over.
fn variable_frames(env: &BTreeMap<String, String>) -> Vec<Vec<u8>> {
    let frames = env.iter().map(|(name, value)| {
        let variable = format!("{name}={value}");
        HostFrame::Variable(variable.as_bytes()).encode()
    });
    frames.filter_map(Result::ok).collect()
}

/// Frames as they are given: as many at once as one input may have, since each costs a question and an answer.
fn together(frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for frame in frames {
        match inputs.last_mut() {
            Some(last) if last.len() + frame.len() <= MAX_INPUT => last.extend_from_slice(&frame),
            _ => inputs.push(frame),
        }
    }
    inputs
}

/// The frames that run a cell.
pub(crate) fn cell_frames(
    id: HexId,
    code: &str,
    env: &BTreeMap<String, String>,
    limits: &CellLimits,
) -> Result<Vec<Vec<u8>>, FrameError> {
    let mut frames = Vec::new();
    for (name, value) in env {
        frames.push(HostFrame::Env(id, format!("{name}={value}").as_bytes()).encode()?);
    }
    for piece in code.as_bytes().chunks(MAX_FROM_HOST) {
        frames.push(HostFrame::Code(id, piece).encode()?);
    }
    let run = HostFrame::Run {
        cell: id,
        output: limits.output,
        results: limits.results,
    };
    frames.push(run.encode()?);
    Ok(frames)
}

/// The number that a payload is.
pub(crate) fn number(payload: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(payload).ok()?;
    let digits = text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn broken(error: FrameError, words: &[u8]) -> DriverSilence {
    let reason = error.to_string();
    DriverSilence::Gone(
        ContextDeath::Protocol { reason },
        String::from_utf8_lossy(words).into_owned(),
    )
}

fn too_large(error: FrameError) -> ContextError {
    ContextError::Invalid {
        reason: error.to_string(),
    }
}

fn keep_last(words: &mut Vec<u8>, bytes: &[u8]) {
    words.extend_from_slice(bytes);
    let surplus = words.len().saturating_sub(WORDS);
    words.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_together_as_long_as_they_fit_and_in_their_order() {
        let frame = |length: usize, byte: u8| vec![byte; length];
        let inputs = together(vec![
            frame(5, 1),
            frame(6, 2),
            frame(MAX_INPUT - 11, 3),
            frame(1, 4),
            frame(2, 5),
        ]);
        assert_eq!(inputs.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_INPUT, 3]);
        assert_eq!(
            (inputs[0][0], inputs[0][5], inputs[0][11], &inputs[1][..]),
            (1, 2, 3, &[4, 5, 5][..])
        );
        assert!(together(Vec::new()).is_empty());
    }
}
