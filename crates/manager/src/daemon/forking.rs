//! Forks: new sandboxes whose files begin as a copy of a running one's, at one moment.
//!
//! A fork is made as any sandbox is, of the same template and specification, with ids, network, limits and tokens of its
//! own. What the source has written is copied while nothing in it moves; of several forks the others are copied from the
//! first, when it moves again. Forks are in the registry before there is anything of them, so that the next daemon removes
//! what is half made; the source goes on by itself when the daemon dies, because its keeper holds it only as long as it is
//! asked to. Deliberately not here: processes of the source, which are not carried.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_store::registry::{Change, LogLevel, SandboxState};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::creating::{Listener, Order, make_in_turn, new_row, settle};
use super::error::DaemonError;
use super::history::{Cause, who};
use super::inner::Inner;
use super::request::{CreateRequest, LimitsRequest, NAME, OnTimeout};
use super::specification::{self, Specification};
use super::table::{Entry, Reserved};
use super::transitions::patiently;
use super::view::{Caller, SandboxView};
use super::{Daemon, copying, ending, random, templates};
use crate::base::CopyOrder;
use crate::keeper::error::KeeperError;
use crate::keeper::order::MOST_FILES;

/// Most forks that one request makes.
pub const MOST_FORKS: u32 = 20;

/// How long files may take to be copied; as long as the first copy takes, the source stands still.
const LONGEST_COPY: Duration = Duration::from_secs(60);

/// Forks that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRequest {
    /// How many, 1 to [`MOST_FORKS`].
    pub count: u32,
    /// How long they may live, seconds; the daemon's default if `None`. Zero is refused.
    pub timeout_seconds: Option<u64>,
}

impl Default for ForkRequest {
    fn default() -> Self {
        Self {
            count: 1,
            timeout_seconds: None,
        }
    }
}

/// What came of each fork that was asked for.
pub type Forks = Vec<Result<SandboxView, DaemonError>>;

impl Daemon {
    /// Makes forks of a running sandbox. Each is made or not: the answer has an entry for each that was asked for.
    ///
    /// # Errors
    /// When no fork can be: `NotFound`, `Forbidden`, `Invalid`, `Conflict` for one that is paused or whose template was built
    /// again since, `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `NotCopied`, `Keeper`.
    pub async fn fork(&self, caller: &Caller, id: &str, request: ForkRequest) -> Result<Forks, DaemonError> {
        let source = self.owned(caller, id)?;
        if self.inner.is_draining() {
            return Err(DaemonError::Draining);
        }
        if !(1..=MOST_FORKS).contains(&request.count) {
            let why = format!("must be between 1 and {MOST_FORKS}");
            return Err(DaemonError::invalid("count", why));
        }
        let timeout = specification::timeout(request.timeout_seconds, &self.inner.config)?;
        let listener = Listener::default();
        let (inner, caller, listens) = (Arc::clone(&self.inner), caller.clone(), listener.there());
        let work = async move {
            let forks = fork(&inner, &source, &caller, timeout, request.count).await?;
            let answer = forks.into_iter().map(|made| {
                let entry = made?;
                if listens.load(Ordering::Acquire) {
                    return entry.view().ok_or_else(|| DaemonError::not_found(entry.id.as_str()));
                }
                let cause = Cause::killed("its creator went away while it was made");
                ending::end_in_background(&inner, &entry, cause);
                Err(DaemonError::not_found(entry.id.as_str()))
            });
            Ok(answer.collect())
        };
        let answer = self.inner.detached(work).await;
        drop(listener);
        answer
    }
}

async fn fork(
    inner: &Arc<Inner>,
    source: &Arc<Entry>,
    caller: &Caller,
    timeout: Duration,
    count: u32,
) -> Result<Vec<Result<Arc<Entry>, DaemonError>>, DaemonError> {
    inner.admission.check()?;
    let order = Arc::new(order_of(inner, source, caller, timeout).await?);
    let mut forks: Vec<_> = (0..count).map(|_| reserve(inner, &order)).collect();
    let forked = fill(inner, source, &order, &mut forks).await;
    if forked.is_err() {
        for entry in forks.into_iter().flatten() {
            discard(inner, &entry).await;
        }
        forked?;
        return Ok(Vec::new());
    }
    inner.log(
        source.id.as_str(),
        LogLevel::Info,
        format!("{} had it forked", who(caller)),
    );
    Ok(make_all(inner, &order, forks).await)
}

/// What each fork is made from: the same as its source.
async fn order_of(
    inner: &Arc<Inner>,
    source: &Entry,
    caller: &Caller,
    timeout: Duration,
) -> Result<Order, DaemonError> {
    let (mut row, specification) = {
        let facts = source.lock();
        (facts.row.clone(), Arc::clone(&facts.specification))
    };
    let template = templates::ready(inner, &row.template).await?;
    let build = template.as_ref().map(|template| template.record().build.clone());
    if build != specification.build {
        // What it wrote says nothing of what lies below.
        return Err(DaemonError::conflict(
            &row.id,
            "is of another build of its template than there is now",
        ));
    }
    let limits = specification.limits;
    // A name is one sandbox's.
    row.metadata.remove(NAME);
    Ok(Order {
        caller: caller.clone(),
        request: CreateRequest {
            template: row.template,
            timeout_seconds: None,
            name: None,
            metadata: row.metadata,
            env: specification.env.clone(),
            secure: row.access_token.is_some(),
            on_timeout: if row.auto_pause {
                OnTimeout::Pause
            } else {
                OnTimeout::Kill
            },
            auto_resume: row.auto_resume,
            network: specification.network.clone(),
            limits: LimitsRequest {
                cpus: Some(limits.cpus),
                memory_mib: Some(limits.memory_mib),
                disk_mib: Some(limits.disk_mib),
                pids: Some(limits.pids),
            },
            idempotency_key: None,
        },
        specification: Specification {
            network_pending: false,
            zygote: None,
            level: String::new(),
            not_enforced: std::collections::BTreeMap::new(),
            ..Specification::clone(&specification)
        },
        timeout,
        template,
        fork_of: Some(row.id),
    })
}

/// A place for one fork, counted to its owner.
fn reserve(inner: &Inner, order: &Order) -> Result<Arc<Entry>, DaemonError> {
    let id = random::sandbox_id()?;
    let mut row = new_row(id.as_str(), &order.origin().template, &order.specification);
    order.fill(&mut row)?;
    let entry = Arc::new(Entry::new(id, row, order.specification.clone()));
    let reserved = inner.table.reserve(&order.claim(inner), |entries| {
        entries.insert(entry.id.as_str().to_owned(), Arc::clone(&entry));
        Some(Arc::clone(&entry))
    })?;
    match reserved {
        Some(Reserved::Now(entry)) => Ok(entry),
        _ => Err(DaemonError::not_found(entry.id.as_str())),
    }
}

/// Copies what the source has written for each of `forks` that there is; those for which that fails are there no more.
async fn fill(
    inner: &Arc<Inner>,
    source: &Entry,
    order: &Order,
    forks: &mut [Result<Arc<Entry>, DaemonError>],
) -> Result<(), DaemonError> {
    let all: Vec<Arc<Entry>> = forks.iter().flatten().cloned().collect();
    let Some(first) = all.first() else {
        return match forks.iter_mut().next() {
            Some(refused) => std::mem::replace(refused, Err(DaemonError::Draining)).map(drop),
            None => Ok(()),
        };
    };
    let turn = patiently(source).await?;
    match source.state() {
        SandboxState::Running => {}
        SandboxState::Paused => return Err(DaemonError::conflict(source.id.as_str(), "is paused")),
        _ => return Err(DaemonError::not_found(source.id.as_str())),
    }
    let keeper = inner.keeper(source);
    let failed = |error| from_keeper(source, error);
    let used = keeper.usage().await.map_err(failed)?.disk_bytes;
    let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
    inner.admission.check_disk(used.saturating_mul(count))?;
    for entry in &all {
        let row = entry.lock().row.clone();
        inner.apply(vec![Change::AddSandbox(Box::new(row))]).await?;
    }
    let _place = match timeout(inner.config.create_timeout, inner.copying.acquire()).await {
        Ok(Ok(place)) => place,
        _ => {
            return Err(DaemonError::Overloaded {
                what: "places for forks",
                retry_after: Duration::from_secs(1),
            });
        }
    };
    let copy_order = |from: &Entry, is_copy, to: &Entry| CopyOrder {
        state: Text::from(inner.state.path()),
        from: from.id.clone(),
        is_copy,
        to: to.id.clone(),
        bytes: Bytes::mib(order.specification.limits.disk_mib).0,
        entries: MOST_FILES,
    };
    let held = keeper.hold_still().await.map_err(failed)?;
    let copied = copying::copy(inner, &copy_order(source, false, first), LONGEST_COPY).await;
    let still = held.release().await;
    drop(turn);
    copied?;
    still.map_err(failed)?;
    for fork in forks.iter_mut().filter(|fork| fork.is_ok()).skip(1) {
        let Ok(entry) = fork else { continue };
        if let Err(error) = copying::copy(inner, &copy_order(first, true, entry), LONGEST_COPY).await {
            discard(inner, entry).await;
            *fork = Err(error);
        }
    }
    Ok(())
}

/// Makes sandboxes of those whose files are there.
async fn make_all(
    inner: &Arc<Inner>,
    order: &Arc<Order>,
    forks: Vec<Result<Arc<Entry>, DaemonError>>,
) -> Vec<Result<Arc<Entry>, DaemonError>> {
    let mut making = JoinSet::new();
    let mut answers: Vec<_> = forks.iter().map(|_| None).collect();
    for (number, fork) in forks.into_iter().enumerate() {
        let (inner, order) = (Arc::clone(inner), Arc::clone(order));
        making.spawn(async move {
            let made = match fork {
                Ok(entry) => make_one(&inner, &order, &entry).await.map(|()| entry),
                Err(error) => Err(error),
            };
            (number, made)
        });
    }
    while let Some(made) = making.join_next().await {
        if let Ok((number, made)) = made
            && let Some(answer) = answers.get_mut(number)
        {
            *answer = Some(made);
        }
    }
    let lost = || {
        Err(DaemonError::Host {
            tried: "finish a fork",
            source: "it was cut off".into(),
        })
    };
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

async fn make_one(inner: &Arc<Inner>, order: &Order, entry: &Arc<Entry>) -> Result<(), DaemonError> {
    let _transition = entry.transition.lock().await;
    if let Err(error) = make_in_turn(inner, entry, order).await {
        inner.tally.failed.fetch_add(1, Ordering::Relaxed);
        discard(inner, entry).await;
        return Err(error);
    }
    settle(inner, entry, order);
    Ok(())
}

/// Removes what there is of a fork that is not made.
async fn discard(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    ending::remove_unmade(inner, &entry.id).await;
    // On a full disk this fails, too; the next daemon finds the row without a keeper.
    let _removed = inner
        .apply(vec![Change::RemoveSandbox(entry.id.as_str().to_owned())])
        .await;
    inner.table.remove(entry);
}

fn from_keeper(source: &Entry, error: KeeperError) -> DaemonError {
    super::transitions::from_keeper("fork a sandbox", source, error)
}
