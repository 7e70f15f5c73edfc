//! The keys of the configuration file, in their tables; what they mean together is not decided here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer, ValueDeserializer};

use crate::args::{ListenAt, LogArg};

/// Tables of keys, all of which may be absent; and what the reference says of each.
macro_rules! tables {
    ($($table:literal $name:ident { $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:literal,)+ })+) => {
        $(#[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name { $($(#[doc = $doc])+ pub(super) $key: Option<$type>,)+ })+

        /// Every key with its table, its default and what it is.
        #[cfg(test)]
        pub(super) const KEYS: &[(&str, &str, &str, &str)] = &[
            $($(($table, stringify!($key), $default, concat!($($doc),+)),)+)+
        ];
    };
}

tables! {
    "" Server {
        /// Address to listen on; port 0 takes any that is free. A socket that systemd hands over wins.
        listen: ListenAt = "`127.0.0.1:3000`",
        /// Domain below which `PORT-ID.DOMAIN` is a port inside a sandbox; with `:PORT` unless it is reached at 443.
        domain: String = "`localhost` with the port, on a loopback address",
        /// Certificate chain to speak TLS with, PEM; `tls_key` goes with it.
        tls_cert: PathBuf = "none",
        /// Private key of the certificate, PEM.
        tls_key: PathBuf = "none",
        /// Listen where others can reach it without TLS, so that keys can be read on the way.
        insecure_public: bool = "`false`",
        /// Origins whose pages may call, such as `https://app.example`.
        allow_origins: Vec<String> = "`[]`",
        /// What to log on standard error, as JSON lines: `none`, `errors` or `requests`.
        log: LogArg = "`errors`",
        /// Ask for an `admin` key on `/metrics` of programs on this machine, too.
        metrics_need_key: bool = "`false`",
        /// Templates in whose languages programs are run by Piston's and Judge0's APIs, beside those of the base.
        language_templates: Vec<String> = "`[]`",
        /// Connections at a time; the owner's own socket has 1,024 more.
        max_connections: usize = "`16384`",
        /// Connections at a time from one address (of IPv6, one /64 network); never more than three quarters of all.
        max_connections_per_address: usize = "`4096`",
        /// Connections at a time to the ports of one sandbox.
        max_connections_per_sandbox: usize = "`512`",
        /// How long requests may go on once the server is told to end, seconds.
        drain_seconds: u64 = "`10`",
    }
    "sandboxes" Sandboxes {
        /// How long a sandbox lives if its creator does not say, seconds.
        default_timeout_seconds: u64 = "`300`",
        /// The longest that anybody may ask for, seconds.
        max_timeout_seconds: u64 = "`86400`",
        /// Sandboxes at a time, of all keys.
        max: usize = "`2000`",
        /// Sandboxes that are being made at a time; further ones wait.
        max_creating: usize = "`16`",
        /// How long making one may take, seconds.
        create_timeout_seconds: u64 = "`30`",
        /// How often use is sampled, seconds; 0 is never.
        sample_seconds: u64 = "`5`",
        /// How long the log of a sandbox that has ended can be read, seconds.
        keep_logs_seconds: u64 = "`86400`",
        /// Level of isolation: `auto`, `process`, ….
        level: String = "`auto`",
        /// The OCI runtime of level `container`, by its name or its path.
        runtime: String = "the first of `runsc`, `crun`, `runc` in `PATH`",
        /// The hypervisor of level `microvm`, by its name or its path.
        hypervisor: String = "`qemu-system-x86_64` in `PATH`",
        /// How machines of level `microvm` execute instructions: `kvm` or `tcg`.
        acceleration: String = "`tcg`",
        /// The guest's kernel of level `microvm`: a file, or a directory with `boot` and `lib/modules`.
        vm_kernel: String = "what `offleash vm kernel` finds",
        /// The weakest level at which sandboxes are made.
        min_level: String = "none",
        /// Whether every key may ask for sandboxes in which debuggers work (`offleash create --allow-ptrace`, or label
        /// `offleash.allow_ptrace`). Whoever started the server always may.
        allow_ptrace: bool = "`false`",
        /// Whether sandboxes are made whose limits cannot all be enforced here: `allow` or `refuse`.
        degrade: String = "`allow`",
        /// The browser of sessions inside sandboxes, program and arguments.
        browser_command: Vec<String> = "the first of `chromium`, `chromium-browser`, `google-chrome-stable`, `google-chrome`, `chrome-headless-shell`",
        /// SOCKS 5 proxies through which keys may have sandboxes and sessions of browsers reach what they may, `HOST:PORT` each.
        /// Whoever started the server may name any.
        egress_proxies: Vec<String> = "any that is public",
        /// Browsers that are started ahead and wait for sessions. Each holds the memory of a browser.
        browser_pool: usize = "`0`",
    }
    "limits" DefaultLimits {
        /// CPUs at once of a sandbox, if its creator does not say.
        cpus: u32 = "`2`",
        /// Its memory, MiB.
        memory_mib: u64 = "`512`",
        /// Its disk, MiB.
        disk_mib: u64 = "`1024`",
        /// Its processes and threads.
        pids: u32 = "`512`",
    }
    "max_limits" MaxLimits {
        /// The most CPUs that anybody may ask for.
        cpus: u32 = "`32`",
        /// The most memory, MiB.
        memory_mib: u64 = "`65536`",
        /// The most disk, MiB.
        disk_mib: u64 = "`102400`",
        /// The most processes and threads.
        pids: u32 = "`32768`",
    }
    "admission" Admission {
        /// Memory of the machine that must be available for another sandbox, MiB.
        min_memory_mib: u64 = "`256`",
        /// Processes and threads that must be possible beside those that exist.
        min_pids: u64 = "`512`",
        /// Space that must be free on the disk of the state directory, MiB.
        min_disk_mib: u64 = "`512`",
    }
    "pool" Pool {
        /// Sandboxes of template `base` that are made ahead and wait, at least.
        min: usize = "`2`",
        /// Sandboxes of each template that wait, at most. The number between follows demand.
        max: usize = "`32`",
        /// Sandboxes that wait or are being made ahead, at most, of all templates together. 0 switches the pool off.
        max_total: usize = "as `max`",
        /// How many are made ahead at a time.
        max_creating: usize = "`2`",
        /// How long one waits before it is replaced, seconds.
        max_age_seconds: u64 = "`3600`",
        /// What is different for some templates: a table `[pool.templates.NAME]` each.
        templates: BTreeMap<String, PoolTemplate> = "none",
    }
    "pool.templates.NAME" PoolTemplate {
        /// Sandboxes of template NAME that wait, at least, also when nobody has asked for one.
        min: usize = "`0`, for `base` as `pool.min`",
        /// Sandboxes of template NAME that wait, at most.
        max: usize = "as `pool.max`",
        /// Whether these sandboxes have a context of Python that is ready for its first cell.
        interpreter: bool = "as the template: whether its `pip` has IPython, or it says `imports`",
        /// Modules that this context has imported, as far as they are installed.
        imports: Vec<String> = "those of the template, or numpy, pandas, matplotlib.pyplot",
    }
    "zygotes" Zygotes {
        /// For how many templates at once a Python interpreter waits that has imported everything. Sandboxes get copies
        /// of it. With 0 each context starts its own.
        max: usize = "`8`",
        /// How long such an interpreter waits for the next sandbox of its template before it is ended, seconds.
        idle_seconds: u64 = "`1800`",
    }
    "snapshots" Snapshots {
        /// Snapshots of one key.
        max: u64 = "`100`",
        /// Checkpoints of one sandbox.
        max_checkpoints: u64 = "`20`",
        /// What snapshots of one key and checkpoints of its sandboxes take on disk together, MiB; what they share counts each time.
        max_mib: u64 = "`102400`",
    }
    "monitoring" MonitoringKeys {
        /// Policy file whose `[[monitor]]` tables are rules for every sandbox, beside the built-in ones.
        policy: PathBuf = "none",
    }
    "webhooks" WebhookKeys {
        /// Addresses that are told of what happens to sandboxes: `https://…`, or `http://` on this machine.
        urls: Vec<String> = "`[]`",
        /// Where the secret is that messages are signed with, of 16 bytes or more: `env:VARIABLE` or `file:PATH`.
        secret: String = "none",
        /// Of which types of messages they are told.
        types: Vec<String> = "all",
        /// How long an address may take until its answer begins, seconds.
        timeout_seconds: u64 = "`10`",
    }
    "telemetry" TelemetryKeys {
        /// Collector that is told, by OTLP over HTTP in JSON, as in `http://127.0.0.1:4318` or `https://collector.example`; wins over
        /// `OTEL_EXPORTER_OTLP_ENDPOINT`.
        endpoint: String = "none",
        /// Certificate authority that vouches for a collector with `https`, PEM, beside those of the machine.
        ca: PathBuf = "none",
        /// What it is told: `traces`, `metrics`, `logs`.
        signals: Vec<String> = "all",
        /// How often it is sent metrics, seconds.
        interval_seconds: u64 = "`60`",
        /// What the server is called there (`service.name`).
        service_name: String = "`offleash`",
    }
    "lifecycle" LifecycleKeys {
        /// After how long a sandbox sleeps that nobody uses, seconds; 0 is never. Its creator may say otherwise.
        idle_seconds: u64 = "`0`",
        /// What sleep keeps: `filesystem`, files alone, or `full`, memory and processes, too.
        idle_mode: String = "`filesystem`",
        /// After how long sandboxes of some templates sleep, seconds, by the template: `base = 600`.
        idle_seconds_of: BTreeMap<String, u64> = "none",
        /// Sandboxes of one key of which files alone are kept, at a time.
        max_put_away: u64 = "`500`",
        /// How often a checkpoint of a sandbox that was used is made by itself, seconds; 0 is never.
        checkpoint_every_seconds: u64 = "`0`",
        /// Commands before which a checkpoint is made, such as `rm -rf` or `git reset --hard`.
        checkpoint_before: Vec<String> = "`[]`",
        /// How many checkpoints of a sandbox that were made by themselves are kept.
        checkpoint_keep: u64 = "`5`",
        /// Commands in any sandbox before which a person is asked, such as `git push`; keys with the scope `admin` answer.
        ask_before: Vec<String> = "`[]`",
        /// Whether a person is asked before any sandbox is put back to a checkpoint; keys with the scope `admin` answer.
        ask_before_restore: bool = "`false`",
    }
    "templates" Templates {
        /// Whether to build templates `code-interpreter` and `mcp-gateway`, which E2B's SDKs ask for, when one is missing.
        build_on_first_use: bool = "`true`",
        /// How long a create waits for such a build before it is answered to try again, seconds.
        wait_seconds: u64 = "`45`",
        /// What pip installs in `code-interpreter`; nothing else is installed then.
        pip: Vec<String> = "those of the [usual recipe](templates.md#the-code-interpreters)",
        /// Where pip looks instead of PyPI.
        index_url: String = "none",
        /// What the build may reach beside that, as `--allow` has it.
        allow: Vec<String> = "`[]`",
        /// Variables of the build alone, such as `PIP_INDEX_URL`: passed by name, or set with `NAME=VALUE`.
        build_env: Vec<String> = "`[]`",
        /// Whether builds of keys ask the indexes of pip, npm and apt that this machine's configuration names, with its credentials.
        own_indexes: bool = "`false`",
        /// How much the templates that one key has built may take on disk before it builds no more, MiB.
        max_mib: u64 = "`102400`",
    }
    "tools" ToolKeys {
        /// Policy with the tools (`[[tool]]`) that sandboxes may have. Programs that are called have the server's variables.
        policy: PathBuf = "none",
        /// What sandboxes of some templates have of them where nobody asks for less, by the template: `base = [\"pay calls 3\"]`.
        templates: BTreeMap<String, Vec<String>> = "none",
        /// How long a question about a call waits for an answer before the call is refused, seconds.
        ask_timeout_seconds: u64 = "`60`",
    }
    "images" Images {
        /// Images that keys may use: names in which `*` is any text, such as `python`, `ghcr.io/owner/*` or `python:3.*`.
        allow: Vec<String> = "`[\"*\"]`",
        /// `missing`: an image that is not here is pulled when it is asked for, if `allow` says which. Otherwise `never`.
        pull: String = "`never`",
        /// How long a create waits for an image that is pulled, before it is answered to try again, seconds.
        wait_seconds: u64 = "`45`",
        /// Addresses that are asked before a registry is, by the registry: `\"docker.io\" = \"https://mirror.example\"`.
        mirrors: BTreeMap<String, String> = "none",
        /// Files with certificate authorities of registries, PEM, beside those of the machine.
        registry_ca: Vec<PathBuf> = "`[]`",
        /// Ask registries on this machine without TLS.
        plain_http: bool = "`false`",
        /// Docker's configuration with credentials of registries.
        docker_config: PathBuf = "that of whoever starts the server",
        /// What is different for some keys: a table `[images.keys.ID]` each, by the id that `offleash key ls` shows.
        keys: BTreeMap<String, ImagesOfKey> = "none",
    }
    "images.keys.ID" ImagesOfKey {
        /// Images that this key may use.
        allow: Vec<String> = "as `images.allow`",
        /// Whether an image is pulled for it.
        pull: String = "as `images.pull`",
    }
    "volumes" Volumes {
        /// Servers whose buckets volumes of keys may have, as in `https://s3.eu-west-1.amazonaws.com`. Whoever started the
        /// server may name any.
        bucket_endpoints: Vec<String> = "`[]`",
    }
}

/// Every table that the file can have.
pub(super) const TABLES: [&str; 15] = [
    "sandboxes",
    "limits",
    "max_limits",
    "admission",
    "pool",
    "zygotes",
    "snapshots",
    "monitoring",
    "webhooks",
    "telemetry",
    "lifecycle",
    "templates",
    "tools",
    "images",
    "volumes",
];

/// The tables of the file, each read by itself so that unknown keys are refused in all.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) server: Server,
    pub(super) sandboxes: Sandboxes,
    pub(super) limits: DefaultLimits,
    pub(super) max_limits: MaxLimits,
    pub(super) admission: Admission,
    pub(super) pool: Pool,
    pub(super) zygotes: Zygotes,
    pub(super) snapshots: Snapshots,
    pub(super) monitoring: MonitoringKeys,
    pub(super) webhooks: WebhookKeys,
    pub(super) telemetry: TelemetryKeys,
    pub(super) lifecycle: LifecycleKeys,
    pub(super) templates: Templates,
    pub(super) images: Images,
    pub(super) tools: ToolKeys,
    pub(super) volumes: Volumes,
}

impl Tables {
    /// Reads what the text holds, which knows where each value stands.
    ///
    /// # Errors
    /// When a key is not known, or a value is not what its key takes.
    pub(super) fn of(mut root: Spanned<DeTable<'_>>) -> Result<Self, toml::de::Error> {
        let rest = root.as_mut();
        let sandboxes = table(rest, "sandboxes")?;
        let limits = table(rest, "limits")?;
        let max_limits = table(rest, "max_limits")?;
        let admission = table(rest, "admission")?;
        let pool = table(rest, "pool")?;
        let zygotes = table(rest, "zygotes")?;
        let snapshots = table(rest, "snapshots")?;
        let monitoring = table(rest, "monitoring")?;
        let webhooks = table(rest, "webhooks")?;
        let telemetry = table(rest, "telemetry")?;
        let lifecycle = table(rest, "lifecycle")?;
        let templates = table(rest, "templates")?;
        let images = table(rest, "images")?;
        let volumes = table(rest, "volumes")?;
        let tools = table(rest, "tools")?;
        let server = Server::deserialize(Deserializer::from(root))?;
        Ok(Self {
            server,
            sandboxes,
            limits,
            max_limits,
            admission,
            pool,
            zygotes,
            snapshots,
            monitoring,
            webhooks,
            telemetry,
            lifecycle,
            templates,
            images,
            tools,
            volumes,
        })
    }
}

fn table<'a, T: Default + Deserialize<'a>>(rest: &mut DeTable<'a>, name: &str) -> Result<T, toml::de::Error> {
    match rest.remove(name) {
        Some(value) => T::deserialize(ValueDeserializer::from(value)),
        None => Ok(T::default()),
    }
}
