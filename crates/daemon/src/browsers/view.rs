//! What is told of sessions, and what is kept of them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use offleash_browser::{BrowserOptions, OwnSandbox};
use offleash_supervisor::clock::{UnixMs, from_ms, to_ms};
use serde::{Deserialize, Serialize};

use super::RELEASE_GRACE;
use crate::request::BROWSER_LABEL;
use crate::view::SandboxView;

/// How a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SessionStatus {
    /// Its browser runs.
    Running,
    /// It was released.
    Completed,
    /// Its browser ended by itself, or its sandbox did.
    Error,
    /// Its time was up.
    TimedOut,
}

impl SessionStatus {
    /// As in `TIMED_OUT`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Error => "ERROR",
            Self::TimedOut => "TIMED_OUT",
        }
    }
}

/// A session, as its owner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct BrowserSessionView {
    /// Its id, which is that of its sandbox.
    pub id: String,
    /// How it is.
    pub status: SessionStatus,
    /// Why it ended, where there is more to say than its status.
    pub reason: Option<String>,
    /// When it was made.
    pub created_at: SystemTime,
    /// When it ends, or would have.
    pub expires_at: SystemTime,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
    /// Its template.
    pub template: String,
    /// How it is isolated.
    pub level: String,
    /// What the browser looks like.
    pub options: BrowserOptions,
    /// The context that it began with.
    pub context: Option<String>,
    /// Whether it saves to that.
    pub persist: bool,
    /// Whether pictures of its pages are kept.
    pub pictures: bool,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Who shows it drives the browser; `None` once the session has ended.
    pub token: Option<String>,
    /// The proxy through which its pages reach what they may: `HOST:PORT`.
    pub proxy: Option<String>,
    /// Whether its browser had waited for it.
    pub pooled: bool,
    /// Whether the browser keeps a sandbox of its own within ours; `None` where nobody looked.
    pub own_sandbox: Option<OwnSandbox>,
}

/// What was asked for: the label of a session's sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SessionSpec {
    pub(super) options: BrowserOptions,
    pub(super) context: Option<String>,
    pub(super) persist: bool,
    pub(super) pictures: bool,
    /// The address of its proxy.
    pub(super) proxy: Option<String>,
    /// Whether its browser waited for it.
    pub(super) pooled: bool,
}

impl SessionSpec {
    /// The same, of a browser that waited.
    pub(super) fn pooled(&self) -> Self {
        Self {
            pooled: true,
            ..self.clone()
        }
    }

    pub(super) fn to_label(&self) -> String {
        // Strings, numbers and what is made of them: nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn of_label(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// What is kept of a session beside its sandbox, and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) template: String,
    pub(super) level: String,
    pub(super) created_ms: UnixMs,
    pub(super) expires_ms: UnixMs,
    pub(super) spec: SessionSpec,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) end: Option<SessionEnd>,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionEnd {
    pub(super) at_ms: UnixMs,
    pub(super) status: SessionStatus,
    pub(super) reason: String,
}

impl SessionEnd {
    /// One of which nobody knows more than that the sandbox is gone.
    pub(super) fn unknown(at_ms: UnixMs) -> Self {
        Self {
            at_ms,
            status: SessionStatus::Error,
            reason: "its sandbox is gone".to_owned(),
        }
    }
}

impl BrowserSessionView {
    pub(super) fn of(view: SandboxView, spec: SessionSpec) -> Self {
        let mut metadata = view.metadata;
        metadata.remove(BROWSER_LABEL);
        Self {
            id: view.id,
            status: SessionStatus::Running,
            reason: None,
            created_at: view.started_at,
            expires_at: view.end_at.checked_sub(RELEASE_GRACE).unwrap_or(view.end_at),
            ended_at: None,
            template: view.template,
            level: view.level,
            options: spec.options,
            context: spec.context,
            persist: spec.persist,
            pictures: spec.pictures,
            metadata,
            token: view.traffic_token,
            proxy: spec.proxy,
            pooled: spec.pooled,
            own_sandbox: None,
        }
    }
}

impl SessionRecord {
    pub(super) fn of(view: BrowserSessionView, owner: String, spec: SessionSpec) -> Self {
        Self {
            id: view.id,
            owner,
            template: view.template,
            level: view.level,
            created_ms: to_ms(view.created_at),
            expires_ms: to_ms(view.expires_at),
            spec,
            metadata: view.metadata,
            end: None,
        }
    }

    /// One that has ended: what is not told of its end is that it is not there any more.
    pub(super) fn into_view(self) -> BrowserSessionView {
        let end = self.end.unwrap_or_else(|| SessionEnd::unknown(self.expires_ms));
        BrowserSessionView {
            id: self.id,
            status: end.status,
            reason: Some(end.reason),
            created_at: from_ms(self.created_ms),
            expires_at: from_ms(self.expires_ms),
            ended_at: Some(from_ms(end.at_ms)),
            template: self.template,
            level: self.level,
            options: self.spec.options,
            context: self.spec.context,
            persist: self.spec.persist,
            pictures: self.spec.pictures,
            metadata: self.metadata,
            token: None,
            proxy: self.spec.proxy,
            pooled: self.spec.pooled,
            own_sandbox: None,
        }
    }
}
