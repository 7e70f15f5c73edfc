//! Templates that callers ask for: found, built on first use, listed and removed.
//!
//! A build is another process of our own program, since sandboxes are made by processes with one thread; whoever asks for
//! the same template meanwhile waits for the same build. It ends with the daemon.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::template::{CODE_INTERPRETER, MCP_GATEWAY, Recipe, TemplateName};
use offleash_core::text::{Text, one_line};
use offleash_store::registry::Scope;
use offleash_store::{HeldTemplate, Taken, remove_directory};
use offleash_sys::spawn::{Orphaned, Session, Spawn, spawn};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitIdStatus, pidfd_open};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::error::DaemonError;
use super::history::Cause;
use super::inner::{Inner, blocking};
use super::launch::{OWN_PROGRAM, Process};
use super::pool::Closed;
use super::view::Caller;
use super::{BASE_TEMPLATE, Daemon, ending};
use crate::keeper::order::Template;
use crate::templates::{self, BUILDER, BuildEvent, BuildOrder, TemplateListing};

/// After how long a create that was answered so may be tried again. E2B's SDKs have a minute for all tries of a request: with less
/// than this left they tell what was answered, and not that time ran out.
const RETRY: Duration = Duration::from_secs(20);
/// How long nothing is built after a failure: who asks again and again does not build again and again.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// How long members of the warm pool may take to end when their template is removed, and how often that is looked at.
const POOL_ENDS: Duration = Duration::from_secs(60);
const POOL_ENDS_LOOK: Duration = Duration::from_millis(10);

/// The build that goes on, and the last one that failed.
#[derive(Debug, Default)]
pub(super) struct Builds {
    states: Mutex<BTreeMap<TemplateName, State>>,
}

/// Of one template.
#[derive(Debug, Default)]
struct State {
    /// True once it has ended.
    going_on: Option<watch::Receiver<bool>>,
    failed: Option<Instant>,
}

impl Daemon {
    /// The templates that were built, by name.
    ///
    /// # Errors
    /// `Forbidden`, `Templates`.
    pub async fn templates(&self, caller: &Caller) -> Result<Vec<TemplateListing>, DaemonError> {
        caller.require(Scope::Read)?;
        let state = self.inner.state.clone();
        Ok(blocking("list templates", move || templates::list(&state)).await??)
    }

    /// Whether a create with this template would find it: built, or built then.
    ///
    /// # Errors
    /// `Forbidden`, `Templates`.
    pub async fn has_template(&self, caller: &Caller, name: &str) -> Result<bool, DaemonError> {
        caller.require(Scope::Read)?;
        let Some(name) = named(name)? else { return Ok(true) };
        Ok(recipe_on_first_use(&self.inner, &name).is_some() || find(&self.inner, &name).await?.is_some())
    }

    /// Removes a template that no sandbox of anybody uses; members of the warm pool are ended. What is left of its files
    /// goes with the next build.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `TemplateInUse`, `Templates`.
    pub async fn remove_template(&self, caller: &Caller, name: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Admin)?;
        let unknown = || DaemonError::UnknownTemplate { name: name.to_owned() };
        let wanted = named(name).ok().flatten().ok_or_else(unknown)?;
        if uses(&self.inner, &wanted, |owner| owner.is_some()) {
            return Err(DaemonError::TemplateInUse { name: name.to_owned() });
        }
        let _closed = without_pool(&self.inner, &wanted).await;
        let state = self.inner.state.clone();
        let taken = blocking("remove a template", move || {
            let taken = state.templates()?.take(&wanted)?;
            if let Taken::Taken(abandoned) = &taken {
                // What belongs to subordinate ids a process with more than one thread cannot remove.
                let _removed = remove_directory(abandoned.path());
            }
            Ok::<_, templates::TemplateError>(taken)
        });
        match taken.await?? {
            Taken::Taken(_) => Ok(()),
            Taken::InUse => Err(DaemonError::TemplateInUse { name: name.to_owned() }),
            Taken::Missing => Err(unknown()),
        }
    }
}

/// Whether there is a sandbox of a template whose owner, if it has one, is such.
fn uses(inner: &Inner, name: &TemplateName, is_such: impl Fn(Option<&String>) -> bool) -> bool {
    inner.table.all().iter().any(|entry| {
        let facts = entry.lock();
        facts.row.template == name.as_str() && is_such(facts.owner.as_ref())
    })
}

/// Ends what the warm pool has of a template, which has no more of it as long as the answer lives.
async fn without_pool<'a>(inner: &'a Arc<Inner>, name: &TemplateName) -> Closed<'a> {
    let (closed, members) = inner.pool.close(name.as_str());
    inner.zygotes.close(name.as_str()).await;
    for entry in members {
        ending::end_in_background(inner, &entry, Cause::killed("its template is being removed"));
    }
    // Those that are being made are ended then, too.
    let until = tokio::time::Instant::now() + POOL_ENDS;
    while uses(inner, name, |owner| owner.is_none()) && tokio::time::Instant::now() < until {
        tokio::time::sleep(POOL_ENDS_LOOK).await;
    }
    closed
}

/// The template that is there under a name that was a template's; `None` if it is there no more.
pub(super) async fn current(inner: &Inner, name: &str) -> Result<Option<HeldTemplate>, DaemonError> {
    match named(name)? {
        Some(name) => find(inner, &name).await,
        None => Ok(None),
    }
}

/// The template that a caller means; `None` is the base.
fn named(name: &str) -> Result<Option<TemplateName>, DaemonError> {
    if name == BASE_TEMPLATE {
        return Ok(None);
    }
    let meant = TemplateName::meant_by(name);
    meant
        .map(Some)
        .map_err(|_| DaemonError::UnknownTemplate { name: name.to_owned() })
}

/// What a keeper is told whose row says this.
pub(super) fn of_row(template: &str) -> Template {
    template.parse().map_or(Template::Base, Template::Built)
}

/// What is to be noted of a sandbox whose template was built on other packages than the host has.
pub(super) fn note(template: &HeldTemplate) -> Option<String> {
    templates::outdated(template.record())
}

/// What a template is built from that is built when it is first asked for.
fn recipe_on_first_use(inner: &Inner, name: &TemplateName) -> Option<Recipe> {
    let config = &inner.config.templates;
    match name.as_str() {
        _ if !config.build_on_first_use => None,
        CODE_INTERPRETER => Some(config.code_interpreter.clone()),
        MCP_GATEWAY => Some(Recipe::mcp_gateway()),
        _ => None,
    }
}

async fn find(inner: &Inner, name: &TemplateName) -> Result<Option<HeldTemplate>, DaemonError> {
    let (state, name) = (inner.state.clone(), name.clone());
    let held = blocking("find a template", move || {
        Ok::<_, templates::TemplateError>(state.templates()?.hold(&name)?)
    });
    Ok(held.await??)
}

/// Finds the template that `name` means, or has it built and waits for that.
///
/// # Errors
/// `UnknownTemplate`, `TemplateBuilding`, `TemplateFailed`, `Templates`.
pub(super) async fn ready(inner: &Arc<Inner>, name: &str) -> Result<Option<HeldTemplate>, DaemonError> {
    let Some(wanted) = named(name)? else { return Ok(None) };
    let until = tokio::time::Instant::now() + inner.config.templates.wait;
    loop {
        if let Some(held) = find(inner, &wanted).await? {
            return Ok(Some(held));
        }
        let Some(recipe) = recipe_on_first_use(inner, &wanted) else {
            return Err(DaemonError::UnknownTemplate { name: name.to_owned() });
        };
        let installs = recipe.summary();
        let mut ended = going_on(inner, &wanted, recipe)?;
        let waited = tokio::time::timeout_at(until, ended.wait_for(|ended| *ended)).await;
        if waited.is_err() {
            return Err(DaemonError::TemplateBuilding {
                name: wanted.to_string(),
                installs,
                retry_after: RETRY,
            });
        }
    }
}

/// The build that goes on; begins one unless one has failed lately.
fn going_on(inner: &Arc<Inner>, name: &TemplateName, recipe: Recipe) -> Result<watch::Receiver<bool>, DaemonError> {
    let mut states = inner.builds.states.lock().unwrap_or_else(PoisonError::into_inner);
    let state = states.entry(name.clone()).or_default();
    if let Some(ended) = state.going_on.as_ref().filter(|ended| !*ended.borrow()) {
        return Ok(ended.clone());
    }
    if state.failed.is_some_and(|failed| failed.elapsed() < AFTER_FAILURE) {
        return Err(DaemonError::TemplateFailed { name: name.to_string() });
    }
    let (ending, ended) = watch::channel(false);
    state.going_on = Some(ended.clone());
    drop(states);
    let (weak, name) = (Arc::downgrade(inner), name.clone());
    let order = BuildOrder {
        state: inner.state.path().into(),
        name: name.clone(),
        recipe,
        env: inner.config.templates.build_env.iter().map(text_pair).collect(),
    };
    let (program, watcher) = (inner.config.program.clone(), inner.config.build_watcher.clone());
    tokio::spawn(async move {
        let tell = |event: &BuildEvent| {
            if let Some(watcher) = &watcher {
                watcher.tell(&order.name, event);
            }
        };
        let installs = order.recipe.summary();
        tell(&BuildEvent::Begins { installs });
        if let Err(error) = build(program.as_deref(), &order, tell).await {
            tell(&BuildEvent::Failed {
                last_lines: Vec::new(),
                told: format!("the builder came to nothing: {error}"),
            });
        }
        if let Some(inner) = weak.upgrade() {
            let is_there = find(&inner, &name).await.is_ok_and(|found| found.is_some());
            let mut states = inner.builds.states.lock().unwrap_or_else(PoisonError::into_inner);
            states.entry(name).or_default().failed = (!is_there).then(Instant::now);
        }
        ending.send_replace(true);
    });
    Ok(ended)
}

fn text_pair((name, value): &(OsString, OsString)) -> (Text, Text) {
    (name.into(), value.into())
}

/// Carries an order out in a process of its own, and tells how that goes on, the last event included.
///
/// # Errors
/// When there is no such process, or it ended without its last event.
async fn build(program: Option<&Path>, order: &BuildOrder, tell: impl Fn(&BuildEvent)) -> io::Result<()> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    let (told, telling) = pipe_with(PipeFlags::CLOEXEC)?;
    let argv = program
        .unwrap_or(Path::new(OWN_PROGRAM))
        .as_os_str()
        .as_bytes()
        .to_vec();
    let env = owners_variables();
    let spawned = spawn(&Spawn {
        argv: &[argv, BUILDER.into()],
        env: &env,
        cwd: Some(b"/"),
        descriptors: &[theirs.as_fd(), telling.as_fd(), telling.as_fd()],
        user: None,
        session: Session::New,
        // Threads of the event loop end with the daemon.
        orphaned: Orphaned::Dies,
    })
    .map_err(io::Error::other)?;
    drop((theirs, telling));
    // Not reaped yet, so its number is still its own.
    let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
    let process = Process::new(pidfd_open(pid, PidfdFlags::empty())?);
    rustix::io::ioctl_fionbio(&ours, true)?;
    rustix::io::ioctl_fionbio(&told, true)?;
    let mut pipe = pipe::Sender::from_owned_fd(ours)?;
    // One that does not take its order says why.
    let _sent = pipe.write_all(&serde_json::to_vec(order)?).await;
    drop(pipe);
    let (mut has_ended, mut other) = (false, None);
    let mut lines = BufReader::new(pipe::Receiver::from_owned_fd(told)?).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        match serde_json::from_slice::<BuildEvent>(&line) {
            Ok(event) => {
                has_ended |= event.is_last();
                tell(&event);
            }
            // A loader that warns, or a builder that is out of order.
            Err(_) => {
                other.get_or_insert(line);
            }
        }
    }
    let ended = process.ended().await?;
    if has_ended {
        return Ok(());
    }
    let said = other.map_or(String::new(), |line| format!("; it said: {}", one_line(&line)));
    Err(io::Error::other(format!("{}{said}", how_it_ended(ended))))
}

/// How a builder ended that did not say it.
fn how_it_ended(ended: Option<WaitIdStatus>) -> String {
    let of_signal = |ended: &WaitIdStatus| ended.terminating_signal();
    let of_exit = |ended: &WaitIdStatus| ended.exit_status();
    match (ended.as_ref().and_then(of_signal), ended.as_ref().and_then(of_exit)) {
        (Some(signal), _) => format!("it was killed by signal {signal}"),
        (None, Some(code)) => format!("it ended with exit code {code} and did not say why"),
        (None, None) => "it ended and did not say how".to_owned(),
    }
}

/// The variables by which a builder finds the configuration of the owner's package managers.
fn owners_variables() -> Vec<(Vec<u8>, Vec<u8>)> {
    const KNOWN: [&str; 7] = [
        "HOME",
        "XDG_CONFIG_HOME",
        "XDG_CONFIG_DIRS",
        "PIP_CONFIG_FILE",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_TRUSTED_HOST",
    ];
    let is_known = |name: &OsString| {
        let of_npm = name
            .to_str()
            .is_some_and(|name| name.to_ascii_lowercase().starts_with("npm_config_"));
        of_npm || KNOWN.iter().any(|known| name == known)
    };
    let known = std::env::vars_os().filter(|(name, _)| is_known(name));
    known.map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn told_of(script: &str) -> String {
        let null = std::fs::File::open("/dev/null").unwrap();
        let spawned = spawn(&Spawn {
            argv: &["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec()),
            env: &[],
            cwd: None,
            descriptors: &[null.as_fd(); 3],
            user: None,
            session: Session::New,
            orphaned: Orphaned::Dies,
        });
        let pid = Pid::from_raw(spawned.unwrap().pid).unwrap();
        let process = Process::new(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        how_it_ended(process.ended().await.unwrap())
    }

    #[tokio::test]
    async fn how_a_builder_died_is_told() {
        assert_eq!(told_of("kill -SEGV $$").await, "it was killed by signal 11");
        assert_eq!(told_of("exit 3").await, "it ended with exit code 3 and did not say why");
        assert_eq!(how_it_ended(None), "it ended and did not say how");
    }
}
