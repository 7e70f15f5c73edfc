//! The tools over sandboxes of this process alone.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use offleash_daemon::CarriedContexts;
use offleash_daemon::local::{LocalSandbox, LocalSandboxes};

use super::backing::{CreateArguments, OpenedSandbox, SandboxBacking};
use super::failure::ToolError;

/// What was refused in a sandbox of this program is its owner's to allow.
const REMEDY: &str = "only the owner of the sandbox can allow it, with `--allow HOST` where `offleash mcp` is started";

#[derive(Debug)]
pub(super) struct LocalBacking {
    pub(super) sandboxes: Arc<LocalSandboxes>,
    pub(super) longest: Duration,
}

impl SandboxBacking for LocalBacking {
    const CAN_BE_TOLD: bool = false;
    // What these write may lie over a workspace of the host's, whose changes are its owner's to take out.
    const CAN_FORK: bool = false;

    async fn create(&self, _: CreateArguments) -> Result<OpenedSandbox, ToolError> {
        Ok(opened(self.sandboxes.create().await?))
    }

    async fn open(&self, id: &str) -> Result<OpenedSandbox, ToolError> {
        Ok(opened(self.sandboxes.get(id)?))
    }

    async fn fork(&self, _: &str, _: u32, _: CarriedContexts) -> Result<Vec<Result<String, ToolError>>, ToolError> {
        // For whoever knows the name all the same.
        Err(ToolError::new(
            "sandboxes of `offleash mcp` cannot be forked; those of `offleash serve` can be, also with \
                 `offleash mcp --server`",
        )
        .with_hint("make another sandbox with create_sandbox, and run there what led to this state"))
    }

    async fn kill(&self, id: &str) -> Result<(), ToolError> {
        Ok(self.sandboxes.end(id).await?)
    }

    fn leave(&self, _: String) {
        // All of them are ended by whoever made them.
    }

    async fn bury(&self, id: &str) -> Option<String> {
        let why = self.sandboxes.why_ended(id);
        // It may have been buried already.
        let _ended = self.sandboxes.end(id).await;
        why
    }

    fn longest(&self) -> Duration {
        self.longest
    }

    fn internal(&self, told: &str, cause: &(dyn Error + 'static)) -> String {
        let mut message = told.to_owned();
        let mut next = cause.source();
        while let Some(cause) = next {
            message.push_str(&format!(": {cause}"));
            next = cause.source();
        }
        message
    }
}

fn opened(sandbox: LocalSandbox) -> OpenedSandbox {
    OpenedSandbox {
        id: sandbox.id,
        supervisor: sandbox.supervisor,
        contexts: sandbox.contexts,
        env: BTreeMap::new(),
        cwd: sandbox.cwd,
        notes: sandbox.notes,
        remedy: REMEDY,
    }
}
