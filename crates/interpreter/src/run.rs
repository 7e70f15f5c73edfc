//! One cell in a driver: what is said of it, within its limits, and how it is made to end.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use offleash_core::exec::OutputStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::cell::{Cell, CellEnd, CellError, CellEvent, ContextDeath};
use crate::context::{ContextOrder, too_late};
use crate::driver::{DriverNews, DriverProcess, cell_frames, number};
use crate::id::HexId;
use crate::limits::{CellLimits, LimitBudget};
use crate::process::{ProcessError, ProcessHost};
use crate::protocol::{DriverFrame, FrameKind};
use crate::result::{CellResult, ResultForm};
use crate::text::Utf8Pieces;

/// Events that wait for whoever runs the cell before the driver has to.
const WAITING: usize = 8;
/// How often a cell that is to end is told so.
const AGAIN: Duration = Duration::from_secs(1);
/// What every frame of a result costs beside its payload, so that their number is bounded.
const OVERHEAD: usize = 64;
/// The longest MIME type, and how many forms a result may have.
const MAX_MIME: usize = 128;
const MAX_FORMS: usize = 64;
/// Longer than anything runs.
const MAX_LENGTH: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Runs a cell and tells of it; an order that ends the context's driver is returned to be carried out.
pub(crate) async fn run<P: ProcessHost>(
    driver: &mut DriverProcess<P>,
    cell: &Cell,
    events: &mpsc::Sender<CellEvent>,
    orders: &mut mpsc::Receiver<ContextOrder>,
    limits: &CellLimits,
) -> (CellEnd, Option<ContextOrder>) {
    let prepared = HexId::random().map_err(|error| error.to_string()).and_then(|id| {
        let frames = cell_frames(id, &cell.code, &cell.env, limits).map_err(|error| error.to_string())?;
        Ok((id, frames))
    });
    let (id, frames) = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => return (CellEnd::Died(ContextDeath::NotStarted { reason }), None),
    };
    let mut told = CellReporter::new(id, limits);
    let mut ending = None;
    let mut order = None;
    let mut deadline = cell.timeout.map(|timeout| Instant::now() + timeout.min(MAX_LENGTH));
    let mut feeding = pin!(driver.feed(frames));
    let mut fed = false;
    let mut client_gone = false;
    while told.end.is_none() || (!told.pending.is_empty() && !client_gone) {
        let over = told.end.is_some();
        let turn = tokio::select! {
            biased;
            asked = orders.recv(), if order.is_none() && !over => RunStep::Asked(asked),
            () = events.closed(), if !client_gone => RunStep::ClientGone,
            given = &mut feeding, if !fed && !over => { fed = true; RunStep::Fed(given) }
            () = until(next_time(deadline, ending.as_ref())), if !over => RunStep::Time,
            permit = events.reserve(), if !told.pending.is_empty() && !client_gone => {
                if let (Ok(permit), Some(event)) = (permit, told.pending.pop_front()) {
                    permit.send(event);
                }
                continue;
            }
            news = driver.next(), if !over && (client_gone || told.pending.len() < WAITING) => RunStep::News(news),
        };
        match turn {
            RunStep::News(DriverNews::Frame(frame)) => told.take(frame),
            RunStep::News(DriverNews::Over(death)) => told.lose_driver(death),
            // The end of a process comes with its output.
            RunStep::Fed(Ok(()) | Err(ProcessError::Ended)) => {}
            RunStep::Fed(Err(error)) => {
                driver.lose_track();
                told.die(ContextDeath::NotStarted {
                    reason: error.to_string(),
                });
            }
            RunStep::ClientGone => {
                client_gone = true;
                if ending.is_none() && !over {
                    ending = Some(CellEnding::begin(driver, StopReason::Interrupted, limits.grace).await);
                }
            }
            RunStep::Asked(Some(ContextOrder::Ready(reply) | ContextOrder::Prepare(_, reply))) => {
                drop(reply.send(Ok(())))
            }
            // Whoever asks has come too late.
            RunStep::Asked(Some(ContextOrder::Load(_, reply))) => drop(reply.send(Err(too_late()))),
            RunStep::Asked(Some(ContextOrder::Interrupt)) => {
                if ending.is_none() {
                    ending = Some(CellEnding::begin(driver, StopReason::Interrupted, limits.grace).await);
                }
            }
            RunStep::Asked(Some(other)) => {
                told.die(other.death());
                order = Some(other);
            }
            // Whoever holds contexts is gone, and leaves drivers alone.
            RunStep::Asked(None) => return (CellEnd::Interrupted, None),
            RunStep::Time => match &mut ending {
                None => {
                    deadline = None;
                    ending = Some(CellEnding::begin(driver, StopReason::TimedOut, limits.grace).await);
                }
                Some(ending) => {
                    if ending.go_on(driver).await {
                        told.die(ContextDeath::Stubborn {
                            timed_out: ending.why == StopReason::TimedOut,
                        });
                    }
                }
            },
        }
        if client_gone {
            told.pending.clear();
        }
    }
    if ending.is_some() {
        // A signal may still be on its way.
        driver.lose_track();
    }
    let end = match (told.end.unwrap_or(CellEnd::Done), ending) {
        (CellEnd::Done, Some(ending)) => match ending.why {
            StopReason::TimedOut => CellEnd::TimedOut,
            StopReason::Interrupted => CellEnd::Interrupted,
        },
        (end, _) => end,
    };
    (end, order)
}

enum RunStep {
    News(DriverNews),
    Fed(Result<(), ProcessError>),
    Asked(Option<ContextOrder>),
    ClientGone,
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    TimedOut,
    Interrupted,
}

/// A cell that is to end.
#[derive(Debug)]
struct CellEnding {
    why: StopReason,
    again: Instant,
    until: Instant,
}

impl CellEnding {
    async fn begin<P: ProcessHost>(driver: &DriverProcess<P>, why: StopReason, grace: Duration) -> Self {
        let now = Instant::now();
        let mut ending = Self {
            why,
            again: now,
            until: now + grace,
        };
        ending.interrupt(driver).await;
        ending
    }

    /// Interrupts the cell once more; whether it had time enough.
    async fn go_on<P: ProcessHost>(&mut self, driver: &DriverProcess<P>) -> bool {
        if Instant::now() >= self.until {
            return true;
        }
        self.interrupt(driver).await;
        false
    }

    async fn interrupt<P: ProcessHost>(&mut self, driver: &DriverProcess<P>) {
        if let Err(ProcessError::Paused) = driver.interrupt().await {
            // Nothing can react while it is frozen.
            self.until += AGAIN;
        }
        // What else went wrong shows in what the driver says, or does not.
        self.again = Instant::now() + AGAIN;
    }
}

fn next_time(deadline: Option<Instant>, ending: Option<&CellEnding>) -> Option<Instant> {
    match ending {
        Some(ending) => Some(ending.again.min(ending.until)),
        None => deadline,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// What is told of a cell, and what it may still say.
#[derive(Debug)]
struct CellReporter {
    id: HexId,
    limits: CellLimits,
    begun: bool,
    pending: VecDeque<CellEvent>,
    end: Option<CellEnd>,
    output: LimitBudget,
    results: LimitBudget,
    stdout: Utf8Pieces,
    stderr: Utf8Pieces,
    output_truncated: bool,
    results_truncated: bool,
    result: CellResult,
    error: CellError,
}

impl CellReporter {
    fn new(id: HexId, limits: &CellLimits) -> Self {
        Self {
            id,
            limits: *limits,
            begun: false,
            pending: VecDeque::new(),
            end: None,
            output: LimitBudget::new(limits.output),
            results: LimitBudget::new(limits.results),
            stdout: Utf8Pieces::default(),
            stderr: Utf8Pieces::default(),
            output_truncated: false,
            results_truncated: false,
            result: CellResult::default(),
            error: CellError::default(),
        }
    }

    fn take(&mut self, frame: DriverFrame) {
        // Of no cell, or of one that is over: whatever that says is of no use to this one.
        if frame.id != self.id {
            return;
        }
        let payload = frame.payload;
        match frame.kind {
            FrameKind::Sync | FrameKind::Obstacle | FrameKind::Saved | FrameKind::Loaded | FrameKind::Refused => {}
            FrameKind::Count => match number(&payload) {
                Some(count) => {
                    self.begun = true;
                    self.pending.push_back(CellEvent::Begin { count });
                }
                None => self.broken("the number of a cell is none"),
            },
            FrameKind::Stdout => self.take_output(OutputStream::Stdout, &payload),
            FrameKind::Stderr => self.take_output(OutputStream::Stderr, &payload),
            FrameKind::Truncated => self.truncate_output(),
            FrameKind::Text => self.take_form(&payload, |form| Some(ResultForm::Text(lossy(form)))),
            FrameKind::Json => self.take_form(&payload, |form| serde_json::from_slice(form).ok().map(ResultForm::Json)),
            FrameKind::Omitted => match split_mime(&payload).map(|(mime, size)| (mime, number(size))) {
                Some((mime, Some(size))) => self.omit(mime.to_owned(), size),
                _ => self.broken("a form that was too large has no size"),
            },
            FrameKind::Result => self.take_result(&payload),
            FrameKind::ErrorName => self.error.name = self.bounded(payload),
            FrameKind::ErrorValue => self.error.value = self.bounded(payload),
            FrameKind::Error => {
                self.error.traceback = self.bounded(payload);
                let error = std::mem::take(&mut self.error);
                if self.results.take_all(OVERHEAD) {
                    self.pending.push_back(CellEvent::Error(error));
                } else {
                    self.truncate_results();
                }
            }
            FrameKind::Done => {
                self.finish_output();
                self.end = Some(CellEnd::Done);
            }
        }
    }

    fn die(&mut self, death: ContextDeath) {
        self.finish_output();
        self.end = Some(CellEnd::Died(death));
    }

    /// The driver is gone: before the cell began, or with it.
    fn lose_driver(&mut self, death: ContextDeath) {
        self.die(death);
        if let (false, Some(CellEnd::Died(death))) = (self.begun, &self.end)
            && !death.is_of_the_sandbox()
        {
            self.end = Some(CellEnd::DiedBefore(death.clone()));
        }
    }

    fn broken(&mut self, reason: &str) {
        self.die(ContextDeath::Protocol {
            reason: reason.to_owned(),
        });
    }

    fn take_output(&mut self, stream: OutputStream, bytes: &[u8]) {
        let taken = self.output.take_some(bytes.len());
        let pieces = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let text = pieces.push(bytes.get(..taken).unwrap_or_default());
        self.tell_output(stream, text);
        if taken < bytes.len() {
            self.truncate_output();
        }
    }

    fn tell_output(&mut self, stream: OutputStream, text: String) {
        if !text.is_empty() {
            let at = SystemTime::now();
            self.pending.push_back(CellEvent::Output { stream, text, at });
        }
    }

    fn finish_output(&mut self) {
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        self.tell_output(OutputStream::Stdout, stdout);
        self.tell_output(OutputStream::Stderr, stderr);
    }

    fn truncate_output(&mut self) {
        if !self.output_truncated {
            self.output_truncated = true;
            // A character that is cut is no character.
            (self.stdout, self.stderr) = Default::default();
            let limit = self.limits.output;
            self.pending.push_back(CellEvent::OutputTruncated { limit });
        }
    }

    fn truncate_results(&mut self) {
        if !self.results_truncated {
            self.results_truncated = true;
            let limit = self.limits.results;
            self.pending.push_back(CellEvent::ResultsTruncated { limit });
        }
    }

    fn take_form(&mut self, payload: &[u8], make: impl FnOnce(&[u8]) -> Option<ResultForm>) {
        let Some((mime, form)) = split_mime(payload) else {
            return self.broken("a form of a result has no MIME type");
        };
        let size = u64::try_from(form.len()).unwrap_or(u64::MAX);
        let known = self.result.forms.len() + self.result.omitted.len();
        if known >= MAX_FORMS {
            return self.broken("a result has too many forms");
        }
        let fits = self.results.take_all(form.len() + OVERHEAD);
        match make(form).filter(|_| fits) {
            Some(made) => drop(self.result.forms.insert(mime.to_owned(), made)),
            None => self.omit(mime.to_owned(), size),
        }
    }

    fn omit(&mut self, mime: String, size: u64) {
        if self.result.omitted.len() < MAX_FORMS {
            self.result.omitted.insert(mime, size);
        }
    }

    fn take_result(&mut self, payload: &[u8]) {
        let is_main = match payload {
            b"main" => true,
            b"display" => false,
            _ => return self.broken("a result is neither that of its cell nor displayed"),
        };
        let result = CellResult {
            is_main,
            ..std::mem::take(&mut self.result)
        };
        if result.forms.is_empty() && result.omitted.is_empty() {
            return;
        }
        if self.results.take_all(OVERHEAD) {
            self.pending.push_back(CellEvent::Result(Box::new(result)));
        } else {
            self.truncate_results();
        }
    }

    /// As much of a text as may still come.
    fn bounded(&mut self, mut payload: Vec<u8>) -> String {
        let taken = self.results.take_some(payload.len());
        if taken < payload.len() {
            payload.truncate(taken);
            self.truncate_results();
        }
        lossy(&payload)
    }
}

fn split_mime(payload: &[u8]) -> Option<(&str, &[u8])> {
    let window = payload.get(..payload.len().min(MAX_MIME + 1)).unwrap_or_default();
    let (mime, form) = payload.split_at(memchr::memchr(b'\n', window)?);
    let mime = std::str::from_utf8(mime).ok()?;
    let is_plain = !mime.is_empty() && mime.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then_some((mime, form.get(1..).unwrap_or_default()))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests;
