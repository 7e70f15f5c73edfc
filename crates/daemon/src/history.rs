//! What is told of a sandbox's life: who did what to it, and why it ended.

use std::collections::BTreeMap;

use offleash_core::id::RunId;
use offleash_core::log_level::LogLevel;
use offleash_core::record::AlertRecord;
use offleash_store::SandboxDirectories;
use offleash_supervisor::clock::UnixMs;
use offleash_supervisor::clock::now_ms;
use offleash_supervisor::service::log::{self, Noted};
use offleash_supervisor::service::message::Ended;
use offleash_supervisor::service::order::ENDED;
use serde::{Deserialize, Serialize};

use crate::caller::{Caller, LOCAL_KEY};
use crate::registry::{Change, EventKind, EventRow, LogRow, SandboxRow};
use crate::request::NAME_LABEL;

/// How much of a supervisor's account is kept with the event of its end.
const MAX_ACCOUNT: u64 = 8 * 1024;
/// How many of a supervisor's lines are kept when its sandbox has ended, the latest.
const KEPT_LINES: usize = 500;

/// Something that happened to a sandbox, as an event and in words.
#[derive(Debug)]
pub(crate) struct EventNote {
    pub(crate) kind: EventKind,
    pub(crate) line: String,
}

impl EventNote {
    pub(crate) fn new(kind: EventKind, line: impl Into<String>) -> Self {
        Self {
            kind,
            line: line.into(),
        }
    }

    /// The changes that tell of it.
    pub(crate) fn told(self, row: &SandboxRow) -> [Change; 2] {
        let detail = matches!(self.kind, EventKind::Paused | EventKind::Resumed).then(|| EventDetail {
            reason: self.line.clone(),
            account: None,
            alert: None,
        });
        // A string: nothing that could fail.
        let detail = detail.and_then(|detail| serde_json::to_string(&detail).ok());
        [
            event_of(row, self.kind, detail),
            line_of(&row.id, now_ms(), LogLevel::Info, self.line),
        ]
    }
}

/// Why a sandbox ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndCause {
    kind: EventKind,
    reason: String,
}

impl EndCause {
    /// Somebody or something had it ended.
    pub(crate) fn killed(reason: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Killed,
            reason: reason.into(),
        }
    }

    /// It ended without being told to.
    pub(crate) fn died(reason: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Died,
            reason: reason.into(),
        }
    }

    /// What is known once its supervisor's account was read, which knows more than that the supervisor is gone.
    fn with(self, account: Option<&Ended>) -> Self {
        let told = account.and_then(Ended::why);
        match told {
            Some(reason) if self.kind == EventKind::Died => Self { reason, ..self },
            _ => self,
        }
    }
}

/// Who asked for something.
pub(crate) fn who(caller: &Caller) -> String {
    match caller.key_id.as_str() {
        LOCAL_KEY => "the owner of the daemon".to_owned(),
        key => format!("key `{key}`"),
    }
}

/// Lines about what is not enforced, for the beginning of a sandbox's log.
pub(crate) fn not_enforced(sandbox: &str, controls: &BTreeMap<String, String>) -> Vec<Change> {
    let line = |(control, why): (&String, &String)| {
        let line = format!("not enforced on this machine: `{control}`: {why}");
        line_of(sandbox, now_ms(), LogLevel::Warn, line)
    };
    controls.iter().map(line).collect()
}

/// An event of a sandbox, in the registry's words.
pub(crate) fn event_of(row: &SandboxRow, kind: EventKind, detail: Option<String>) -> Change {
    Change::AddEvent(EventRow {
        number: 0,
        key_id: row.key_id.clone(),
        sandbox: row.id.clone(),
        name: row.metadata.get(NAME_LABEL).cloned(),
        template: row.template.clone(),
        at_ms: now_ms(),
        kind,
        detail,
    })
}

/// A line about a sandbox, in the registry's words.
pub(crate) fn line_of(sandbox: &str, at_ms: UnixMs, level: LogLevel, line: impl Into<String>) -> Change {
    Change::AddLog(LogRow {
        number: 0,
        sandbox: sandbox.to_owned(),
        at_ms,
        level,
        line: line.into(),
    })
}

/// What a supervisor left behind when it ended.
#[derive(Debug, Default)]
pub(crate) struct SupervisorRemains {
    account: Option<Ended>,
    lines: Vec<Noted>,
}

impl SupervisorRemains {
    /// Reads it in the directory of a sandbox. Blocks for a moment.
    pub(crate) fn read(directories: &SandboxDirectories, id: &RunId) -> Self {
        let account = directories.read(id, ENDED, MAX_ACCOUNT);
        Self {
            account: account.and_then(|text| serde_json::from_slice(&text.0).ok()),
            lines: lines_of_supervisor(directories, id),
        }
    }

    /// The changes that keep what it wrote of a sandbox that is put away.
    pub(crate) fn lines(self, row: &SandboxRow) -> Vec<Change> {
        let surplus = self.lines.len().saturating_sub(KEPT_LINES);
        let lines = self.lines.into_iter().skip(surplus);
        lines
            .map(|noted| line_of(&row.id, noted.at_ms, noted.level(), noted.line))
            .collect()
    }

    /// The changes that keep it, and tell of the end.
    pub(crate) fn told(self, row: &SandboxRow, cause: EndCause) -> Vec<Change> {
        let cause = cause.with(self.account.as_ref());
        let account = self.account.clone();
        let untold = self.account.iter().flat_map(|account| &account.untold_alerts);
        let alerts: Vec<Change> = untold.map(|alert| alert_of(row, alert)).collect();
        let mut changes = self.lines(row);
        changes.extend(alerts);
        let level = match cause.kind {
            EventKind::Died => LogLevel::Error,
            _ => LogLevel::Info,
        };
        let line = format!("{}: {}", cause.kind, cause.reason);
        changes.push(line_of(&row.id, now_ms(), level, line));
        let detail = EventDetail {
            reason: cause.reason,
            account,
            alert: None,
        };
        // Strings and numbers: nothing that could fail.
        changes.push(event_of(row, cause.kind, serde_json::to_string(&detail).ok()));
        changes
    }
}

/// What is kept with the event of an end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventDetail {
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<Ended>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alert: Option<AlertRecord>,
}

/// A rule of monitoring that fired in a sandbox, as an event; its supervisor has written the line.
pub(crate) fn alert_of(row: &SandboxRow, alert: &AlertRecord) -> Change {
    let detail = EventDetail {
        reason: alert.line(),
        account: None,
        alert: Some(alert.clone()),
    };
    // Strings and numbers: nothing that could fail.
    event_of(row, EventKind::Alert, serde_json::to_string(&detail).ok())
}

/// The alert in an event's detail.
pub(crate) fn alert_in(detail: Option<&str>) -> Option<AlertRecord> {
    let detail: EventDetail = serde_json::from_str(detail?).ok()?;
    detail.alert
}

/// The reason in an event's detail.
pub(crate) fn reason_in(detail: Option<&str>) -> Option<String> {
    let detail: EventDetail = serde_json::from_str(detail?).ok()?;
    Some(detail.reason)
}

/// What the supervisor of a sandbox wrote, the oldest first. Blocks for a moment.
pub(crate) fn lines_of_supervisor(directories: &SandboxDirectories, id: &RunId) -> Vec<Noted> {
    let most = log::MAX_FILE + 64 * 1024;
    let files = [log::EARLIER, log::FILE].map(|name| directories.read(id, name, most));
    files
        .into_iter()
        .flatten()
        .flat_map(|text| log::parse(&text.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use offleash_core::limits::LimitName;
    use offleash_core::record::{LimitEffect, LimitHit, RunUsage};

    use super::*;
    use offleash_supervisor::service::message::EndReason;

    fn ended(reason: EndReason) -> Ended {
        Ended {
            reason,
            at: String::new(),
            usage: RunUsage::default(),
            limits_hit: Vec::new(),
            out_of_memory: false,
            untold_alerts: Vec::new(),
        }
    }

    #[test]
    fn a_supervisor_knows_better_why_a_sandbox_died_and_not_who_killed_it() {
        let limit = EndReason::Limit(LimitHit {
            limit: LimitName::Memory,
            value: 64 << 20,
            effect: LimitEffect::Killed,
        });
        let died = |reason: EndReason| EndCause::died("its supervisor died").with(Some(&ended(reason))).reason;
        assert_eq!(died(limit.clone()), "it exceeded the limit `memory` of 64M");
        assert_eq!(died(EndReason::Killed), "its supervisor died");
        assert_eq!(
            died(EndReason::Failed("opening `/home/me/x`".to_owned())),
            "its supervisor failed"
        );
        let killed = EndCause::killed("killed by somebody");
        assert_eq!(killed.clone().with(Some(&ended(limit))), killed);
    }

    #[test]
    fn the_reason_is_found_in_what_is_kept() {
        let detail = EventDetail {
            reason: "because".to_owned(),
            account: Some(ended(EndReason::Lost)),
            alert: None,
        };
        let text = serde_json::to_string(&detail).unwrap();
        assert_eq!(reason_in(Some(&text)).as_deref(), Some("because"));
        assert_eq!(reason_in(None), None);
    }
}
