//! Questions that wait for a person: about calls of tools, about connections, and about what requests ask of the daemon.
//!
//! Whoever holds the sandbox has the first two, and outlives the daemon; here they are found.

use std::time::Duration;

use offleash_core::approval::ApprovalSubject;
use offleash_supervisor::tools::OpenApproval;

use crate::daemon_core::DaemonCore;
use crate::registry::{SandboxState, Scope};
use crate::request::NAME_LABEL;
use crate::sandboxes::SandboxEntry;

/// A question about something that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalView {
    /// Its id.
    pub id: String,
    /// The sandbox that asks.
    pub sandbox: String,
    /// What it is called.
    pub name: Option<String>,
    /// Whose sandbox it is; `None` for the owner of the daemon.
    pub key: Option<String>,
    /// What it is about.
    pub about: ApprovalSubject,
    /// The rule that asks, where one does.
    pub rule: Option<String>,
    /// How long the question waits still.
    pub left: Duration,
    /// The scope of keys that may answer it.
    pub answered_by: Scope,
}

/// Before the number of a question about a connection.
pub(crate) const OF_NETWORK: char = 'n';
/// Before the number of a question of the daemon itself.
pub(crate) const OF_DAEMON: char = 'd';

/// The questions of one sandbox that wait.
pub(crate) async fn open_approvals(core: &DaemonCore, entry: &SandboxEntry) -> Vec<ApprovalView> {
    let specification = entry.specification();
    let mut all = Vec::new();
    // One that does not answer has nothing to be decided.
    if !specification.tools.is_empty() {
        let open = core.host.tools(entry.id()).approvals().await.unwrap_or_default();
        all.extend(open.into_iter().map(|open| view(entry, "", open, Scope::Create)));
    }
    if !specification.network.ask_out.is_empty() && entry.state() == SandboxState::Running {
        let open = core.host.supervisor(entry.id()).approvals().await.unwrap_or_default();
        all.extend(open.into_iter().map(|open| view(entry, "n", open, Scope::Create)));
    }
    for (open, is_owners) in core.questions.of_sandbox(entry.name()) {
        let answered_by = if is_owners { Scope::Admin } else { Scope::Create };
        all.push(view(entry, "d", open, answered_by));
    }
    all
}

fn view(entry: &SandboxEntry, kind: &str, open: OpenApproval, answered_by: Scope) -> ApprovalView {
    let row = entry.row();
    ApprovalView {
        id: format!("{}-{kind}{}", entry.name(), open.id),
        sandbox: entry.name().to_owned(),
        name: row.metadata.get(NAME_LABEL).cloned(),
        key: row.key_id,
        about: open.about,
        rule: open.rule,
        left: Duration::from_millis(open.left_ms),
        answered_by,
    }
}
