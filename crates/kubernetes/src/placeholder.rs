//! The pod that holds a sandbox's place at the cluster's scheduler, and what is read from it. Pure.
//!
//! It has the resources, and all that says where a pod may be, of the Sandbox's own template; its one container does nothing. So
//! quotas, priorities, topology and autoscaling are the cluster's, and there is no scheduler here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodAffinity, PodAffinityTerm, PodCondition, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::ObjectMeta;
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use crate::kinds::{Sandbox, words};
use crate::workload::{WorkloadRefusal, pod_spec};

/// The label of a node's own name, by which pods are put where others are.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Whose id the container has that does nothing.
const NOBODY: i64 = 65_535;

/// What placeholders have in common.
#[derive(Debug, Clone)]
pub(crate) struct PlaceholderSettings {
    /// The controller's name.
    pub(crate) controller: String,
    /// The image that does nothing.
    pub(crate) image: String,
    /// Where the daemons' pods are.
    pub(crate) namespace: String,
    /// Their labels.
    pub(crate) daemons: BTreeMap<String, String>,
}

/// The placeholder of a Sandbox; `pinned` is the node that has its files.
///
/// # Errors
/// A template that is none.
pub(crate) fn placeholder(
    sandbox: &Sandbox,
    settings: &PlaceholderSettings,
    pinned: Option<&str>,
) -> Result<Pod, WorkloadRefusal> {
    let template = &sandbox.spec.blueprint.pod_template;
    let wanted = pod_spec(template)?;
    let texts = |map: &serde_json::Map<String, Value>| -> BTreeMap<String, String> {
        let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        map.iter().filter_map(text).collect()
    };
    let mut labels = texts(&template.metadata.labels);
    labels.insert(words::CONTROLLER.to_owned(), settings.controller.clone());
    labels.insert(words::SANDBOX_UID.to_owned(), sandbox.uid().unwrap_or_default());
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(sandbox.name_any()),
            namespace: sandbox.namespace(),
            labels: Some(labels),
            annotations: Some(texts(&template.metadata.annotations)),
            owner_references: Some(sandbox.controller_owner_ref(&()).into_iter().collect()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            // A pod that names its node itself passes the scheduler by, and with it what the node has room for.
            affinity: Some(affinity(
                wanted.affinity.unwrap_or_default(),
                settings,
                wanted.node_name.as_deref().into_iter().chain(pinned),
            )),
            automount_service_account_token: Some(false),
            containers: vec![Container {
                name: "placeholder".to_owned(),
                image: Some(settings.image.clone()),
                resources: wanted
                    .containers
                    .into_iter()
                    .next()
                    .and_then(|container| container.resources),
                security_context: Some(SecurityContext {
                    allow_privilege_escalation: Some(false),
                    capabilities: Some(Capabilities {
                        add: None,
                        drop: Some(vec!["ALL".to_owned()]),
                    }),
                    read_only_root_filesystem: Some(true),
                    ..SecurityContext::default()
                }),
                ..Container::default()
            }],
            enable_service_links: Some(false),
            node_selector: wanted.node_selector,
            preemption_policy: wanted.preemption_policy,
            priority_class_name: wanted.priority_class_name,
            runtime_class_name: wanted.runtime_class_name,
            scheduler_name: wanted.scheduler_name,
            scheduling_gates: wanted.scheduling_gates,
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(NOBODY),
                run_as_group: Some(NOBODY),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    localhost_profile: None,
                }),
                ..PodSecurityContext::default()
            }),
            termination_grace_period_seconds: Some(1),
            tolerations: wanted.tolerations,
            topology_spread_constraints: wanted.topology_spread_constraints,
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// What a template asks for, where a daemon is, and on the one node that is named, or has the files.
fn affinity<'a>(
    mut wanted: Affinity,
    settings: &PlaceholderSettings,
    pinned: impl Iterator<Item = &'a str>,
) -> Affinity {
    let beside_daemons = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some(settings.daemons.clone()),
            ..LabelSelector::default()
        }),
        namespaces: Some(vec![settings.namespace.clone()]),
        topology_key: HOSTNAME.to_owned(),
        ..PodAffinityTerm::default()
    };
    let pods = wanted.pod_affinity.get_or_insert_with(PodAffinity::default);
    let required = &mut pods.required_during_scheduling_ignored_during_execution;
    required.get_or_insert_default().push(beside_daemons);
    for node in pinned.filter(|node| !node.is_empty()) {
        pin(wanted.node_affinity.get_or_insert_with(NodeAffinity::default), node);
    }
    wanted
}

/// Terms are alternatives, so that each has to name the node.
fn pin(nodes: &mut NodeAffinity, node: &str) {
    let is_node = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let required = nodes
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields.get_or_insert_default().push(is_node.clone());
    }
}

/// Whether a pod is the placeholder of this Sandbox: made by this controller, and owned by that.
pub(crate) fn is_placeholder_of(pod: &Pod, sandbox: &Sandbox) -> bool {
    let owner = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    owner.is_some_and(|owner| Some(&owner.uid) == sandbox.metadata.uid.as_ref())
        && pod.labels().get(words::SANDBOX_UID) == sandbox.metadata.uid.as_ref()
}

/// How far the scheduler is with a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Placement {
    /// It is bound to this node.
    Bound(String),
    /// It is on its way out, or over: another has to be made when it is gone.
    Ending,
    /// It is over and still there.
    Over,
    /// The scheduler has not found a node.
    Waiting,
}

/// How far the scheduler is with a placeholder.
pub(crate) fn placement_of(pod: &Pod) -> Placement {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    match (pod.metadata.deletion_timestamp.is_some(), phase, node) {
        (true, _, _) => Placement::Ending,
        (false, Some("Failed" | "Succeeded"), _) => Placement::Over,
        (false, _, Some(node)) if !node.is_empty() => Placement::Bound(node),
        (false, ..) => Placement::Waiting,
    }
}

/// What the scheduler says of a placeholder: status, reason, message.
pub(crate) fn scheduler_words(pod: &Pod) -> (String, String, String) {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found: Option<&PodCondition> = conditions
        .into_iter()
        .find(|condition| condition.type_ == "PodScheduled");
    let Some(found) = found else {
        let told = "the pod has no condition PodScheduled yet";
        return ("Unknown".to_owned(), "PodSchedulingUnknown".to_owned(), told.to_owned());
    };
    let reason = match (&found.reason, found.status.as_str()) {
        (Some(reason), _) if !reason.is_empty() => reason.clone(),
        (_, "True") => "PodScheduled".to_owned(),
        _ => "PodSchedulingUnknown".to_owned(),
    };
    (found.status.clone(), reason, found.message.clone().unwrap_or_default())
}

/// The labels of a selector, as `app=boxes,tier=daemon`.
pub(crate) fn labels_of(selector: &str) -> Option<BTreeMap<String, String>> {
    let one = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        (!name.is_empty() && !name.ends_with('!'))
            .then(|| (name.trim().to_owned(), value.trim_start_matches('=').trim().to_owned()))
    };
    selector.split(',').map(one).collect()
}

#[cfg(test)]
#[path = "placeholder_tests.rs"]
mod placeholder_tests;
