//! What a daemon does with the sandboxes of the one before: adopts what lives, ends what was half made, removes the
//! rest.

use std::collections::HashSet;
use std::sync::Arc;

use offleash_core::log_level::LogLevel;
use offleash_supervisor::clock::now_ms;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::config::DaemonConfig;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::launch::Process;
use crate::pool::ReadyPool;
use crate::putting_away::SandboxKeeper;
use crate::registry::{Registry, SandboxRow, SandboxState};
use crate::request::BROWSER_LABEL;
use crate::sandboxes::{SandboxEntry, SandboxTurn};
use crate::secrets::SecretStore;
use crate::snapshots::CheckpointStore;
use crate::specification::Specification;
use crate::zygotes::ZygotePool;

/// How many are looked at at a time.
const AT_A_TIME: usize = 32;

/// Takes over the sandboxes of the daemon before.
#[derive(Debug)]
pub(crate) struct SandboxAdoption {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    pool: Arc<ReadyPool>,
    zygotes: Arc<ZygotePool>,
    secrets: Arc<SecretStore>,
    ender: Arc<SandboxEnder>,
    checkpoints: Arc<CheckpointStore>,
    keeper: Arc<SandboxKeeper>,
}

impl SandboxAdoption {
    #[expect(
        clippy::too_many_arguments,
        reason = "the services that it stands on, each by its type"
    )]
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        pool: Arc<ReadyPool>,
        zygotes: Arc<ZygotePool>,
        secrets: Arc<SecretStore>,
        ender: Arc<SandboxEnder>,
        checkpoints: Arc<CheckpointStore>,
        keeper: Arc<SandboxKeeper>,
    ) -> Self {
        Self {
            core,
            config,
            pool,
            zygotes,
            secrets,
            ender,
            checkpoints,
            keeper,
        }
    }

    /// Takes over every sandbox of the registry.
    ///
    /// # Errors
    /// `Store` if the registry cannot be read. What is wrong with one sandbox keeps nobody from the others.
    pub(crate) async fn adopt_all(self) -> Result<(), DaemonError> {
        let registry = &self.core.registry;
        let rows = registry.read("read the registry", Registry::sandboxes).await?;
        let known: HashSet<String> = rows.iter().map(|row| row.id.clone()).collect();
        let adoption = Arc::new(self);
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let mut adopting = JoinSet::new();
        for row in rows {
            let (adoption, places) = (Arc::clone(&adoption), Arc::clone(&places));
            adopting.spawn(async move {
                let _place = places.acquire().await;
                adoption.adopt(row).await;
            });
        }
        while adopting.join_next().await.is_some() {}
        adoption.remove_unknown(&known).await
    }

    async fn adopt(&self, row: SandboxRow) {
        let Ok(id) = row.id.parse() else {
            // Ids are ours, so this one was written by somebody else; there is no directory of such a name.
            return;
        };
        let specification = Specification::from_json(&row.spec);
        let was = row.state;
        let process = row.supervisor.and_then(Process::find);
        let readable = specification.is_some();
        let specification = specification.unwrap_or_else(|| Specification::usual(&self.config));
        let entry = Arc::new(SandboxEntry::adopted(id, row, specification));
        self.core.sandboxes.insert(Arc::clone(&entry));
        let turn = entry.turn().await;
        if readable && was == SandboxState::Restoring {
            return self.go_on_restoring(&entry, process, &turn).await;
        }
        if readable && self.core.host.keeps_files(entry.id()) && is_away(was) {
            return self.go_on_keeping(&entry, process).await;
        }
        match process.map(|process| process.again().map(|again| (process, again))) {
            Some(Ok((process, watched))) => {
                self.ender.watch(&entry, watched);
                if readable
                    && !matches!(was, SandboxState::Creating | SandboxState::Killing)
                    && self.take_over(&entry).await
                {
                    return;
                }
                // Half made, half ended, or not to be talked to.
                if was == SandboxState::Creating {
                    let _ = process.kill();
                }
                self.ender.end_supervisor(&entry).await;
            }
            _ => entry.note_supervisor_ended(),
        }
        entry.set_state(SandboxState::Killing);
        drop(turn);
        entry.set_cause(match was {
            SandboxState::Killing => EndCause::killed("as it was asked before the daemon was started again"),
            _ => EndCause::died("its supervisor was gone, or did not answer, when the daemon was started again"),
        });
        // What was never made has nothing to tell.
        if was == SandboxState::Creating {
            entry.disown();
        }
        self.ender.forget_in_background(&entry);
    }

    /// Goes on where the daemon before was putting a sandbox back.
    async fn go_on_restoring(&self, entry: &Arc<SandboxEntry>, process: Option<Process>, turn: &SandboxTurn<'_>) {
        match process.map(|process| process.again().map(|again| (process, again))) {
            Some(Ok((process, watched))) => {
                self.ender.watch(entry, watched);
                // It is the old one, or half made.
                let _ = process.kill();
            }
            _ => entry.note_supervisor_ended(),
        }
        if let Err(error) = self.checkpoints.make_again(entry, turn).await {
            let line = format!("it could not be put back, and waits to be restored again: {error}");
            self.core.registry.log(entry.name(), LogLevel::Error, line);
        }
    }

    /// Takes over a sandbox whose files alone are kept. Where the daemon before was putting it away, or making it again for
    /// somebody who has not got it, its supervisor is ended.
    async fn go_on_keeping(&self, entry: &Arc<SandboxEntry>, process: Option<Process>) {
        match process.map(|process| process.again().map(|again| (process, again))) {
            Some(Ok((process, watched))) => {
                self.ender.watch(entry, watched);
                let _ = process.kill();
                self.ender.end_supervisor(entry).await;
            }
            _ => entry.note_supervisor_ended(),
        }
        self.keeper.adopt(entry).await;
    }

    /// Talks to the supervisor, and brings registry and sandbox into agreement. `false` if it cannot be talked to.
    async fn take_over(&self, entry: &Arc<SandboxEntry>) -> bool {
        let hello = match self.core.host.supervisor(entry.id()).hello().await {
            Ok(hello) if hello.id == *entry.id() => hello,
            Ok(_) => return false,
            Err(error) => {
                let line = format!("its supervisor does not answer: {error}");
                self.core.registry.log(entry.name(), LogLevel::Error, line);
                return false;
            }
        };
        if !self.renew_network(entry).await {
            return false;
        }
        let state = if hello.paused {
            SandboxState::Paused
        } else {
            SandboxState::Running
        };
        if entry.state() != state {
            // What it had left counts from now on, if it was cut off between the two.
            let left = entry.specification().left_ms.filter(|_| state == SandboxState::Running);
            let found = |row: &mut SandboxRow| {
                row.state = state;
                row.end_ms = left.map_or(row.end_ms, |left| row.end_ms.max(now_ms().saturating_add(left)));
            };
            if self.core.registry.write(entry, None, found).await.is_err() {
                entry.set_state(state);
            }
        }
        if entry.key_id().is_none() {
            if entry.read(|facts| facts.row().metadata.contains_key(BROWSER_LABEL)) {
                // A browser that waited is known to the daemon that started it alone.
                return false;
            }
            self.pool.adopt(Arc::clone(entry), &entry.origin());
        }
        true
    }

    /// Sets the rules of the network again where the daemon before may have died while it set others. `false` if they cannot
    /// be set, and for one of the pool that has others now: nothing runs with other rules than are on record.
    async fn renew_network(&self, entry: &SandboxEntry) -> bool {
        let (specification, key) = (entry.specification(), entry.key_id());
        if key.is_none() || !specification.network_pending {
            return !specification.network_pending;
        }
        let order = self
            .secrets
            .network_order(key.as_deref(), &entry.template(), &specification.network);
        match order {
            Ok((order, _)) => self.core.host.supervisor(entry.id()).set_network(order).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Removes directories that no record speaks of: their supervisors were never told to make anything, or are zygotes.
    async fn remove_unknown(&self, known: &HashSet<String>) -> Result<(), DaemonError> {
        for id in self.core.host.ids().await? {
            if !known.contains(id.as_str()) && !self.zygotes.is_left(&id).await {
                self.ender.remove_leftovers(&id).await;
            }
        }
        Ok(())
    }
}

/// Whether the files of a sandbox in that state may be all that there is of it.
fn is_away(state: SandboxState) -> bool {
    matches!(
        state,
        SandboxState::PuttingAway | SandboxState::PutAway | SandboxState::Waking
    )
}
