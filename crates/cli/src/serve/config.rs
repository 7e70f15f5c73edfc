//! What the configuration file of `offleash serve` and the flags mean together.

mod keys;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_api::{Listen, ServerConfig, TlsFiles};
use offleash_core::level::Degrade;
use offleash_core::network::{NetworkRule, RuleVerdict};
use offleash_core::template::{ItemError, PythonModule, TemplateName};
use offleash_manager::daemon::{
    AdmissionConfig, BASE_TEMPLATE, DaemonConfig, Limits, PoolConfig, TemplatePool, TemplatesConfig,
};

use self::keys::{Pool, Server, Tables, Templates, read_file};
use crate::args::{ListenAt, LogArg, ServeArgs};
use crate::failure::Failure;

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
