//! What a Sandbox's annotations say of its sandbox: written before a daemon is asked, so that nothing is made twice or forgotten.

use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::context::{Context, ReconcileError};
use crate::kinds::{Sandbox, words};

/// What a Sandbox's annotations say of its sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SandboxRecord {
    /// The node whose daemon has it, or is about to be asked for it.
    pub(crate) node: Option<String>,
    /// How often it was made, or started anew.
    pub(crate) attempt: u64,
    /// Its id, when the daemon has answered.
    pub(crate) id: Option<String>,
    /// Whether the command was started in it.
    pub(crate) is_command_started: bool,
    /// Digest of the network policy that it has.
    pub(crate) policy: Option<String>,
}

impl SandboxRecord {
    /// What a Sandbox's annotations say.
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        let annotation = |name: &str| sandbox.annotations().get(name).filter(|text| !text.is_empty()).cloned();
        let attempt = annotation(words::ATTEMPT)
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        Self {
            node: annotation(words::NODE),
            attempt,
            id: annotation(words::SANDBOX_ID),
            is_command_started: annotation(words::COMMAND_STARTED) == Some(format!("{attempt}")),
            policy: annotation(words::POLICY),
        }
    }

    /// One for another sandbox at `node`.
    pub(crate) fn next_at(&self, node: &str) -> Self {
        Self {
            node: Some(node.to_owned()),
            attempt: self.attempt.saturating_add(1),
            ..Self::default()
        }
    }

    fn annotations(&self) -> Value {
        let started = self.is_command_started.then(|| self.attempt.to_string());
        json!({
            words::NODE: self.node,
            words::ATTEMPT: self.attempt.to_string(),
            words::SANDBOX_ID: self.id,
            words::COMMAND_STARTED: started,
            words::POLICY: self.policy,
        })
    }

    /// Writes it down, if the Sandbox is still as it was read.
    pub(crate) async fn write(&self, context: &Context, sandbox: &Sandbox) -> Result<Sandbox, ReconcileError> {
        if Self::of(sandbox) == *self {
            return Ok(sandbox.clone());
        }
        context
            .patch(sandbox, json!({ "annotations": self.annotations() }))
            .await
    }
}

/// Label of a sandbox at its daemon: the uid of its Sandbox.
pub(crate) const UID_LABEL: &str = "kubernetes.uid";
/// The same: the controller that had it made.
pub(crate) const CONTROLLER_LABEL: &str = "kubernetes.controller";
/// The same: the namespace and the name of its Sandbox.
pub(crate) const NAMESPACE_LABEL: &str = "kubernetes.namespace";
pub(crate) const NAME_LABEL: &str = "kubernetes.sandbox";
/// All labels by which a sandbox is known.
pub(crate) const RECORD_LABELS: [&str; 4] = [UID_LABEL, CONTROLLER_LABEL, NAMESPACE_LABEL, NAME_LABEL];

/// What a Sandbox's sandbox is called at its daemon: no other one of the key can have the name.
pub(crate) fn sandbox_name(sandbox: &Sandbox) -> String {
    format!("k8s-{}", sandbox.uid().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = SandboxRecord {
            node: Some("node-1".to_owned()),
            attempt: 3,
            id: Some("i123".to_owned()),
            is_command_started: true,
            policy: None,
        };
        let object = json!({ "metadata": { "annotations": record.annotations() }, "spec": {} });
        let mut object = object;
        object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        let sandbox: Sandbox = serde_json::from_value(object).unwrap();
        assert_eq!(SandboxRecord::of(&sandbox), record);
        let next = record.next_at("node-2");
        assert_eq!((next.attempt, next.id, next.is_command_started), (4, None, false));
    }
}
