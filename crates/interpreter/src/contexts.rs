//! The contexts of one sandbox.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use crate::cell::{Cell, CellEvent};
use crate::context::{Context, ContextOrder, ContextOrigin};
use crate::error::{ContextError, shortened};
use crate::id::{HexId, IdError};
use crate::language::Language;
use crate::limits::CellLimits;
use crate::past;
use crate::process::{ProcessError, ProcessHost};
use crate::state::SavedContext;

/// Where a context works that is not told where, in sandboxes that say nothing else.
pub const DEFAULT_CWD: &str = "/home/user";

/// How the tags of drivers begin.
const TAG: &str = "offleash-context";
const DEFAULT: &str = "default";
const AGAIN: &str = "again";

/// Whether a process with that tag is a driver of ours.
pub fn is_driver(tag: &str) -> bool {
    ContextInfo::parse(tag, String::new()).is_some()
}

/// A context, as it is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextInfo {
    /// Its id.
    pub id: String,
    /// Its language.
    pub language: Language,
    /// The directory in which it was started.
    pub cwd: String,
    /// Whether it is that of its language for cells that name none.
    pub is_default: bool,
    /// What it does.
    pub state: ContextState,
    /// How many cells it has run since it was started last.
    pub count: u64,
}

/// What a context does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextState {
    /// Nobody has asked anything of it: its driver is started for the first cell.
    Unstarted,
    /// It is being started, or found again.
    Starting,
    /// It waits for a cell.
    Idle,
    /// It runs a cell.
    Busy,
    /// Its driver has ended. Whoever runs the next cell is told, unless the cell before was; then it is started anew.
    Dead,
}

impl ContextState {
    /// As in `idle`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            // Both wait for a cell.
            Self::Unstarted | Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Dead => "dead",
        }
    }
}

/// Which of its two tags a driver of a context has. One that is started before anybody was told how the one before it ended has
/// the other: an end is kept until a process of the same tag is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DriverTag {
    #[default]
    First,
    Second,
}

impl DriverTag {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

impl ContextInfo {
    fn new(id: HexId, language: Language, cwd: String, is_default: bool) -> Self {
        Self {
            id: id.to_string(),
            language,
            cwd,
            is_default,
            state: ContextState::Unstarted,
            count: 0,
        }
    }

    /// What its driver is found by when we are not who started it.
    pub(crate) fn tag(&self, turn: DriverTag) -> String {
        let default = if self.is_default { ":default" } else { "" };
        let again = if turn == DriverTag::Second { ":again" } else { "" };
        format!("{TAG}:{}:{}{default}{again}", self.id, self.language)
    }

    /// The context whose driver has that tag.
    fn parse(tag: &str, cwd: String) -> Option<(Self, DriverTag)> {
        let mut words = tag.split(':');
        let (TAG, id, language) = (words.next()?, words.next()?, words.next()?) else {
            return None;
        };
        let rest: Vec<&str> = words.collect();
        let (is_default, turn) = match *rest.as_slice() {
            [] => (false, DriverTag::First),
            [DEFAULT] => (true, DriverTag::First),
            [AGAIN] => (false, DriverTag::Second),
            [DEFAULT, AGAIN] => (true, DriverTag::Second),
            _ => return None,
        };
        let id: HexId = id.parse().ok()?;
        let language = Language::parse(language)?;
        Some((Self::new(id, language, cwd, is_default), turn))
    }
}

/// The contexts of one sandbox.
///
/// When this is dropped the drivers go on, and the next one of the same sandbox finds them.
#[derive(Debug)]
pub struct Contexts<P: ProcessHost> {
    processes: P,
    limits: CellLimits,
    /// Where a context works that is not told where.
    cwd: String,
    table: Mutex<ContextTable>,
}

#[derive(Debug, Default)]
struct ContextTable {
    /// Whether drivers that somebody else started were looked for.
    complete: bool,
    contexts: Vec<Arc<Context>>,
}

impl ContextTable {
    fn besides_defaults(&self) -> usize {
        self.contexts.iter().filter(|one| !one.info().is_default).count()
    }

    fn default_of(&self, language: Language) -> Option<&Arc<Context>> {
        self.contexts.iter().find(|one| {
            let info = one.info();
            info.is_default && info.language == language
        })
    }
}

impl<P: ProcessHost> Contexts<P> {
    /// Those of the sandbox in which `processes` are.
    pub fn new(processes: P, limits: CellLimits) -> Self {
        Self {
            processes,
            limits,
            cwd: DEFAULT_CWD.to_owned(),
            table: Mutex::default(),
        }
    }

    /// Looks for no drivers that somebody else started: there are none.
    #[must_use]
    pub fn without_others(self) -> Self {
        let mut table = self.table.into_inner();
        table.complete = true;
        Self {
            table: Mutex::new(table),
            ..self
        }
    }

    /// Has contexts work in `cwd` that are not told where.
    #[must_use]
    pub fn working_in(self, cwd: String) -> Self {
        Self { cwd, ..self }
    }

    /// What a cell and a context may have.
    pub fn limits(&self) -> &CellLimits {
        &self.limits
    }

    /// Makes a context and waits until it is ready.
    ///
    /// # Errors
    /// `NotInstalled`, `Invalid` directories, `Exhausted`, `NotStarted`, `Process`.
    pub async fn create(&self, language: Language, cwd: Option<String>) -> Result<ContextInfo, ContextError> {
        check_cwd(cwd.as_deref())?;
        let context = {
            let mut table = self.table().await?;
            self.add(&mut table, language, cwd, false)?
        };
        self.ready(&context).await?;
        Ok(context.info())
    }

    /// Makes the default context of Python before anybody asks, with `modules` loaded as far as they are there. Its first
    /// cell finds the variables that [`ProcessHost::environment`] has then.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn prepare(&self, modules: &[String]) -> Result<(), ContextError> {
        let (context, _) = self.default_context(Language::Python).await?;
        let outcome = context
            .order(|reply| ContextOrder::Prepare(modules.to_vec(), reply))
            .await;
        if outcome.is_err() {
            self.forget(&context).await;
        }
        outcome
    }

    /// Makes the default context of a language, unless it is there, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn begin(&self, language: Language) -> Result<(), ContextError> {
        match self.default_context(language).await? {
            (context, true) => self.ready(&context).await,
            (_, false) => Ok(()),
        }
    }

    /// All of them, in the order in which they were made.
    ///
    /// # Errors
    /// `Process`.
    pub async fn list(&self) -> Result<Vec<ContextInfo>, ContextError> {
        let table = self.table().await?;
        Ok(table.contexts.iter().map(|context| context.info()).collect())
    }

    /// All of them, and before the others the default ones, those of these languages in any case; none is started for that.
    ///
    /// # Errors
    /// `Process`.
    pub async fn list_with_defaults(&self, languages: &[Language]) -> Result<Vec<ContextInfo>, ContextError> {
        let mut table = self.table().await?;
        for &language in languages {
            if table.default_of(language).is_none() {
                self.add(&mut table, language, None, true)?;
            }
        }
        let mut all: Vec<_> = table.contexts.iter().map(|context| context.info()).collect();
        all.sort_by_key(|info| !info.is_default);
        Ok(all)
    }

    /// Whether the driver of one has ended while it ran no cell, and the next one is not there yet.
    pub async fn are_coming_back(&self) -> bool {
        let table = self.table.lock().await;
        table.contexts.iter().any(|context| context.is_coming_back())
    }

    /// One of them.
    ///
    /// # Errors
    /// `NotFound`, `Process`.
    pub async fn get(&self, id: &str) -> Result<ContextInfo, ContextError> {
        Ok(self.find(id).await?.info())
    }

    /// Ends a context, and the cell that runs in it.
    ///
    /// # Errors
    /// `NotFound`, `Process`.
    pub async fn remove(&self, id: &str) -> Result<(), ContextError> {
        let context = self.find(id).await?;
        context.order(ContextOrder::Remove).await?;
        self.forget(&context).await;
        Ok(())
    }

    /// Ends what runs in a context, with all its state, and starts it anew.
    ///
    /// # Errors
    /// `NotFound`, `NotInstalled`, `NotStarted`, `Process`.
    pub async fn restart(&self, id: &str) -> Result<(), ContextError> {
        self.find(id).await?.order(ContextOrder::Restart).await
    }

    /// Interrupts the cell that runs in a context, if one does.
    ///
    /// # Errors
    /// `NotFound`, `Process`.
    pub async fn interrupt(&self, id: &str) -> Result<(), ContextError> {
        self.find(id).await?.interrupt().await
    }

    /// Runs a cell in a context, after those that wait there. What happens comes from the receiver; dropping it
    /// interrupts the cell.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `Exhausted`, `NotInstalled`, `NotStarted`, `Process`.
    pub async fn execute(&self, id: &str, cell: Cell) -> Result<mpsc::Receiver<CellEvent>, ContextError> {
        cell.check(&self.limits)?;
        let context = self.find(id).await?;
        if context.is_unstarted() {
            self.ready(&context).await?;
        }
        context.submit(cell)
    }

    /// Runs a cell in the default context of a language, which is made if it is not there.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub async fn execute_in_default(
        &self,
        language: Language,
        cell: Cell,
    ) -> Result<mpsc::Receiver<CellEvent>, ContextError> {
        cell.check(&self.limits)?;
        let (context, is_new) = self.default_context(language).await?;
        if is_new {
            self.ready(&context).await?;
        }
        context.submit(cell)
    }

    /// The default context of a language, and whether it was added now, or for a list alone.
    async fn default_context(&self, language: Language) -> Result<(Arc<Context>, bool), ContextError> {
        let mut table = self.table().await?;
        Ok(match table.default_of(language) {
            Some(context) => (Arc::clone(context), context.is_unstarted()),
            None => (self.add(&mut table, language, None, true)?, true),
        })
    }

    /// Waits until a context that nobody has used is ready, and forgets it if it will not be.
    async fn ready(&self, context: &Arc<Context>) -> Result<(), ContextError> {
        let outcome = context.order(ContextOrder::Ready).await;
        if outcome.is_err() {
            self.forget(context).await;
        }
        outcome
    }

    async fn forget(&self, context: &Arc<Context>) {
        let mut table = self.table.lock().await;
        table.contexts.retain(|one| !Arc::ptr_eq(one, context));
    }

    fn add(
        &self,
        table: &mut ContextTable,
        language: Language,
        cwd: Option<String>,
        is_default: bool,
    ) -> Result<Arc<Context>, ContextError> {
        let id = HexId::random().map_err(|error| {
            ContextError::Process(ProcessError::Other {
                kind: offleash_core::error::ErrorKind::Internal,
                error: Box::new(error),
            })
        })?;
        let cwd = cwd.unwrap_or_else(|| self.cwd.clone());
        self.put(table, ContextInfo::new(id, language, cwd, is_default))
    }

    fn put(&self, table: &mut ContextTable, info: ContextInfo) -> Result<Arc<Context>, ContextError> {
        let most = self.limits.contexts_besides_defaults();
        if !info.is_default && table.besides_defaults() >= most {
            return Err(ContextError::Exhausted {
                what: format!("a sandbox may have {most} contexts besides the default one of each language"),
            });
        }
        let context = Arc::new(Context::new(
            self.processes.clone(),
            info,
            ContextOrigin::Nothing,
            self.limits,
        ));
        table.contexts.push(Arc::clone(&context));
        Ok(context)
    }

    /// Those that anybody has used.
    pub(crate) async fn used(&self) -> Result<Vec<Arc<Context>>, ContextError> {
        let table = self.table().await?;
        let used = table.contexts.iter().filter(|context| !context.is_unstarted());
        Ok(used.cloned().collect())
    }

    /// A context that is one of another sandbox; it takes the place of the default one of its language if it is one.
    pub(crate) async fn add_saved(&self, saved: &SavedContext) -> Result<Arc<Context>, ContextError> {
        check_cwd(Some(&saved.cwd))?;
        let id: HexId = saved.id.parse().map_err(|error: IdError| ContextError::Invalid {
            reason: error.to_string(),
        })?;
        let mut table = self.table().await?;
        if let Some(other) = table.default_of(saved.language).filter(|_| saved.is_default).cloned() {
            other.order(ContextOrder::Remove).await?;
            table.contexts.retain(|one| !Arc::ptr_eq(one, &other));
        }
        if table.contexts.iter().any(|one| one.info().id == saved.id) {
            return Err(ContextError::Invalid {
                reason: format!("there is a context `{id}` already"),
            });
        }
        let info = ContextInfo::new(id, saved.language, saved.cwd.clone(), saved.is_default);
        self.put(&mut table, info)
    }

    async fn find(&self, id: &str) -> Result<Arc<Context>, ContextError> {
        let table = self.table().await?;
        let found = table.contexts.iter().find(|context| context.info().id == id);
        found
            .cloned()
            .ok_or_else(|| ContextError::NotFound { id: shortened(id) })
    }

    /// The table, with what an earlier daemon left.
    async fn table(&self) -> Result<tokio::sync::MutexGuard<'_, ContextTable>, ContextError> {
        let mut table = self.table.lock().await;
        // Whoever removed one may have gone away before it was over.
        table.contexts.retain(|context| context.lives());
        if !table.complete {
            // In this order: one that ends meanwhile is found by its process, which says how it ended.
            let running = self.processes.list().await?;
            let mut ended = self.processes.ended().await?;
            ended.retain(|ended| running.iter().all(|one| one.tag.as_ref() != Some(&ended.tag)));
            for process in running {
                let tag = process.tag.unwrap_or_default();
                let Some((info, turn)) = ContextInfo::parse(&tag, process.cwd) else {
                    continue;
                };
                let before = info.tag(turn.other());
                let before = ended.iter().find(|ended| ended.tag == before);
                let found = ContextOrigin::Driver {
                    pid: process.pid,
                    turn,
                    untold: before.and_then(past::untold),
                };
                self.take_over(&mut table, info, found);
            }
            // Of two ends of one context, that which somebody is to be told.
            ended.sort_by_key(|ended| past::untold(ended).is_none());
            for ended in ended {
                let untold = past::untold(&ended);
                if let Some((info, turn)) = ContextInfo::parse(&ended.tag, ended.cwd) {
                    self.take_over(&mut table, info, ContextOrigin::End { turn, untold });
                }
            }
            table.complete = true;
        }
        Ok(table)
    }

    /// Adds what an earlier daemon left of a context, if there is a place for it.
    fn take_over(&self, table: &mut ContextTable, info: ContextInfo, found: ContextOrigin) {
        if table.contexts.iter().any(|one| one.info().id == info.id) {
            return;
        }
        let has_place = match info.is_default {
            true => table.default_of(info.language).is_none(),
            false => table.besides_defaults() < self.limits.contexts,
        };
        if has_place {
            let context = Context::new(self.processes.clone(), info, found, self.limits);
            table.contexts.push(Arc::new(context));
        }
    }
}

fn check_cwd(cwd: Option<&str>) -> Result<(), ContextError> {
    match cwd {
        Some(cwd) if cwd.is_empty() || cwd.contains('\0') || cwd.len() > 4096 => Err(ContextError::Invalid {
            reason: "`cwd` is no directory".to_owned(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_found_again_by_its_tag() {
        let cwd = || "/srv".to_owned();
        for is_default in [false, true] {
            let info = ContextInfo::new(HexId::random().unwrap(), Language::Python, cwd(), is_default);
            for turn in [DriverTag::First, DriverTag::Second] {
                assert_eq!(ContextInfo::parse(&info.tag(turn), cwd()), Some((info.clone(), turn)));
            }
        }
        let id = "0".repeat(32);
        for tag in [
            String::new(),
            "offleash-context".to_owned(),
            format!("offleash-context:{id}"),
            format!("offleash-context:{id}:cobol"),
            format!("offleash-context:{id}:python:other"),
            format!("offleash-context:{id}:python:default:"),
            format!("offleash-context:{id}:python:again:default"),
            format!("offleash-context:{id}0:python"),
            format!(" offleash-context:{id}:python"),
        ] {
            assert!(!is_driver(&tag), "{tag}");
        }
    }
}
