//! From a request to what is kept of it: everything checked, nothing left open.

use std::collections::BTreeMap;
use std::time::Duration;

use offleash_core::level::Level;
use offleash_core::spec::ProcessRef;
use offleash_interpreter::contexts::DEFAULT_CWD;
use offleash_interpreter::state::SavedContext;
use offleash_supervisor::clock::now_ms;
use serde::{Deserialize, Serialize};

use crate::config::DaemonConfig;
use crate::egress_route;
use crate::error::DaemonError;
use crate::lifecycle::Lifecycle;
use crate::network;
use crate::registry::{SandboxRow, SandboxState};
use crate::request::{ALLOW_PTRACE_LABEL, CreateRequest, LEVEL_LABEL, LimitsRequest, NetworkSettings};
use crate::sandbox_tools::SandboxTools;
use crate::view::SandboxLimits;
use crate::volume_mounts::SandboxVolume;

/// What is kept of a request beside what the registry has columns for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Specification {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) network: NetworkSettings,
    pub(crate) limits: SandboxLimits,
    /// The level that it was asked for at, if it was.
    pub(crate) asked_level: Option<Level>,
    /// Whether its programs may trace each other.
    pub(crate) allow_ptrace: bool,
    /// Whether the rules above may not be those that the sandbox has: they are written before they are set.
    pub(crate) network_pending: bool,
    /// What was left of its time when it was last paused, milliseconds.
    pub(crate) left_ms: Option<i64>,
    /// Whether it was paused because nobody used it.
    #[serde(default)]
    pub(crate) asleep: bool,
    /// Contexts of code that lie in its files while it is paused without memory.
    #[serde(default)]
    pub(crate) saved: Vec<SavedContext>,
    /// When it sleeps, and when checkpoints of it are made by themselves.
    #[serde(default)]
    pub(crate) lifecycle: Lifecycle,
    /// The tools that it has.
    #[serde(default)]
    pub(crate) tools: SandboxTools,
    /// Which build of its template it is of, or the digest of the manifest of its image.
    pub(crate) build: Option<String>,
    /// Where commands start in a sandbox of an image that are not told where; the home of the usual user if absent.
    pub(crate) cwd: Option<String>,
    /// The zygote below which it was made, by that one's first process.
    pub(crate) zygote: Option<ProcessRef>,
    /// The volumes that it has.
    pub(crate) volumes: Vec<SandboxVolume>,
    /// The sandbox whose files it begins with; they are copied before it is made.
    pub(crate) fork_of: Option<String>,
    /// The snapshot, or the checkpoint that it was restored to, that its files lie over.
    pub(crate) snapshot: Option<String>,
    /// The checkpoint that it is at, or was made last.
    pub(crate) checkpoint: Option<String>,
    /// How it is isolated; empty until it is there.
    pub(crate) level: String,
    /// What is not enforced, with the reason.
    pub(crate) not_enforced: BTreeMap<String, String>,
}

/// Most labels or variables of a sandbox, and most bytes of them, counted as they are written in JSON: a character can take
/// six there, and lists of sandboxes tell all labels. A request that is longer is none of a person's.
const MAX_ENTRIES: usize = 256;
const MAX_NAME: usize = 256;
const MAX_VALUE: usize = 32 * 1024;
const MAX_BYTES: usize = 64 * 1024;

const MAX_IDEMPOTENCY_KEY: usize = 255;

impl Specification {
    /// Checks `request` and settles what it leaves open.
    pub(crate) fn of(request: &CreateRequest, config: &DaemonConfig) -> Result<Self, DaemonError> {
        check_map("metadata", &request.metadata)?;
        check_env(&request.env)?;
        check_idempotency_key(request.idempotency_key.as_deref())?;
        network::check(&request.network)?;
        egress_route::check_named(&request.network, config.egress_proxies.as_deref())?;
        Ok(Self {
            env: request.env.clone(),
            network: request.network.clone(),
            limits: limits(&request.limits, config)?,
            asked_level: asked_level(&request.metadata)?,
            allow_ptrace: asks_for_ptrace(&request.metadata)?,
            lifecycle: Lifecycle::of(
                &request.lifecycle,
                &request.metadata,
                &request.template,
                &config.lifecycle,
            )?,
            ..Self::usual(config)
        })
    }

    /// What a member of the warm pool is.
    pub(crate) fn usual(config: &DaemonConfig) -> Self {
        Self {
            env: BTreeMap::new(),
            network: NetworkSettings::default(),
            limits: config.default_limits,
            asked_level: None,
            allow_ptrace: false,
            network_pending: false,
            left_ms: None,
            asleep: false,
            saved: Vec::new(),
            lifecycle: Lifecycle::default(),
            tools: SandboxTools::default(),
            build: None,
            cwd: None,
            zygote: None,
            volumes: Vec::new(),
            fork_of: None,
            snapshot: None,
            checkpoint: None,
            level: String::new(),
            not_enforced: BTreeMap::new(),
        }
    }

    /// Where contexts of code work that are not told where.
    pub(crate) fn work_directory(&self) -> &str {
        self.cwd.as_deref().unwrap_or(DEFAULT_CWD)
    }

    /// How long it had left to live when it was last paused, if any time.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.left_ms.and_then(|left| u64::try_from(left).ok());
        left.filter(|left| *left > 0).map(Duration::from_millis)
    }

    /// The row of a sandbox that is about to be made like this, and is nobody's so far.
    pub(crate) fn new_row(&self, id: &str, template: &str) -> SandboxRow {
        SandboxRow {
            id: id.to_owned(),
            key_id: None,
            state: SandboxState::Creating,
            template: template.to_owned(),
            spec: self.to_json(),
            metadata: BTreeMap::new(),
            started_ms: now_ms(),
            end_ms: now_ms(),
            auto_pause: false,
            auto_resume: false,
            access_token: None,
            traffic_token: None,
            supervisor: None,
            generation: 0,
            idempotency_key: None,
        }
    }

    pub(crate) fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(crate) fn to_json(&self) -> String {
        // Maps with keys that are strings, strings and numbers: nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// How long a sandbox is to live.
///
/// # Errors
/// `Invalid` beyond the longest time, and for no time at all.
pub(crate) fn timeout(seconds: Option<u64>, config: &DaemonConfig) -> Result<Duration, DaemonError> {
    match seconds {
        Some(0) => Err(DaemonError::invalid("timeout", "must be at least 1 second")),
        _ => time_left(seconds, config),
    }
}

/// As [`timeout`], for one that may be over at once.
pub(crate) fn time_left(seconds: Option<u64>, config: &DaemonConfig) -> Result<Duration, DaemonError> {
    let timeout = seconds.map_or(config.default_timeout, Duration::from_secs);
    if timeout > config.max_timeout {
        let most = config.max_timeout.as_secs();
        return Err(DaemonError::invalid(
            "timeout",
            format!("must be at most {most} seconds"),
        ));
    }
    Ok(timeout)
}

pub(crate) fn limits(asked: &LimitsRequest, config: &DaemonConfig) -> Result<SandboxLimits, DaemonError> {
    let (usual, least, most) = (&config.default_limits, SandboxLimits::LEAST, &config.max_limits);
    Ok(SandboxLimits {
        cpus: within("cpuCount", "", asked.cpus, usual.cpus, (least.cpus, most.cpus))?,
        memory_mib: within(
            "memoryMB",
            " MiB",
            asked.memory_mib,
            usual.memory_mib,
            (least.memory_mib, most.memory_mib),
        )?,
        disk_mib: within(
            "diskSizeMB",
            " MiB",
            asked.disk_mib,
            usual.disk_mib,
            (least.disk_mib, most.disk_mib),
        )?,
        pids: within("pids", "", asked.pids, usual.pids, (least.pids, most.pids))?,
    })
}

fn within<T: PartialOrd + std::fmt::Display + Copy>(
    field: &'static str,
    unit: &str,
    asked: Option<T>,
    usual: T,
    (least, most): (T, T),
) -> Result<T, DaemonError> {
    match asked {
        Some(asked) if asked < least || asked > most => Err(DaemonError::invalid(
            field,
            format!("{asked}{unit} is not between {least} and {most}{unit}"),
        )),
        asked => Ok(asked.unwrap_or(usual)),
    }
}

/// Whether debuggers are asked for.
fn asked_level(metadata: &BTreeMap<String, String>) -> Result<Option<Level>, DaemonError> {
    match metadata.get(LEVEL_LABEL).map(|word| word.parse()) {
        None => Ok(None),
        Some(Ok(level @ (Level::Simulated | Level::Process | Level::Container | Level::Microvm))) => Ok(Some(level)),
        Some(_) => Err(DaemonError::invalid(
            "metadata",
            format!("label `{LEVEL_LABEL}` is `simulated`, `process`, `container` or `microvm`"),
        )),
    }
}

fn asks_for_ptrace(metadata: &BTreeMap<String, String>) -> Result<bool, DaemonError> {
    match metadata.get(ALLOW_PTRACE_LABEL).map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(DaemonError::invalid(
            "metadata",
            format!("label `{ALLOW_PTRACE_LABEL}` is `true` or `false`"),
        )),
    }
}

/// That what somebody else's file says of a sandbox could have been asked for here.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_imported(
    env: &BTreeMap<String, String>,
    asked: Option<&SandboxLimits>,
    config: &DaemonConfig,
) -> Result<(), DaemonError> {
    check_env(env)?;
    let asked = asked.map_or_else(LimitsRequest::default, |limits| LimitsRequest {
        cpus: Some(limits.cpus),
        memory_mib: Some(limits.memory_mib),
        disk_mib: Some(limits.disk_mib),
        pids: Some(limits.pids),
    });
    limits(&asked, config).map(drop)
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), DaemonError> {
    check_map("envVars", env)?;
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let why = format!("`{}` is not a variable", name.escape_debug());
            return Err(DaemonError::invalid("envVars", why));
        }
    }
    Ok(())
}

/// Fails for labels or variables that are more than a sandbox may have.
pub(crate) fn check_map(field: &'static str, map: &BTreeMap<String, String>) -> Result<(), DaemonError> {
    if map.len() > MAX_ENTRIES {
        return Err(DaemonError::invalid(field, format!("more than {MAX_ENTRIES} entries")));
    }
    let bytes: usize = map.iter().map(|(name, value)| written(name) + written(value)).sum();
    if bytes > MAX_BYTES {
        return Err(DaemonError::invalid(field, format!("more than {MAX_BYTES} bytes")));
    }
    for (name, value) in map {
        if name.len() > MAX_NAME {
            return Err(DaemonError::invalid(
                field,
                format!("a name has more than {MAX_NAME} bytes"),
            ));
        }
        if value.len() > MAX_VALUE {
            return Err(DaemonError::invalid(
                field,
                format!("a value has more than {MAX_VALUE} bytes"),
            ));
        }
    }
    Ok(())
}

/// How many bytes a text takes in JSON, without its quotes.
pub(crate) fn written(text: &str) -> usize {
    let byte = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(byte).sum()
}

fn check_idempotency_key(key: Option<&str>) -> Result<(), DaemonError> {
    let Some(key) = key else { return Ok(()) };
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY || !key.bytes().all(allowed) {
        let why = format!("expected 1 to {MAX_IDEMPOTENCY_KEY} characters of a-z, 0-9 and `-`");
        return Err(DaemonError::invalid("Idempotency-Key", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_of_a_sandbox_is_what_a_create_could_say() {
        let config = DaemonConfig::default();
        let usual = config.default_limits;
        let env = |name: &str| BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        check_imported(&env("A"), Some(&usual), &config).unwrap();
        check_imported(&BTreeMap::new(), None, &config).unwrap();
        for wrong in ["", "A=B", "A\0"] {
            let refused = check_imported(&env(wrong), Some(&usual), &config);
            assert!(
                matches!(refused, Err(DaemonError::Invalid { field: "envVars", .. })),
                "{wrong:?}"
            );
        }
        let absurd = [
            SandboxLimits { cpus: 0, ..usual },
            SandboxLimits {
                memory_mib: u64::MAX,
                ..usual
            },
            SandboxLimits {
                disk_mib: u64::MAX,
                ..usual
            },
            SandboxLimits { pids: 0, ..usual },
        ];
        for limits in absurd {
            let refused = check_imported(&BTreeMap::new(), Some(&limits), &config);
            assert!(matches!(refused, Err(DaemonError::Invalid { .. })), "{limits:?}");
        }
    }

    #[test]
    fn what_is_kept_is_read_back_whole_or_not_at_all() {
        let kept = Specification {
            asked_level: Some(Level::Container),
            allow_ptrace: true,
            left_ms: Some(7),
            build: Some("1".to_owned()),
            cwd: Some("/work".to_owned()),
            zygote: Some(ProcessRef { pid: 7, start_ticks: 9 }),
            volumes: vec![SandboxVolume {
                id: offleash_core::volume::VolumeId::from_random(7),
                name: "v".parse().unwrap(),
                path: "/v".to_owned(),
                access: offleash_core::spec::MountAccess::Rw,
            }],
            fork_of: Some("i1".to_owned()),
            level: "process".to_owned(),
            not_enforced: BTreeMap::from([("memory".to_owned(), "why".to_owned())]),
            ..Specification::usual(&DaemonConfig::default())
        };
        let text = kept.to_json();
        assert_eq!(Specification::from_json(&text), Some(kept));
        let whole: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        for name in [
            "env",
            "network",
            "limits",
            "allow_ptrace",
            "network_pending",
            "level",
            "not_enforced",
        ] {
            let mut part = whole.clone();
            assert!(part.remove(name).is_some(), "{name}");
            let text = serde_json::to_string(&part).unwrap();
            assert_eq!(Specification::from_json(&text), None, "without {name}");
        }
    }

    #[test]
    fn texts_are_counted_as_they_are_written() {
        for text in ["", "plain", "\u{1}\u{1f}\u{8}\u{c}\n\r\t\"\\/", "é\u{7f}\u{2028}😀"] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(written(text) + 2, json.len(), "{json}");
        }
    }

    #[test]
    fn debuggers_are_asked_for_by_one_word() {
        let asked = |value: &str| asks_for_ptrace(&BTreeMap::from([(ALLOW_PTRACE_LABEL.to_owned(), value.to_owned())]));
        assert!(!asks_for_ptrace(&BTreeMap::new()).unwrap());
        assert!(asked("true").unwrap() && !asked("false").unwrap());
        for word in ["", "1", "True", "yes"] {
            asked(word).unwrap_err();
        }
    }

    #[test]
    fn labels_and_variables_are_bounded_as_they_are_told() {
        let with = |text: &str, count: usize| {
            let map: BTreeMap<String, String> =
                (0..count).map(|number| (number.to_string(), text.to_owned())).collect();
            check_map("metadata", &map)
        };
        with(&"x".repeat(30 * 1024), 2).unwrap();
        with(&"x".repeat(30 * 1024), 3).unwrap_err();
        with(&"\u{1}".repeat(10_000), 1).unwrap();
        with(&"\u{1}".repeat(10_000), 2).unwrap_err();
    }
}
