//! The services that every other one stands on.

use std::sync::Arc;

use crate::host::SandboxHost;
use crate::jobs::JobTracker;
use crate::registry_handle::RegistryHandle;
use crate::sandboxes::SandboxTable;

/// What goes on, what is on record, where sandboxes are on the host, and which there are. Clones share all of it.
#[derive(Debug, Clone)]
pub(crate) struct DaemonCore {
    pub(crate) jobs: Arc<JobTracker>,
    pub(crate) registry: Arc<RegistryHandle>,
    pub(crate) host: Arc<SandboxHost>,
    pub(crate) sandboxes: Arc<SandboxTable>,
}
