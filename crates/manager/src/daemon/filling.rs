//! Fills the warm pool in the background: a few at a time, when nobody waits for one that is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use offleash_store::registry::SandboxState;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::creating::make_for_pool;
use super::history::Cause;
use super::inner::{Inner, Job};
use super::pool::{Made, Origin};
use super::table::Entry;
use super::{ending, templates, zygotes};

/// How often the number is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Begins to fill the pool, until the daemon is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    if inner.pool.is_off() {
        // An earlier daemon may have had one.
        end_all(inner, inner.pool.take_all(), "the pool is switched off");
        return;
    }
    let (weak, wanted) = (Arc::downgrade(inner), Arc::clone(&inner.pool.wanted));
    tokio::spawn(async move {
        let mut making: JoinSet<()> = JoinSet::new();
        let mut looked: Option<Instant> = None;
        loop {
            let Some(inner) = weak.upgrade() else { return };
            while making.try_join_next().is_some() {}
            if looked.is_none_or(|looked| looked.elapsed() >= EVERY) {
                looked = Some(Instant::now());
                look(&inner).await;
            }
            let mut wait = inner.pool.wait();
            if wait.is_zero() {
                wait = EVERY;
                if !inner.is_draining() {
                    fill(&inner, &mut making);
                }
            }
            drop(inner);
            // A member that is ready, one that was taken, or the time.
            tokio::select! {
                _ = timeout(wait, wanted.notified()) => {}
                Some(_) = making.join_next() => {}
            }
        }
    });
}

/// What is to be done each second.
async fn look(inner: &Arc<Inner>) {
    inner.pool.age();
    for name in inner.pool.templates() {
        // Where it cannot be told, the next second may.
        if let Ok(found) = templates::current(inner, &name).await {
            match found {
                Some(held) => {
                    inner.pool.note_current(&Origin::of(Some(&held)));
                    zygotes::expect(inner, &held);
                }
                None => inner.pool.note_gone(&name),
            }
        }
    }
    end_all(inner, inner.pool.surplus(), "too many wait");
    if inner.admission.check().is_err() {
        end_all(inner, inner.pool.give_up_half(), "the machine has too little left");
    }
}

fn end_all(inner: &Arc<Inner>, entries: Vec<Arc<Entry>>, why: &'static str) {
    for entry in entries {
        ending::end_in_background(inner, &entry, Cause::killed(why));
    }
}

fn fill(inner: &Arc<Inner>, making: &mut JoinSet<()>) {
    while making.len() < inner.pool.max_creating() {
        let Some(origin) = inner.pool.next() else { return };
        // What the machine has left is for those who wait for it.
        if inner.admission.check_beside(inner.pool.expected_mib()).is_err() {
            let _nothing = inner.pool.finish(&origin, Made::Deferred);
            return;
        }
        let inner = Arc::clone(inner);
        // Until it is in the pool, where the end of the daemon finds it.
        let job = Job::begin(&inner);
        making.spawn(async move {
            let _job = job;
            let (work, of) = (Arc::clone(&inner), origin.clone());
            let made = inner.detached(async move { make_for_pool(&work, &of).await }).await;
            let mut ready = None;
            let made = match made {
                Ok(entry) if entry.state() != SandboxState::Running => Made::Failed,
                Ok(entry) => {
                    let memory_mib = memory_mib(&inner, &entry).await;
                    // Asked last: what is outdated from here on is found in the pool by whoever made it so.
                    if is_current(&inner, &origin).await && has_its_zygote(&inner, &entry, &origin) {
                        ready = Some(Arc::clone(&entry));
                        Made::Ready(entry, memory_mib)
                    } else {
                        Made::Outdated(entry)
                    }
                }
                Err(_) => Made::Failed,
            };
            let unwanted = inner.pool.finish(&origin, made);
            // A zygote that came or went between the question and the pool has not found it there.
            if let Some(entry) = ready.filter(|entry| !has_its_zygote(&inner, entry, &origin)) {
                let below = entry.lock().specification.zygote;
                inner.pool.retire(&origin.template, |zygote| zygote == below);
            }
            end_all(&inner, unwanted.into_iter().collect(), "its template has changed");
        });
    }
}

/// What a sandbox that waits holds of the machine's memory, without what can be had back.
async fn memory_mib(inner: &Inner, entry: &Entry) -> u64 {
    let usage = inner.keeper(entry).usage().await;
    usage.map_or(0, |usage| {
        usage.memory_bytes.saturating_sub(usage.memory_cache_bytes) >> 20
    })
}

/// Whether a sandbox that was made for `origin` lies below the zygote that there is now, or below none if there is none.
fn has_its_zygote(inner: &Inner, entry: &Entry, origin: &Origin) -> bool {
    let now = inner.zygotes.descent(origin).zygote();
    entry.lock().specification.zygote == now
}

/// Whether a sandbox that was made for `origin` is of it: its keeper took what was there then.
async fn is_current(inner: &Arc<Inner>, origin: &Origin) -> bool {
    if origin.build.is_none() {
        return true;
    }
    let found = templates::current(inner, &origin.template).await;
    found.is_ok_and(|found| found.is_some_and(|held| Origin::of(Some(&held)) == *origin))
}
