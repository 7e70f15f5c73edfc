//! Sandboxes as Daytona's SDKs send and read them.

use std::collections::BTreeMap;

use offleash_daemon::{BASE_TEMPLATE, NAME_LABEL, OWN_LABELS, OnTimeout, PauseMode, SandboxView, VisibleState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::http::time;

/// The one place where sandboxes are, in the words of who may have several.
pub(super) const TARGET: &str = "local";
const MIB_PER_GIB: u64 = 1024;

/// A sandbox that is to be made.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    pub(super) name: Option<String>,
    pub(super) snapshot: Option<String>,
    pub(super) user: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) public: Option<bool>,
    pub(super) network_block_all: Option<bool>,
    pub(super) network_allow_list: Option<String>,
    pub(super) domain_allow_list: Option<String>,
    pub(super) outbound_proxy_url: Option<String>,
    pub(super) otel_endpoint_override: Option<String>,
    pub(super) kvm: Option<bool>,
    pub(super) spot: Option<bool>,
    pub(super) cpu: Option<u32>,
    pub(super) gpu: Option<u32>,
    /// GiB, both.
    pub(super) memory: Option<u64>,
    pub(super) disk: Option<u64>,
    /// Minutes, all of these.
    pub(super) auto_stop_interval: Option<u64>,
    pub(super) auto_pause_interval: Option<u64>,
    pub(super) auto_delete_interval: Option<i64>,
    pub(super) ttl_minutes: Option<u64>,
    pub(super) volumes: Option<Vec<NewMount>>,
    pub(super) build_info: Option<BuildInfo>,
    pub(super) linked_sandbox: Option<String>,
    pub(super) secrets: Option<Vec<Value>>,
}

/// A volume that it is to have.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewMount {
    pub(super) volume_id: String,
    pub(super) mount_path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subpath: Option<String>,
}

/// The image that it is to be made of, as a recipe.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BuildInfo {
    pub(super) dockerfile_content: Option<String>,
    pub(super) context_hashes: Option<Vec<String>>,
}

/// Labels, asked for and answered with.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Labels {
    pub(super) labels: BTreeMap<String, String>,
}

/// A name for what is made of a sandbox.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NewName {
    pub(super) name: Option<String>,
}

/// A sandbox. What is listed has some fields less, and its readers pass over those.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxAnswer {
    id: String,
    organization_id: &'static str,
    name: String,
    target: &'static str,
    snapshot: String,
    user: &'static str,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    public: bool,
    network_block_all: bool,
    kvm: bool,
    cpu: u32,
    gpu: u32,
    memory: u64,
    disk: u64,
    state: &'static str,
    desired_state: &'static str,
    auto_stop_interval: u64,
    auto_archive_interval: u64,
    auto_delete_interval: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_destroy_at: Option<String>,
    volumes: Vec<NewMount>,
    created_at: String,
    updated_at: String,
    daemon_version: &'static str,
    toolbox_proxy_url: String,
}

/// A page of sandboxes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxPageAnswer {
    pub(super) items: Vec<SandboxAnswer>,
    pub(super) next_cursor: Option<String>,
}

/// Where a port is reached, and with what.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PreviewAnswer {
    pub(super) sandbox_id: String,
    pub(super) url: String,
    pub(super) token: String,
}

/// An address.
#[derive(Debug, Serialize)]
pub(super) struct UrlAnswer {
    pub(super) url: String,
}

impl SandboxAnswer {
    /// A sandbox whose toolbox is below `toolbox`.
    pub(super) fn of(view: SandboxView, toolbox: String) -> Self {
        let state = state(&view);
        let name = view.metadata.get(NAME_LABEL).unwrap_or(&view.id).clone();
        let ends = (view.on_timeout == OnTimeout::Kill).then(|| time::text(view.end_at));
        let created_at = time::text(view.started_at);
        Self {
            name,
            organization_id: TARGET,
            target: TARGET,
            snapshot: match view.template.as_str() {
                "" => BASE_TEMPLATE.to_owned(),
                template => template.to_owned(),
            },
            user: "user",
            labels: own_labels(view.metadata),
            public: view.traffic_token.is_none(),
            network_block_all: view.network.internet == Some(false),
            kvm: false,
            cpu: view.limits.cpus,
            gpu: 0,
            memory: view.limits.memory_mib.div_ceil(MIB_PER_GIB),
            disk: view.limits.disk_mib.div_ceil(MIB_PER_GIB),
            state,
            desired_state: state,
            auto_stop_interval: view.lifecycle.idle.map_or(0, |idle| idle.as_secs().div_ceil(60)),
            auto_archive_interval: 0,
            auto_delete_interval: -1,
            auto_destroy_at: ends,
            volumes: view
                .volumes
                .into_iter()
                .map(|volume| NewMount {
                    volume_id: volume.id.to_string(),
                    mount_path: volume.path,
                    subpath: None,
                })
                .collect(),
            updated_at: created_at.clone(),
            created_at,
            daemon_version: env!("CARGO_PKG_VERSION"),
            toolbox_proxy_url: toolbox,
            env: view.env,
            id: view.id,
        }
    }

    /// The same, once it is gone.
    pub(super) fn destroyed(mut self) -> Self {
        self.state = "destroyed";
        self.desired_state = "destroyed";
        self
    }
}

/// Labels without ours.
pub(super) fn own_labels(mut labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels.retain(|label, _| !label.starts_with(OWN_LABELS));
    labels
}

/// The word for what a sandbox does: one whose files alone are there is stopped.
fn state(view: &SandboxView) -> &'static str {
    match (view.state, view.pause_mode) {
        (VisibleState::Running, _) => "started",
        (VisibleState::Paused, Some(PauseMode::Full)) => "paused",
        (VisibleState::Paused, _) => "stopped",
    }
}
