//! What a supervisor is told to make: all that it needs, as one frame on its standard input.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::RunId;
use offleash_core::level::{DegradeMode, Level, LevelChoice};
use offleash_core::limits::Limits;
use offleash_core::monitor::MonitorRule;
use offleash_core::network::host_pattern::HostPattern;
use offleash_core::network::secret::{
    NamedSecret, PlaceError, Placeholder, SecretPlace, SecretSource, SecretSpec, SecretValue, ValueError,
};
use offleash_core::network::upstream_proxy::{ProxyCredentials, ProxyError, ProxySource, UpstreamProxy};
use offleash_core::network::{
    DnsServerError, HeaderRule, HeaderRuleError, HeaderScope, NetworkRule, PatternError, RequestRules, RuleVerdict,
};
use offleash_core::spec::{ImageSpec, NetworkSpec, RootChoice, SandboxSpec, VolumeMount, ZygoteRole};
use offleash_core::template::TemplateName;
use offleash_core::text::Text;
use offleash_core::tool::{DeclaredTool, ToolGrant};
use offleash_core::units::{Bytes, CpuCount};
use offleash_core::vm::{Acceleration, VmSpec};
use offleash_images::ImageError;
use offleash_protocol::Dialogue;
use serde::{Deserialize, Serialize};

use crate::images;

/// The name of a supervisor's socket in its directory.
pub const SOCKET: &str = "supervisor.sock";

/// The name of the file in which a supervisor writes how its sandbox ended.
pub const ENDED: &str = "ended.json";

/// A sandbox that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorOrder {
    /// Its id, which no other has.
    pub id: RunId,
    /// The state directory.
    pub state: Text,
    /// The sandbox's own directory, which exists and is private (mode 0700): its socket is in there.
    pub directory: Text,
    /// What its files are at first.
    pub template: Template,
    /// The snapshot that its files are at first, above the template; not where there is none below what it writes.
    pub snapshot: Option<RunId>,
    /// Variables that every command has.
    pub env: Vec<(Text, Text)>,
    /// The level; the strongest that is to be had if absent.
    pub level: Option<Level>,
    /// The OCI runtime of level `container`, a path.
    pub runtime: Option<Text>,
    /// The hypervisor of level `microvm`, a path.
    pub hypervisor: Option<Text>,
    /// How its machine executes instructions; it is emulated if absent.
    pub acceleration: Option<Acceleration>,
    /// The guest's kernel of level `microvm`, a path.
    pub vm_kernel: Option<Text>,
    /// Below which level it is not to be made.
    pub min_level: Option<Level>,
    /// Whether weaker enforcement than asked for is acceptable.
    pub degrade: DegradeMode,
    /// What it may use.
    pub limits: LimitsOrder,
    /// What it may reach.
    pub network: NetworkOrder,
    /// Whether its programs may trace each other, as debuggers do.
    pub allow_ptrace: bool,
    /// Whose copies its processes may be.
    pub descent: ZygoteRole,
    /// Whether a copy of the zygote's process is wanted as soon as it is made, so that it is worth asking for ahead.
    pub wants_copy: bool,
    /// The volumes that it has.
    pub volumes: Vec<VolumeMount>,
    /// Whether what it writes to was copied for it, from another one's.
    pub is_copied: bool,
    /// Whether what it writes to is what it had before: an earlier supervisor of it ended, and its layer was kept.
    pub is_kept: bool,
    /// How long a client may hold it still, in milliseconds; [`MAX_HOLD`] if absent.
    pub longest_hold_ms: Option<u64>,
    /// The tools that it has.
    pub tools: Option<SandboxToolsOrder>,
    /// Rules of monitoring: those that change built-in ones, and others.
    pub monitors: Vec<MonitorRule>,
}

/// The tools of a sandbox.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxToolsOrder {
    /// Those that are declared.
    pub tools: Vec<DeclaredTool>,
    /// What is granted of them.
    pub grants: Vec<ToolGrant>,
    /// When a question about a call counts as denied, milliseconds.
    pub ask_timeout_ms: u64,
    /// The file in which calls are counted, which is there.
    pub ledger: Text,
    /// The variables of programs that are called; headers take values from them, too.
    pub env: Vec<(Text, Text)>,
}

impl std::fmt::Debug for SandboxToolsOrder {
    /// Without the variables.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        write!(f, "SandboxToolsOrder({names:?}, {:?})", self.grants)
    }
}

impl Dialogue for SupervisorOrder {
    const MAX_FRAME: usize = 8 * 1024 * 1024;
}

/// How long a client may hold a sandbox still unless it is ordered otherwise; clients themselves know shorter times.
pub const MAX_HOLD: Duration = Duration::from_secs(300);

/// What the files of a sandbox are at first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Template {
    /// The host's programs below a root that can be written to.
    #[default]
    Base,
    /// The same with a template that was built between the two.
    Built(TemplateName),
    /// The host's programs, read-only, and a home directory in memory.
    System,
    /// An image of containers.
    Image {
        /// Its whole name.
        name: String,
        /// The digest of its manifest, by which it is opened.
        digest: String,
    },
}

/// What a sandbox may use; there is no limit where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsOrder {
    /// CPUs at once.
    pub cpus: Option<CpuCount>,
    /// Memory of all processes together, in bytes.
    pub memory: Option<Bytes>,
    /// What its files may take on disk, in bytes.
    pub disk: Option<Bytes>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// What a sandbox may reach, and what becomes of its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkOrder {
    /// Any public address, unless a rule says otherwise.
    pub internet: bool,
    /// Rules that allow, as policies have them.
    pub allow: Vec<String>,
    /// Rules that deny.
    pub deny: Vec<String>,
    /// Rules that ask.
    pub ask: Vec<String>,
    /// When a question about a connection counts as denied, milliseconds; a minute if absent. Of rules that replace others it
    /// is that of before.
    pub ask_timeout_ms: Option<u64>,
    /// Headers that are set in requests over TLS.
    pub headers: Vec<HeaderOrder>,
    /// How names are resolved, and through what everything is reached.
    pub way_out: WayOutOrder,
    /// Whether the owner of the machine allows it. Otherwise no rule opens what is not public, or is the machine's own.
    pub named_by_owner: bool,
    /// Secrets that headers name; they are put in once the sandbox is there.
    pub secrets: Vec<SecretOrder>,
}

/// How the outside is reached; as the machine itself does, where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayOutOrder {
    /// Addresses of servers that are asked for names.
    pub dns_servers: Vec<String>,
    /// The proxy through which everything is reached.
    pub proxy: Option<ProxyOrder>,
}

/// A proxy that is asked by SOCKS 5 for names as they are.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyOrder {
    /// `HOST:PORT`.
    pub address: String,
    /// The name and the password that it wants.
    pub credentials: Option<(String, String)>,
}

impl std::fmt::Debug for ProxyOrder {
    /// Without the credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProxyOrder({:?})", self.address)
    }
}

impl ProxyOrder {
    /// The proxy of a gateway.
    ///
    /// # Errors
    /// When the address is none, or the credentials cannot be said.
    pub fn proxy(&self) -> Result<UpstreamProxy, ProxyError> {
        let credentials = self.credentials.as_ref();
        let credentials = credentials.map(|(name, password)| ProxyCredentials::for_socks(name, password));
        UpstreamProxy::socks(&self.address, credentials.transpose()?)
    }
}

/// A header that is set in every request over TLS to a host, in place of what a program sends. Of several hosts that
/// mean the same one, only what is said of the most specific counts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderOrder {
    /// The host, or `*.example.com` for those below one.
    pub host: String,
    /// The name of the header.
    pub name: String,
    /// Its value, which may be confidential.
    pub value: String,
}

impl std::fmt::Debug for HeaderOrder {
    /// Without the value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeaderOrder({:?} {:?}: ****)", self.host, self.name)
    }
}

impl HeaderOrder {
    /// The rule of a gateway.
    ///
    /// # Errors
    /// When host, name or value are none that a request can have.
    pub fn rule(&self) -> Result<HeaderRule, HeaderRuleError> {
        let rule = HeaderRule::parse_set(&format!("{} {}:{}", self.host, self.name, self.value))?;
        // What has a space or a colon in it would be read as something else.
        if rule.name() != self.name.to_ascii_lowercase() {
            return Err(HeaderRuleError::Name(self.name.as_str().into()));
        }
        Ok(rule)
    }
}

/// A secret that headers name by a placeholder.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretOrder {
    /// What its owner calls it.
    pub name: String,
    /// What stands in headers for it.
    pub placeholder: String,
    /// What is put in its place; requests that need one without a value are refused.
    pub value: Option<String>,
    /// The hosts that it is for.
    pub hosts: Vec<String>,
    /// The headers that it may stand in.
    pub headers: Vec<String>,
}

impl std::fmt::Debug for SecretOrder {
    /// Without the value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretOrder({:?}: ****)", self.name)
    }
}

/// In place of a value that there is not: it is for no host, so it goes nowhere.
const NO_VALUE: &str = "there is no such secret";

impl SecretOrder {
    /// The secret of a gateway.
    ///
    /// # Errors
    /// When a host, a header or the value is none.
    pub fn secret(&self) -> Result<NamedSecret, OrderError> {
        let value = self.value.as_deref().unwrap_or(NO_VALUE);
        let value = SecretValue::new(value.as_bytes().to_vec()).map_err(OrderError::SecretValue)?;
        let mut hosts = Vec::new();
        for host in self.hosts.iter().filter(|_| self.value.is_some()) {
            hosts.push(HostPattern::parse(host).map_err(|_| OrderError::SecretHost(host.as_str().into()))?);
        }
        let places: Result<Vec<SecretPlace>, _> = self
            .headers
            .iter()
            .map(|name| format!("header:{name}").parse())
            .collect();
        Ok(NamedSecret {
            spec: SecretSpec {
                name: self.name.clone(),
                // Where the value came from nobody asks any more.
                source: SecretSource::Variable(self.name.clone()),
                hosts,
                places: places.map_err(OrderError::SecretPlace)?,
            },
            value,
            placeholder: Placeholder::given(self.placeholder.clone()),
        })
    }
}

/// A rule of the network that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// One about connections.
    #[error(transparent)]
    Connections(#[from] PatternError),
    /// One about headers.
    #[error(transparent)]
    Headers(#[from] HeaderRuleError),
    /// A server for names.
    #[error(transparent)]
    DnsServer(#[from] DnsServerError),
    /// A proxy.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// What is to be the value of a secret.
    #[error("a secret: {0}")]
    SecretValue(ValueError),
    /// Where a secret is to stand.
    #[error("a secret: {0}")]
    SecretPlace(PlaceError),
    /// The host that a secret is for.
    #[error("a secret is for `{0}`, which is no host")]
    SecretHost(Text),
    /// The image.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl Explained for OrderError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Image(error) => error.kind(),
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Image(error) => error.hint(),
            Self::Connections(error) => error.hint(),
            Self::Headers(error) => error.hint(),
            Self::DnsServer(error) => error.hint(),
            Self::Proxy(error) => error.hint(),
            Self::SecretValue(error) => error.hint(),
            Self::SecretPlace(error) => error.hint(),
            Self::SecretHost(_) => None,
        }
    }
}

impl NetworkOrder {
    /// The secrets that a gateway is told of.
    ///
    /// # Errors
    /// When one is none.
    pub fn secrets(&self) -> Result<Vec<NamedSecret>, OrderError> {
        self.secrets.iter().map(SecretOrder::secret).collect()
    }

    /// What a gateway is told; there is always a way in.
    ///
    /// # Errors
    /// When a rule cannot be read.
    pub fn spec(&self) -> Result<NetworkSpec, OrderError> {
        let mut spec = NetworkSpec {
            internet: self.internet,
            entrance: true,
            ..NetworkSpec::default()
        };
        spec.policy.public_only = !self.named_by_owner;
        // Of no use where nothing is asked.
        let timeout = self.ask_timeout_ms.filter(|_| !self.ask.is_empty());
        spec.asks.timeout = timeout.map(Duration::from_millis);
        let rules = [
            (RuleVerdict::Allow, &self.allow),
            (RuleVerdict::Deny, &self.deny),
            (RuleVerdict::Ask, &self.ask),
        ];
        for (verdict, texts) in rules {
            for text in texts {
                spec.policy.rules.push(NetworkRule::parse(verdict, text)?);
            }
        }
        let headers: Result<Vec<_>, _> = self.headers.iter().map(HeaderOrder::rule).collect();
        spec.requests = RequestRules {
            headers: headers?,
            scope: HeaderScope::SpecificHostOverTls,
            ..RequestRules::default()
        };
        for server in &self.way_out.dns_servers {
            spec.add_dns_server(server.parse()?)?;
        }
        if let Some(proxy) = &self.way_out.proxy {
            spec.upstream_proxy = Some(ProxySource::Url(proxy.proxy()?));
        }
        Ok(spec)
    }
}

impl LimitsOrder {
    fn limits(&self) -> Limits {
        Limits {
            cpus: self.cpus,
            cpu_time: None,
            wall_time: None,
            memory: self.memory,
            swap: self.memory.map(|_| Bytes(0)),
            pids: self.pids,
            workspace: self.disk,
            file_size: self.disk,
            inodes: self.disk.map(|_| MAX_FILES),
            output: None,
            net_bytes: None,
            net_connections: None,
            ..Limits::default()
        }
    }
}

/// Files, directories and links of a sandbox whose disk is limited.
pub const MAX_FILES: u64 = 2_000_000;

impl SupervisorOrder {
    /// The same as every door describes a sandbox; an image is unpacked for it, which takes a process with one thread.
    ///
    /// # Errors
    /// When a rule of the network cannot be read, or the image is not to be had.
    pub fn spec(&self) -> Result<SandboxSpec, OrderError> {
        let mut network = self.network.spec()?;
        // They open no host; with other rules they may be of use later.
        network.drop_idle();
        if let Some(tools) = &self.tools
            && ToolGrant::ask_of(&tools.tools, Some(&tools.grants))
        {
            network.asks.timeout = Some(Duration::from_millis(tools.ask_timeout_ms));
        }
        let mut spec = SandboxSpec {
            level: self.level.map_or(LevelChoice::Auto, LevelChoice::Exactly),
            runtime: self.runtime.as_ref().map(|path| OsStr::from_bytes(&path.0).to_owned()),
            vm: VmSpec {
                hypervisor: self
                    .hypervisor
                    .as_ref()
                    .map(|path| OsStr::from_bytes(&path.0).to_owned()),
                kernel: self.vm_kernel.as_ref().map(|path| path.as_path().to_owned()),
                acceleration: self.acceleration,
            },
            min_level: self.min_level,
            degrade: self.degrade,
            limits: self.limits.limits(),
            network,
            pausable: true,
            allow_ptrace: self.allow_ptrace,
            descent: self.descent,
            volumes: self.volumes.clone(),
            tools: self.tools.iter().flat_map(|order| order.tools.clone()).collect(),
            tool_grants: self.tools.as_ref().map(|order| order.grants.clone()),
            monitors: self.monitors.clone(),
            root: match &self.template {
                // The layer is the supervisor's, and goes with the sandbox.
                Template::Base => RootChoice::Base {
                    template: None,
                    snapshot: self.snapshot.clone(),
                    layer: None,
                },
                Template::Built(name) => RootChoice::Base {
                    template: Some(name.clone()),
                    snapshot: self.snapshot.clone(),
                    layer: None,
                },
                Template::System => RootChoice::System,
                Template::Image { name, digest } => {
                    let image = images::specify_pinned(self.state.as_path(), name, digest)?;
                    RootChoice::Image(Box::new(ImageSpec {
                        snapshot: self.snapshot.clone(),
                        ..image
                    }))
                }
            },
            ..SandboxSpec::default()
        };
        let os = |text: &Text| text.as_os_str().to_owned();
        let set: Vec<(OsString, OsString)> = self.env.iter().map(|(name, value)| (os(name), os(value))).collect();
        spec.env.set = set;
        Ok(spec)
    }

    /// Where its socket is.
    pub fn socket(&self) -> PathBuf {
        self.directory.as_path().join(SOCKET)
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::spec::ProcessRef;

    use super::*;
    use crate::frames::{frame, only};

    fn order() -> SupervisorOrder {
        SupervisorOrder {
            id: "a".parse().unwrap(),
            state: Text(b"/s/\xff".to_vec()),
            directory: "/s/a".into(),
            template: Template::Built("python".parse().unwrap()),
            env: vec![("A".into(), "".into())],
            level: Some(Level::Process),
            runtime: Some("/opt/runsc".into()),
            hypervisor: Some("/opt/qemu-system-x86_64".into()),
            acceleration: Some(Acceleration::Tcg),
            vm_kernel: Some("/opt/kernel".into()),
            min_level: Some(Level::ProcessLandlock),
            degrade: DegradeMode::Allow,
            limits: LimitsOrder {
                cpus: Some(CpuCount { millis: 1500 }),
                memory: Some(Bytes(u64::MAX)),
                disk: None,
                pids: Some(7),
            },
            network: NetworkOrder {
                internet: true,
                allow: vec!["example.com:443".to_owned()],
                headers: vec![HeaderOrder {
                    host: "example.com".to_owned(),
                    name: "X".to_owned(),
                    value: "secret".to_owned(),
                }],
                way_out: WayOutOrder {
                    dns_servers: vec!["192.0.2.1".to_owned()],
                    proxy: Some(ProxyOrder {
                        address: "p:1".to_owned(),
                        credentials: Some(("n".to_owned(), "p".to_owned())),
                    }),
                },
                ..NetworkOrder::default()
            },
            allow_ptrace: true,
            descent: ZygoteRole::Below(ProcessRef { pid: 7, start_ticks: 9 }),
            wants_copy: true,
            is_copied: true,
            is_kept: false,
            volumes: vec![VolumeMount {
                volume: offleash_core::volume::VolumeKey::Name("v".parse().unwrap()),
                target: "/v".into(),
                access: offleash_core::spec::MountAccess::Ro,
            }],
            snapshot: None,
            longest_hold_ms: Some(1),
            tools: Some(SandboxToolsOrder {
                tools: Vec::new(),
                grants: vec!["pay where amount < 5 calls 1 ask".parse().unwrap()],
                ask_timeout_ms: 1,
                ledger: Text(b"/l".to_vec()),
                env: vec![(Text(b"A".to_vec()), Text(b"b".to_vec()))],
            }),
            monitors: offleash_core::monitor::effective_rules(&[]),
        }
    }

    #[test]
    fn an_order_arrives_as_it_was_given() {
        let sent = order();
        assert_eq!(only::<SupervisorOrder>(&frame(&sent).unwrap()).unwrap(), sent);
    }
}
