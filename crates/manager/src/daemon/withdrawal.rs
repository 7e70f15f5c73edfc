//! Ends the sandboxes of keys that were removed together with them, by whoever manages keys beside the daemon.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use offleash_store::registry::SandboxState;

use super::ending;
use super::history::Cause;
use super::inner::{Inner, Job, blocking};
use super::table::Entry;

/// Begins to end every sandbox of such a key. A request that was under way when the key was removed may still have made one
/// afterwards; so it is looked at again and again.
pub(super) async fn end_due(inner: &Arc<Inner>) {
    let reading = Arc::clone(inner);
    let keys = blocking("read the registry", move || reading.registry.keys_without_sandboxes()).await;
    // It is tried again soon. That the registry cannot be read is told by every request, which looks its key up there.
    let keys: HashSet<String> = keys.ok().and_then(Result::ok).unwrap_or_default().into_iter().collect();
    if keys.is_empty() {
        return;
    }
    for entry in inner.table.all() {
        let is_due = {
            let facts = entry.lock();
            let key = facts.row.key_id.as_ref();
            key.is_some_and(|key| keys.contains(key)) && facts.row.state != SandboxState::Killing
        };
        if is_due && !entry.expiring.swap(true, Ordering::AcqRel) {
            end_in_background(inner, entry);
        }
    }
}

fn end_in_background(inner: &Arc<Inner>, entry: Arc<Entry>) {
    let job = Job::begin(inner);
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let _job = job;
        let turn = entry.transition.lock().await;
        if entry.state() != SandboxState::Killing {
            ending::end(&inner, &entry, Cause::killed("as its key was removed"), turn).await;
        }
        entry.expiring.store(false, Ordering::Release);
    });
}
