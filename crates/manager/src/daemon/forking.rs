//! Forks: new sandboxes whose files begin as a copy of a running one's, at one moment.
//!
//! A fork is made as any sandbox is, of the same template and specification, with ids, network, limits and tokens of its
//! own. What the source has written is copied while nothing in it moves; of several forks the others are copied from the
//! first, when it moves again. Forks are in the registry before there is anything of them, so that the next daemon removes
//! what is half made; the source goes on by itself when the daemon dies, because its keeper holds it only as long as it is
//! asked to. Contexts of code of the source save what their cells left into its files before, and those of the forks load it;
//! until the copy is there no cell of the source runs. Deliberately not here: processes of the source, which are not carried.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offleash_core::error::Explained as _;
use offleash_core::id::{SandboxName, SandboxNameError};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_interpreter::contexts::DEFAULT_CWD;
use offleash_interpreter::error::ContextError;
use offleash_interpreter::process::ProcessError;
use offleash_interpreter::state::{Held, SaveOptions, SavedContext};
use offleash_store::registry::{Change, LogLevel, SandboxState};
use tokio::sync::SemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::creating::{Listener, Order, check_ptrace, make_in_turn, new_row, settle};
use super::error::DaemonError;
use super::history::{Cause, who};
use super::inner::Inner;
use super::request::{CreateRequest, LimitsRequest, NAME, NetworkSettings, OnTimeout};
use super::specification::{self, Specification};
use super::table::{Claim, Entry, Reserved};
use super::transitions::patiently;
use super::view::{Caller, SandboxView};
use super::{Daemon, code, copying, ending, random, templates};
use crate::keeper::error::KeeperError;
use crate::keeper::order::MOST_FILES;
use offleash_planner::base::CopyOrder;

/// Most forks that one request makes.
pub const MOST_FORKS: u32 = 20;

/// The part of the room on a sandbox's disk that states of contexts leave free: files that are being written are measured late.
const KEPT_FREE: u64 = 8;

/// What forks have of the contexts of their source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CarriedContexts {
    /// All of each; where something cannot be carried, nothing is forked.
    #[default]
    All,
    /// What can be carried.
    Possible,
    /// None.
    Nothing,
}

impl CarriedContexts {
    /// What those that ask may say.
    pub const WORDS: [&str; 3] = ["all", "possible", "none"];

    /// As somebody asked for it.
    ///
    /// # Errors
    /// `Invalid` for any other word.
    pub fn parse(word: &str) -> Result<Self, DaemonError> {
        match word {
            "all" => Ok(Self::All),
            "possible" => Ok(Self::Possible),
            "none" => Ok(Self::Nothing),
            _ => Err(DaemonError::invalid(
                "contexts",
                format!("must be one of {}", Self::WORDS.join(", ")),
            )),
        }
    }
}

/// Forks that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRequest {
    /// How many, 1 to [`MOST_FORKS`].
    pub count: u32,
    /// How long they may live, seconds; the daemon's default if `None`. Zero is refused.
    pub timeout_seconds: Option<u64>,
    /// What they have of the contexts of code.
    pub contexts: CarriedContexts,
    /// What it is called; of several each has its number behind that, from `NAME-1` on.
    pub name: Option<SandboxName>,
}

impl ForkRequest {
    /// What each is called.
    fn names(&self) -> Result<Vec<Option<SandboxName>>, DaemonError> {
        let name = |number: u32| match &self.name {
            Some(name) if self.count > 1 => format!("{}-{number}", name.as_str()).parse().map(Some),
            name => Ok(name.clone()),
        };
        let names: Result<_, _> = (1..=self.count).map(name).collect();
        names.map_err(|error: SandboxNameError| DaemonError::invalid("name", error.to_string()))
    }
}

impl Default for ForkRequest {
    fn default() -> Self {
        Self {
            count: 1,
            timeout_seconds: None,
            contexts: CarriedContexts::All,
            name: None,
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
    /// again since, `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `Contexts` where they cannot be carried,
    /// `NotCopied`, `Keeper`.
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
        let names = request.names()?;
        let listener = Listener::default();
        let (inner, caller, listens) = (Arc::clone(&self.inner), caller.clone(), listener.there());
        let work = async move {
            let forks = fork(&inner, &source, &caller, timeout, &names, request.contexts).await?;
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
    names: &[Option<SandboxName>],
    contexts: CarriedContexts,
) -> Result<Vec<Result<Arc<Entry>, DaemonError>>, DaemonError> {
    inner.admission.check()?;
    let order = Arc::new(order_of(inner, source, caller, timeout).await?);
    let mut forks: Vec<_> = names.iter().map(|name| reserve(inner, &order, name.as_ref())).collect();
    let saved = match fill(inner, source, &order, &mut forks, contexts).await {
        Ok(saved) => Arc::new(saved),
        Err(error) => {
            for entry in forks.into_iter().flatten() {
                discard(inner, &entry).await;
            }
            return Err(error);
        }
    };
    inner.log(
        source.id.as_str(),
        LogLevel::Info,
        format!("{} had it forked", who(caller)),
    );
    Ok(make_all(inner, &order, forks, &saved).await)
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
    check_ptrace(&specification, caller, inner)?;
    let (limits, on_timeout) = (specification.limits, OnTimeout::of(&row));
    // Whoever forks the sandbox of another does not speak with that one's voice.
    let network = NetworkSettings {
        named_by_owner: specification.network.named_by_owner && caller.is_owner(),
        ..specification.network.clone()
    };
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
            on_timeout,
            auto_resume: row.auto_resume,
            network: network.clone(),
            limits: LimitsRequest {
                cpus: Some(limits.cpus),
                memory_mib: Some(limits.memory_mib),
                disk_mib: Some(limits.disk_mib),
                pids: Some(limits.pids),
            },
            idempotency_key: None,
        },
        specification: Specification {
            network,
            network_pending: false,
            zygote: None,
            fork_of: Some(row.id),
            level: String::new(),
            not_enforced: std::collections::BTreeMap::new(),
            ..Specification::clone(&specification)
        },
        timeout,
        template,
    })
}

/// A place for one fork, which is called so, counted to its owner.
fn reserve(inner: &Inner, order: &Order, name: Option<&SandboxName>) -> Result<Arc<Entry>, DaemonError> {
    let id = random::sandbox_id()?;
    let mut row = new_row(id.as_str(), &order.origin().template, &order.specification);
    order.fill(&mut row)?;
    let name = name.map(SandboxName::as_str);
    row.metadata.extend(name.map(|name| (NAME.to_owned(), name.to_owned())));
    let entry = Arc::new(Entry::new(id, row, order.specification.clone()));
    let claim = Claim {
        name,
        ..order.claim(inner)
    };
    let reserved = inner.table.reserve(&claim, |entries| {
        entries.insert(entry.id.as_str().to_owned(), Arc::clone(&entry));
        Some(Arc::clone(&entry))
    })?;
    match reserved {
        Some(Reserved::Now(entry)) => Ok(entry),
        _ => Err(DaemonError::not_found(entry.id.as_str())),
    }
}

/// Copies what the source has written for each of `forks` that there is; those for which that fails are there no more.
/// Answers the contexts that saved themselves into it.
async fn fill(
    inner: &Arc<Inner>,
    source: &Entry,
    order: &Order,
    forks: &mut [Result<Arc<Entry>, DaemonError>],
    carried: CarriedContexts,
) -> Result<Vec<SavedContext>, DaemonError> {
    let all: Vec<Arc<Entry>> = forks.iter().flatten().cloned().collect();
    let Some(first) = all.first() else {
        return match forks.iter_mut().next() {
            Some(refused) => std::mem::replace(refused, Err(DaemonError::Draining)).map(|_| Vec::new()),
            None => Ok(Vec::new()),
        };
    };
    runs(source)?;
    // Before its turn: cells may take long, and whoever ends the source meanwhile shall not wait for them. Dropped after
    // it moves again, since a driver that stands still removes no file.
    let contexts = save(inner, source, carried).await?;
    // The place comes before its turn, too, for others may be copied for long.
    let place = place(inner).await?;
    let turn = patiently(source).await?;
    runs(source)?;
    let network = NetworkSettings {
        named_by_owner: order.specification.network.named_by_owner,
        ..source.lock().specification.network.clone()
    };
    if network != order.specification.network {
        return Err(DaemonError::conflict(
            source.id.as_str(),
            "has got other rules meanwhile",
        ));
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
    let copy_order = |from: &Entry, is_copy, to: &Entry| CopyOrder {
        state: Text::from(inner.state.path()),
        from: from.id.clone(),
        is_copy,
        to: to.id.clone(),
        bytes: Bytes::mib(order.specification.limits.disk_mib).0,
        entries: MOST_FILES,
    };
    let held = keeper.hold_still().await.map_err(failed)?;
    let copied = copying::copy(inner, &copy_order(source, false, first), inner.config.forks.copy).await;
    let still = held.release().await;
    drop((turn, place));
    copied?;
    still.map_err(failed)?;
    for fork in forks.iter_mut().filter(|fork| fork.is_ok()).skip(1) {
        let Ok(entry) = fork else { continue };
        // A place for each, so that others have theirs in between.
        let order = copy_order(first, true, entry);
        let copied = async {
            let _place = self::place(inner).await?;
            copying::copy(inner, &order, inner.config.forks.copy).await
        };
        if let Err(error) = copied.await {
            discard(inner, entry).await;
            *fork = Err(error);
        }
    }
    Ok(contexts.map(|held| held.contexts().to_vec()).unwrap_or_default())
}

/// A place among those that copy at the same time; first come, first served.
async fn place(inner: &Inner) -> Result<SemaphorePermit<'_>, DaemonError> {
    match timeout(inner.config.create_timeout, inner.copying.acquire()).await {
        Ok(Ok(place)) => Ok(place),
        _ => Err(DaemonError::Overloaded {
            what: "places for forks",
            retry_after: Duration::from_secs(1),
        }),
    }
}

fn runs(source: &Entry) -> Result<(), DaemonError> {
    match source.state() {
        SandboxState::Running => Ok(()),
        SandboxState::Paused => Err(DaemonError::conflict(source.id.as_str(), "is paused")),
        _ => Err(DaemonError::not_found(source.id.as_str())),
    }
}

/// Has the contexts of the source save what their cells left, into its home directory, which is copied; they wait until what
/// this answers is dropped.
async fn save(inner: &Inner, source: &Entry, carried: CarriedContexts) -> Result<Option<Held>, DaemonError> {
    let options = SaveOptions {
        skip: match carried {
            CarriedContexts::All => false,
            CarriedContexts::Possible => true,
            CarriedContexts::Nothing => return Ok(None),
        },
        ..SaveOptions::new(DEFAULT_CWD)
    };
    let contexts = code::of_entry(inner, source);
    let count = contexts
        .list()
        .await
        .map_err(|error| from_contexts(source, error))?
        .len();
    let options = SaveOptions {
        wait: inner.config.forks.wait,
        time: inner.config.forks.save,
        bytes: options
            .bytes
            .min(room(inner, source).await? / u64::try_from(count.max(1)).unwrap_or(u64::MAX)),
        ..options
    };
    let saved = contexts.save(&options).await;
    saved.map(Some).map_err(|error| from_contexts(source, error))
}

/// How many bytes of states fit on the disk of the source: one that takes more than its limit ends.
async fn room(inner: &Inner, source: &Entry) -> Result<u64, DaemonError> {
    let used = inner.keeper(source).usage().await;
    let used = used.map_err(|error| from_keeper(source, error))?.disk_bytes;
    let limit = Bytes::mib(source.lock().specification.limits.disk_mib).0;
    let free = limit.saturating_sub(used);
    Ok(free - free / KEPT_FREE)
}

/// Has the contexts of a fork load what they saved when they were those of its source.
async fn load(inner: &Inner, entry: &Entry, saved: &[SavedContext]) -> Result<(), DaemonError> {
    if saved.is_empty() {
        return Ok(());
    }
    let contexts = code::of_entry(inner, entry);
    let loaded = timeout(inner.config.forks.load, contexts.restore(saved)).await;
    let loaded = loaded.unwrap_or_else(|_| {
        Err(ContextError::NotLoaded {
            id: saved.first().map(|context| context.id.clone()).unwrap_or_default(),
            reason: format!("it took longer than {} s", inner.config.forks.load.as_secs_f64()),
        })
    });
    let left_out = loaded.map_err(|error| from_contexts(entry, error))?;
    let all = saved.iter().flat_map(|context| &context.left_out).chain(&left_out);
    for obstacle in all {
        inner.log(entry.id.as_str(), LogLevel::Warn, format!("not carried: {obstacle}"));
    }
    Ok(())
}

fn from_contexts(entry: &Entry, error: ContextError) -> DaemonError {
    let id = entry.id.as_str();
    match error {
        ContextError::Process(ProcessError::Gone) => DaemonError::not_found(id),
        ContextError::Process(ProcessError::Paused) => DaemonError::conflict(id, "is paused"),
        error => DaemonError::Contexts {
            id: id.to_owned(),
            why: error.to_string(),
            kind: error.kind(),
            hint: error
                .hint()
                .and_then(|hint| Some(format!("{hint}: {}", left_out_by(&error)?))),
        },
    }
}

/// How whoever asks for forks has contexts, or what stands in their way, left out.
fn left_out_by(error: &ContextError) -> Option<&'static str> {
    match error {
        ContextError::Unsavable { .. } => {
            Some("`contexts` of a fork can be `possible`, as in `offleash fork --contexts possible`")
        }
        ContextError::NotSaved { .. } => {
            Some("`contexts` of a fork can be `none`, as in `offleash fork --contexts none`")
        }
        _ => None,
    }
}

/// Makes sandboxes of those whose files are there.
async fn make_all(
    inner: &Arc<Inner>,
    order: &Arc<Order>,
    forks: Vec<Result<Arc<Entry>, DaemonError>>,
    saved: &Arc<Vec<SavedContext>>,
) -> Vec<Result<Arc<Entry>, DaemonError>> {
    let mut making = JoinSet::new();
    let mut answers: Vec<_> = forks.iter().map(|_| None).collect();
    for (number, fork) in forks.into_iter().enumerate() {
        let (inner, order, saved) = (Arc::clone(inner), Arc::clone(order), Arc::clone(saved));
        making.spawn(async move {
            let made = match fork {
                Ok(entry) => make_one(&inner, &order, &entry, &saved).await.map(|()| entry),
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

async fn make_one(
    inner: &Arc<Inner>,
    order: &Order,
    entry: &Arc<Entry>,
    saved: &[SavedContext],
) -> Result<(), DaemonError> {
    let transition = entry.transition.lock().await;
    if let Err(error) = make_in_turn(inner, entry, order).await {
        inner.tally.failed.fetch_add(1, Ordering::Relaxed);
        discard(inner, entry).await;
        return Err(error);
    }
    settle(inner, entry, order);
    drop(transition);
    if let Err(error) = load(inner, entry, saved).await {
        let cause = Cause::killed("its contexts could not load what they had saved");
        ending::end_in_background(inner, entry, cause);
        return Err(error);
    }
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
