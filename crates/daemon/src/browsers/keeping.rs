//! What is kept of sessions in files: what was asked for, how each ended, what was recorded.

use offleash_browser::SessionFiles;
use offleash_supervisor::clock::{UnixMs, own_ms};

use super::view::{SessionEnd, SessionRecord, SessionSpec, SessionStatus};
use super::{BrowserService, spec_of};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::history::reason_in;
use crate::jobs::blocking;
use crate::registry::EventKind;
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;

/// How many sessions that ended are kept at most.
pub(super) const MAX_KEPT_SESSIONS: usize = 200;
/// Where they are in the state directory.
const SESSIONS: &str = "browser/sessions";

const TRIED: &str = "keep what is known of a session";

impl BrowserService {
    pub(super) fn files_of(&self, id: &str) -> SessionFiles {
        SessionFiles::in_directory(self.core.host.state().path().join(SESSIONS).join(id))
    }

    /// Keeps what is known of a session that has begun.
    pub(super) async fn keep_record(&self, entry: &SandboxEntry, spec: &SessionSpec) -> Result<(), DaemonError> {
        self.forget_old().await;
        let view = self.view_of(entry)?;
        let record = SessionRecord::of(view, entry.key_id().unwrap_or_default(), spec.clone());
        self.write(record).await
    }

    async fn write(&self, record: SessionRecord) -> Result<(), DaemonError> {
        let files = self.files_of(&record.id);
        // Strings, numbers and what is made of them: nothing that could fail.
        let text = serde_json::to_vec(&record).unwrap_or_default();
        let written = blocking(TRIED, move || files.make().and_then(|()| files.write_record(&text)));
        written.await?.map_err(DaemonError::host(TRIED))
    }

    /// Keeps how a session ended. What is not kept on a full disk is told as that its sandbox is gone.
    pub(super) async fn keep_end(&self, entry: &SandboxEntry, status: SessionStatus, reason: String) {
        let at_ms = own_ms();
        if let Ok(Some(mut record)) = self.record_of(entry.name()).await {
            record.end = Some(SessionEnd { at_ms, status, reason });
            let _kept = self.write(record).await;
        }
    }

    async fn record_of(&self, id: &str) -> Result<Option<SessionRecord>, DaemonError> {
        let files = self.files_of(id);
        let text = blocking(TRIED, move || files.record()).await?;
        let text = text.map_err(DaemonError::host("read what is known of a session"))?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// What is kept of a session that has ended, of the caller's.
    pub(super) async fn kept_of(&self, caller: &Caller, id: &str) -> Result<SessionRecord, DaemonError> {
        let unknown = || DaemonError::from(SessionError::UnknownSession { id: id.to_owned() });
        // Nothing but what could be the id of one is looked for on the disk.
        let is_id = id.parse::<offleash_core::id::RunId>().is_ok();
        let record = match is_id {
            true => self.record_of(id).await?,
            false => None,
        };
        record
            .filter(|record| caller.sees(Some(&record.owner)))
            .ok_or_else(unknown)
    }

    /// The lines of a session's log, the oldest first.
    ///
    /// # Errors
    /// `UnknownSession`, `Host`.
    pub(crate) async fn log(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        let files = self.files_of(&self.kept_of(caller, id).await?.id);
        let lines = blocking("read the log of a session", move || files.log_lines()).await?;
        lines.map_err(DaemonError::host("read the log of a session"))
    }

    /// The requests of a session's log as HAR 1.2.
    ///
    /// # Errors
    /// As [`Self::log`].
    pub(crate) async fn har(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        let lines = self.log(caller, id).await?;
        blocking("write the HAR of a session", move || offleash_browser::har(&lines)).await
    }

    /// The lines of a session's recording, the oldest first.
    ///
    /// # Errors
    /// As [`Self::log`].
    pub(crate) async fn recording(&self, caller: &Caller, id: &str) -> Result<Vec<u8>, DaemonError> {
        let files = self.files_of(&self.kept_of(caller, id).await?.id);
        let lines = blocking("read the recording of a session", move || files.recording_lines()).await?;
        lines.map_err(DaemonError::host("read the recording of a session"))
    }

    /// What is kept of every session.
    pub(super) async fn kept_records(&self) -> Result<Vec<SessionRecord>, DaemonError> {
        const TRIED: &str = "list sessions";
        let directory = self.core.host.state().path().join(SESSIONS);
        let read = blocking(TRIED, move || {
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            let mut all: Vec<SessionRecord> = Vec::new();
            for entry in entries {
                let text = SessionFiles::in_directory(entry?.path()).record().ok().flatten();
                all.extend(text.and_then(|text| serde_json::from_slice(&text).ok()));
            }
            Ok(all)
        });
        read.await?.map_err(DaemonError::host(TRIED))
    }

    /// Writes down how sessions ended that are gone, and that nobody was there to see.
    pub(super) async fn keep_unseen_ends(&self) {
        let Ok(kept) = self.kept_records().await else { return };
        for mut record in kept {
            let is_live = self
                .core
                .sandboxes
                .get(&record.id)
                .is_some_and(|entry| spec_of(&entry).is_some());
            if is_live || record.end.is_some() {
                continue;
            }
            let found = self.end_on_record(&record.id, record.expires_ms).await;
            record.end = Some(found.unwrap_or_else(|| SessionEnd::unknown(record.expires_ms)));
            let _kept = self.write(record).await;
        }
    }

    /// How the registry says that a sandbox ended, if it does.
    pub(super) async fn end_on_record(&self, id: &str, expires_ms: UnixMs) -> Option<SessionEnd> {
        let of = id.to_owned();
        let found = self
            .core
            .registry
            .read("read the end of a session", move |registry| registry.end_of(&of));
        let event = found.await.ok().flatten()?;
        let status = match event.kind {
            EventKind::Died => SessionStatus::Error,
            _ if event.at_ms >= expires_ms => SessionStatus::TimedOut,
            _ => SessionStatus::Completed,
        };
        Some(SessionEnd {
            at_ms: event.at_ms,
            status,
            reason: reason_in(event.detail.as_deref()).unwrap_or_default(),
        })
    }
}
