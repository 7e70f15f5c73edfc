//! What the files of a sandbox that is made come from.

use std::sync::Arc;

use crate::carrying::ContextCarrier;
use crate::origins::OriginFinder;
use crate::snapshots::SnapshotStore;
use crate::still::StillSources;
use crate::volumes::VolumeService;

/// The services that know them.
#[derive(Debug, Clone)]
pub(crate) struct SandboxSources {
    pub(crate) origins: Arc<OriginFinder>,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) volumes: Arc<VolumeService>,
    pub(crate) carrier: Arc<ContextCarrier>,
    pub(crate) still: Arc<StillSources>,
}
