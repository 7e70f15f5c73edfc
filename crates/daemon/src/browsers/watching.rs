//! What goes on with a session as long as it lives: its browser is watched, its time runs, what it does is recorded.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use offleash_browser::{CdpConnection, MAX_READ_PER_SECOND, Recorder, SessionFiles, TAG};
use offleash_core::exec::ExecEnd;
use offleash_supervisor::clock::{UnixMs, before, now_ms};
use offleash_supervisor::service::client::{ExecNews, SupervisorClient};
use offleash_supervisor::service::message::Selector;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::starting::{connect, end_in_words};
use super::view::{SessionEnd, SessionSpec, SessionStatus};
use super::{BrowserService, RELEASE_GRACE, locked, spec_of};
use crate::error::DaemonError;
use crate::registry::SandboxState;
use crate::sandboxes::SandboxEntry;

/// How often it is looked at whether the time of a session is up: somebody may have set it, or the machine's clock.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a recorder waits that lost its browser.
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// What goes on with a session, until this is dropped.
#[derive(Debug)]
pub(super) struct LiveSession {
    watch: JoinHandle<()>,
    record: JoinHandle<()>,
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.watch.abort();
        self.record.abort();
    }
}

/// Why a session ends that nobody released.
#[derive(Debug)]
enum UnreleasedEnd {
    Browser(ExecEnd),
    Sandbox,
    Time,
}

impl BrowserService {
    /// Takes over the sessions that an earlier daemon left.
    pub(crate) async fn adopt(self: &Arc<Self>) {
        for entry in self.core.sandboxes.all() {
            let Some(spec) = spec_of(&entry).filter(|_| entry.visible_state().is_some()) else {
                continue;
            };
            // What is recorded of it is not worth ending it for.
            let _watched = self.watch(&entry, &spec);
        }
        self.keep_unseen_ends().await;
        self.forget_old().await;
    }

    /// Begins to watch and to record a session.
    pub(super) fn watch(self: &Arc<Self>, entry: &Arc<SandboxEntry>, spec: &SessionSpec) -> Result<(), DaemonError> {
        let supervisor = self.core.host.supervisor(entry.id());
        let files = self.files_of(entry.name());
        files.make().map_err(DaemonError::host("record a session"))?;
        let live = LiveSession {
            watch: tokio::spawn(watch(Arc::downgrade(self), Arc::clone(entry), supervisor.clone())),
            record: tokio::spawn(record(supervisor, files, spec.pictures)),
        };
        locked(&self.live).insert(entry.name().to_owned(), live);
        Ok(())
    }

    async fn end_unreleased(self: &Arc<Self>, entry: &Arc<SandboxEntry>, end: UnreleasedEnd) {
        let (status, reason) = match end {
            UnreleasedEnd::Browser(end) => (SessionStatus::Error, end_in_words(&end)),
            UnreleasedEnd::Sandbox => {
                // What is told of its end is on record once nothing of it is left.
                entry.supervisor_ended().await;
                let expires = before(entry.end_ms(), RELEASE_GRACE);
                let end = self.end_soon_on_record(entry.name(), expires).await;
                (end.status, end.reason)
            }
            UnreleasedEnd::Time => (SessionStatus::TimedOut, "its time was up".to_owned()),
        };
        // Whoever is releasing it tells how it ended.
        let _finished = self.finish(entry, status, reason).await;
    }
}

/// How often, and for how long at most, the end of a sandbox is looked for on record.
const END_TRIES: u32 = 50;
const BETWEEN_END_TRIES: Duration = Duration::from_millis(100);

impl BrowserService {
    /// How the sandbox of a session ended, once that is on record.
    pub(super) async fn end_soon_on_record(&self, id: &str, expires_ms: UnixMs) -> SessionEnd {
        for _ in 0..END_TRIES {
            if let Some(end) = self.end_on_record(id, expires_ms).await {
                return end;
            }
            sleep(BETWEEN_END_TRIES).await;
        }
        SessionEnd::unknown(expires_ms)
    }
}

/// Waits for what ends a session, and ends it.
async fn watch(service: Weak<BrowserService>, entry: Arc<SandboxEntry>, supervisor: SupervisorClient) {
    let end = end_of(&entry, &supervisor).await;
    let Some(service) = service.upgrade() else { return };
    let jobs = Arc::clone(&service.core.jobs);
    // Not here: it ends what is going on with the session, and that is this.
    jobs.spawn(async move { service.end_unreleased(&entry, end).await });
}

async fn end_of(entry: &SandboxEntry, supervisor: &SupervisorClient) -> UnreleasedEnd {
    let Ok(mut stream) = supervisor.attach(&Selector::Tag(TAG.to_owned())).await else {
        return match entry.has_supervisor_ended() {
            true => UnreleasedEnd::Sandbox,
            // It was never started, or ended while nobody looked.
            false => UnreleasedEnd::Browser(ExecEnd::Lost),
        };
    };
    loop {
        tokio::select! {
            news = stream.next() => match news {
                Ok(Some(ExecNews::Ended(end))) => return UnreleasedEnd::Browser(end),
                // What it says is nobody's.
                Ok(Some(ExecNews::Output { .. } | ExecNews::TimedOut)) => {}
                Ok(None) | Err(_) => return UnreleasedEnd::Sandbox,
            },
            () = sleep(LOOK_AGAIN) => {
                let is_running = entry.state() == SandboxState::Running;
                if is_running && now_ms() >= before(entry.end_ms(), RELEASE_GRACE) {
                    return UnreleasedEnd::Time;
                }
            }
        }
    }
}

/// Records a session as long as it lives. A browser that hangs up, or says what is too long, is asked again.
async fn record(supervisor: SupervisorClient, files: SessionFiles, pictures: bool) {
    loop {
        if let Ok(mut connection) = connect(&supervisor).await {
            // Whichever way it ends, it is begun again.
            let _ended = record_once(&mut connection, &files, pictures).await;
        }
        sleep(RECORD_AGAIN).await;
    }
}

async fn record_once(
    connection: &mut CdpConnection,
    files: &SessionFiles,
    pictures: bool,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut recorder = Recorder::new(pictures);
    let mut log = files.log()?;
    connection.send(recorder.begin()).await?;
    let mut pace = ReadPace::default();
    loop {
        let heard = {
            let mut next = pin!(connection.next());
            // Half a message is not thrown away because a second is over.
            loop {
                match timeout(Duration::from_secs(1), &mut next).await {
                    Ok(heard) => break heard?,
                    Err(_) => recorder.pass(now()).items.iter().try_for_each(|item| log.keep(item))?,
                }
            }
        };
        let Some(text) = heard else { return Ok(()) };
        pace.read(text.len()).await;
        let taken = recorder.take(&text, now());
        for item in &taken.items {
            // To the memory of the kernel, and few kilobytes.
            log.keep(item)?;
        }
        for command in taken.commands {
            connection.send(command).await?;
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Bounds what is read of one browser: a page can have it say hundreds of megabytes a second, and all others wait where they are looked
/// through. What is not read waits in the sandbox, in memory of its own.
#[derive(Debug, Default)]
struct ReadPace {
    bytes: usize,
}

impl ReadPace {
    /// Waits as long as what was read is beyond the bound.
    async fn read(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes > MAX_READ_PER_SECOND {
            sleep(Duration::from_secs(1)).await;
            self.bytes -= MAX_READ_PER_SECOND;
        }
    }
}
