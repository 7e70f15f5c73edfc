//! A command that somebody follows, and what becomes of it when nobody does any more.
//!
//! By itself it goes on, as E2B has it. Our own `offleash exec` says that it is to end with its client, as the one of
//! a terminal that is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderMap;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::Selector;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::SandboxAccess;

/// Says that a command is to end when its client goes away.
pub(crate) const ENDS_WITH_CLIENT: &str = "offleash-ends-with-client";

/// How long a command may take to end by itself then.
const GRACE: Duration = Duration::from_secs(5);
const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;

/// A command that somebody follows.
#[derive(Debug)]
pub(super) struct AttendedExec {
    /// `None` when it has ended.
    exec: Option<ExecStream>,
    pid: u32,
    end: Option<End>,
}

/// Who ends it.
#[derive(Debug, Clone)]
struct End {
    supervisor: SupervisorClient,
    server_ends: Arc<AtomicBool>,
}

impl AttendedExec {
    /// A command that goes on without whoever follows it.
    pub(super) fn of(exec: ExecStream) -> Self {
        let pid = exec.pid();
        Self {
            exec: Some(exec),
            pid,
            end: None,
        }
    }

    /// As [`Self::of`], unless the request that started it says otherwise.
    pub(super) fn started(exec: ExecStream, fields: &HeaderMap, sandbox: &SandboxAccess) -> Self {
        let end = fields.contains_key(ENDS_WITH_CLIENT).then(|| End {
            supervisor: sandbox.supervisor.clone(),
            server_ends: Arc::clone(&sandbox.server_ends),
        });
        let mut attended = Self::of(exec);
        attended.end = end;
        attended
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) async fn next(&mut self) -> Result<Option<ExecNews>, SupervisorError> {
        let Some(exec) = &mut self.exec else { return Ok(None) };
        let news = exec.next().await;
        if matches!(news, Err(_) | Ok(None | Some(ExecNews::Ended(_)))) {
            self.exec = None;
        }
        news
    }
}

impl Drop for AttendedExec {
    fn drop(&mut self) {
        let (Some(exec), Some(end)) = (self.exec.take(), self.end.take()) else {
            return;
        };
        // What a server was doing goes on without it.
        if end.server_ends.load(Ordering::Acquire) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(end.of(exec));
        }
    }
}

impl End {
    /// Hangs up, as a terminal that is closed does, and kills what does not end of that.
    async fn of(self, mut exec: ExecStream) {
        // As long as its end was not seen, no other command has its process id.
        let which = Selector::Pid(exec.pid());
        let _gone = self.supervisor.signal(&which, SIGHUP).await;
        let ended = async { while !matches!(exec.next().await, Err(_) | Ok(None | Some(ExecNews::Ended(_)))) {} };
        if timeout(GRACE, ended).await.is_err() {
            let _gone = self.supervisor.signal(&which, SIGKILL).await;
        }
    }
}
