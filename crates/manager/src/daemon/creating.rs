//! Making sandboxes, and handing out those that were made ahead.

mod order;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use offleash_core::spec::Descent;
use offleash_core::text::Text;
use offleash_core::units::{Bytes, CpuCount};
use offleash_store::registry::{Change, LogLevel, SandboxRow, SandboxState, Scope};
use tokio::time::timeout;

pub(super) use self::order::{Order, check_ptrace};
use super::error::DaemonError;
use super::history::{self, Cause};
use super::inner::{Inner, blocking};
use super::launch::{self, Process};
use super::pool::Origin;
use super::request::{CreateRequest, NetworkSettings};
use super::secrets::{self, Told};
use super::spares::Spare;
use super::specification::Specification;
use super::table::{Entry, Reserved};
use super::view::{Caller, Limits, SandboxView};
use super::{Daemon, code, network, random, spares, templates, zygotes};
use crate::clock::{after, now_ms, own_ms};
use crate::keeper::answer::Made;
use crate::keeper::order::{LimitsOrder, NetworkOrder, SandboxOrder};

/// How long the answer to a request is waited for that the same request, repeated, is in the middle of.
const REPEATED: Duration = Duration::from_secs(30);

impl Daemon {
    /// Makes a sandbox, or hands out one that was made ahead.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `UnknownTemplate`, `Unsupported`, `QuotaExceeded`, `Overloaded`, `Draining`, `Keeper`.
    pub async fn create(&self, caller: &Caller, request: CreateRequest) -> Result<SandboxView, DaemonError> {
        caller.require(Scope::Create)?;
        let inner = &self.inner;
        let mut order = Order::of(caller, request, inner)?;
        // It stays in place until the sandbox itself holds it.
        order.template = templates::ready(inner, &order.request.template).await?;
        order.specification.build = order.origin().build;
        let listener = Listener::default();
        let (work, listens) = (Arc::clone(inner), listener.there());
        let created = inner
            .detached(async move {
                let entry = create(&work, &order).await.inspect_err(|_| {
                    work.tally.failed.fetch_add(1, Ordering::Relaxed);
                })?;
                // Nobody knows its id but who could ask again with the same key.
                if listens.load(Ordering::Acquire) || order.request.idempotency_key.is_some() {
                    return entry.view().ok_or_else(|| DaemonError::not_found(entry.id.as_str()));
                }
                let cause = Cause::killed("its creator went away while it was made");
                super::ending::end_in_background(&work, &entry, cause);
                Err(DaemonError::not_found(entry.id.as_str()))
            })
            .await;
        drop(listener);
        created
    }
}

/// Whether somebody waits for an answer: false once it was dropped.
#[derive(Debug)]
pub(super) struct Listener(Arc<AtomicBool>);

impl Default for Listener {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Listener {
    pub(super) fn there(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The sandbox that the same request made before, once it is made.
async fn repeated(entry: Arc<Entry>) -> Result<Arc<Entry>, DaemonError> {
    // Held while it is made.
    if timeout(REPEATED, entry.transition.lock()).await.is_err() {
        return Err(DaemonError::conflict(entry.id.as_str(), "is still being made"));
    }
    Ok(entry)
}

async fn create(inner: &Arc<Inner>, order: &Order) -> Result<Arc<Entry>, DaemonError> {
    if order.is_usual(inner) {
        inner.pool.note_demand(&order.origin());
    }
    inner.admission.check()?;
    let entry = match hand_out(inner, order).await? {
        Some(Reserved::Before(before)) => return repeated(before).await,
        Some(Reserved::Now(entry)) => {
            inner.tally.created_warm.fetch_add(1, Ordering::Relaxed);
            entry
        }
        None => match make_for(inner, order).await? {
            Reserved::Before(before) => return repeated(before).await,
            Reserved::Now(entry) => entry,
        },
    };
    settle(inner, &entry, order);
    Ok(entry)
}

/// What follows when a sandbox was made for a caller.
pub(super) fn settle(inner: &Arc<Inner>, entry: &Entry, order: &Order) {
    inner.tally.created.fetch_add(1, Ordering::Relaxed);
    if let Some(template) = &order.template {
        if let Some(note) = templates::note(template) {
            inner.log(entry.id.as_str(), LogLevel::Warn, note);
        }
        zygotes::expect(inner, template);
        let is_started = entry.lock().specification.zygote.is_none();
        if let Some(why) = inner.zygotes.why_none(&order.origin().template).filter(|_| is_started) {
            let line = format!("its interpreters are started, not copied: {why}");
            inner.log(entry.id.as_str(), LogLevel::Warn, line);
        }
    }
    inner.end_changed.notify_one();
}

/// Hands out a member of the warm pool, if there is one that fits.
async fn hand_out(inner: &Arc<Inner>, order: &Order) -> Result<Option<Reserved>, DaemonError> {
    if !order.is_usual(inner) {
        return Ok(None);
    }
    let origin = order.origin();
    let reserved = inner.table.reserve(&order.claim(inner), |_| {
        let entry = inner.pool.take(&origin)?;
        let mut facts = entry.lock();
        facts.owner = Some(order.caller.key_id.clone());
        facts.row.idempotency_key.clone_from(&order.request.idempotency_key);
        facts.row.metadata.clone_from(&order.request.metadata);
        drop(facts);
        Some(entry)
    })?;
    let entry = match reserved {
        Some(Reserved::Now(entry)) => entry,
        before_or_none => return Ok(before_or_none),
    };
    let _transition = entry.transition.lock().await;
    match assign(inner, &entry, order).await {
        Ok(true) => Ok(Some(Reserved::Now(Arc::clone(&entry)))),
        unusable => {
            // It died while it waited, or cannot be given away: nobody's, and not to be used by anybody.
            entry.lock().forget_owner();
            super::ending::end_in_background(inner, &entry, Cause::died("it died while it waited"));
            unusable.map(|_| None)
        }
    }
}

/// Makes a member of the pool the caller's; `false` if it is none any more.
async fn assign(inner: &Arc<Inner>, entry: &Arc<Entry>, order: &Order) -> Result<bool, DaemonError> {
    if *entry.ended.borrow() || entry.state() != SandboxState::Running {
        return Ok(false);
    }
    let mut row = entry.lock().row.clone();
    let specification = {
        let made = Arc::clone(&entry.lock().specification);
        Specification {
            zygote: made.zygote,
            level: made.level.clone(),
            not_enforced: made.not_enforced.clone(),
            ..order.specification.clone()
        }
    };
    order.fill(&mut row)?;
    row.spec = specification.to_json();
    if network::order(&order.request.network)? != network::order(&NetworkSettings::default())?
        && !give_network(inner, entry, &order.caller.key_id, &specification).await?
    {
        return Ok(false);
    }
    row.generation = entry.lock().row.generation;
    inner.contexts.hand_out(&row.id, &order.request.env);
    let created = order.created(&specification);
    let not_enforced = history::not_enforced(&row.id, &specification.not_enforced);
    entry.lock().specification = Arc::new(specification);
    inner.write(entry, Some(created), |kept| *kept = row).await?;
    not_enforced.into_iter().for_each(|line| inner.submit_droppable(line));
    Ok(true)
}

/// Gives a member of the pool other rules, before it is anybody's: nobody ever has one with other rules than asked for.
async fn give_network(inner: &Inner, entry: &Entry, key: &str, wanted: &Specification) -> Result<bool, DaemonError> {
    let (order, told) = network_order(inner, Some(key), &wanted.network)?;
    let marked = Specification {
        network_pending: true,
        ..Specification::clone(&entry.lock().specification)
    };
    // A daemon that dies here leaves a member that the next one knows not to hand out.
    inner.write(entry, None, |row| row.spec = marked.to_json()).await?;
    let given = inner.keeper(entry).set_network(order).await.is_ok();
    entry.lock().told = given.then_some(told);
    Ok(given)
}

/// Makes a sandbox for a caller.
async fn make_for(inner: &Arc<Inner>, order: &Order) -> Result<Reserved, DaemonError> {
    let id = random::sandbox_id()?;
    let mut row = new_row(id.as_str(), &order.origin().template, &order.specification);
    order.fill(&mut row)?;
    let entry = Arc::new(Entry::new(id, row, order.specification.clone()));
    // Held until it is made, before anybody can find it.
    let _transition = entry.transition.lock().await;
    let reserved = inner.table.reserve(&order.claim(inner), |entries| {
        entries.insert(entry.id.as_str().to_owned(), Arc::clone(&entry));
        Some(Arc::clone(&entry))
    })?;
    if let Some(before @ Reserved::Before(_)) = reserved {
        return Ok(before);
    }
    if let Err(error) = make_in_turn(inner, &entry, order).await {
        inner.table.remove(&entry);
        return Err(error);
    }
    Ok(Reserved::Now(Arc::clone(&entry)))
}

/// Makes a sandbox that is counted to its owner, when there is a place for it.
pub(super) async fn make_in_turn(inner: &Arc<Inner>, entry: &Arc<Entry>, order: &Order) -> Result<(), DaemonError> {
    match timeout(inner.config.create_timeout, inner.creating.acquire()).await {
        Ok(Ok(_place)) => make(inner, entry, Some(order), order.wants_copy(inner)).await,
        _ => Err(DaemonError::Overloaded {
            what: "places for sandboxes that are being made",
            retry_after: Duration::from_secs(1),
        }),
    }
}

/// Makes a sandbox for the warm pool.
///
/// One whose template has an interpreter has a context that is ready, a copy of the zygote's where there can be one; where no
/// context can be, it is one without.
pub(super) async fn make_for_pool(inner: &Arc<Inner>, origin: &Origin) -> Result<Arc<Entry>, DaemonError> {
    let template = templates::current(inner, &origin.template).await?;
    let recipe = template.as_ref().map(|template| &template.record().recipe);
    let imports = inner.config.pool.ready_imports(&origin.template, recipe);
    if let Some(template) = template.as_ref().filter(|_| imports.is_some()) {
        zygotes::expect(inner, template);
        inner.unless_draining(inner.zygotes.settled(&origin.template)).await?;
    }
    let specification = Specification {
        build: origin.build.clone(),
        ..Specification::usual(&inner.config)
    };
    let id = random::sandbox_id()?;
    let row = new_row(id.as_str(), &origin.template, &specification);
    let entry = Arc::new(Entry::new(id, row, specification));
    let _transition = entry.transition.lock().await;
    inner.table.insert(Arc::clone(&entry));
    if let Err(error) = make(inner, &entry, None, imports.is_some()).await {
        inner.table.remove(&entry);
        return Err(error);
    }
    if let Some(imports) = imports
        && let Ok(Err(error)) = inner.unless_draining(code::prepare(inner, &entry, &imports)).await
    {
        let line = format!("its interpreter cannot be made ready: {error}");
        inner.log(entry.id.as_str(), LogLevel::Warn, line);
    }
    Ok(Arc::clone(&entry))
}

pub(super) fn new_row(id: &str, template: &str, specification: &Specification) -> SandboxRow {
    SandboxRow {
        id: id.to_owned(),
        key_id: None,
        state: SandboxState::Creating,
        template: template.to_owned(),
        spec: specification.to_json(),
        metadata: std::collections::BTreeMap::new(),
        started_ms: now_ms(),
        end_ms: now_ms(),
        auto_pause: false,
        auto_resume: false,
        access_token: None,
        traffic_token: None,
        keeper: None,
        generation: 0,
        idempotency_key: None,
    }
}

/// Makes the sandbox of `entry`, which is in the table and whose transition is held. On failure nothing of it is left
/// but, perhaps, what cannot be removed, which the next daemon tries again.
///
/// If it `wants_copy` and lies below a zygote, an interpreter is on its way before anybody can ask for one.
async fn make(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    order: Option<&Order>,
    wants_copy: bool,
) -> Result<(), DaemonError> {
    let directories = inner.directories.clone();
    let (id, program) = (entry.id.clone(), inner.config.program.clone());
    // What is made ahead has time.
    let spare = order.and_then(|_| spares::take(inner));
    let launched = blocking("start a keeper", move || {
        directories.make(&id).map_err(std::io::Error::other)?;
        let kept = spare.and_then(Spare::into_keeper);
        kept.map_or_else(|| launch::start(program.as_deref()), Ok)
    })
    .await?;
    let (started, process, watched) = match launched {
        Ok(launched) => launched,
        Err(error) => {
            super::ending::remove_unmade(inner, &entry.id).await;
            return Err(DaemonError::host("start a keeper")(error));
        }
    };
    let made = async {
        watch(inner, entry, watched);
        // From here on a daemon that comes after us can find the keeper, and only then it is told to make something.
        let is_copied = order.is_some_and(|order| order.specification.fork_of.is_some());
        if is_copied {
            // It was recorded before it had any files.
            inner
                .write(entry, None, |row| row.keeper = Some(started.process))
                .await?;
        } else {
            let row = {
                let mut facts = entry.lock();
                facts.row.keeper = Some(started.process);
                facts.row.clone()
            };
            inner.apply(vec![Change::AddSandbox(Box::new(row))]).await?;
        }
        let asked = SandboxOrder {
            descent: inner.zygotes.descent(&origin_of(entry, order)),
            wants_copy,
            is_copied,
            ..sandbox_order(inner, entry)?
        };
        let given = started.give(&asked, inner.config.create_timeout);
        let made = match order {
            Some(_) => given.await,
            // Making the first one of a machine takes seconds, and nobody waits for this one.
            None => inner.unless_draining(given).await.flatten(),
        }?;
        if order.is_some_and(|order| !secrets::used(&order.specification.network).is_empty())
            && !secrets::renew_one(inner, entry).await
        {
            let source = std::io::Error::other("its secrets cannot be put in");
            return Err(DaemonError::keeper("make a sandbox", source));
        }
        note_made(inner, entry, order, made).await
    };
    let outcome = made.await;
    if outcome.is_err() {
        take_back(inner, entry, &process).await;
    }
    outcome
}

/// What a sandbox is made from.
fn origin_of(entry: &Entry, order: Option<&Order>) -> Origin {
    match order {
        Some(order) => order.origin(),
        None => {
            let facts = entry.lock();
            Origin {
                template: facts.row.template.clone(),
                build: facts.specification.build.clone(),
            }
        }
    }
}

/// The sandbox runs: it is the caller's, or the pool's.
async fn note_made(
    inner: &Inner,
    entry: &Entry,
    order: Option<&Order>,
    Made { hello, descent }: Made,
) -> Result<(), DaemonError> {
    let specification = {
        let asked = Arc::clone(&entry.lock().specification);
        Specification {
            zygote: descent.zygote(),
            level: hello.level.to_string(),
            not_enforced: hello.not_enforced,
            ..Specification::clone(&asked)
        }
    };
    let mut row = entry.lock().row.clone();
    if let Some(order) = order {
        // Its time counts from now.
        row.started_ms = own_ms();
        row.end_ms = after(row.started_ms, order.timeout);
    }
    row.state = SandboxState::Running;
    row.spec = specification.to_json();
    let created = order.map(|order| order.created(&specification));
    let not_enforced = match order {
        Some(_) => history::not_enforced(&row.id, &specification.not_enforced),
        None => Vec::new(),
    };
    entry.lock().specification = Arc::new(specification);
    if let Some(order) = order
        && descent.zygote().is_some()
        && order.wants_copy(inner)
    {
        code::begin(inner, entry);
    }
    inner.write(entry, created, |kept| *kept = row).await?;
    not_enforced.into_iter().for_each(|line| inner.submit_droppable(line));
    Ok(())
}

/// A sandbox that was not made: its keeper is ended, and what is left of it removed.
async fn take_back(inner: &Arc<Inner>, entry: &Arc<Entry>, process: &Process) {
    if process.kill().is_ok() {
        super::ending::keeper_gone(entry).await;
    }
    super::ending::remove_unmade(inner, &entry.id).await;
    inner.contexts.forget(entry.id.as_str());
    let id = entry.id.as_str().to_owned();
    // On a full disk this fails, too; the next daemon finds the row without a keeper.
    let _ = inner.apply(vec![Change::RemoveSandbox(id)]).await;
}

fn sandbox_order(inner: &Inner, entry: &Entry) -> Result<SandboxOrder, DaemonError> {
    let specification = Arc::clone(&entry.lock().specification);
    let Limits {
        cpus,
        memory_mib,
        disk_mib,
        pids,
    } = specification.limits;
    Ok(SandboxOrder {
        id: entry.id.clone(),
        state: Text::from(inner.state.path()),
        directory: Text::from(inner.directories.path_of(&entry.id)),
        template: templates::of_row(&entry.lock().row.template),
        // Each command is given them: a sandbox that was made ahead does not know them.
        env: Vec::new(),
        level: inner.config.level,
        min_level: inner.config.min_level,
        degrade: inner.config.degrade,
        limits: LimitsOrder {
            cpus: Some(CpuCount {
                millis: u64::from(cpus) * 1000,
            }),
            memory: Some(Bytes::mib(memory_mib)),
            disk: Some(Bytes::mib(disk_mib)),
            pids: Some(u64::from(pids)),
        },
        // Its secrets are put in before anybody has it.
        network: network_order(inner, None, &specification.network)?.0,
        allow_ptrace: specification.allow_ptrace,
        descent: Descent::Alone,
        wants_copy: false,
        is_copied: false,
        longest_hold_ms: None,
    })
}

/// What the gateway of a sandbox of `key` is told, and of which secrets that tells it.
pub(super) fn network_order(
    inner: &Inner,
    key: Option<&str>,
    settings: &NetworkSettings,
) -> Result<(NetworkOrder, Told), DaemonError> {
    let rules = network::order(settings)?;
    let (secrets, told) = secrets::orders(inner, key, settings)?;
    let order = NetworkOrder {
        internet: rules.internet,
        allow: rules.allow,
        deny: rules.deny,
        headers: rules.headers,
        way_out: rules.way_out,
        named_by_owner: rules.named_by_owner,
        secrets,
    };
    Ok((order, told))
}

/// Waits for the end of a keeper, and removes what is left of its sandbox unless somebody else ended it.
pub(super) fn watch(inner: &Arc<Inner>, entry: &Arc<Entry>, process: Process) {
    let (weak, entry) = (Arc::downgrade(inner), Arc::clone(entry));
    tokio::spawn(async move {
        let watched = process.ended().await;
        entry.ended.send_replace(true);
        // The daemon may be gone by then; the next one finds out by itself.
        let Some(inner) = weak.upgrade() else { return };
        if let Err(error) = watched {
            inner.log(
                entry.id.as_str(),
                LogLevel::Error,
                format!("its keeper cannot be watched: {error}"),
            );
        }
        super::ending::after_keeper(&inner, &entry).await;
    });
}
