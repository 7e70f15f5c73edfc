//! What cells of code left in a sandbox, carried to another one: saved into its files, and loaded from the copy.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::error::Explained as _;
use offleash_core::log_level::LogLevel;
use offleash_core::units::Bytes;
use offleash_interpreter::error::ContextError;
use offleash_interpreter::process::ProcessError;
use offleash_interpreter::state::{HeldContexts, SaveOptions, SavedContext};
use tokio::time::timeout;

use crate::config::DaemonConfig;
use crate::contexts::ContextTable;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::sandboxes::SandboxEntry;

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

/// How long contexts may take to save what their cells left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SavePatience {
    /// For cells that came before.
    pub(crate) wait: Duration,
    /// From when it is the turn of one.
    pub(crate) save: Duration,
}

impl SavePatience {
    /// Where a sandbox is about to be paused, or is and shall not move for long.
    pub(crate) const SHORT: Self = Self {
        wait: Duration::from_secs(2),
        save: Duration::from_secs(20),
    };
}

/// Carries contexts of code from one sandbox to another.
#[derive(Debug)]
pub(crate) struct ContextCarrier {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    contexts: Arc<ContextTable>,
}

impl ContextCarrier {
    pub(crate) fn new(core: DaemonCore, config: Arc<DaemonConfig>, contexts: Arc<ContextTable>) -> Self {
        Self { core, config, contexts }
    }

    /// Has the contexts of the source save what their cells left, into its home directory, which is copied; they wait until what
    /// this answers is dropped.
    pub(crate) async fn save(
        &self,
        source: &SandboxEntry,
        carried: CarriedContexts,
    ) -> Result<Option<HeldContexts>, DaemonError> {
        let patience = SavePatience {
            wait: self.config.forks.wait,
            save: self.config.forks.save,
        };
        self.save_within(source, carried, patience).await
    }

    /// As [`Self::save`], within a time of the caller's.
    pub(crate) async fn save_within(
        &self,
        source: &SandboxEntry,
        carried: CarriedContexts,
        patience: SavePatience,
    ) -> Result<Option<HeldContexts>, DaemonError> {
        let options = SaveOptions {
            skip: match carried {
                CarriedContexts::All => false,
                CarriedContexts::Possible => true,
                CarriedContexts::Nothing => return Ok(None),
            },
            ..SaveOptions::new(source.specification().work_directory())
        };
        let contexts = self.contexts.of(source);
        let count = contexts
            .list()
            .await
            .map_err(|error| from_contexts(source, error))?
            .len();
        let options = SaveOptions {
            wait: patience.wait,
            time: patience.save,
            bytes: options
                .bytes
                .min(self.room(source).await? / u64::try_from(count.max(1)).unwrap_or(u64::MAX)),
            ..options
        };
        let saved = contexts.save(&options).await;
        saved.map(Some).map_err(|error| from_contexts(source, error))
    }

    /// How many bytes of states fit on the disk of the source: one that takes more than its limit ends.
    async fn room(&self, source: &SandboxEntry) -> Result<u64, DaemonError> {
        let used = self.core.host.supervisor(source.id()).usage().await;
        let used = used
            .map_err(|error| DaemonError::of_supervisor("save contexts of a sandbox", source.name(), error))?
            .disk_bytes;
        let limit = Bytes::mib(source.specification().limits.disk_mib).0;
        let free = limit.saturating_sub(used);
        Ok(free - free / KEPT_FREE)
    }

    /// Has the contexts of a fork load what they saved when they were those of its source.
    pub(crate) async fn load(&self, entry: &SandboxEntry, saved: &[SavedContext]) -> Result<(), DaemonError> {
        if saved.is_empty() {
            return Ok(());
        }
        let contexts = self.contexts.of(entry);
        let loaded = timeout(self.config.forks.load, contexts.restore(saved)).await;
        let loaded = loaded.unwrap_or_else(|_| {
            Err(ContextError::NotLoaded {
                id: saved.first().map(|context| context.id.clone()).unwrap_or_default(),
                reason: format!("it took longer than {} s", self.config.forks.load.as_secs_f64()),
            })
        });
        let left_out = loaded.map_err(|error| from_contexts(entry, error))?;
        let all = saved.iter().flat_map(|context| &context.left_out).chain(&left_out);
        for obstacle in all {
            self.core
                .registry
                .log(entry.name(), LogLevel::Warn, format!("not carried: {obstacle}"));
        }
        Ok(())
    }
}

fn from_contexts(entry: &SandboxEntry, error: ContextError) -> DaemonError {
    let id = entry.name();
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
