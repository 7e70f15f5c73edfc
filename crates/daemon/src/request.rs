//! What callers ask of the daemon, and the bounds of it.

use std::collections::{BTreeMap, BTreeSet};

use offleash_core::id::SandboxName;
use serde::{Deserialize, Serialize};

use crate::lifecycle::LifecycleRequest;
use crate::origin::BASE_TEMPLATE;
use crate::registry::SandboxRow;
use crate::sandbox_tools::ToolsRequest;
use crate::volume_mounts::VolumeMountRequest;

/// A sandbox that is asked for; [`CreateRequest::default`] asks for what E2B gives who says nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct CreateRequest {
    /// The template's name; `base` is the one that is always there.
    pub template: String,
    /// The snapshot that it is made of, by id or name; then the template is that of the snapshot. A template's name that is one
    /// of the caller's snapshots means that, too.
    pub snapshot: Option<String>,
    /// How long it may live, seconds; the daemon's default if `None`. Zero is refused.
    pub timeout_seconds: Option<u64>,
    /// What it is called by people: label [`NAME_LABEL`], which no other sandbox of the key has.
    pub name: Option<SandboxName>,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Variables for every command in it.
    pub env: BTreeMap<String, String>,
    /// Whether its file and process services ask for an access token.
    pub secure: bool,
    /// What happens when its time is up.
    pub on_timeout: OnTimeout,
    /// Whether traffic resumes it when it is paused.
    pub auto_resume: bool,
    /// When it sleeps, what a pause keeps of it, and when checkpoints of it are made by themselves.
    pub lifecycle: LifecycleRequest,
    /// What it may reach, and who may reach it.
    pub network: NetworkSettings,
    /// The volumes that it has.
    pub volumes: Vec<VolumeMountRequest>,
    /// What it may use, as far as the caller says.
    pub limits: LimitsRequest,
    /// The tools that it has.
    pub tools: ToolsRequest,
    /// A repeated request with the same one, from the same key, answers with the sandbox that is there.
    pub idempotency_key: Option<String>,
    /// What a session of a browser was asked for, if it is to be one: label [`BROWSER_LABEL`].
    pub browser: Option<String>,
    /// What a desktop was asked for, if it is to be one: label [`DESKTOP_LABEL`].
    pub desktop: Option<String>,
}

/// What labels of ours begin with.
pub const OWN_LABELS: &str = "offleash.";

/// The label that is a sandbox's name. Nobody sets it as a label.
pub const NAME_LABEL: &str = "offleash.name";

/// The label by which a sandbox is a session of a browser. Nobody sets it as a label.
pub const BROWSER_LABEL: &str = "offleash.browser";

/// The label by which a sandbox is a desktop. Nobody sets it as a label.
pub const DESKTOP_LABEL: &str = "offleash.desktop";

/// The label by which a sandbox is asked for in which programs may trace and look into each other, as debuggers do: `true`.
pub const ALLOW_PTRACE_LABEL: &str = "offleash.allow_ptrace";

/// The label by which a sandbox is asked for at another level than the usual one: `simulated`, `process`, `container`
/// or `microvm`.
pub const LEVEL_LABEL: &str = "offleash.level";

/// What happens to a sandbox when its time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// It is killed.
    Kill,
    /// It is paused.
    Pause,
}

impl OnTimeout {
    /// What a row says.
    pub(crate) fn of(row: &SandboxRow) -> Self {
        if row.auto_pause { Self::Pause } else { Self::Kill }
    }
}

/// What a sandbox may reach, and who may reach it, in E2B's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSettings {
    /// `allow_internet_access`: whether it may reach public addresses at all; yes if `None`.
    pub internet: Option<bool>,
    /// `allowOut`: addresses, networks, names and `*.names` that it may reach whatever `deny_out` says.
    pub allow_out: Vec<String>,
    /// `denyOut`: addresses and networks that it may not reach.
    pub deny_out: Vec<String>,
    /// Hosts about which somebody is asked when they are connected to, as `network.ask` of a policy has them.
    #[serde(default)]
    pub ask_out: Vec<String>,
    /// `allowPublicTraffic`: whether its ports are open to whoever can reach the daemon; yes if `None`.
    pub allow_public_traffic: Option<bool>,
    /// `maskRequestHost`: what its ports see as `Host`; `${PORT}` in it is the port.
    pub mask_request_host: Option<String>,
    /// `rules`: headers that are set in requests over TLS to a host, each host's by name.
    pub headers: BTreeMap<String, BTreeMap<String, String>>,
    /// `dnsServers`: addresses of servers that are asked for the names that it may reach; those of the machine if empty.
    pub dns_servers: Vec<String>,
    /// `egressProxy`: the SOCKS 5 proxy through which it reaches everything.
    pub egress_proxy: Option<EgressProxy>,
    /// `httpsPorts`: ports where programs speak TLS; it is opened for traffic from outside, whatever their certificate.
    pub https_ports: BTreeSet<u16>,
    /// Whether the owner of the machine says so. What others allow opens no address that is not public, or the machine's
    /// own. The daemon knows who asks, and sets it itself.
    pub named_by_owner: bool,
}

/// A SOCKS 5 proxy. It is asked for names as they are.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressProxy {
    /// `HOST:PORT`.
    pub address: String,
    /// Who asks, if it wants to know.
    pub username: Option<String>,
    /// Never told again.
    pub password: Option<String>,
}

impl std::fmt::Debug for EgressProxy {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EgressProxy({:?})", self.address)
    }
}

/// What a sandbox may use; what is `None` is the daemon's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsRequest {
    /// CPUs at once.
    pub cpus: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// Disk, MiB.
    pub disk_mib: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

impl Default for CreateRequest {
    fn default() -> Self {
        Self {
            template: BASE_TEMPLATE.to_owned(),
            snapshot: None,
            timeout_seconds: None,
            name: None,
            metadata: BTreeMap::new(),
            env: BTreeMap::new(),
            secure: true,
            on_timeout: OnTimeout::Kill,
            auto_resume: false,
            lifecycle: LifecycleRequest::default(),
            network: NetworkSettings::default(),
            volumes: Vec::new(),
            limits: LimitsRequest::default(),
            tools: ToolsRequest::default(),
            idempotency_key: None,
            browser: None,
            desktop: None,
        }
    }
}
