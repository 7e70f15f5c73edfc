//! Makes a sandbox anew in its place: with the same id, tokens, labels and rules.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::spec::ZygoteRole;
use offleash_supervisor::service::answer::MadeSandbox;
use offleash_supervisor::service::order::SupervisorOrder;
use tokio::time::timeout;

use super::SandboxMaker;
use crate::error::DaemonError;
use crate::registry::{SandboxRow, SandboxState};
use crate::sandboxes::{SandboxEntry, SandboxTurn};
use crate::secret_use;
use crate::specification::Specification;
use crate::supervisor_pool;

/// How long the supervisor before may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// What a sandbox is made anew of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemakeBasis {
    /// A checkpoint, as its specification says: what it has written since is gone. It runs when it is there.
    Checkpoint,
    /// What it has written, which was kept. Whether it runs is the caller's to say.
    KeptFiles,
}

impl SandboxMaker {
    /// Makes the sandbox of `entry` again, of what its specification says, once its supervisor has ended. What that left is
    /// removed.
    ///
    /// # Errors
    /// Why it is not there; what there is of it is for the next try to remove.
    pub(crate) async fn remake(
        &self,
        entry: &Arc<SandboxEntry>,
        basis: RemakeBasis,
        turn: &SandboxTurn<'_>,
    ) -> Result<(), DaemonError> {
        let lives = || DaemonError::conflict(entry.name(), "has a supervisor that does not end");
        let ended = timeout(END_TIMEOUT, entry.supervisor_ended()).await;
        ended.map_err(|_| lives())?;
        let host = &self.core.host;
        let left = |why: String| DaemonError::Host {
            tried: "remove what a sandbox left",
            source: why.into(),
        };
        match basis {
            RemakeBasis::Checkpoint => host.remove(entry.id()).await.map_err(left)?,
            RemakeBasis::KeptFiles => host.remove_but_files(entry.id()).await.map_err(left)?,
        }
        let waiting = supervisor_pool::take(&self.supervisors, host.program());
        let (started, process, watched) = host.launch(entry.id(), waiting).await?;
        entry.renew_supervisor();
        self.ender.watch(entry, watched);
        let made = async {
            let recorded = |row: &mut SandboxRow| row.supervisor = Some(started.process);
            self.core.registry.write(entry, None, recorded).await?;
            let order = SupervisorOrder {
                descent: ZygoteRole::Alone,
                is_kept: basis == RemakeBasis::KeptFiles,
                ..self.sandbox_order(entry)?
            };
            let made = started.give(&order, self.config.create_timeout).await;
            let made = made.map_err(DaemonError::of_volumes)?;
            let has_secrets = !secret_use::used(&entry.specification().network).is_empty();
            if has_secrets && !self.secrets.renew_one(entry, turn).await {
                let source = std::io::Error::other("its secrets cannot be put in");
                return Err(DaemonError::supervisor("make a sandbox", source));
            }
            self.note_remade(entry, basis, made).await
        };
        let made = made.await;
        if made.is_err() && process.kill().is_ok() {
            entry.supervisor_ended().await;
        }
        made
    }

    async fn note_remade(
        &self,
        entry: &SandboxEntry,
        basis: RemakeBasis,
        made: MadeSandbox,
    ) -> Result<(), DaemonError> {
        let specification = Specification {
            zygote: made.descent.zygote(),
            level: made.hello.level.to_string(),
            not_enforced: made.hello.not_enforced,
            network_pending: false,
            ..Specification::clone(&entry.specification())
        };
        let text = specification.to_json();
        let running = |row: &mut SandboxRow| {
            if basis == RemakeBasis::Checkpoint {
                row.state = SandboxState::Running;
            }
            row.spec = text;
        };
        self.core.registry.write(entry, None, running).await?;
        entry.set_specification(specification);
        Ok(())
    }
}
