//! Which snapshots a list shows.

use offleash_daemon::SnapshotFilter;

use crate::http::answer::ApiRefusal;
use crate::http::query;

/// What a query means, in which the sandbox is called `sandbox`.
///
/// # Errors
/// 400 for a limit that is none.
pub(crate) fn snapshot_filter(given: Option<&str>, sandbox: &str) -> Result<SnapshotFilter, ApiRefusal> {
    let pairs = query::pairs(given);
    let text = |name| {
        query::value(&pairs, name)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let usual = SnapshotFilter::default();
    Ok(SnapshotFilter {
        sandbox: text(sandbox),
        name: text("name"),
        limit: query::number(&pairs, "limit", 1..=usual.limit)?.unwrap_or(usual.limit),
        after: text("nextToken"),
    })
}
