//! What is told of desktops, and what is kept of them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use offleash_desktop::DesktopOptions;
use offleash_supervisor::clock::{UnixMs, from_ms, to_ms};
use serde::{Deserialize, Serialize};

use crate::browsers::SessionStatus;
use crate::request::DESKTOP_LABEL;
use crate::view::SandboxView;

/// A desktop, as its owner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct DesktopView {
    /// Its id, which is that of its sandbox.
    pub id: String,
    /// How it is.
    pub status: SessionStatus,
    /// Why it ended.
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
    /// What its screen is like.
    pub options: DesktopOptions,
    /// Whether pictures of its screen are kept.
    pub record: bool,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Who shows it sees and drives the desktop; `None` once it has ended.
    pub token: Option<String>,
}

/// What was asked for: the label of a desktop's sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DesktopSpec {
    pub(super) options: DesktopOptions,
    pub(super) record: bool,
}

impl DesktopSpec {
    pub(super) fn to_label(self) -> String {
        // Numbers and what is made of them: nothing that could fail.
        serde_json::to_string(&self).unwrap_or_default()
    }

    pub(super) fn of_label(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// What is kept of a desktop beside its sandbox, and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct DesktopRecord {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) template: String,
    pub(super) level: String,
    pub(super) created_ms: UnixMs,
    pub(super) expires_ms: UnixMs,
    pub(super) spec: DesktopSpec,
    pub(super) metadata: BTreeMap<String, String>,
}

/// How a desktop ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesktopEnd {
    pub(super) at_ms: UnixMs,
    pub(super) status: SessionStatus,
    pub(super) reason: String,
}

impl DesktopEnd {
    /// One of which nobody knows more than that the sandbox is gone.
    pub(super) fn unknown(at_ms: UnixMs) -> Self {
        Self {
            at_ms,
            status: SessionStatus::Error,
            reason: "its sandbox is gone".to_owned(),
        }
    }
}

impl DesktopView {
    pub(super) fn of(view: SandboxView, spec: DesktopSpec) -> Self {
        let mut metadata = view.metadata;
        metadata.remove(DESKTOP_LABEL);
        Self {
            id: view.id,
            status: SessionStatus::Running,
            reason: None,
            created_at: view.started_at,
            expires_at: view.end_at,
            ended_at: None,
            template: view.template,
            level: view.level,
            options: spec.options,
            record: spec.record,
            metadata,
            token: view.traffic_token,
        }
    }
}

impl DesktopRecord {
    pub(super) fn of(view: DesktopView, owner: String) -> Self {
        Self {
            id: view.id,
            owner,
            template: view.template,
            level: view.level,
            created_ms: to_ms(view.created_at),
            expires_ms: to_ms(view.expires_at),
            spec: DesktopSpec {
                options: view.options,
                record: view.record,
            },
            metadata: view.metadata,
        }
    }

    /// One that has ended.
    pub(super) fn into_view(self, end: DesktopEnd) -> DesktopView {
        DesktopView {
            id: self.id,
            status: end.status,
            reason: Some(end.reason),
            created_at: from_ms(self.created_ms),
            expires_at: from_ms(self.expires_ms),
            ended_at: Some(from_ms(end.at_ms)),
            template: self.template,
            level: self.level,
            options: self.spec.options,
            record: self.spec.record,
            metadata: self.metadata,
            token: None,
        }
    }
}
