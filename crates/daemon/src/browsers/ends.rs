//! The end of a session: its context is saved, its sandbox ended, and how it ended kept.

use std::sync::Arc;
use std::time::Duration;

use offleash_browser::{ContextError, SavedProfile, TAG};
use offleash_core::log_level::LogLevel;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::message::Selector;
use serde_json::json;
use tokio::time::timeout;

use super::profiles::ending_cookies;
use super::starting::connect;
use super::view::{BrowserSessionView, SessionStatus};
use super::{BrowserService, locked, spec_of};
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;

/// How long a browser may take to write its profile and end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const SIGKILL: i32 = 9;

impl BrowserService {
    /// Ends a session. One whose browser ended by itself is not saved: nobody knows what state its profile is in.
    ///
    /// # Errors
    /// `Conflict` for one that is being started, or ended by somebody else.
    pub(super) async fn finish(
        &self,
        entry: &Arc<SandboxEntry>,
        status: SessionStatus,
        reason: String,
    ) -> Result<BrowserSessionView, DaemonError> {
        let live = locked(&self.live).remove(entry.name());
        let busy = || DaemonError::conflict(entry.name(), "is being started or released");
        drop(live.ok_or_else(busy)?);
        let view = self.view_of(entry);
        let mut reason = reason;
        if matches!(status, SessionStatus::Completed | SessionStatus::TimedOut)
            && let Err(error) = self.save_context(entry).await
        {
            reason = format!("{reason}; its context was not saved: {error}");
            self.core.registry.log(entry.name(), LogLevel::Error, reason.clone());
        }
        self.keep_end(entry, status, reason.clone()).await;
        let cause = match status {
            SessionStatus::Error => EndCause::died(reason.clone()),
            _ => EndCause::killed(reason.clone()),
        };
        self.ender.end_unless_ending(entry, cause).await;
        let view = view?;
        Ok(BrowserSessionView {
            status,
            reason: Some(reason),
            ended_at: Some(offleash_supervisor::clock::from_ms(offleash_supervisor::clock::own_ms())),
            token: None,
            ..view
        })
    }

    /// Saves the profile of a session to its context, if it is to be saved.
    async fn save_context(&self, entry: &SandboxEntry) -> Result<(), DaemonError> {
        let Some(id) = spec_of(entry).filter(|spec| spec.persist).and_then(|spec| spec.context) else {
            return Ok(());
        };
        let Some(record) = self.context_on_disk(&id).await? else {
            return Err(SessionError::UnknownContext { name: id }.into());
        };
        let supervisor = self.core.host.supervisor(entry.id());
        let _place = self.profiles.acquire().await;
        let cookies = self.close_browser(&supervisor).await?;
        let files = self.pack(&supervisor).await?;
        let profile = SavedProfile { cookies, files };
        let store = self.contexts();
        let now = offleash_supervisor::clock::own_ms();
        let saved = crate::jobs::blocking("save a browser context", move || store.save(&record, profile, now));
        Ok(saved.await??)
    }

    /// Has a browser write down what it knows and end; answers the cookies that it keeps in no file.
    async fn close_browser(&self, supervisor: &SupervisorClient) -> Result<Vec<u8>, DaemonError> {
        let browser = Selector::Tag(TAG.to_owned());
        let failed = |error| DaemonError::supervisor("end a browser", error);
        let mut stream = supervisor.attach(&browser).await.map_err(failed)?;
        let mut connection = connect(supervisor).await?;
        let cookies = connection.call("Storage.getCookies", json!({})).await;
        let cookies = cookies.map_err(|error| super::browser_failed(&error))?;
        // It may hang up before it answers.
        let _closing = connection.call("Browser.close", json!({})).await;
        drop(connection);
        if timeout(CLOSE_TIMEOUT, ended(&mut stream)).await.is_err() {
            // A page that asks whether it may be left.
            supervisor.signal(&browser, SIGKILL).await.map_err(failed)?;
            let _ended = timeout(CLOSE_TIMEOUT, ended(&mut stream)).await;
        }
        Ok(ending_cookies(&cookies))
    }
}

/// Waits for the end of a command.
async fn ended(stream: &mut ExecStream) {
    while let Ok(Some(news)) = stream.next().await {
        if matches!(news, ExecNews::Ended(_)) {
            return;
        }
    }
}

impl From<ContextError> for DaemonError {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Name(_) | ContextError::TooMany => Self::invalid("name", error.to_string()),
            ContextError::Exists(name) => SessionError::ContextExists { name }.into(),
            ContextError::Damaged(_) | ContextError::TooLarge => SessionError::Context(error).into(),
            ContextError::File(source) => Self::host("use the browser contexts")(source),
        }
    }
}
