//! What the cells of contexts left, carried to those of another sandbox.
//!
//! A driver writes it to a file of its sandbox and another reads it from a copy of that file, each as the language does
//! that and as the sandbox's user. Nothing here looks into the file; copying it is for the room that holds sandboxes.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::error::ErrorKind;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::context::{Context, ContextOrder, SaveRequest};
use crate::contexts::{ContextInfo, Contexts};
use crate::error::ContextError;
use crate::id::HexId;
use crate::language::Language;
use crate::obstacle::CarryObstacle;
use crate::obstacle::NotSaved;
use crate::process::{ProcessError, ProcessHost};

/// How the name of a file begins that holds a state.
const FILE: &str = ".offleash-state-";

/// Where and how contexts save what their cells left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveOptions {
    /// A directory inside to which the usual user may write, and that is copied.
    pub directory: String,
    /// Whether what cannot be carried is left out; otherwise nothing is saved where there is any.
    pub skip: bool,
    /// Bytes that one context may have.
    pub bytes: u64,
    /// How long one context may take from when it has its turn.
    pub time: Duration,
    /// How long cells that came before may take.
    pub wait: Duration,
}

impl SaveOptions {
    /// All of every context or nothing, into files in that directory.
    pub fn new(directory: impl Into<String>) -> Self {
        Self {
            directory: directory.into(),
            skip: false,
            bytes: 4 * 1024 * 1024 * 1024,
            time: Duration::from_secs(60),
            wait: Duration::from_secs(60),
        }
    }

    /// A file that is not there, and of whose name nobody knows.
    pub(crate) fn new_file(&self) -> Result<String, ContextError> {
        let id = HexId::random().map_err(|error| {
            ContextError::Process(ProcessError::Other {
                kind: ErrorKind::Internal,
                error: Box::new(error),
            })
        })?;
        Ok(format!("{}/{FILE}{id}", self.directory.trim_end_matches('/')))
    }

    fn check(&self) -> Result<(), ContextError> {
        let is_directory = self.directory.starts_with('/') && self.directory.len() <= 4000;
        if is_directory && !self.directory.contains(['\0', '\n']) {
            return Ok(());
        }
        Err(ContextError::Invalid {
            reason: "states of contexts are saved in a directory, which is named from the root on".to_owned(),
        })
    }
}

/// A context that was saved: what it is, and where what its cells left is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedContext {
    /// Its id.
    pub id: String,
    /// Its language.
    pub language: Language,
    /// The directory in which it was started.
    pub cwd: String,
    /// Whether it is that of its language for cells that name none.
    pub is_default: bool,
    /// What holds the rest; absent if its cells left nothing that is carried.
    pub file: Option<String>,
    /// What is not carried.
    pub left_out: Vec<CarryObstacle>,
}

impl SavedContext {
    /// A context of which nothing is carried.
    pub(crate) fn new(info: &ContextInfo) -> Self {
        Self {
            id: info.id.clone(),
            language: info.language,
            cwd: info.cwd.clone(),
            is_default: info.is_default,
            file: None,
            left_out: Vec::new(),
        }
    }

    /// This one without what cannot be carried, if that is allowed.
    pub(crate) fn without(self, left_out: Vec<CarryObstacle>, is_allowed: bool) -> Result<Self, ContextError> {
        match is_allowed {
            true => Ok(Self { left_out, ..self }),
            false => Err(ContextError::Unsavable {
                id: self.id,
                language: self.language,
                obstacles: left_out,
            }),
        }
    }
}

/// Contexts that have saved what their cells left and run none meanwhile. When this is dropped the files are removed and
/// cells run again.
#[derive(Debug)]
#[must_use = "the files are removed when this is dropped"]
pub struct HeldContexts {
    contexts: Vec<SavedContext>,
    /// Each context goes on when its own of these is dropped.
    _releases: Vec<oneshot::Sender<()>>,
}

impl HeldContexts {
    /// What was saved.
    pub fn contexts(&self) -> &[SavedContext] {
        &self.contexts
    }
}

impl<P: ProcessHost> Contexts<P> {
    /// Has all contexts save what their cells left, each after the cells that wait for it; they run none until what this
    /// answers is dropped. Either all are saved or none is.
    ///
    /// # Errors
    /// `Unsavable`, `NotSaved`, `Exhausted` when too many cells wait, `Process`.
    pub async fn save(&self, options: &SaveOptions) -> Result<HeldContexts, ContextError> {
        options.check()?;
        let options = Arc::new(options.clone());
        let mut saving = JoinSet::new();
        let all = self.used().await?;
        let mut saved: Vec<Option<_>> = all.iter().map(|_| None).collect();
        for (place, context) in all.into_iter().enumerate() {
            let patience = options.wait + options.time + self.limits().grace;
            let options = Arc::clone(&options);
            saving.spawn(async move { (place, save_one(&context, options, patience).await) });
        }
        while let Some(joined) = saving.join_next().await {
            let (place, outcome) = joined.map_err(|error| {
                ContextError::Process(ProcessError::Other {
                    kind: ErrorKind::Internal,
                    error: Box::new(error),
                })
            })?;
            if let Some(at) = saved.get_mut(place) {
                *at = outcome?;
            }
        }
        let (contexts, releases) = saved.into_iter().flatten().unzip();
        Ok(HeldContexts {
            contexts,
            _releases: releases,
        })
    }

    /// Makes contexts that are those that were saved, of which this sandbox has the files; to be called before anything else
    /// is asked of its contexts. Answers what they could not have again.
    ///
    /// # Errors
    /// `Invalid`, `Exhausted`, `NotLoaded`, and those of [`Self::create`].
    pub async fn restore(&self, saved: &[SavedContext]) -> Result<Vec<CarryObstacle>, ContextError> {
        let mut loading = JoinSet::new();
        for one in saved {
            let context = self.add_saved(one).await?;
            let file = one.file.clone();
            loading.spawn(async move {
                match file {
                    Some(file) => context.order(|reply| ContextOrder::Load(file, reply)).await,
                    None => context.order(ContextOrder::Ready).await.map(|()| Vec::new()),
                }
            });
        }
        let mut left_out = Vec::new();
        while let Some(joined) = loading.join_next().await {
            let loaded = joined.map_err(|error| {
                ContextError::Process(ProcessError::Other {
                    kind: ErrorKind::Internal,
                    error: Box::new(error),
                })
            })?;
            left_out.extend(loaded?);
        }
        Ok(left_out)
    }
}

/// Nothing if the context is gone.
async fn save_one(
    context: &Context,
    options: Arc<SaveOptions>,
    patience: Duration,
) -> Result<Option<(SavedContext, oneshot::Sender<()>)>, ContextError> {
    let (reply, answer) = oneshot::channel();
    let (release, released) = oneshot::channel();
    let asked = SaveRequest {
        options,
        reply,
        released,
    };
    match context.save(asked) {
        Err(ContextError::NotFound { .. }) => return Ok(None),
        other => other?,
    }
    match timeout(patience, answer).await {
        Ok(Ok(saved)) => Ok(Some((saved?, release))),
        // Removed meanwhile.
        Ok(Err(_)) => Ok(None),
        Err(_) => Err(ContextError::NotSaved {
            id: context.info().id,
            why: NotSaved::Time,
            reason: format!(
                "a cell that runs or waits was not over after {} seconds",
                patience.as_secs()
            ),
        }),
    }
}
