//! Zygotes of templates: a sandbox each, in which an interpreter waits that has imported what code in contexts needs.
//!
//! One is made when code is first run in a sandbox of a template that was built, and sandboxes that are made from then on lie
//! below it and get copies of its process. It has neither network nor owner, and is of one build of one template. It is in no
//! record: its keeper ends by itself when no daemon follows it and nothing lies below it any more.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_core::spec::{Descent, ProcessRef};
use offleash_core::text::Text;
use offleash_interpreter::zygote;
use offleash_store::registry::LogLevel;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::error::DaemonError;
use super::inner::{Inner, blocking};
use super::launch::{self, Process};
use super::pool::Origin;
use super::{ending, random, templates};
use crate::keeper::client::{ExecNews, ExecStream, Keeper};
use crate::keeper::message::{INPUT_CHUNK, Selector, StartExec};
use crate::keeper::order::{LimitsOrder, NetworkOrder, SandboxOrder};
use crate::lifecycle::with_causes;

/// How long an interpreter may take to import everything.
const IMPORTS: Duration = Duration::from_secs(120);
/// How long none is made for a template after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(300);
/// How long one waits that nobody needs.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// How long one may take to end, and how often that is looked at.
const ENDS: Duration = Duration::from_secs(30);
const ENDS_LOOK: Duration = Duration::from_millis(10);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Zygotes {
    by_template: Mutex<HashMap<String, Held>>,
    made: AtomicU64,
}

/// The place of one among all.
#[derive(Debug, Clone)]
struct Place {
    template: String,
    number: u64,
}

#[derive(Debug)]
struct Held {
    /// Which one it is of all that there were.
    number: u64,
    /// Which build of the template.
    build: Option<String>,
    /// Below which process sandboxes are made, once it is ready.
    first: Option<ProcessRef>,
    used: Instant,
    stop: watch::Sender<Stop>,
    failed: Option<Instant>,
}

/// How one is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Not,
    /// When nothing lies below it any more.
    Unused,
    AtOnce,
}

impl Zygotes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.by_template.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a sandbox of this origin is to be made.
    pub(super) fn descent(&self, origin: &Origin) -> Descent {
        let mut all = self.lock();
        let Some(held) = all.get_mut(&origin.template) else {
            return Descent::Alone;
        };
        if held.build != origin.build {
            // Of another build than the template is now; a new one is made when code is run again.
            held.stop.send_replace(Stop::Unused);
            all.remove(&origin.template);
            return Descent::Alone;
        }
        held.used = Instant::now();
        held.first.map_or(Descent::Alone, Descent::Below)
    }

    /// Ends that of a template, with whatever lies below it, and waits until it is gone.
    pub(super) async fn close(&self, template: &str) {
        if let Some(held) = self.lock().get(template) {
            held.stop.send_replace(Stop::AtOnce);
        }
        let until = tokio::time::Instant::now() + ENDS;
        while self.lives(template) && tokio::time::Instant::now() < until {
            sleep(ENDS_LOOK).await;
        }
    }

    /// Has all end as soon as nothing lies below them any more.
    pub(super) fn let_go(&self) {
        for held in self.lock().values() {
            held.stop.send_replace(Stop::Unused);
        }
    }

    /// The templates of which new sandboxes find one.
    pub(super) fn templates(&self) -> Vec<String> {
        let all = self.lock();
        let ready = all.iter().filter(|(_, held)| held.first.is_some());
        ready.map(|(template, _)| template.clone()).collect()
    }

    fn lives(&self, template: &str) -> bool {
        self.lock().get(template).is_some_and(|held| held.failed.is_none())
    }

    /// Takes a place for the zygote of a template, unless there is one or none could be made lately.
    fn begin(&self, origin: &Origin) -> Option<(Place, watch::Receiver<Stop>)> {
        let mut all = self.lock();
        let is_taken = |held: &Held| held.failed.is_none_or(|failed| failed.elapsed() < AFTER_FAILURE);
        if all.get(&origin.template).is_some_and(is_taken) {
            return None;
        }
        let (stop, stopped) = watch::channel(Stop::Not);
        let place = Place {
            template: origin.template.clone(),
            number: self.made.fetch_add(1, Ordering::Relaxed),
        };
        let held = Held {
            number: place.number,
            build: origin.build.clone(),
            first: None,
            used: Instant::now(),
            stop,
            failed: None,
        };
        all.insert(origin.template.clone(), held);
        Some((place, stopped))
    }

    /// Changes what is at a place, unless it was given to another one.
    fn change(&self, place: &Place, change: impl FnOnce(&mut Held)) {
        let mut all = self.lock();
        let held = all.get_mut(&place.template);
        held.filter(|held| held.number == place.number).map(change);
    }

    fn is_idle(&self, place: &Place) -> bool {
        let mut is_idle = true;
        self.change(place, |held| is_idle = held.used.elapsed() >= IDLE);
        is_idle
    }

    /// Gives the place back, or keeps it for a while so that no other one is made.
    fn end(&self, place: &Place, has_failed: bool) {
        if has_failed {
            self.change(place, |held| {
                held.first = None;
                held.failed = Some(Instant::now());
            });
            return;
        }
        let mut all = self.lock();
        if all.get(&place.template).is_some_and(|held| held.number == place.number) {
            all.remove(&place.template);
        }
    }
}

/// Code is about to be run in a sandbox of this template: sandboxes of it that are made later shall find a zygote.
pub(super) fn want(inner: &Arc<Inner>, template: &str) {
    if !inner.config.zygotes || inner.is_draining() || inner.zygotes.lives(template) {
        return;
    }
    let (weak, template) = (Arc::downgrade(inner), template.to_owned());
    tokio::spawn(async move {
        let Some(inner) = weak.upgrade() else { return };
        // The base changes with the host, and has only what that has.
        let Ok(Some(held)) = templates::current(&inner, &template).await else {
            return;
        };
        let origin = Origin::of(Some(&held));
        drop(held);
        if inner.admission.check().is_err() {
            return;
        }
        if let Some((place, stopped)) = inner.zygotes.begin(&origin) {
            drop(inner);
            live(&weak, &origin, &place, stopped).await;
        }
    });
}

/// A zygote that was made.
struct Made {
    id: RunId,
    keeper: Keeper,
    process: Process,
    stream: ExecStream,
    first: ProcessRef,
}

/// The life of one, from its place among all to its end.
async fn live(weak: &Weak<Inner>, origin: &Origin, place: &Place, mut stopped: watch::Receiver<Stop>) {
    let Some(inner) = weak.upgrade() else { return };
    let made = match make(&inner, origin).await {
        Ok(made) => made,
        Err((id, why)) => {
            let line = format!("no zygote of template `{}` was made: {why}", origin.template);
            inner.log(id.as_ref().map_or("", RunId::as_str), LogLevel::Warn, line);
            inner.zygotes.end(place, true);
            return;
        }
    };
    let Made {
        id,
        keeper,
        process,
        mut stream,
        first,
    } = made;
    inner.zygotes.change(place, |held| held.first = Some(first));
    drop(inner);
    let mut has_failed = false;
    loop {
        tokio::select! {
            news = stream.next() => {
                // What it writes is of no use; its end is none that we asked for.
                has_failed = !matches!(news, Ok(Some(ExecNews::Output { .. })));
                if has_failed {
                    break;
                }
            }
            changed = stopped.changed() => {
                if changed.is_err() {
                    // The daemon is gone, and its sandboxes go on.
                    return;
                }
                if *stopped.borrow() != Stop::Not {
                    break;
                }
            }
            () = sleep(LOOK) => {
                if weak.upgrade().is_none_or(|inner| inner.zygotes.is_idle(place)) {
                    break;
                }
            }
        }
    }
    if let Some(inner) = weak.upgrade() {
        inner.zygotes.change(place, |held| held.first = None);
    }
    if *stopped.borrow() == Stop::AtOnce {
        // One that is gone already is what was wanted.
        let _ended = keeper.kill().await;
    } else {
        let _told = keeper.close_input(&Selector::Pid(stream.pid())).await;
    }
    drop(stream);
    if *stopped.borrow() != Stop::AtOnce
        && let Some(inner) = weak.upgrade()
    {
        // Another one may be made while sandboxes lie below this one.
        inner.zygotes.end(place, has_failed);
    }
    let _watched = process.ended().await;
    let Some(inner) = weak.upgrade() else { return };
    ending::remove_remains(&inner, &id).await;
    if *stopped.borrow() == Stop::AtOnce {
        inner.zygotes.end(place, false);
    }
}

/// Makes one; what was made of it is gone again when it fails.
async fn make(inner: &Arc<Inner>, origin: &Origin) -> Result<Made, (Option<RunId>, String)> {
    let id = random::sandbox_id().map_err(|error| (None, with_causes(&error)))?;
    match make_as(inner, &id, origin).await {
        Ok(made) => Ok(made),
        Err(error) => {
            ending::remove_remains(inner, &id).await;
            Err((Some(id), with_causes(&error)))
        }
    }
}

async fn make_as(inner: &Arc<Inner>, id: &RunId, origin: &Origin) -> Result<Made, DaemonError> {
    let (directories, program, named) = (inner.directories.clone(), inner.config.program.clone(), id.clone());
    let launched = blocking("start a keeper", move || {
        let directory = directories.make(&named).map_err(io::Error::other)?;
        launch::start(program.as_deref(), &directory)
    });
    let (started, process, watched) = launched.await?.map_err(DaemonError::host("start a keeper"))?;
    let given = started
        .give(&order(inner, id, origin), inner.config.create_timeout)
        .await;
    let begun = match given {
        Ok(_hello) => begin(inner, id).await,
        Err(error) => Err(error),
    };
    match begun {
        Ok((keeper, stream, first)) => Ok(Made {
            id: id.clone(),
            keeper,
            process: watched,
            stream,
            first,
        }),
        Err(error) => {
            // It fails only if it has ended.
            let _killed = process.kill();
            let _watched = watched.ended().await;
            Err(error)
        }
    }
}

/// Starts the interpreter, and waits until it takes requests.
async fn begin(inner: &Inner, id: &RunId) -> Result<(Keeper, ExecStream, ProcessRef), DaemonError> {
    let keeper = inner.keeper_of(id);
    let start = StartExec {
        argv: zygote::command().into_iter().map(String::into_bytes).collect(),
        stdin: true,
        ..StartExec::default()
    };
    let input = zygote::input().map_err(not_started)?;
    let mut stream = keeper.start(start).await.map_err(not_started)?;
    let which = Selector::Pid(stream.pid());
    for piece in input.chunks(INPUT_CHUNK) {
        keeper.input(&which, piece.to_vec()).await.map_err(not_started)?;
    }
    let said = timeout(IMPORTS, listening(&mut stream)).await;
    said.unwrap_or_else(|_| Err("it did not listen in time".to_owned()))
        .map_err(not_started)?;
    let first = keeper.first_process().await.map_err(not_started)?;
    Ok((keeper, stream, first))
}

fn not_started(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> DaemonError {
    DaemonError::host("start the zygote")(io::Error::other(why))
}

/// Waits until the interpreter says that it listens.
async fn listening(stream: &mut ExecStream) -> Result<(), String> {
    const MOST: usize = 4096;
    let mut said = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(ExecNews::Output { bytes, .. })) => said.extend(bytes),
            _ => return Err(format!("it ended; it wrote: {}", said.escape_ascii())),
        }
        if said.ends_with(zygote::READY) {
            return Ok(());
        }
        // What libraries say when they are imported is of no use.
        let surplus = said.len().saturating_sub(MOST);
        said.drain(..surplus);
    }
}

fn order(inner: &Inner, id: &RunId, origin: &Origin) -> SandboxOrder {
    SandboxOrder {
        id: id.clone(),
        state: Text::from(inner.state.path()),
        directory: Text::from(inner.directories.path_of(id)),
        template: templates::of_row(&origin.template),
        env: Vec::new(),
        level: inner.config.level,
        min_level: inner.config.min_level,
        degrade: inner.config.degrade,
        // A copy can only lower what its zygote has, and all that lies below counts as the zygote's own.
        limits: LimitsOrder::default(),
        network: NetworkOrder::default(),
        descent: Descent::Zygote,
    }
}

/// Whether a sandbox that no record speaks of is a zygote of an earlier daemon that sandboxes lie below. Then what it leaves
/// is removed when it ends.
pub(super) async fn is_left(inner: &Arc<Inner>, id: &RunId) -> bool {
    let Ok(hello) = inner.keeper_of(id).hello().await else {
        return false;
    };
    let pid = i32::try_from(hello.pid)
        .ok()
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw);
    let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return false;
    };
    let (weak, id) = (Arc::downgrade(inner), id.clone());
    tokio::spawn(async move {
        let _watched = Process::new(process).ended().await;
        if let Some(inner) = weak.upgrade() {
            ending::remove_remains(&inner, &id).await;
        }
    });
    true
}
