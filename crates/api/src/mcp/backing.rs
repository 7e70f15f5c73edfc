//! What the tools need of whoever has the sandboxes.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use offleash_daemon::{CarriedContexts, SandboxContexts};
use offleash_supervisor::service::client::SupervisorClient;

use super::failure::ToolError;
use crate::control::volumes::NewVolumeMount;

/// A sandbox that tools can work in.
#[derive(Debug, Clone)]
pub(super) struct OpenedSandbox {
    pub(super) id: String,
    pub(super) supervisor: SupervisorClient,
    pub(super) contexts: Arc<SandboxContexts>,
    /// Variables that every command gets.
    pub(super) env: BTreeMap<String, String>,
    /// Where commands start, and what relative paths are below.
    pub(super) cwd: String,
    /// What the model should know of it, a line each.
    pub(super) notes: Vec<String>,
    /// Who can allow what was refused in it, and how.
    pub(super) remedy: &'static str,
}

/// What a sandbox is to be; everything that is absent is as usual.
#[derive(Debug, Clone, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateArguments {
    /// What is installed in it; `code-interpreter` has numpy, pandas, matplotlib, scipy and scikit-learn.
    #[schemars(extend("default" = "base"))]
    pub(super) template: Option<String>,
    /// Image of containers that it is of instead of a template, such as `python:3.12-slim`; one that the server has, or pulls.
    pub(super) image: Option<String>,
    /// Whether it may reach public addresses.
    pub(super) internet: Option<bool>,
    /// Variables of the environment for everything that runs in it.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Directories that outlive it, which the owner has made.
    pub(super) volumes: Option<Vec<NewVolumeMount>>,
    /// Seconds until it is ended unless it is used.
    #[schemars(range(min = 1))]
    pub(super) timeout_seconds: Option<u64>,
    /// Seconds after which it sleeps if nobody uses it: its files stay, and its next use wakes it; 0 is never.
    pub(super) idle_seconds: Option<u64>,
    /// Isolation level, `process` or `container`, where it is to be another than the server's.
    pub(super) level: Option<String>,
}

/// Whoever has the sandboxes.
pub(super) trait SandboxBacking: Send + Sync + 'static {
    /// Whether [`CreateArguments`] may say anything; otherwise all is as whoever started us has said.
    const CAN_BE_TOLD: bool;
    /// Whether [`Self::fork`] can ever do it; otherwise no tool for it is shown.
    const CAN_FORK: bool;

    /// Makes a sandbox.
    fn create(&self, new: CreateArguments) -> impl Future<Output = Result<OpenedSandbox, ToolError>> + Send;

    /// The sandbox of that id, if whoever asks may use it; its time begins anew where it has one.
    fn open(&self, id: &str) -> impl Future<Output = Result<OpenedSandbox, ToolError>> + Send;

    /// Makes forks of a sandbox; of each the id, or why it was not made.
    fn fork(
        &self,
        id: &str,
        count: u32,
        contexts: CarriedContexts,
    ) -> impl Future<Output = Result<Vec<Result<String, ToolError>>, ToolError>> + Send;

    /// Ends a sandbox.
    fn kill(&self, id: &str) -> impl Future<Output = Result<(), ToolError>> + Send;

    /// Ends the sandbox of a session that is over; nobody waits for it.
    fn leave(&self, id: String);

    /// Why a sandbox has ended that was open, and forgets it.
    fn bury(&self, id: &str) -> impl Future<Output = Option<String>> + Send;

    /// How long a command or a cell may take.
    fn longest(&self) -> Duration;

    /// What is told of a failure that is not the caller's.
    fn internal(&self, told: &str, cause: &(dyn Error + 'static)) -> String;
}
