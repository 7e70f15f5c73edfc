//! A build that goes on: it waits for a place, its process says how it goes on, and what came of it is noted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use offleash_supervisor::builds::BuildOrder;
use offleash_supervisor::clock::now_ms;
use offleash_supervisor::templates::BuildEvent;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::counting::usage_of;
use super::{BuildService, MAX_BUILDING_OF_KEY};
use crate::caller::Caller;
use crate::registry::{BuildLogRow, BuildState, Change, TemplateBuildRow, TemplateTagRow};
use crate::registry_handle::RegistryHandle;
use crate::templates::build;

/// How long a build may take, from its first step to its last.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);
/// How many lines of a build are kept.
const MAX_LOG_LINES: u64 = 10_000;
/// How many bytes they have together.
const MAX_LOG_BYTES: u64 = 2 << 20;
/// How many lines are written to the registry at once.
const LINES_AT_ONCE: usize = 256;
/// The states of a build that goes on.
pub(super) const UNDER_WAY: &[BuildState] = &[BuildState::Queued, BuildState::Building];
/// What SDKs call what is done to the base.
const BASE_STEP: &str = "base";

/// Why a build came to nothing.
struct BuildFailure {
    message: String,
    step: Option<String>,
}

impl BuildFailure {
    fn whole(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            step: None,
        }
    }
}

impl BuildService {
    /// Does a build, from its place in the queue to its end.
    pub(super) async fn run(
        self: Arc<Self>,
        caller: &Caller,
        mut row: TemplateBuildRow,
        mut order: BuildOrder,
        stopped: watch::Receiver<bool>,
    ) {
        let built = self.carry_out(caller, &mut row, &mut order, stopped).await;
        let at = now_ms();
        let mut batch = Vec::new();
        match built {
            Ok(bytes) => {
                let assign = |tag: &str| {
                    Change::AssignTag(TemplateTagRow {
                        template: row.template.clone(),
                        tag: tag.to_owned(),
                        build: row.id.clone(),
                        assigned_ms: at,
                    })
                };
                batch.extend(row.tags.split(' ').map(assign));
                (row.state, row.bytes) = (BuildState::Ready, bytes);
            }
            Err(failure) => {
                row.state = BuildState::Failed;
                row.reason = Some(failure.message);
                row.failed_step = failure.step;
            }
        }
        (row.updated_ms, row.finished_ms) = (at, Some(at));
        batch.insert(0, Change::SetBuild(Box::new(row.clone()), UNDER_WAY));
        // Its template may be gone; then nothing of it is noted, and what it made is collected.
        let _stale = self.core.registry.apply(batch).await;
        self.going_on().builds.remove(&row.id);
        self.collect().await;
    }

    /// The key's places for builds that go on.
    fn places_of(&self, key: &str) -> Arc<Semaphore> {
        let mut table = self.going_on();
        let usual = || Arc::new(Semaphore::new(MAX_BUILDING_OF_KEY));
        Arc::clone(table.places.entry(key.to_owned()).or_insert_with(usual))
    }

    async fn carry_out(
        &self,
        caller: &Caller,
        row: &mut TemplateBuildRow,
        order: &mut BuildOrder,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<u64, BuildFailure> {
        let ended = || BuildFailure::whole("the build was ended: its template was removed, or the server ends");
        let key = order.instructions.as_ref().map(|order| order.key.clone());
        let of_key = self.places_of(&key.unwrap_or_default());
        let mut waiting = stopped.clone();
        let places = async {
            let own = of_key.acquire_owned().await.ok()?;
            Some((own, Arc::clone(&self.places).acquire_owned().await.ok()?))
        };
        let _places = tokio::select! {
            places = places => places,
            _ = waiting.wait_for(|stopped| *stopped) => return Err(ended()),
        };
        let reserved = tokio::select! {
            reserved = self.reserve_soon(caller, &row.id) => reserved,
            _ = waiting.wait_for(|stopped| *stopped) => return Err(ended()),
        };
        // It counts as long as it goes on.
        let reserved = reserved.map_err(|error| BuildFailure::whole(error.to_string()))?;
        if let Some(order) = &mut order.instructions {
            order.usage = usage_of(caller, &reserved);
        }
        row.state = BuildState::Building;
        row.updated_ms = now_ms();
        let begun = Change::SetBuild(Box::new(row.clone()), UNDER_WAY);
        self.core.registry.apply(vec![begun]).await.map_err(|_| ended())?;
        let (lines, written) = unbounded_channel();
        let writing = tokio::spawn(write_all(Arc::clone(&self.core.registry), written));
        let log = BuildLog::new(&row.id, lines);
        let is_late = AtomicBool::new(false);
        let stop = async {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = sleep(BUILD_TIMEOUT) => is_late.store(true, Ordering::Release),
            }
        };
        let program = self.core.host.program().map(ToOwned::to_owned);
        let built = build::build(program.as_deref(), order, |event| log.tell(event), stop).await;
        let outcome = log.outcome(built, is_late.load(Ordering::Acquire));
        if let Err((_, Some(told))) = &outcome
            && let Some(watcher) = &self.config.build_watcher
        {
            // What says something of the machine is for its owner alone.
            let event = BuildEvent::Failed {
                last_lines: Vec::new(),
                told: told.clone(),
                shown: None,
            };
            watcher.tell(&order.name, &event);
        }
        if let Err((failure, _)) = &outcome {
            log.line("error", failure.message.clone());
        }
        drop(log);
        // The state is told once all lines can be read.
        let _written = writing.await;
        outcome.map_err(|(failure, _)| failure)
    }
}

/// Writes lines as they come, several at once.
async fn write_all(registry: Arc<RegistryHandle>, mut lines: UnboundedReceiver<BuildLogRow>) {
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, LINES_AT_ONCE).await > 0 {
        let changes = batch.drain(..).map(Change::AddBuildLog).collect();
        // Lines that cannot be written are lost, and the build goes on.
        let _lost = registry.apply(changes).await;
    }
}

/// What is heard of a build.
struct BuildLog {
    build: String,
    lines: UnboundedSender<BuildLogRow>,
    heard: Mutex<HeardOf>,
}

#[derive(Default)]
struct HeardOf {
    /// Lines so far, of which those beyond the bound are left out.
    count: u64,
    /// Bytes of what programs wrote.
    bytes: u64,
    /// Whether it was said that more is left out.
    is_full: bool,
    step: Option<String>,
    last: Option<BuildEvent>,
}

impl BuildLog {
    fn new(build: &str, lines: UnboundedSender<BuildLogRow>) -> Self {
        Self {
            build: build.to_owned(),
            lines,
            heard: Mutex::default(),
        }
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, HeardOf> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, level: &str, line: String) {
        let mut heard = self.heard();
        let row = BuildLogRow {
            build: self.build.clone(),
            number: heard.count,
            at_ms: now_ms(),
            level: level.to_owned(),
            step: heard.step.clone(),
            line,
        };
        heard.count += 1;
        let _closed = self.lines.send(row);
    }

    /// A line that a program wrote, of which there may be any number.
    fn printed(&self, line: String) {
        let is_full = {
            let mut heard = self.heard();
            heard.bytes = heard.bytes.saturating_add(line.len() as u64);
            if heard.is_full {
                return;
            }
            heard.is_full = heard.count >= MAX_LOG_LINES || heard.bytes > MAX_LOG_BYTES;
            heard.is_full
        };
        match is_full {
            false => self.line("info", line),
            true => self.line(
                "warn",
                format!("further output is left out: {MAX_LOG_LINES} lines and {MAX_LOG_BYTES} bytes are kept"),
            ),
        }
    }

    fn tell(&self, event: &BuildEvent) {
        match event {
            BuildEvent::Step { number, of, title } => {
                let step = match number {
                    0 => BASE_STEP.to_owned(),
                    number => number.to_string(),
                };
                let line = format!("[{step}/{of}] {title}");
                self.heard().step = Some(step);
                self.line("info", line);
            }
            BuildEvent::Line { line } => self.printed(line.clone()),
            BuildEvent::Note { told } => self.printed(told.clone()),
            BuildEvent::LeftOut { packages, why } => self.printed(format!("left out: {packages}: {why}")),
            BuildEvent::Begins { .. } => {}
            BuildEvent::Built { .. } | BuildEvent::Failed { .. } => self.heard().last = Some(event.clone()),
        }
    }

    /// What came of the build: the bytes that it takes, or why not, with what its owner is told of that.
    fn outcome(&self, ended: std::io::Result<()>, is_late: bool) -> Result<u64, (BuildFailure, Option<String>)> {
        let heard = self.heard();
        let step = heard.step.clone();
        if is_late {
            let message = format!(
                "the build took longer than {} seconds, and was ended",
                BUILD_TIMEOUT.as_secs()
            );
            return Err((BuildFailure { message, step }, None));
        }
        match (&heard.last, ended) {
            (Some(BuildEvent::Built { bytes, .. }), Ok(())) => Ok(*bytes),
            (
                Some(BuildEvent::Failed {
                    last_lines,
                    told,
                    shown,
                }),
                _,
            ) => {
                let message = match shown {
                    Some(shown) => [std::slice::from_ref(shown), last_lines.as_slice()].concat().join("\n"),
                    None => "the build failed on this server; its log says why".to_owned(),
                };
                let told = shown.is_none().then(|| told.clone());
                Err((BuildFailure { message, step }, told))
            }
            (_, ended) => {
                let why = ended
                    .err()
                    .map_or_else(|| "it said nothing".to_owned(), |error| error.to_string());
                let message = "the builder came to nothing; the server's log says why".to_owned();
                let told = format!("the builder came to nothing: {why}");
                Err((BuildFailure { message, step }, Some(told)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(events: &[BuildEvent]) -> (BuildLog, UnboundedReceiver<BuildLogRow>) {
        let (lines, written) = unbounded_channel();
        let log = BuildLog::new("b", lines);
        events.iter().for_each(|event| log.tell(event));
        (log, written)
    }

    fn step(number: usize) -> BuildEvent {
        BuildEvent::Step {
            number,
            of: 3,
            title: "RUN x".to_owned(),
        }
    }

    #[test]
    fn a_failure_is_told_with_its_step_and_last_lines() {
        let failed = BuildEvent::Failed {
            last_lines: vec!["one".to_owned(), "two".to_owned()],
            told: "error: all of it".to_owned(),
            shown: Some("RUN x failed: exit code 3".to_owned()),
        };
        let (log, mut written) = told(&[step(0), step(2), failed]);
        let (failure, owners) = log.outcome(Ok(()), false).err().unwrap();
        assert_eq!(failure.message, "RUN x failed: exit code 3\none\ntwo");
        assert_eq!((failure.step.as_deref(), owners), (Some("2"), None));
        let lines: Vec<_> = std::iter::from_fn(|| written.try_recv().ok()).collect();
        let steps: Vec<_> = lines.iter().map(|row| (row.number, row.step.as_deref())).collect();
        assert_eq!(steps, [(0, Some("base")), (1, Some("2"))]);
    }

    #[test]
    fn what_says_something_of_the_machine_is_for_its_owner() {
        let failed = BuildEvent::Failed {
            last_lines: Vec::new(),
            told: "error: reading `/somewhere`".to_owned(),
            shown: None,
        };
        let (log, _written) = told(&[step(0), failed]);
        let (failure, owners) = log.outcome(Ok(()), false).err().unwrap();
        assert!(!failure.message.contains("/somewhere"), "{}", failure.message);
        assert_eq!(
            (failure.step.as_deref(), owners.as_deref()),
            (Some("base"), Some("error: reading `/somewhere`"))
        );
        let (log, _written) = told(&[step(1)]);
        let cut = std::io::Error::other("it was killed by signal 9");
        let (failure, owners) = log.outcome(Err(cut), false).err().unwrap();
        assert!(!failure.message.contains("signal") && owners.unwrap().contains("signal 9"));
    }

    #[test]
    fn a_log_is_bounded_and_says_so() {
        let line = BuildEvent::Line { line: "x".to_owned() };
        let (log, mut written) = told(&[]);
        for _ in 0..MAX_LOG_LINES + 10 {
            log.tell(&line);
        }
        log.tell(&step(2));
        let lines: Vec<_> = std::iter::from_fn(|| written.try_recv().ok()).collect();
        assert_eq!(lines.len() as u64, MAX_LOG_LINES + 2);
        let last = &lines[lines.len() - 2..];
        assert!(last[0].line.contains("left out") && last[1].step.as_deref() == Some("2"));
    }

    #[test]
    fn long_lines_count_by_their_bytes() {
        let line = BuildEvent::Line {
            line: "x".repeat(1 << 10),
        };
        let (log, mut written) = told(&[]);
        for _ in 0..MAX_LOG_LINES {
            log.tell(&line);
        }
        let lines: Vec<_> = std::iter::from_fn(|| written.try_recv().ok()).collect();
        assert_eq!(lines.len() as u64, MAX_LOG_BYTES / 1024 + 1);
        assert!(lines.last().unwrap().line.contains("left out"));
    }
}
