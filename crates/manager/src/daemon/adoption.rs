//! What a daemon does with the sandboxes of the one before: adopts what lives, ends what was half made, removes the
//! rest.

use std::collections::HashSet;
use std::sync::Arc;

use offleash_store::registry::{LogLevel, SandboxRow, SandboxState};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::creating::{network_order, watch};
use super::error::DaemonError;
use super::history::Cause;
use super::inner::{Inner, blocking};
use super::launch::Process;
use super::pool::Origin;
use super::specification::Specification;
use super::table::Entry;
use super::{ending, zygotes};

/// How many are looked at at a time.
const AT_A_TIME: usize = 32;

/// Takes over every sandbox of the registry.
///
/// # Errors
/// `Store` if the registry cannot be read. What is wrong with one sandbox keeps nobody from the others.
pub(super) async fn adopt_all(inner: &Arc<Inner>) -> Result<(), DaemonError> {
    let reading = Arc::clone(inner);
    let rows = blocking("read the registry", move || reading.registry.sandboxes()).await??;
    let known: HashSet<String> = rows.iter().map(|row| row.id.clone()).collect();
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let mut adopting = JoinSet::new();
    for row in rows {
        let (inner, places) = (Arc::clone(inner), Arc::clone(&places));
        adopting.spawn(async move {
            let _place = places.acquire().await;
            adopt(&inner, row).await;
        });
    }
    while adopting.join_next().await.is_some() {}
    remove_unknown(inner, &known).await
}

async fn adopt(inner: &Arc<Inner>, row: SandboxRow) {
    let Ok(id) = row.id.parse() else {
        // Ids are ours, so this one was written by somebody else; there is no directory of such a name.
        return;
    };
    let specification = Specification::from_json(&row.spec);
    let was = row.state;
    let process = row.keeper.and_then(Process::find);
    let readable = specification.is_some();
    let entry = Arc::new(Entry::adopted(
        id,
        row,
        specification.unwrap_or_else(|| Specification::usual(&inner.config)),
    ));
    inner.table.insert(Arc::clone(&entry));
    let turn = entry.transition.lock().await;
    match process.map(|process| process.again().map(|again| (process, again))) {
        Some(Ok((process, watched))) => {
            watch(inner, &entry, watched);
            if readable
                && !matches!(was, SandboxState::Creating | SandboxState::Killing)
                && take_over(inner, &entry).await
            {
                return;
            }
            // Half made, half ended, or not to be talked to.
            if was == SandboxState::Creating {
                let _ = process.kill();
            }
            ending::end_keeper(inner, &entry).await;
        }
        _ => {
            entry.ended.send_replace(true);
        }
    }
    entry.lock().row.state = SandboxState::Killing;
    drop(turn);
    entry.lock().cause = Some(match was {
        SandboxState::Killing => Cause::killed("as it was asked before the daemon was started again"),
        _ => Cause::died("its keeper was gone, or did not answer, when the daemon was started again"),
    });
    // What was never made has nothing to tell.
    if was == SandboxState::Creating {
        entry.lock().row.key_id = None;
    }
    ending::forget_in_background(inner, &entry);
}

/// Talks to the keeper, and brings registry and sandbox into agreement. `false` if it cannot be talked to.
async fn take_over(inner: &Arc<Inner>, entry: &Arc<Entry>) -> bool {
    let keeper = inner.keeper(entry);
    let hello = match keeper.hello().await {
        Ok(hello) if hello.id == entry.id => hello,
        Ok(_) => return false,
        Err(error) => {
            inner.log(
                entry.id.as_str(),
                LogLevel::Error,
                format!("its keeper does not answer: {error}"),
            );
            return false;
        }
    };
    if !renew_network(inner, entry).await {
        return false;
    }
    let state = if hello.paused {
        SandboxState::Paused
    } else {
        SandboxState::Running
    };
    let differs = entry.state() != state;
    if differs && inner.write(entry, None, |row| row.state = state).await.is_err() {
        entry.lock().row.state = state;
    }
    let origin = {
        let facts = entry.lock();
        let is_pooled = facts.row.key_id.is_none();
        is_pooled.then(|| Origin {
            template: facts.row.template.clone(),
            build: facts.specification.build.clone(),
        })
    };
    if let Some(origin) = origin {
        inner.pool.adopt(Arc::clone(entry), &origin);
    }
    true
}

/// Sets the rules of the network again where the daemon before may have died while it set others. `false` if they cannot
/// be set, and for one of the warm pool that has others now: nothing runs with other rules than are on record.
async fn renew_network(inner: &Inner, entry: &Entry) -> bool {
    let (specification, key) = {
        let facts = entry.lock();
        (Arc::clone(&facts.specification), facts.row.key_id.clone())
    };
    if key.is_none() || !specification.network_pending {
        return !specification.network_pending;
    }
    match network_order(inner, key.as_deref(), &specification.network) {
        Ok((order, _)) => inner.keeper(entry).set_network(order).await.is_ok(),
        Err(_) => false,
    }
}

/// Removes directories that no record speaks of: their keepers were never told to make anything, or are zygotes.
async fn remove_unknown(inner: &Arc<Inner>, known: &HashSet<String>) -> Result<(), DaemonError> {
    let directories = inner.directories.clone();
    let ids = blocking("list sandboxes", move || directories.ids()).await?;
    let ids = ids.map_err(|error| DaemonError::host("list sandboxes")(std::io::Error::other(error)))?;
    for id in ids.iter().filter(|id| !known.contains(id.as_str())) {
        if !zygotes::is_left(inner, id).await {
            ending::remove_remains(inner, id).await;
        }
    }
    Ok(())
}
