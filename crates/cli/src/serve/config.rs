//! The configuration file of `offleash serve`, and what it and the flags mean together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_api::{Listen, ServerConfig, TlsFiles};
use offleash_core::level::Degrade;
use offleash_core::network::{NetworkRule, RuleVerdict};
use offleash_core::template::{ItemError, PythonModule, TemplateName};
use offleash_core::text::Text;
use offleash_manager::daemon::{
    AdmissionConfig, BASE_TEMPLATE, DaemonConfig, Limits, PoolConfig, TemplatePool, TemplatesConfig,
};
use serde::Deserialize;

use crate::args::{ListenAt, LogArg, ServeArgs};
use crate::failure::Failure;

/// Tables of keys, all of which may be absent; and what the reference says of each.
macro_rules! tables {
    ($($table:literal $name:ident { $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:literal,)+ })+) => {
        $(#[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct $name { $($(#[doc = $doc])+ $key: Option<$type>,)+ })+

        /// Every key with its table, its default and what it is.
        #[cfg(test)]
        const KEYS: &[(&str, &str, &str, &str)] = &[
            $($(($table, stringify!($key), $default, concat!($($doc),+)),)+)+
        ];
    };
}

tables! {
    "" Server {
        /// Address to listen on; port 0 takes any that is free. A socket that systemd hands over wins.
        listen: ListenAt = "`127.0.0.1:3000`",
        /// Domain below which `PORT-ID.DOMAIN` is a port inside a sandbox; with `:PORT` unless it is reached at 443.
        domain: String = "none",
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
        /// Connections at a time; the owner's own socket has 1,024 more.
        max_connections: usize = "`16384`",
        /// Connections at a time from one address (of IPv6, one /64 network); never more than three quarters of all.
        max_connections_per_address: usize = "`4096`",
        /// Connections at a time to the ports of one sandbox.
        max_connections_per_sandbox: usize = "`512`",
        /// How long requests may go on once the server is told to end, seconds.
        drain_seconds: u64 = "`10`",
        /// Collector that is sent traces, as in `http://127.0.0.1:4318`; wins over `OTEL_EXPORTER_OTLP_ENDPOINT`. For programs built with the feature `otel`.
        otlp_endpoint: String = "none",
    }
    "sandboxes" Sandboxes {
        /// How long a sandbox lives whose creator does not say, seconds.
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
        /// Below which level none is made.
        min_level: String = "none",
        /// Whether sandboxes are made whose limits cannot all be enforced here: `allow` or `refuse`.
        degrade: String = "`allow`",
    }
    "limits" DefaultLimits {
        /// CPUs at once of a sandbox whose creator does not say.
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
        /// Sandboxes of each template that wait at most; the number between follows demand.
        max: usize = "`32`",
        /// Sandboxes that wait or are being made ahead at most, of all templates together. 0 switches the pool off.
        max_total: usize = "as `max`",
        /// How many are made ahead at a time.
        max_creating: usize = "`2`",
        /// How long one waits before it is replaced, seconds.
        max_age_seconds: u64 = "`3600`",
        /// What is different for some templates: a table `[pool.templates.NAME]` each.
        templates: BTreeMap<String, PoolTemplate> = "none",
    }
    "pool.templates.NAME" PoolTemplate {
        /// Sandboxes of template NAME that wait at least, also when nobody has asked for one.
        min: usize = "`0`, for `base` as `pool.min`",
        /// And at most.
        max: usize = "as `pool.max`",
        /// Whether they have a context of Python that is ready for its first cell.
        interpreter: bool = "as the template: whether its `pip` has IPython, or it says `imports`",
        /// What that has imported, as far as it is installed.
        imports: Vec<String> = "those of the template, or numpy, pandas, matplotlib.pyplot",
    }
    "zygotes" Zygotes {
        /// Of how many templates an interpreter of Python waits at once that has imported everything and of which
        /// sandboxes get copies. 0 for none: then each context starts its own.
        max: usize = "`8`",
        /// How long one waits for the next sandbox of its template before it is ended, seconds.
        idle_seconds: u64 = "`1800`",
    }
    "templates" Templates {
        /// Build template `code-interpreter`, which E2B's SDK for it asks for, when it is asked for and not there.
        build_on_first_use: bool = "`true`",
        /// How long a create waits for that before it is answered to try again, seconds.
        wait_seconds: u64 = "`45`",
        /// What pip installs in it.
        pip: Vec<String> = "numpy, pandas, matplotlib, scipy, scikit-learn, ipython",
        /// Where pip looks instead of PyPI.
        index_url: String = "none",
        /// What the build may reach beside that, as `--allow` has it.
        allow: Vec<String> = "`[]`",
        /// Variables of the build alone, such as `PIP_INDEX_URL`: passed by name, or set with `NAME=VALUE`.
        build_env: Vec<String> = "`[]`",
    }
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    #[serde(flatten)]
    rest: toml::Table,
}

/// The tables of the file, each read by itself so that unknown keys are refused in all.
#[derive(Debug, Default)]
struct Tables {
    server: Server,
    sandboxes: Sandboxes,
    limits: DefaultLimits,
    max_limits: MaxLimits,
    admission: Admission,
    pool: Pool,
    zygotes: Zygotes,
    templates: Templates,
}

/// What `offleash serve` is to do.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) server: ServerConfig,
    pub(super) daemon: DaemonConfig,
    pub(super) log: LogArg,
}

/// Reads the file that is named, and lets the flags win.
///
/// # Errors
/// When the file cannot be read, has a key that is not known, or says what makes no sense.
pub(super) fn read(arguments: &ServeArgs, state: Option<&Path>) -> Result<Config, Failure> {
    let tables = match &arguments.config {
        Some(path) => read_file(path)?,
        None => Tables::default(),
    };
    let log = arguments.log.or(tables.server.log).unwrap_or(LogArg::Errors);
    let server = server(arguments, &tables.server)?;
    let daemon = daemon(&tables, state)?;
    Ok(Config { server, daemon, log })
}

fn read_file(path: &Path) -> Result<Tables, Failure> {
    let shown = Text::from(path);
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(format!("reading `{shown}`: {error}")).with_hint("`--config FILE` names a file that can be read")
    })?;
    parse(&text).map_err(|error| {
        Failure::new(format!("`{shown}` is no configuration: {}", error.message()))
            .with_hint("docs/serve.md has every key, with its default")
    })
}

fn parse(text: &str) -> Result<Tables, toml::de::Error> {
    let File { mut rest } = toml::from_str(text)?;
    let sandboxes = table(&mut rest, "sandboxes")?;
    let limits = table(&mut rest, "limits")?;
    let max_limits = table(&mut rest, "max_limits")?;
    let admission = table(&mut rest, "admission")?;
    let pool = table(&mut rest, "pool")?;
    let zygotes = table(&mut rest, "zygotes")?;
    let templates = table(&mut rest, "templates")?;
    let server = toml::Value::Table(rest).try_into()?;
    Ok(Tables {
        server,
        sandboxes,
        limits,
        max_limits,
        admission,
        pool,
        zygotes,
        templates,
    })
}

fn table<T: Default + for<'a> Deserialize<'a>>(rest: &mut toml::Table, name: &str) -> Result<T, toml::de::Error> {
    rest.remove(name)
        .map_or_else(|| Ok(T::default()), toml::Value::try_into)
}

fn server(arguments: &ServeArgs, table: &Server) -> Result<ServerConfig, Failure> {
    let usual = ListenAt(SocketAddr::from(([127, 0, 0, 1], 3000)));
    let ListenAt(listen) = arguments.listen.or(table.listen).unwrap_or(usual);
    let mut config = ServerConfig::new(Listen::Address(listen));
    let files = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
        let (certificate, key) = (certificate.clone()?, key.clone()?);
        Some(TlsFiles { certificate, key })
    };
    if table.tls_cert.is_some() != table.tls_key.is_some() {
        return Err(Failure::new("`tls_cert` and `tls_key` go together").with_hint("name both, or none"));
    }
    config.tls = files(&arguments.tls_cert, &arguments.tls_key).or_else(|| files(&table.tls_cert, &table.tls_key));
    config.insecure_public = arguments.insecure_public || table.insecure_public.unwrap_or(false);
    config.domain = arguments.domain.clone().or_else(|| table.domain.clone());
    if let Some(domain) = &config.domain {
        check_domain(domain)?;
    }
    config.allow_origins = table
        .allow_origins
        .iter()
        .flatten()
        .chain(&arguments.allow_origin)
        .cloned()
        .collect();
    if let Some(origin) = config.allow_origins.iter().find(|origin| !is_origin(origin)) {
        let message = format!("`{}` is no origin", origin.escape_debug());
        return Err(Failure::new(message).with_hint("an origin has a scheme and a host, as in `https://app.example`"));
    }
    set(&mut config.max_connections, table.max_connections);
    set(&mut config.metrics_need_key, table.metrics_need_key);
    set(
        &mut config.max_connections_per_address,
        table.max_connections_per_address,
    );
    set(
        &mut config.max_connections_per_sandbox,
        table.max_connections_per_sandbox,
    );
    set(&mut config.drain, table.drain_seconds.map(Duration::from_secs));
    traces(table.otlp_endpoint.as_deref(), &mut config)?;
    Ok(config)
}

/// The variable that names a collector for every program; those without traces take no notice of it.
#[cfg(feature = "otel")]
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

#[cfg(feature = "otel")]
fn traces(named: Option<&str>, config: &mut ServerConfig) -> Result<(), Failure> {
    let everywhere = std::env::var(ENDPOINT).ok().filter(|text| !text.is_empty());
    let parsed = named.or(everywhere.as_deref()).map(str::parse).transpose();
    config.traces = parsed.map_err(|error: offleash_api::BadEndpoint| {
        Failure::from_error(&error).with_hint(format!(
            "`otlp_endpoint` or {ENDPOINT} names it, as in `http://127.0.0.1:4318`"
        ))
    })?;
    Ok(())
}

#[cfg(not(feature = "otel"))]
fn traces(named: Option<&str>, _config: &mut ServerConfig) -> Result<(), Failure> {
    match named {
        Some(_) => Err(Failure::new("`otlp_endpoint`: this program was built without traces")
            .with_hint("build it with `cargo build --release --features otel`, or leave the key out")),
        None => Ok(()),
    }
}

/// A domain is what SDKs put host names together with.
fn check_domain(domain: &str) -> Result<(), Failure> {
    let (name, port) = domain
        .split_once(':')
        .map_or((domain, None), |(name, port)| (name, Some(port)));
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(plain)
    };
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    if name.split('.').all(label) && name.len() <= 200 && port_fits {
        return Ok(());
    }
    let message = format!("`{}` is no domain", domain.escape_debug());
    Err(Failure::new(message)
        .with_hint("a domain is a name, and `:PORT` unless it is reached at 443, as in `box.test:3000`"))
}

fn is_origin(origin: &str) -> bool {
    let host = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(plain))
}

fn daemon(tables: &Tables, state: Option<&Path>) -> Result<DaemonConfig, Failure> {
    let Tables {
        sandboxes,
        limits,
        max_limits,
        admission,
        pool,
        zygotes,
        ..
    } = tables;
    let mut config = DaemonConfig {
        state: state.map(Path::to_owned),
        ..DaemonConfig::default()
    };
    set(
        &mut config.default_timeout,
        sandboxes.default_timeout_seconds.map(Duration::from_secs),
    );
    set(
        &mut config.max_timeout,
        sandboxes.max_timeout_seconds.map(Duration::from_secs),
    );
    set(&mut config.max_sandboxes, sandboxes.max);
    set(&mut config.max_creating, sandboxes.max_creating);
    set(
        &mut config.create_timeout,
        sandboxes.create_timeout_seconds.map(Duration::from_secs),
    );
    set(
        &mut config.sample_every,
        sandboxes.sample_seconds.map(Duration::from_secs),
    );
    set(
        &mut config.keep_logs,
        sandboxes.keep_logs_seconds.map(Duration::from_secs),
    );
    config.level = match sandboxes.level.as_deref() {
        None | Some("auto") => None,
        Some(word) => Some(word.parse().map_err(|error| Failure::from_error(&error))?),
    };
    let min_level = sandboxes.min_level.as_deref().map(str::parse).transpose();
    config.min_level = min_level.map_err(|error| Failure::from_error(&error))?;
    config.degrade = match sandboxes.degrade.as_deref() {
        None | Some("allow") => Degrade::Allow,
        Some("refuse") => Degrade::Refuse,
        Some(word) => {
            let message = format!("sandboxes.degrade: `{}` means nothing", word.escape_debug());
            return Err(Failure::new(message).with_hint("it is `allow` or `refuse`"));
        }
    };
    let Limits {
        cpus,
        memory_mib,
        disk_mib,
        pids,
    } = &mut config.default_limits;
    set(cpus, limits.cpus);
    set(memory_mib, limits.memory_mib);
    set(disk_mib, limits.disk_mib);
    set(pids, limits.pids);
    let Limits {
        cpus,
        memory_mib,
        disk_mib,
        pids,
    } = &mut config.max_limits;
    set(cpus, max_limits.cpus);
    set(memory_mib, max_limits.memory_mib);
    set(disk_mib, max_limits.disk_mib);
    set(pids, max_limits.pids);
    let AdmissionConfig {
        min_memory_mib,
        min_pids,
        min_disk_mib,
    } = &mut config.admission;
    set(min_memory_mib, admission.min_memory_mib);
    set(min_pids, admission.min_pids);
    set(min_disk_mib, admission.min_disk_mib);
    config.pool = warm_pool(pool, config.pool)?;
    set(&mut config.zygotes.max, zygotes.max);
    set(&mut config.zygotes.idle, zygotes.idle_seconds.map(Duration::from_secs));
    templates(&tables.templates, &mut config.templates)?;
    check_order(&config)?;
    Ok(config)
}

fn warm_pool(table: &Pool, usual: PoolConfig) -> Result<PoolConfig, Failure> {
    let mut config = PoolConfig {
        max_total: table.max_total,
        ..usual
    };
    set(&mut config.min, table.min);
    set(&mut config.max, table.max);
    set(&mut config.max_creating, table.max_creating);
    set(&mut config.max_age, table.max_age_seconds.map(Duration::from_secs));
    // A default of `min` gives way to a `max` that was written, not the other way round.
    check_bounds("pool", table.min, config.max)?;
    for (name, own) in table.templates.iter().flatten() {
        let meant = match name.as_str() {
            BASE_TEMPLATE => name.clone(),
            name => TemplateName::meant_by(name)?.to_string(),
        };
        check_bounds(
            &format!("pool.templates.{name}"),
            own.min,
            own.max.unwrap_or(config.max),
        )?;
        let imports = own.imports.as_ref().map(|names| {
            let parsed = names.iter().map(|name| name.parse::<PythonModule>());
            parsed.collect::<Result<Vec<_>, _>>()
        });
        let imports = imports.transpose().map_err(|error| {
            Failure::new(format!("pool.templates.{name}.imports: {error}"))
                .with_hint("docs/serve.md has every key, with its default")
        })?;
        let own = TemplatePool {
            min: own.min,
            max: own.max,
            interpreter: own.interpreter,
            imports,
        };
        config.templates.insert(meant, own);
    }
    let (least, most) = (config.least_total(), config.max_total());
    // Only who says how many there are of all can have meant less than the least of each.
    if table.max_total.is_some_and(|most| most > 0) && least > most {
        let message = format!("pool.max_total is {most}, and at least {least} are to wait of all templates together");
        return Err(Failure::new(message).with_hint("raise it, or lower `min` of the pool or of some templates"));
    }
    Ok(config)
}

/// Refuses a written `min` that is more than `max`.
fn check_bounds(table: &str, min: Option<usize>, max: usize) -> Result<(), Failure> {
    match min.filter(|min| *min > max) {
        None => Ok(()),
        Some(min) => Err(
            Failure::new(format!("{table}: `min` is {min}, more than `max`, which is {max}"))
                .with_hint("docs/serve.md has every key, with its default"),
        ),
    }
}

fn templates(table: &Templates, config: &mut TemplatesConfig) -> Result<(), Failure> {
    let wrong = |key: &str, error: &dyn std::fmt::Display| {
        Failure::new(format!("templates.{key}: {error}")).with_hint("docs/serve.md has every key, with its default")
    };
    set(&mut config.build_on_first_use, table.build_on_first_use);
    set(&mut config.wait, table.wait_seconds.map(Duration::from_secs));
    let recipe = &mut config.code_interpreter;
    if let Some(pip) = &table.pip {
        let parsed = pip.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        recipe.pip = parsed.map_err(|error: ItemError| wrong("pip", &error))?;
    }
    if let Some(url) = &table.index_url {
        recipe.index_url = Some(url.parse().map_err(|error: ItemError| wrong("index_url", &error))?);
    }
    for rule in table.allow.iter().flatten() {
        NetworkRule::parse(RuleVerdict::Allow, rule).map_err(|error| wrong("allow", &error))?;
        recipe.allow.push(rule.clone());
    }
    let given: Vec<OsString> = table.build_env.iter().flatten().map(OsString::from).collect();
    config.build_env = crate::template::build_env(&given)?;
    Ok(())
}

/// Refuses defaults beyond or below what may be asked for.
fn check_order(config: &DaemonConfig) -> Result<(), Failure> {
    let (least, usual, most) = (Limits::LEAST, &config.default_limits, &config.max_limits);
    let orders = [
        ("limits.cpus", least.cpus.into(), usual.cpus.into(), most.cpus.into()),
        ("limits.memory_mib", least.memory_mib, usual.memory_mib, most.memory_mib),
        ("limits.disk_mib", least.disk_mib, usual.disk_mib, most.disk_mib),
        ("limits.pids", least.pids.into(), usual.pids.into(), most.pids.into()),
        (
            "sandboxes.default_timeout_seconds",
            1,
            config.default_timeout.as_secs(),
            config.max_timeout.as_secs(),
        ),
    ];
    match orders
        .iter()
        .find(|(_, least, usual, most)| usual > most || usual < least)
    {
        None => Ok(()),
        Some((key, least, usual, most)) => {
            let message =
                format!("{key} is {usual}; it must be from {least} to {most}, the most that anybody may ask for");
            Err(Failure::new(message).with_hint("docs/serve.md has every key, with its default"))
        }
    }
}

fn set<T>(field: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *field = given;
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
