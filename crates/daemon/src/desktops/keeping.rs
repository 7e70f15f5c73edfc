//! What is kept of desktops in files: who had one, and what was recorded of it.

use std::time::Duration;

use offleash_browser::SessionFiles;
use offleash_core::id::RunId;
use offleash_supervisor::clock::{before, now_ms};
use tokio::time::sleep;

use super::DesktopService;
use super::view::{DesktopEnd, DesktopRecord};
use crate::browsers::SessionStatus;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::expiry::TIME_WAS_UP;
use crate::history::reason_in;
use crate::jobs::blocking;
use crate::registry::EventKind;
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;

/// How many desktops that ended are kept at most.
const MAX_KEPT_DESKTOPS: usize = 200;
/// Where they are in the state directory.
const DESKTOPS: &str = "desktop/sessions";
/// How often, and for how long at most, the end of a sandbox is looked for on record.
const END_TRIES: u32 = 50;
const BETWEEN_END_TRIES: Duration = Duration::from_millis(100);

const TRIED: &str = "keep what is known of a desktop";

impl DesktopService {
    pub(super) fn files_of(&self, id: &str) -> SessionFiles {
        SessionFiles::in_directory(self.core.host.state().path().join(DESKTOPS).join(id))
    }

    /// Keeps what is known of a desktop that has begun.
    pub(super) async fn keep_record(&self, entry: &SandboxEntry) -> Result<(), DaemonError> {
        self.forget_old().await;
        let record = DesktopRecord::of(self.view_of(entry)?, entry.key_id().unwrap_or_default());
        let files = self.files_of(&record.id);
        // Strings, numbers and what is made of them: nothing that could fail.
        let text = serde_json::to_vec(&record).unwrap_or_default();
        let written = blocking(TRIED, move || files.make().and_then(|()| files.write_record(&text)));
        written.await?.map_err(DaemonError::host(TRIED))
    }

    /// What is kept of a desktop of the caller's.
    pub(super) async fn kept_of(&self, caller: &Caller, id: &str) -> Result<DesktopRecord, DaemonError> {
        let unknown = || DaemonError::from(SessionError::UnknownDesktop { id: id.to_owned() });
        // Nothing but what could be the id of one is looked for on the disk.
        if id.parse::<RunId>().is_err() {
            return Err(unknown());
        }
        let files = self.files_of(id);
        let text = blocking(TRIED, move || files.record()).await?;
        let text = text.map_err(DaemonError::host("read what is known of a desktop"))?;
        let record: Option<DesktopRecord> = text.and_then(|text| serde_json::from_slice(&text).ok());
        let own = record.filter(|record| caller.sees(Some(&record.owner)));
        own.ok_or_else(unknown)
    }

    /// The lines of a desktop's recording, the oldest first.
    ///
    /// # Errors
    /// `UnknownDesktop`, `Host`.
    pub(crate) async fn recording(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        const TRIED: &str = "read the recording of a desktop";
        let files = self.files_of(&self.kept_of(caller, id).await?.id);
        let lines = blocking(TRIED, move || files.recording_lines()).await?;
        lines.map_err(DaemonError::host(TRIED))
    }

    /// What is kept of every desktop.
    pub(super) async fn kept_records(&self) -> Result<Vec<DesktopRecord>, DaemonError> {
        const TRIED: &str = "list desktops";
        let directory = self.core.host.state().path().join(DESKTOPS);
        let read = blocking(TRIED, move || {
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            let mut all: Vec<DesktopRecord> = Vec::new();
            for entry in entries {
                let text = SessionFiles::in_directory(entry?.path()).record().ok().flatten();
                all.extend(text.and_then(|text| serde_json::from_slice(&text).ok()));
            }
            Ok(all)
        });
        read.await?.map_err(DaemonError::host(TRIED))
    }

    /// How a desktop ended, as far as the registry knows of its sandbox.
    pub(super) async fn end_on_record(&self, record: &DesktopRecord) -> DesktopEnd {
        let found = self.event_of_end(record).await;
        found.unwrap_or_else(|| DesktopEnd::unknown(record.expires_ms))
    }

    /// The same, of one that may be ending at this moment.
    pub(super) async fn end_soon_on_record(&self, record: &DesktopRecord) -> DesktopEnd {
        for _ in 0..END_TRIES {
            if let Some(end) = self.event_of_end(record).await {
                return end;
            }
            if self.core.sandboxes.get(&record.id).is_none() {
                break;
            }
            sleep(BETWEEN_END_TRIES).await;
        }
        self.end_on_record(record).await
    }

    async fn event_of_end(&self, record: &DesktopRecord) -> Option<DesktopEnd> {
        let of = record.id.clone();
        let found = self
            .core
            .registry
            .read("read the end of a desktop", move |registry| registry.end_of(&of));
        let event = found.await.ok().flatten()?;
        let reason = reason_in(event.detail.as_deref()).unwrap_or_default();
        let status = match event.kind {
            EventKind::Died => SessionStatus::Error,
            _ if reason == TIME_WAS_UP => SessionStatus::TimedOut,
            _ => SessionStatus::Completed,
        };
        Some(DesktopEnd {
            at_ms: event.at_ms,
            status,
            reason,
        })
    }

    /// Removes what is kept of desktops that were made long ago. What cannot be removed now is tried again with the next one.
    pub(super) async fn forget_old(&self) {
        let Ok(mut kept) = self.kept_records().await else {
            return;
        };
        kept.retain(|record| self.core.sandboxes.get(&record.id).is_none());
        kept.sort_by_key(|record| std::cmp::Reverse(record.created_ms));
        let oldest = before(now_ms(), self.config.keep_logs);
        for (place, record) in kept.iter().enumerate() {
            if place >= MAX_KEPT_DESKTOPS || record.expires_ms < oldest {
                let files = self.files_of(&record.id);
                let _removed = blocking("remove a desktop", move || files.remove()).await;
            }
        }
    }
}
