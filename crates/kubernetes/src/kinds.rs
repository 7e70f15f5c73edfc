//! The kinds of kubernetes-sigs/agent-sandbox, as far as the controller reads and writes them (`v1beta1`).
//!
//! What is only passed on (a pod's template) stays JSON, so that no field is lost on the way from a template to a Sandbox. The
//! definitions in the cluster are upstream's; there is no copy of them here.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The group of Sandbox.
const CORE_GROUP: &str = "agents.x-k8s.io";
/// The group of the kinds that make Sandboxes.
const EXTENSIONS_GROUP: &str = "extensions.agents.x-k8s.io";
/// The version of both that is read and written.
const VERSION: &str = "v1beta1";

/// Implements what `kube` asks of a kind, and its first two fields.
macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, $group:ident, $plural:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct $name {
            /// Group and version; nothing in lists.
            #[serde(default)]
            pub(crate) api_version: String,
            /// The kind's name; nothing in lists.
            #[serde(default)]
            pub(crate) kind: String,
            /// Names, labels, owners.
            pub(crate) metadata: ObjectMeta,
            $(
                $(#[$field_doc])*
                #[serde(default)]
                pub(crate) $field: $type,
            )*
        }

        impl Resource for $name {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($name).into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind! {
    /// One sandbox.
    Sandbox, CORE_GROUP, "sandboxes" {
        /// What is wanted.
        spec: SandboxSpec,
        /// What there is.
        status: SandboxStatus,
    }
}

kind! {
    /// What Sandboxes of a pool are made of.
    SandboxTemplate, EXTENSIONS_GROUP, "sandboxtemplates" {
        /// What is wanted.
        spec: SandboxTemplateSpec,
    }
}

kind! {
    /// Somebody's wish for a Sandbox.
    SandboxClaim, EXTENSIONS_GROUP, "sandboxclaims" {
        /// What is wanted.
        spec: SandboxClaimSpec,
        /// What there is.
        status: SandboxClaimStatus,
    }
}

kind! {
    /// Sandboxes that wait for claims.
    SandboxWarmPool, EXTENSIONS_GROUP, "sandboxwarmpools" {
        /// What is wanted.
        spec: SandboxWarmPoolSpec,
        /// What there is.
        status: SandboxWarmPoolStatus,
    }
}

/// A pod that is described and never made as such: it says what the sandbox is to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodTemplate {
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "PodMetadata::is_empty")]
    pub(crate) metadata: PodMetadata,
    /// A PodSpec.
    #[serde(default)]
    pub(crate) spec: Value,
}

/// Labels and annotations of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) labels: Map<String, Value>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) annotations: Map<String, Value>,
}

impl PodMetadata {
    /// Whether nothing is said.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// What Sandboxes and templates have in common.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxBlueprint {
    /// What the sandbox is to be.
    #[serde(default)]
    pub(crate) pod_template: PodTemplate,
    /// Claims of storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volume_claim_templates: Vec<Value>,
    /// Whether a Service leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<bool>,
}

/// What a Sandbox is to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxSpec {
    /// What it has in common with templates.
    #[serde(flatten)]
    pub(crate) blueprint: SandboxBlueprint,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shutdown_time: Option<Time>,
    /// What becomes of the object then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shutdown_policy: Option<ShutdownPolicy>,
    /// Whether it runs.
    #[serde(default)]
    pub(crate) operating_mode: OperatingMode,
}

/// Whether a Sandbox runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OperatingMode {
    /// It runs.
    #[default]
    Running,
    /// Its files are kept, and nothing runs.
    Suspended,
}

/// What becomes of an object whose time is up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ShutdownPolicy {
    /// It is deleted.
    Delete,
    /// It is deleted after what it owns.
    DeleteForeground,
    /// It stays, and says so.
    #[default]
    Retain,
}

/// What there is of a Sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxStatus {
    /// The whole name of its Service.
    #[serde(rename = "serviceFQDN", default, skip_serializing_if = "String::is_empty")]
    pub(crate) service_fqdn: String,
    /// Its Service.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) service: String,
    /// How it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
    /// Which pods are its placeholder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) selector: String,
    /// Addresses of the daemon that has it.
    #[serde(rename = "podIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pod_ips: Vec<String>,
    /// The node that it is on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) node_name: String,
}

/// What Sandboxes of a template are to be.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxTemplateSpec {
    /// What they have in common with Sandboxes.
    #[serde(flatten)]
    pub(crate) blueprint: SandboxBlueprint,
    /// What they may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network_policy: Option<TemplateNetworkPolicy>,
    /// Whether that is held here.
    #[serde(default)]
    pub(crate) network_policy_management: NetworkPolicyManagement,
    /// Whether claims may set variables.
    #[serde(default)]
    pub(crate) env_vars_injection_policy: InjectionPolicy,
}

/// What sandboxes of a template may reach, and who may reach them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TemplateNetworkPolicy {
    /// Who may reach them.
    #[serde(default)]
    pub(crate) ingress: Vec<NetworkPolicyIngressRule>,
    /// What they may reach.
    #[serde(default)]
    pub(crate) egress: Vec<NetworkPolicyEgressRule>,
}

/// Who holds the network policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NetworkPolicyManagement {
    /// The controller; the daemon's own rules here.
    #[default]
    Managed,
    /// Others.
    Unmanaged,
}

/// What claims may say of variables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InjectionPolicy {
    /// New ones.
    Allowed,
    /// New ones, and others instead of the template's.
    Overrides,
    /// None.
    #[default]
    Disallowed,
}

/// What a claim asks for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxClaimSpec {
    /// The pool.
    pub(crate) warm_pool_ref: NameRef,
    /// When it ends.
    #[serde(default)]
    pub(crate) lifecycle: Option<ClaimLifecycle>,
    /// Labels and annotations of the placeholder.
    #[serde(default)]
    pub(crate) additional_pod_metadata: PodMetadata,
    /// Variables.
    #[serde(default)]
    pub(crate) env: Vec<ClaimEnv>,
    /// Claims of storage.
    #[serde(default)]
    pub(crate) volume_claim_templates: Vec<Value>,
}

/// A name of something in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameRef {
    /// The name.
    pub(crate) name: String,
}

/// When a claim ends.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimLifecycle {
    /// When.
    #[serde(default)]
    pub(crate) shutdown_time: Option<Time>,
    /// What becomes of the claim then.
    #[serde(default)]
    pub(crate) shutdown_policy: ShutdownPolicy,
}

/// A variable that a claim sets.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimEnv {
    /// Its name.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: String,
    /// The container; the first if nothing is said.
    #[serde(default)]
    pub(crate) container_name: String,
}

/// What a claim got.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SandboxClaimStatus {
    /// How it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
    /// Its Sandbox.
    #[serde(default)]
    pub(crate) sandbox: ClaimedSandbox,
}

/// The Sandbox of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimedSandbox {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    /// Addresses of the daemon that has it.
    #[serde(rename = "podIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pod_ips: Vec<String>,
}

/// How many Sandboxes wait, and of which template.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxWarmPoolSpec {
    /// How many.
    #[serde(default)]
    pub(crate) replicas: Option<i32>,
    /// Of which template.
    pub(crate) sandbox_template_ref: NameRef,
    /// When those of an older template are replaced.
    #[serde(default)]
    pub(crate) update_strategy: Option<UpdateStrategy>,
}

/// When Sandboxes of an older template are replaced.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct UpdateStrategy {
    /// When.
    #[serde(rename = "type", default)]
    pub(crate) kind: UpdateStrategyKind,
}

/// When Sandboxes of an older template are replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum UpdateStrategyKind {
    /// At once.
    Recreate,
    /// When they are claimed or deleted.
    #[default]
    OnReplenish,
}

/// What there is of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxWarmPoolStatus {
    /// How many Sandboxes there are.
    #[serde(default)]
    pub(crate) replicas: i32,
    /// How many of them are ready.
    #[serde(default)]
    pub(crate) ready_replicas: i32,
    /// Which Sandboxes are its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) selector: String,
    /// Which spec was seen.
    #[serde(default)]
    pub(crate) observed_generation: i64,
}

/// Labels and annotations: upstream's, and ours (`offleash/…`).
pub(crate) mod words {
    /// Label of what this controller serves: the controller's name.
    pub(crate) const CONTROLLER: &str = "offleash/controller";
    /// Finalizer of Sandboxes whose sandbox has to be ended at its daemon.
    pub(crate) const FINALIZER: &str = "offleash/sandbox";
    /// The node at whose daemon the sandbox is, or is about to be.
    pub(crate) const NODE: &str = "offleash/node";
    /// How often a sandbox was made for this object.
    pub(crate) const ATTEMPT: &str = "offleash/attempt";
    /// The sandbox's id at its daemon.
    pub(crate) const SANDBOX_ID: &str = "offleash/sandbox-id";
    /// The sandbox in which the container's command was started.
    pub(crate) const COMMAND_STARTED: &str = "offleash/command-started";
    /// Digest of the network policy that the daemon was told.
    pub(crate) const POLICY: &str = "offleash/policy-digest";
    /// On a pod template: the template of offleash that is used instead of the image.
    pub(crate) const TEMPLATE: &str = "offleash/template";
    /// On a pod template: what a suspension keeps, `filesystem` or `full`.
    pub(crate) const SUSPEND_MODE: &str = "offleash/suspend-mode";
    /// The Sandbox of a placeholder pod, by its uid.
    pub(crate) const SANDBOX_UID: &str = "offleash/sandbox-uid";
    /// The warm pool that a Sandbox waits in, by a digest of its name.
    pub(crate) const WARM_POOL: &str = "agents.x-k8s.io/warm-pool-sandbox";
    /// The claim that a Sandbox belongs to, by its uid.
    pub(crate) const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";
    /// Digest of the blueprint that a Sandbox was made of.
    pub(crate) const TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";
    /// The template that a Sandbox was made of.
    pub(crate) const TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";
    /// Whether a Sandbox waited in a pool: `warm` or `cold`.
    pub(crate) const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
    /// The Sandbox of a claim.
    pub(crate) const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";
}
