//! What becomes of a run's changes: written back or dropped, and noted in the audit log.

use offleash_core::id::RunId;
use offleash_store::{ApplyReport, ApplyRequest, RunError, StateDirectory, StoredRun};

use crate::lifecycle::{LifecycleError, audit};

/// Writes changes of a run back to the host, all that were asked for or none.
///
/// # Errors
/// When the run is unknown or over, the host changed meanwhile, or a call failed.
pub fn apply(state: &StateDirectory, id: &RunId, request: &ApplyRequest) -> Result<ApplyReport, LifecycleError> {
    let mut run = StoredRun::open(state, id)?;
    let report = run.apply(request)?;
    audit::applied(state, id, &report)?;
    Ok(report)
}

/// Drops the changes of a run, even if its record is damaged.
///
/// # Errors
/// When the run is unknown, going on or over already.
pub fn discard(state: &StateDirectory, id: &RunId) -> Result<(), LifecycleError> {
    match StoredRun::open(state, id) {
        Ok(run) => run.discard()?,
        Err(RunError::Damaged { .. }) => StoredRun::discard_damaged(state, id)?,
        Err(error) => return Err(error.into()),
    }
    audit::discarded(state, id)
}
