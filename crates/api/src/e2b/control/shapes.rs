//! The JSON of E2B's control plane, field by field. Fields of requests that are not here are ignored, because newer
//! SDKs send some.

use std::collections::{BTreeMap, BTreeSet};

use offleash_daemon::{LogLevel, LogLine, OnTimeout, PauseMode, SandboxEvent, SandboxView, UsageSample};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::listing::state_word;
use crate::control::tools::NewTools;
use crate::http::time;

pub(super) type TextMap = BTreeMap<String, String>;

/// `POST /v2/sandboxes` and `POST /sandboxes`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template: String,
    /// Seconds.
    pub(super) timeout: Option<u64>,
    pub(super) auto_pause: Option<bool>,
    pub(super) auto_pause_memory: Option<bool>,
    pub(super) auto_resume: Option<AutoResume>,
    pub(super) secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    pub(super) internet: Option<bool>,
    pub(super) network: Option<NetworkBody>,
    pub(super) metadata: Option<TextMap>,
    pub(super) env_vars: Option<TextMap>,
    pub(super) iam: Option<Value>,
    pub(super) volume_mounts: Option<Vec<VolumeMount>>,
    /// Not of E2B: the tools that code in it may call.
    pub(super) tools: Option<NewTools>,
}

/// A volume in a sandbox.
#[derive(Debug, Deserialize)]
pub(super) struct VolumeMount {
    pub(super) name: String,
    pub(super) path: String,
}

/// The same, as it is told.
#[derive(Debug, Serialize)]
pub(super) struct ShownMount<'a> {
    name: &'a str,
    path: &'a str,
}

#[derive(Debug, Deserialize)]
pub(super) struct AutoResume {
    pub(super) enabled: bool,
}

/// What a sandbox may reach and who may reach it; also `PUT /sandboxes/{id}/network`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkBody {
    #[serde(rename = "allow_internet_access")]
    pub(super) internet: Option<bool>,
    pub(super) allow_public_traffic: Option<bool>,
    pub(super) allow_out: Option<Vec<String>>,
    pub(super) deny_out: Option<Vec<String>>,
    pub(super) dns_servers: Option<Vec<String>>,
    pub(super) egress_proxy: Option<NewEgressProxy>,
    pub(super) mask_request_host: Option<String>,
    pub(super) https_ports: Option<Vec<u16>>,
    pub(super) rules: Option<BTreeMap<String, Vec<NetworkRule>>>,
}

/// A SOCKS 5 proxy. It is not shown: there is a password in it.
#[derive(Deserialize)]
pub(super) struct NewEgressProxy {
    /// `HOST:PORT`.
    pub(super) address: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) tls: Option<ProxyTls>,
}

impl std::fmt::Debug for NewEgressProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NewEgressProxy({:?})", self.address)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ProxyTls {
    pub(super) enabled: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct NetworkRule {
    pub(super) transform: Option<HeaderTransform>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HeaderTransform {
    #[serde(default)]
    pub(super) headers: TextMap,
}

/// `POST …/connect` and `POST …/resume`.
#[derive(Debug, Deserialize)]
pub(super) struct ConnectBody {
    /// Seconds.
    pub(super) timeout: Option<u64>,
    /// Whether memory is resumed, or the files alone.
    pub(super) memory: Option<bool>,
}

/// `POST …/timeout`.
#[derive(Debug, Deserialize)]
pub(super) struct TimeoutBody {
    /// Seconds.
    pub(super) timeout: u64,
}

/// `POST …/refreshes`.
#[derive(Debug, Deserialize)]
pub(super) struct RefreshBody {
    /// Seconds.
    pub(super) duration: Option<u64>,
}

/// `POST …/pause`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PauseBody {
    /// Whether memory is kept, or the files alone.
    pub(super) memory: Option<bool>,
    /// Whether it is left running where the guest in it does not answer.
    pub(super) require_healthy_guest: Option<bool>,
}

/// `POST …/fork`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ForkBody {
    /// Seconds.
    pub(super) timeout: Option<u64>,
    pub(super) count: Option<u32>,
}

/// What came of one fork: one of the two.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ForkOutcome<'a> {
    Sandbox(CreatedSandbox<'a>),
    Error { code: u16, message: String },
}

/// A sandbox as its creator gets it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreatedSandbox<'a> {
    #[serde(rename = "templateID")]
    template: &'a str,
    #[serde(rename = "sandboxID")]
    id: &'a str,
    #[serde(rename = "clientID")]
    client: &'static str,
    envd_version: &'static str,
    alias: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<&'a str>,
    traffic_access_token: Option<&'a str>,
    domain: Option<&'a str>,
}

/// There was one machine or another once; SDKs want to be told a name.
const CLIENT: &str = "offleash";

impl<'a> CreatedSandbox<'a> {
    pub(super) fn of(view: &'a SandboxView, domain: Option<&'a str>) -> Self {
        Self {
            template: &view.template,
            id: &view.id,
            client: CLIENT,
            envd_version: view.envd_version,
            alias: &view.template,
            envd_access_token: view.access_token.as_deref(),
            traffic_access_token: view.traffic_token.as_deref(),
            domain,
        }
    }
}

/// A sandbox in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedSandbox<'a> {
    #[serde(rename = "templateID")]
    template: &'a str,
    #[serde(rename = "sandboxID")]
    id: &'a str,
    #[serde(rename = "clientID")]
    client: &'static str,
    alias: &'a str,
    started_at: String,
    end_at: String,
    envd_version: &'static str,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mib: u64,
    #[serde(rename = "diskSizeMB")]
    disk_mib: u64,
    state: &'static str,
    metadata: &'a TextMap,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume_mounts: Vec<ShownMount<'a>>,
}

impl<'a> ListedSandbox<'a> {
    pub(super) fn of(view: &'a SandboxView) -> Self {
        Self {
            template: &view.template,
            id: &view.id,
            client: CLIENT,
            alias: &view.template,
            started_at: time::text(view.started_at),
            end_at: time::text(view.end_at),
            envd_version: view.envd_version,
            cpu_count: view.limits.cpus,
            memory_mib: view.limits.memory_mib,
            disk_mib: view.limits.disk_mib,
            state: state_word(view.state),
            metadata: &view.metadata,
            volume_mounts: view
                .volumes
                .iter()
                .map(|volume| ShownMount {
                    name: volume.name.as_str(),
                    path: &volume.path,
                })
                .collect(),
        }
    }
}

/// All that there is to say about a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxDetail<'a> {
    #[serde(flatten)]
    listed: ListedSandbox<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<&'a str>,
    allow_internet_access: Option<bool>,
    domain: Option<&'a str>,
    network: ShownNetwork<'a>,
    lifecycle: SandboxLifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<&'static str>,
    /// Ours: whether its next use wakes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    asleep: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownNetwork<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_public_traffic: Option<bool>,
    allow_out: &'a [String],
    deny_out: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    mask_request_host: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    dns_servers: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    egress_proxy: Option<ShownProxy<'a>>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    https_ports: &'a BTreeSet<u16>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rules: BTreeMap<&'a str, [ShownRule<'a>; 1]>,
}

/// Without the password.
#[derive(Debug, Serialize)]
struct ShownProxy<'a> {
    address: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ShownRule<'a> {
    transform: ShownTransform<'a>,
}

#[derive(Debug, Serialize)]
struct ShownTransform<'a> {
    headers: &'a TextMap,
}

impl<'a> ShownRule<'a> {
    fn of(headers: &'a TextMap) -> Self {
        Self {
            transform: ShownTransform { headers },
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SandboxLifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

impl<'a> SandboxDetail<'a> {
    pub(super) fn of(view: &'a SandboxView, domain: Option<&'a str>) -> Self {
        let network = &view.network;
        Self {
            listed: ListedSandbox::of(view),
            envd_access_token: view.access_token.as_deref(),
            allow_internet_access: network.internet,
            domain,
            network: ShownNetwork {
                allow_public_traffic: network.allow_public_traffic,
                allow_out: &network.allow_out,
                deny_out: &network.deny_out,
                mask_request_host: network.mask_request_host.as_deref(),
                dns_servers: &network.dns_servers,
                egress_proxy: network.egress_proxy.as_ref().map(|proxy| ShownProxy {
                    address: &proxy.address,
                    username: proxy.username.as_deref(),
                }),
                https_ports: &network.https_ports,
                rules: network
                    .headers
                    .iter()
                    .map(|(host, headers)| (host.as_str(), [ShownRule::of(headers)]))
                    .collect(),
            },
            lifecycle: SandboxLifecycle {
                auto_resume: view.auto_resume,
                on_timeout: match view.on_timeout {
                    OnTimeout::Kill => "kill",
                    OnTimeout::Pause => "pause",
                },
            },
            pause_mode: view.pause_mode.map(PauseMode::as_str),
            asleep: view.asleep,
        }
    }
}

/// What a sandbox used at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownMetric {
    timestamp: String,
    timestamp_unix: u64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl From<&UsageSample> for ShownMetric {
    fn from(metric: &UsageSample) -> Self {
        Self {
            timestamp: time::text(metric.at),
            timestamp_unix: time::unix_seconds(metric.at),
            cpu_count: metric.cpus,
            cpu_used_pct: metric.cpu_used_pct,
            mem_used: metric.memory_used,
            mem_total: metric.memory_total,
            mem_cache: metric.memory_cache,
            disk_used: metric.disk_used,
            disk_total: metric.disk_total,
        }
    }
}

/// Lines about a sandbox, in both shapes that there were.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogsAnswer {
    logs: Vec<PlainLine>,
    log_entries: Vec<LogEntry>,
}

#[derive(Debug, Serialize)]
struct PlainLine {
    timestamp: String,
    line: String,
}

#[derive(Debug, Serialize)]
struct LogEntry {
    timestamp: String,
    level: &'static str,
    message: String,
    fields: TextMap,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Serialize)]
pub(super) struct LogsPage {
    logs: Vec<LogEntry>,
}

impl From<&LogLine> for LogEntry {
    fn from(line: &LogLine) -> Self {
        Self {
            timestamp: time::text(line.at),
            level: LogLevel::as_str(line.level),
            message: line.line.clone(),
            fields: TextMap::new(),
        }
    }
}

impl LogsAnswer {
    pub(super) fn of(lines: &[LogLine]) -> Self {
        let plain = |line: &LogLine| PlainLine {
            timestamp: time::text(line.at),
            line: line.line.clone(),
        };
        Self {
            logs: lines.iter().map(plain).collect(),
            log_entries: lines.iter().map(LogEntry::from).collect(),
        }
    }
}

impl LogsPage {
    pub(super) fn of(lines: &[LogLine]) -> Self {
        let logs = lines.iter().map(LogEntry::from).collect();
        Self { logs }
    }
}

/// Something that happened to a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownEvent<'a> {
    version: &'static str,
    id: String,
    #[serde(rename = "type")]
    kind: String,
    event_data: Option<Value>,
    sandbox_id: &'a str,
    sandbox_template_id: &'a str,
    timestamp: String,
}

impl<'a> ShownEvent<'a> {
    pub(super) fn of(event: &'a SandboxEvent) -> Self {
        Self {
            version: "v1",
            id: event.number.to_string(),
            kind: format!("sandbox.lifecycle.{}", event.kind),
            event_data: event
                .reason
                .as_ref()
                .map(|reason| serde_json::json!({ "reason": reason })),
            sandbox_id: &event.sandbox,
            sandbox_template_id: &event.template,
            timestamp: time::text(event.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_fork_has_the_name_by_which_sdks_look_for_it() {
        let sandbox = CreatedSandbox {
            template: "base",
            id: "i1",
            client: CLIENT,
            envd_version: "1",
            alias: "base",
            envd_access_token: None,
            traffic_access_token: None,
            domain: None,
        };
        let written = |outcome: &ForkOutcome<'_>| serde_json::to_value(outcome).unwrap();
        assert_eq!(written(&ForkOutcome::Sandbox(sandbox))["sandbox"]["sandboxID"], "i1");
        let message = "no".to_owned();
        let failed = written(&ForkOutcome::Error { code: 409, message });
        assert_eq!(failed, serde_json::json!({ "error": { "code": 409, "message": "no" } }));
    }
}
