//! The status of a Sandbox while it is put together.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;

use crate::conditions::{self, Finding};
use crate::context::{Context, ReconcileError};
use crate::kinds::{Sandbox, SandboxStatus, words};

/// Whether it can be used.
pub(crate) const READY: &str = "Ready";
/// Whether it is suspended.
pub(crate) const SUSPENDED: &str = "Suspended";
/// What the scheduler says of the placeholder.
pub(crate) const POD_SCHEDULED: &str = "PodScheduled";
/// That it was made anew, and what was lost by that.
pub(crate) const RECREATED: &str = "Recreated";

/// Reasons of `Ready`; the first four are upstream's.
pub(crate) mod reasons {
    /// It can be used.
    pub(crate) const DEPENDENCIES_READY: &str = "DependenciesReady";
    /// It is on its way.
    pub(crate) const DEPENDENCIES_NOT_READY: &str = "DependenciesNotReady";
    /// It is suspended.
    pub(crate) const SUSPENDED: &str = "SandboxSuspended";
    /// Its time is up.
    pub(crate) const EXPIRED: &str = "SandboxExpired";
    /// Something is asked for that is not there.
    pub(crate) const NOT_SUPPORTED: &str = "NotSupported";
    /// The daemon of its node does not answer, or is not there.
    pub(crate) const DAEMON_UNAVAILABLE: &str = "DaemonUnavailable";
    /// The daemon said no.
    pub(crate) const DAEMON_REFUSED: &str = "DaemonRefused";
    /// Somebody else has the name.
    pub(crate) const NAME_TAKEN: &str = "NameTaken";
    /// The container's command did not start.
    pub(crate) const COMMAND_NOT_STARTED: &str = "CommandNotStarted";
}

/// The status of a Sandbox while it is put together.
#[derive(Debug)]
pub(crate) struct StatusReport {
    status: SandboxStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl StatusReport {
    /// One that begins with what is said already.
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        let mut status = sandbox.status.clone();
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        status.selector = format!("{}={uid}", words::SANDBOX_UID);
        Self {
            status,
            generation: sandbox.metadata.generation,
            now: conditions::now(),
        }
    }

    /// Sets a condition.
    pub(crate) fn set(&mut self, finding: &Finding) {
        conditions::set(&mut self.status.conditions, finding, self.generation, self.now);
    }

    /// That it cannot be used, and why; then there is neither node nor address.
    pub(crate) fn not_ready(&mut self, reason: &str, message: impl Into<String>) {
        self.set(&Finding::new(READY, false, reason, message));
        self.status.pod_ips.clear();
        self.status.node_name.clear();
    }

    /// That it can be used, where.
    pub(crate) fn ready(&mut self, node: &str, addresses: Vec<String>, message: String) {
        self.set(&Finding::new(READY, true, reasons::DEPENDENCIES_READY, message));
        node.clone_into(&mut self.status.node_name);
        self.status.pod_ips = addresses;
    }

    /// That it is made anew, and what was lost.
    pub(crate) fn recreated(&mut self, reason: &str, message: String) {
        self.set(&Finding::new(RECREATED, true, reason, message));
    }

    /// Its Service, or none.
    pub(crate) fn service(&mut self, name: &str, fqdn: String) {
        name.clone_into(&mut self.status.service);
        self.status.service_fqdn = fqdn;
    }

    /// That there is no pod of which the scheduler could say anything.
    pub(crate) fn no_pod(&mut self) {
        self.status
            .conditions
            .retain(|condition| condition.type_ != POD_SCHEDULED);
    }

    /// Whether it is said to be suspended.
    pub(crate) fn is_suspended(&self) -> bool {
        conditions::holds(&self.status.conditions, SUSPENDED)
    }

    /// Writes it, and comes again after `again`, or when something changes.
    pub(crate) async fn write(
        self,
        context: &Context,
        sandbox: &Sandbox,
        again: Option<Duration>,
    ) -> Result<Action, ReconcileError> {
        context.patch_status(sandbox, &sandbox.status, &self.status).await?;
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }
}
