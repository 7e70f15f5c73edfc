//! How a Sandbox's sandbox ends: at its daemon, with proof, before the object may go.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};

use crate::context::{Context, ReconcileError, trying};
use crate::daemons::FoundDaemon;
use crate::kinds::Sandbox;
use crate::native::{NativeError, NativeView, is_id};
use crate::placeholder::is_placeholder_of;
use crate::record::{SandboxRecord, UID_LABEL, sandbox_name};

/// What became of the sandbox of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its daemon says that there is none, by id and by name.
    Proved,
    /// Its node is no node of the cluster any more.
    NodeGone,
    /// It is not known yet: why.
    Unknown(String),
}

/// Ends the sandbox of a record, wherever it is.
pub(crate) async fn end(
    context: &Context,
    sandbox: &Sandbox,
    record: &SandboxRecord,
) -> Result<Ending, ReconcileError> {
    let Some(node) = &record.node else {
        // A node is on record before its daemon is asked.
        return Ok(Ending::Proved);
    };
    let Some(found) = context.daemons.of(node) else {
        return Ok(match is_node(context, node).await? {
            true => Ending::Unknown(no_daemon(node)),
            false => Ending::NodeGone,
        });
    };
    let ended: Result<bool, NativeError> = async {
        // By its id, and by its name where the answer to a create was lost.
        for _ in 0..2 {
            match find(&found, sandbox, record).await? {
                Some(view) => found.daemon.kill(&view.id).await?,
                None => return Ok(true),
            }
        }
        Ok(find(&found, sandbox, record).await?.is_none())
    }
    .await;
    Ok(match ended {
        Ok(true) => Ending::Proved,
        Ok(false) => Ending::Unknown(format!("the daemon of node `{node}` still has the sandbox")),
        Err(error) => Ending::Unknown(error.to_string()),
    })
}

/// The sandbox of a record at a daemon: by its id, and by its name where the answer to the create was lost.
///
/// Whoever may write a Sandbox writes its annotations: a sandbox is its own only where the daemon has it under the Sandbox's uid, which
/// nobody chooses.
pub(crate) async fn find(
    found: &FoundDaemon,
    sandbox: &Sandbox,
    record: &SandboxRecord,
) -> Result<Option<NativeView>, NativeError> {
    let daemon = &found.daemon;
    let is_own = |view: &NativeView| view.metadata.get(UID_LABEL) == sandbox.metadata.uid.as_ref();
    if let Some(id) = record.id.as_ref().filter(|id| is_id(id))
        && let Some(view) = daemon.get(id).await?.filter(is_own)
    {
        return Ok(Some(view));
    }
    match daemon.named(&sandbox_name(sandbox)).await? {
        Some(id) => Ok(daemon.get(&id).await?.filter(is_own)),
        None => Ok(None),
    }
}

/// What is said where a node has no daemon.
pub(crate) fn no_daemon(node: &str) -> String {
    format!("no daemon of offleash is ready on node `{node}`")
}

/// Whether a node is one of the cluster's.
pub(crate) async fn is_node(context: &Context, node: &str) -> Result<bool, ReconcileError> {
    let nodes: Api<Node> = Api::all(context.client.0.clone());
    let found = trying(format!("look for node `{node}`"), nodes.get_opt(node).await)?;
    Ok(found.is_some())
}

/// The placeholder, if there is one of ours that stays.
pub(crate) async fn placeholder_of(context: &Context, sandbox: &Sandbox) -> Result<Option<Pod>, ReconcileError> {
    let pods: Api<Pod> = context.api(&sandbox.namespace().unwrap_or_default());
    let found = trying("look for the placeholder", pods.get_opt(&sandbox.name_any()).await)?;
    Ok(found.filter(|pod| is_placeholder_of(pod, sandbox) && pod.metadata.deletion_timestamp.is_none()))
}

/// Deletes the placeholder, if there is one of ours.
pub(crate) async fn remove_placeholder(context: &Context, sandbox: &Sandbox) -> Result<(), ReconcileError> {
    match placeholder_of(context, sandbox).await? {
        Some(pod) => context.delete(&pod, DeleteParams::default()).await,
        None => Ok(()),
    }
}
