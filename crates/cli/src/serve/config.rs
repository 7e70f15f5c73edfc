//! What the configuration file of `offleash serve` and the flags mean together.

mod images;
mod keys;
mod lifecycle;
mod telemetry;
mod templates;
mod tools;
mod webhooks;
mod written;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_api::{Listen, ServerConfig, TlsFiles};
use offleash_core::bucket::BucketEndpoint;
use offleash_core::level::{DegradeMode, Level};
use offleash_core::vm::Acceleration;
use offleash_daemon::{AdmissionConfig, DaemonConfig, SandboxLimits};
use offleash_supervisor::lifecycle::{find_hypervisor, find_runtime};

use self::keys::{Server, Tables};
use self::written::{Written, Wrong};
use crate::args::{ListenAt, LogArg, ServeArgs};
use crate::failure::Failure;
use crate::specify::read_policy;

/// What `offleash serve` is to do.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) server: ServerConfig,
    pub(super) daemon: DaemonConfig,
    pub(super) log: LogArg,
    /// Where what it says is written.
    written: Option<Written>,
}

impl Config {
    /// What is wrong with it without keeping the server from anything: tables of templates that are not there.
    pub(super) fn warnings(&self) -> Vec<Failure> {
        let told = match templates::missing(&self.daemon) {
            Ok(missing) => missing,
            Err(failure) => return vec![failure],
        };
        let placed = |wrong: Wrong| {
            self.written
                .as_ref()
                .map_or_else(|| (&wrong).into(), |file| file.wrong(&wrong))
        };
        told.into_iter().map(placed).collect()
    }
}

/// Reads the file that is named, and lets the flags win.
///
/// # Errors
/// When the file cannot be read, has a key that is not known, or says what makes no sense.
pub(super) fn read(arguments: &ServeArgs, state: Option<&Path>) -> Result<Config, Failure> {
    let (written, tables) = match &arguments.config {
        Some(path) => Written::read(path).map(|(written, tables)| (Some(written), tables))?,
        None => (None, Tables::default()),
    };
    let log = arguments.log.or(tables.server.log).unwrap_or(LogArg::Errors);
    let placed = |wrong: Wrong| match &written {
        // What is wrong with a flag stands in no file.
        Some(written) if !wrong.is_flag() => written.wrong(&wrong),
        _ => (&wrong).into(),
    };
    let mut server = server(arguments, &tables.server).map_err(placed)?;
    let variable = |name: &str| std::env::var(name).ok();
    telemetry::telemetry(&tables.telemetry, &variable, &mut server.telemetry).map_err(placed)?;
    let daemon = daemon(&tables, state).map_err(placed)?;
    Ok(Config {
        server,
        daemon,
        log,
        written,
    })
}

fn server(arguments: &ServeArgs, table: &Server) -> Result<ServerConfig, Wrong> {
    let usual = ListenAt(SocketAddr::from(([127, 0, 0, 1], 3000)));
    let ListenAt(listen) = arguments.listen.or(table.listen).unwrap_or(usual);
    let mut config = ServerConfig::new(Listen::Address(listen));
    let files = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
        let (certificate, key) = (certificate.clone()?, key.clone()?);
        Some(TlsFiles { certificate, key })
    };
    if table.tls_cert.is_some() != table.tls_key.is_some() {
        let there = if table.tls_cert.is_some() {
            "tls_cert"
        } else {
            "tls_key"
        };
        return Err(Wrong::new(there, "`tls_cert` and `tls_key` go together").with_hint("name both, or none"));
    }
    config.tls = files(&arguments.tls_cert, &arguments.tls_key).or_else(|| files(&table.tls_cert, &table.tls_key));
    config.insecure_public = arguments.insecure_public || table.insecure_public.unwrap_or(false);
    let domain = arguments.domain.as_ref().map(|domain| (domain, "--domain"));
    let domain = domain.or_else(|| table.domain.as_ref().map(|domain| (domain, "domain")));
    if let Some((domain, key)) = domain {
        check_domain(domain, key)?;
    }
    config.domain = domain.map(|(domain, _)| domain.clone());
    let origins = table.allow_origins.as_deref().unwrap_or_default();
    check_origins(origins, "allow_origins")?;
    check_origins(&arguments.allow_origin, "--allow-origin")?;
    config.allow_origins = origins.iter().chain(&arguments.allow_origin).cloned().collect();
    set(&mut config.max_connections, table.max_connections);
    set(&mut config.metrics_need_key, table.metrics_need_key);
    set(&mut config.language_templates, table.language_templates.clone());
    set(
        &mut config.max_connections_per_address,
        table.max_connections_per_address,
    );
    set(
        &mut config.max_connections_per_sandbox,
        table.max_connections_per_sandbox,
    );
    set(&mut config.drain, table.drain_seconds.map(Duration::from_secs));
    Ok(config)
}

/// The same of a flag alone.
pub(super) fn check_domain_flag(domain: &str) -> Result<(), Failure> {
    check_domain(domain, "--domain").map_err(|wrong| Failure::from(&wrong))
}

/// A domain is what SDKs put host names together with.
fn check_domain(domain: &str, key: &str) -> Result<(), Wrong> {
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
    Err(Wrong::new(key, message)
        .with_hint("a domain is a name, and `:PORT` unless it is reached at 443, as in `box.test:3000`"))
}

fn check_origins(origins: &[String], key: &str) -> Result<(), Wrong> {
    match origins.iter().position(|origin| !is_origin(origin)) {
        None => Ok(()),
        Some(number) => {
            let message = format!("`{}` is no origin", origins[number].escape_debug());
            Err(Wrong::item(key, number, message)
                .with_hint("an origin has a scheme and a host, as in `https://app.example`"))
        }
    }
}

fn is_origin(origin: &str) -> bool {
    let host = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(plain))
}

fn daemon(tables: &Tables, state: Option<&Path>) -> Result<DaemonConfig, Wrong> {
    let Tables {
        sandboxes,
        limits,
        max_limits,
        admission,
        pool,
        zygotes,
        snapshots,
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
    set(&mut config.allow_ptrace, sandboxes.allow_ptrace);
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
        Some(word) => Some(word.parse().map_err(|error| Wrong::new("sandboxes.level", error))?),
    };
    set(&mut config.browser_command, sandboxes.browser_command.clone());
    set(&mut config.browser_pool, sandboxes.browser_pool);
    set(&mut config.egress_proxies, sandboxes.egress_proxies.clone().map(Some));
    config.runtime = sandboxes.runtime.as_deref().map(PathBuf::from);
    config.hypervisor = sandboxes.hypervisor.as_deref().map(PathBuf::from);
    config.acceleration = match sandboxes.acceleration.as_deref() {
        None => None,
        Some(word) => Some(
            Acceleration::parse(word).ok_or_else(|| Wrong::new("sandboxes.acceleration", "it is `kvm` or `tcg`"))?,
        ),
    };
    config.vm_kernel = sandboxes.vm_kernel.as_deref().map(PathBuf::from);
    let min_level = sandboxes.min_level.as_deref().map(str::parse).transpose();
    config.min_level = min_level.map_err(|error| Wrong::new("sandboxes.min_level", error))?;
    config.degrade = match sandboxes.degrade.as_deref() {
        None | Some("allow") => DegradeMode::Allow,
        Some("refuse") => DegradeMode::Refuse,
        Some(word) => {
            let message = format!("`{}` means nothing", word.escape_debug());
            return Err(Wrong::new("sandboxes.degrade", message).with_hint("it is `allow` or `refuse`"));
        }
    };
    let SandboxLimits {
        cpus,
        memory_mib,
        disk_mib,
        pids,
    } = &mut config.default_limits;
    set(cpus, limits.cpus);
    set(memory_mib, limits.memory_mib);
    set(disk_mib, limits.disk_mib);
    set(pids, limits.pids);
    let SandboxLimits {
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
    config.pool = templates::warm_pool(pool, config.pool)?;
    set(&mut config.zygotes.max, zygotes.max);
    set(&mut config.snapshots.max, snapshots.max);
    set(&mut config.snapshots.max_checkpoints, snapshots.max_checkpoints);
    set(&mut config.snapshots.max_mib, snapshots.max_mib);
    set(&mut config.zygotes.idle, zygotes.idle_seconds.map(Duration::from_secs));
    if let Some(file) = &tables.monitoring.policy {
        let policy = read_policy(file).map_err(|failure| Wrong::new("monitoring.policy", failure))?;
        config.monitors = policy.monitors;
    }
    webhooks::webhooks(&tables.webhooks, &mut config.webhooks)?;
    lifecycle::lifecycle(&tables.lifecycle, &mut config.lifecycle)?;
    templates::built(&tables.templates, &mut config.templates)?;
    images::images(&tables.images, &mut config.images)?;
    tools::tools(&tables.tools, &mut config.tools)?;
    config.volumes.bucket_endpoints = endpoints(tables.volumes.bucket_endpoints.as_deref().unwrap_or_default())?;
    check_order(&config)?;
    check_level(&config)?;
    Ok(config)
}

fn endpoints(written: &[String]) -> Result<Vec<BucketEndpoint>, Wrong> {
    let endpoint = |(number, text): (usize, &String)| {
        let parsed = text.parse::<BucketEndpoint>();
        parsed.map_err(|error| {
            Wrong::item("volumes.bucket_endpoints".to_owned(), number, error)
                .with_hint("endpoints are like `https://s3.eu-west-1.amazonaws.com`")
        })
    };
    written.iter().enumerate().map(endpoint).collect()
}

/// Refuses levels at which no sandbox of the server can be made.
fn check_level(config: &DaemonConfig) -> Result<(), Wrong> {
    /// Those of which sandboxes have a root of their own, as all of the server's have.
    const THERE: [Level; 4] = [Level::Simulated, Level::Process, Level::Container, Level::Microvm];
    let wrong = |key, level| {
        Wrong::new(
            key,
            format!(
                "it is `{level}`, and sandboxes of the server are of level `{}`, `{}`, `{}` or `{}`",
                THERE[0], THERE[1], THERE[2], THERE[3]
            ),
        )
    };
    let wanted = config.runtime.as_deref();
    let is_needed = wanted.is_some() || config.level == Some(Level::Container);
    if is_needed && find_runtime(wanted).is_none() {
        let why = "there is no such `runsc`, `crun` or `runc`; `offleash doctor` says what the machine has";
        return Err(Wrong::new("sandboxes.runtime", why));
    }
    let wanted = config.hypervisor.as_deref();
    let is_needed = wanted.is_some() || config.level == Some(Level::Microvm);
    if is_needed && find_hypervisor(wanted).is_none() {
        let why = "there is no such hypervisor; `offleash doctor` says what the machine has";
        return Err(Wrong::new("sandboxes.hypervisor", why));
    }
    match config.level {
        Some(level) if !THERE.contains(&level) => Err(wrong("sandboxes.level", level)),
        _ => Ok(()),
    }
}

/// Refuses defaults beyond or below what may be asked for.
fn check_order(config: &DaemonConfig) -> Result<(), Wrong> {
    let (least, usual, most) = (SandboxLimits::LEAST, &config.default_limits, &config.max_limits);
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
                format!("it is {usual}, and must be from {least} to {most}, the most that anybody may ask for");
            Err(Wrong::new(*key, message))
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
