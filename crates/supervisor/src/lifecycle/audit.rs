//! What the audit log is told about runs.

mod network;

use offleash_core::id::RunId;
use offleash_core::record::RunRecord;
use offleash_core::text::Text;
use offleash_store::{ApplyReport, AuditEvent, AuditLog, LeftoverFate, LeftoverRun, StateDirectory};
use serde_json::{Value, json};

use super::LifecycleError;

fn append(state: &StateDirectory, event: &str, run: &RunId, data: Value) -> Result<(), LifecycleError> {
    let event = AuditEvent {
        event: event.to_owned(),
        run: Some(run.clone()),
        data,
    };
    // A torn last line is noted in the log itself.
    AuditLog::new(state).append(&event)?;
    Ok(())
}

/// A run is over: everything of its record but the output. What does not fit one line stands in lines before it.
pub(crate) fn ended(state: &StateDirectory, record: &RunRecord) -> Result<(), LifecycleError> {
    let network = network::divide(record.network.as_ref());
    for further in network.further {
        append(state, "network_used", &record.id, further)?;
    }
    let data = json!({
        "command": record.command,
        "started_at": record.started_at,
        "level": record.level,
        "not_enforced": record.not_enforced,
        "outcome": record.outcome,
        "exit_code": record.exit_code,
        "output_bytes": { "stdout": record.stdout.bytes, "stderr": record.stderr.bytes },
        "usage": record.usage,
        "limits_hit": record.limits_hit,
        "denials": record.denials,
        "changes": record.changes,
        "network": network.inline,
    });
    append(state, "run_ended", &record.id, data)
}

/// A run's process died, and what it left was cleaned up.
pub(crate) fn crashed(state: &StateDirectory, leftover: &LeftoverRun) -> Result<(), LifecycleError> {
    let fate = match &leftover.fate {
        LeftoverFate::Removed => "it had changed nothing and was removed",
        LeftoverFate::Kept => "its changes are kept",
        LeftoverFate::ApplyFinished => "an apply was finished or undone",
        LeftoverFate::Postponed(why) => why,
    };
    append(state, "run_crashed", &leftover.id, json!({ "fate": fate }))
}

/// Changes were written back.
pub(crate) fn applied(state: &StateDirectory, run: &RunId, report: &ApplyReport) -> Result<(), LifecycleError> {
    let paths: Vec<Text> = report.applied.iter().map(|change| Text::from(&change.path)).collect();
    let refused: Vec<Text> = report.refused.iter().map(|refusal| Text::from(&refusal.path)).collect();
    append(
        state,
        "changes_applied",
        run,
        json!({ "paths": paths, "refused": refused, "pending": report.pending }),
    )
}

/// Changes were dropped.
pub(crate) fn discarded(state: &StateDirectory, run: &RunId) -> Result<(), LifecycleError> {
    append(state, "changes_discarded", run, Value::Null)
}
