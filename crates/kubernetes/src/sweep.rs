//! Ends sandboxes of this controller's that belong to no Sandbox, or are on another node than its own.
//!
//! There are none as long as nobody writes annotations or takes finalizers away by hand. Whoever may write a Sandbox can do both, and
//! would have sandboxes that no quota counts.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use kube::api::Api;
use tokio::time::sleep;

use crate::context::{Context, ReconcileError, trying};
use crate::daemons::node_of;
use crate::kinds::Sandbox;
use crate::native::NativeView;
use crate::record::{CONTROLLER_LABEL, NAME_LABEL, NAMESPACE_LABEL, RECORD_LABELS, SandboxRecord, UID_LABEL};

/// How many times as long as a resync it is from one sweep to the next.
const EVERY: u32 = 4;

/// Sweeps again and again.
pub(crate) async fn run(context: &Context) {
    let mut suspects = BTreeSet::new();
    loop {
        sleep(context.config.resync * EVERY).await;
        let nodes: BTreeSet<String> = context
            .daemons
            .pods
            .state()
            .iter()
            .filter_map(|pod| node_of(pod).map(str::to_owned))
            .collect();
        let mut found = BTreeSet::new();
        for node in nodes {
            match sweep(context, &node, &suspects).await {
                Ok(more) => found.extend(more),
                Err(told) => context
                    .config
                    .log
                    .warning(&format!("looking for sandboxes of nobody's: {told}")),
            }
        }
        suspects = found;
    }
}

/// Ends what is nobody's for the second time; answers what is so for the first.
async fn sweep(context: &Context, node: &str, suspects: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let Some(found) = context.daemons.of(node) else {
        return Ok(Vec::new());
    };
    let mut first = Vec::new();
    for view in found
        .daemon
        .list(&RECORD_LABELS)
        .await
        .map_err(|error| error.to_string())?
    {
        if view.metadata.get(CONTROLLER_LABEL) != Some(&context.config.name) {
            continue;
        }
        if is_held(context, node, &view).await.map_err(|error| error.to_string())? {
            continue;
        }
        // What is just being made, or just moves, is held the next time.
        if suspects.contains(&view.id) {
            found.daemon.kill(&view.id).await.map_err(|error| error.to_string())?;
            context.config.log.warning(&format!(
                "sandbox `{}` of node `{node}` belonged to no Sandbox, and was ended",
                view.id
            ));
        } else {
            first.push(view.id);
        }
    }
    Ok(first)
}

/// Whether there is a Sandbox that has this sandbox on this node.
async fn is_held(context: &Context, node: &str, view: &NativeView) -> Result<bool, ReconcileError> {
    let label = |name: &str| view.metadata.get(name).filter(|text| is_name(text));
    let (Some(namespace), Some(name)) = (label(NAMESPACE_LABEL), label(NAME_LABEL)) else {
        return Ok(false);
    };
    let sandboxes: Api<Sandbox> = context.api(namespace);
    let found = trying("look for a Sandbox", sandboxes.get_opt(name).await)?;
    let holds = |sandbox: &Sandbox| {
        let is_of = sandbox.uid().as_ref() == view.metadata.get(UID_LABEL);
        is_of && context.is_ours(sandbox) && SandboxRecord::of(sandbox).node.as_deref() == Some(node)
    };
    Ok(found.is_some_and(|sandbox| holds(&sandbox)))
}

/// Whether a daemon's word can stand in a path of the API server's.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=253).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('.')
}
