//! Making a zygote: a sandbox without network and owner, and the interpreter in it.

use std::io;
use std::time::Duration;

use offleash_core::error::with_causes;
use offleash_core::id::RunId;
use offleash_core::spec::{ProcessRef, ZygoteRole};
use offleash_core::template::PythonModule;
use offleash_core::units::{Bytes, CpuCount};
use offleash_interpreter::zygote;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::message::{INPUT_CHUNK, Selector, StartExec};
use offleash_supervisor::service::order::{LimitsOrder, NetworkOrder, SupervisorOrder};
use tokio::time::timeout;

use crate::config::DaemonConfig;
use crate::error::DaemonError;
use crate::host::SandboxHost;
use crate::launch::Process;
use crate::origin::TemplateOrigin;
use crate::{random, templates};

use super::ZygotePool;

/// How long an interpreter may take to import everything.
pub(super) const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);

/// What a copy takes before it is in the cgroup of its sandbox, in bytes.
const COPY_BYTES: u64 = 1024 * 1024;

/// A zygote that was made.
pub(super) struct MadeZygote {
    pub(super) id: RunId,
    pub(super) supervisor: SupervisorClient,
    pub(super) process: Process,
    pub(super) stream: ExecStream,
    pub(super) first: ProcessRef,
}

/// Makes one; what was made of it is gone again when it fails.
pub(super) async fn make(
    zygotes: &ZygotePool,
    origin: &TemplateOrigin,
    imports: &[PythonModule],
) -> Result<MadeZygote, (Option<RunId>, String)> {
    let id = random::sandbox_id().map_err(|error| (None, with_causes(&error)))?;
    match make_as(zygotes, &id, origin, imports).await {
        Ok(made) => Ok(made),
        Err(error) => {
            zygotes.leftovers.remove(&id).await;
            Err((Some(id), with_causes(&error)))
        }
    }
}

async fn make_as(
    zygotes: &ZygotePool,
    id: &RunId,
    origin: &TemplateOrigin,
    imports: &[PythonModule],
) -> Result<MadeZygote, DaemonError> {
    let (host, config) = (&zygotes.core.host, &zygotes.config);
    let (started, process, watched) = host.launch(id, None).await?;
    let given = started
        .give(&order(host, config, id, origin), config.create_timeout)
        .await;
    let begun = match given {
        Ok(_made) => begin(host.supervisor(id), imports).await,
        Err(error) => Err(error),
    };
    match begun {
        Ok((supervisor, stream, first)) => Ok(MadeZygote {
            id: id.clone(),
            supervisor,
            process: watched,
            stream,
            first,
        }),
        Err(error) => {
            // It fails only if it has ended.
            let _killed = process.kill();
            let _watched = watched.ended().await;
            Err(error)
        }
    }
}

/// Starts the interpreter, and waits until it takes requests.
async fn begin(
    supervisor: SupervisorClient,
    imports: &[PythonModule],
) -> Result<(SupervisorClient, ExecStream, ProcessRef), DaemonError> {
    let start = StartExec {
        argv: zygote::command().into_iter().map(String::into_bytes).collect(),
        stdin: true,
        ..StartExec::default()
    };
    let modules: Vec<String> = imports.iter().map(PythonModule::to_string).collect();
    let input = zygote::input(&modules).map_err(not_started)?;
    let mut stream = supervisor.start(start).await.map_err(not_started)?;
    let which = Selector::Pid(stream.pid());
    for piece in input.chunks(INPUT_CHUNK) {
        supervisor.input(&which, piece.to_vec()).await.map_err(not_started)?;
    }
    let said = timeout(IMPORT_TIMEOUT, listening(&mut stream)).await;
    said.unwrap_or_else(|_| Err("it did not listen in time".to_owned()))
        .map_err(not_started)?;
    let first = supervisor.first_process().await.map_err(not_started)?;
    Ok((supervisor, stream, first))
}

fn not_started(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> DaemonError {
    DaemonError::host("start the zygote")(io::Error::other(why))
}

/// Waits until the interpreter says that it listens.
async fn listening(stream: &mut ExecStream) -> Result<(), String> {
    const MAX_SAID: usize = 4096;
    let mut said = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(ExecNews::Output { bytes, .. })) => said.extend(bytes),
            _ => return Err(format!("it ended; it wrote: {}", said.escape_ascii())),
        }
        if said.ends_with(zygote::READY) {
            return Ok(());
        }
        // What libraries say when they are imported is of no use.
        let surplus = said.len().saturating_sub(MAX_SAID);
        said.drain(..surplus);
    }
}

fn order(host: &SandboxHost, config: &DaemonConfig, id: &RunId, origin: &TemplateOrigin) -> SupervisorOrder {
    SupervisorOrder {
        id: id.clone(),
        state: host.state_text(),
        directory: host.directory_text(id),
        template: templates::of_origin(origin),
        env: Vec::new(),
        level: config.level,
        runtime: None,
        hypervisor: None,
        acceleration: None,
        vm_kernel: None,
        min_level: config.min_level,
        degrade: config.degrade,
        limits: limits(config),
        network: NetworkOrder::default(),
        allow_ptrace: false,
        descent: ZygoteRole::Zygote,
        wants_copy: false,
        is_copied: false,
        is_kept: false,
        snapshot: None,
        volumes: Vec::new(),
        longest_hold_ms: None,
        tools: None,
        monitors: Vec::new(),
    }
}

/// What a sandbox may use whose creator does not say. Where no group bounds a zygote, nothing bounds its memory, processes and
/// CPUs: a copy can only lower what its zygote has, and all that lies below counts as the zygote's own.
fn limits(config: &DaemonConfig) -> LimitsOrder {
    let usual = &config.default_limits;
    let of_copies = COPY_BYTES.saturating_mul(u64::try_from(config.max_sandboxes).unwrap_or(u64::MAX));
    LimitsOrder {
        cpus: Some(CpuCount {
            millis: u64::from(usual.cpus) * 1000,
        }),
        memory: Some(Bytes(Bytes::mib(usual.memory_mib).0.saturating_add(of_copies))),
        disk: Some(Bytes::mib(usual.disk_mib)),
        pids: Some(u64::from(usual.pids)),
    }
}
