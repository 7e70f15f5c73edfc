//! How a Sandbox's sandbox ends: at its daemon, with proof, before the object may go.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};

use crate::context::{Context, ReconcileError, trying};
use crate::kinds::Sandbox;
use crate::native::NativeError;
use crate::placeholder::is_placeholder_of;
use crate::record::{SandboxRecord, sandbox_name};

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
    let name = sandbox_name(sandbox);
    let ended: Result<bool, NativeError> = async {
        let daemon = &found.daemon;
        for id in [record.id.clone(), daemon.named(&name).await?].into_iter().flatten() {
            daemon.kill(&id).await?;
            if daemon.get(&id).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(daemon.named(&name).await?.is_none())
    }
    .await;
    Ok(match ended {
        Ok(true) => Ending::Proved,
        Ok(false) => Ending::Unknown(format!("the daemon of node `{node}` still has the sandbox")),
        Err(error) => Ending::Unknown(error.to_string()),
    })
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

/// Deletes the placeholder, if there is one of ours.
pub(crate) async fn remove_placeholder(context: &Context, sandbox: &Sandbox) -> Result<(), ReconcileError> {
    let pods: Api<Pod> = context.api(&sandbox.namespace().unwrap_or_default());
    let found = trying("look for the placeholder", pods.get_opt(&sandbox.name_any()).await)?;
    match found.filter(|pod| is_placeholder_of(pod, sandbox) && pod.metadata.deletion_timestamp.is_none()) {
        Some(pod) => context.delete(&pod, DeleteParams::default()).await,
        None => Ok(()),
    }
}
