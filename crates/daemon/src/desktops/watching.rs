//! What goes on with a desktop as long as it lives: its X server is watched, and its screen recorded.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use offleash_browser::{MAX_RECORDING, RecordedItem, SessionFiles};
use offleash_core::exec::ExecEnd;
use offleash_desktop::TAG;
use offleash_supervisor::service::client::{ExecNews, SupervisorClient};
use offleash_supervisor::service::message::Selector;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::starting::{end_in_words, observer};
use super::view::DesktopSpec;
use super::{DesktopService, locked, spec_of};
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::jobs::blocking;
use crate::sandboxes::SandboxEntry;

/// Pictures come so far apart at least, however much the screen changes.
const BETWEEN_PICTURES: Duration = Duration::from_millis(500);
/// How long a recorder waits that lost the screen.
const RECORD_AGAIN: Duration = Duration::from_secs(1);
/// The largest picture, bytes: what sessions of browsers keep, in base64.
const MAX_PICTURE: usize = (1 << 20) / 4 * 3;
/// What is shown, in place of a page.
const SCREEN: &str = "screen";

/// What goes on with a desktop, until this is dropped.
#[derive(Debug)]
pub(super) struct LiveDesktop {
    watch: JoinHandle<()>,
    record: Option<JoinHandle<()>>,
}

impl Drop for LiveDesktop {
    fn drop(&mut self) {
        self.watch.abort();
        if let Some(record) = &self.record {
            record.abort();
        }
    }
}

impl DesktopService {
    /// Takes over the desktops that an earlier daemon left.
    pub(crate) async fn adopt(self: &Arc<Self>) {
        for entry in self.core.sandboxes.all() {
            let Some(spec) = spec_of(&entry).filter(|_| entry.visible_state().is_some()) else {
                continue;
            };
            // What is recorded of it is not worth ending it for.
            let _watched = self.watch(&entry, spec);
        }
        self.forget_old().await;
    }

    /// Begins to watch a desktop, and to record it if that was asked for.
    pub(super) fn watch(self: &Arc<Self>, entry: &Arc<SandboxEntry>, spec: DesktopSpec) -> Result<(), DaemonError> {
        let supervisor = self.core.host.supervisor(entry.id());
        let files = self.files_of(entry.name());
        files.make().map_err(DaemonError::host("record a desktop"))?;
        let live = LiveDesktop {
            watch: tokio::spawn(watch(Arc::downgrade(self), Arc::clone(entry), supervisor.clone())),
            record: spec.record.then(|| tokio::spawn(record(supervisor, files))),
        };
        locked(&self.live).insert(entry.name().to_owned(), live);
        Ok(())
    }
}

/// Waits for the end of an X server, and ends its desktop.
async fn watch(service: Weak<DesktopService>, entry: Arc<SandboxEntry>, supervisor: SupervisorClient) {
    let end = end_of(&entry, &supervisor).await;
    let Some(service) = service.upgrade() else { return };
    let jobs = Arc::clone(&service.core.jobs);
    // Not here: it ends what is going on with the desktop, and that is this.
    jobs.spawn(async move {
        drop(locked(&service.live).remove(entry.name()));
        if let Some(end) = end {
            let cause = EndCause::died(end_in_words(&end));
            service.ender.end_unless_ending(&entry, cause).await;
        }
    });
}

/// How the X server of a desktop ended; `None` where all of its sandbox did, of which others tell.
async fn end_of(entry: &SandboxEntry, supervisor: &SupervisorClient) -> Option<ExecEnd> {
    let Ok(mut stream) = supervisor.attach(&Selector::Tag(TAG.to_owned())).await else {
        // It ended while nobody looked.
        return (!entry.has_supervisor_ended()).then_some(ExecEnd::Exited { code: 0 });
    };
    loop {
        match stream.next().await {
            Ok(Some(ExecNews::Ended(ExecEnd::Lost)) | None) | Err(_) => return None,
            Ok(Some(ExecNews::Ended(end))) => return Some(end),
            // What it says is nobody's.
            Ok(Some(ExecNews::Output { .. } | ExecNews::TimedOut)) => {}
        }
    }
}

/// Records a screen as long as it is there and there is room. A server that hangs up, or says what it must not, is asked
/// again.
async fn record(supervisor: SupervisorClient, files: SessionFiles) {
    let mut kept = 0;
    while kept < MAX_RECORDING {
        // Whichever way it ends, it is begun again.
        let _ended = record_once(&supervisor, &files, &mut kept).await;
        sleep(RECORD_AGAIN).await;
    }
}

async fn record_once(
    supervisor: &SupervisorClient,
    files: &SessionFiles,
    kept: &mut u64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut observer = observer(supervisor).await?;
    let mut log = files.log()?;
    let mut last = Vec::new();
    while *kept < MAX_RECORDING {
        observer.changed().await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Some(picture) = observer.picture() else { continue };
        let packed = blocking("make a picture of a screen", move || picture.png(MAX_PICTURE));
        // A screen may be drawn anew as it was.
        if let Some(png) = packed.await?.filter(|png| *png != last) {
            let item = RecordedItem::Frame {
                timestamp: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
                page: SCREEN.to_owned(),
                data: BASE64.encode(&png),
            };
            *kept += png.len() as u64;
            // To the memory of the kernel, and few kilobytes.
            log.keep(&item)?;
            last = png;
        }
        sleep(BETWEEN_PICTURES).await;
    }
    Ok(())
}
