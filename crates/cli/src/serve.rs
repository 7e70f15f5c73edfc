//! `offleash serve`: the daemon and its server, from the first line that is printed to the last request.

mod builds;
mod config;
mod controller;
mod front;
mod journal;
mod manager;
mod memory;

use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use offleash_api::client::SOCKET;
use offleash_api::{Event, Journal, Listen, Server};
use offleash_core::level::Level;
use offleash_core::text::Text;
use offleash_daemon::{Daemon, DaemonConfig};
use offleash_isolation::probe;
use offleash_store::{HostIdentity, StateDirectory};
use offleash_sys::rlimit::{LimitedResource, raise_soft};
use tokio::signal::unix::SignalKind;

use self::builds::BuildTeller;
use self::config::Config;
pub(crate) use self::controller::controller;
pub(crate) use self::front::front;
use self::journal::JsonLines;
use crate::args::ServeArgs;
use crate::end_signal::{end_signal, waiting};
use crate::failure::Failure;
use crate::terminal;

/// Threads that answer requests; what takes long is done by supervisors and sandboxes.
const MAX_THREADS: usize = 8;
/// How long what is being done with sandboxes may take once the server is told to end.
const LINGER: Duration = Duration::from_secs(30);
/// As many files as a process may have open on any machine.
const MAX_FILES: u64 = 1 << 20;

pub(crate) fn serve(arguments: &ServeArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut config = config::read(arguments, state)?;
    if arguments.config_check {
        config.server.check().map_err(|error| explained(&error))?;
        for warning in config.warnings() {
            terminal::complain(&warning.into_warning().to_string());
        }
        terminal::print(b"the configuration is good\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(listener) = inherited()? {
        config.server.listen = Listen::Inherited(listener);
    }
    let lines = Arc::new(JsonLines::new(config.log));
    for warning in config.warnings() {
        lines.warning(warning);
    }
    // As long as there is one thread, which waits for what it starts.
    if config.daemon.level.is_none_or(|level| level >= Level::Process) {
        let program = std::env::current_exe().unwrap_or_default();
        lines.namespaces(&probe::namespaces(&program));
    }
    prepare_process();
    let state = StateDirectory::open(state, &HostIdentity::of_this_process())?;
    // As long as there is one thread; what cannot be removed now is of no use to anybody and goes another time.
    let _cleaned = offleash_supervisor::templates::clean(&state);
    config.daemon.state = Some(state.path().to_owned());
    config.server.local = Some(state.path().join(SOCKET));
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, MAX_THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start the threads of the server: {error}")))?;
    let served = runtime.block_on(run(config, state.path(), Arc::clone(&lines)));
    lines.end_build();
    served?;
    // What is not done by now was cut, and nobody waits for it.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn run(config: Config, state: &Path, lines: Arc<JsonLines>) -> Result<(), Failure> {
    // From here on nothing ends us by surprise.
    let mut end = pin!(end_signal()?);
    let (degrade, drain) = (config.daemon.degrade, config.server.drain);
    let watcher = BuildTeller::start(Arc::clone(&lines))
        .map_err(|error| Failure::new(format!("cannot start a thread of the server: {error}")))?;
    let opened = Daemon::open(DaemonConfig {
        build_watcher: Some(Arc::new(watcher) as _),
        ..config.daemon
    });
    let daemon = tokio::select! {
        opened = opened => opened?,
        signal = end.as_mut() => {
            lines.server(&format!("told to end by {signal} before it began to serve; the next server goes on"));
            return Ok(());
        }
    };
    let server = Server::bind(config.server, daemon.clone(), Arc::clone(&lines) as _)
        .await
        .map_err(|error| explained(&error))?;
    renew_certificate(&server, &lines)?;
    lines.limits(&probe::groups(), degrade);
    terminal::print(greeting(server.url(), state).as_bytes())?;
    manager::tell("READY=1");
    memory::give_back();
    server
        .run(async {
            let signal = end.await;
            manager::tell("STOPPING=1");
            let most = drain.as_secs();
            lines.server(&format!(
                "told to end by {signal}: no more requests are taken, those that began have {most} s"
            ));
        })
        .await;
    lines.server("requests are done with; what is being done with sandboxes is finished");
    // Sandboxes live on.
    match tokio::time::timeout(LINGER, daemon.drain()).await {
        Ok(()) => lines.server("ended; sandboxes live on"),
        Err(_) => {
            lines.server("ended while something was still being done with a sandbox; the next server finishes it")
        }
    }
    Ok(())
}

/// A socket that systemd hands over.
fn inherited() -> Result<Option<std::net::TcpListener>, Failure> {
    let sockets = offleash_sys::activation::take_sockets();
    let mut sockets = sockets
        .map_err(|error| Failure::new(format!("taking the sockets that were handed over: {error}")))?
        .into_iter();
    let (first, more) = (sockets.next(), sockets.next());
    if more.is_some() {
        return Err(
            Failure::new("more than one socket was handed over").with_hint("give the socket unit one `ListenStream=`")
        );
    }
    let Some(socket) = first else {
        return Ok(None);
    };
    let listener = std::net::TcpListener::from(socket);
    match listener.local_addr() {
        Ok(_) => Ok(Some(listener)),
        Err(_) => Err(Failure::new("the socket that was handed over is not one of TCP")
            .with_hint("`ListenStream=` needs an address, as in `127.0.0.1:3000`")),
    }
}

/// Takes as many descriptors as are to be had, and asks the kernel to end others first when memory runs out.
fn prepare_process() {
    // Fewer connections are possible without, and each that is too many is refused.
    let _raised = raise_soft(LimitedResource::OpenFiles, MAX_FILES);
    // Only root and service managers may; supervisors undo it for themselves.
    let _protected = std::fs::write("/proc/self/oom_score_adj", "-500");
}

/// Reads the certificate again whenever somebody says so (SIGHUP). Without one nothing is to be done then for a service
/// manager, which says so to reload; elsewhere a terminal is gone, and the signal ends the server as ever.
fn renew_certificate(server: &Server, lines: &Arc<JsonLines>) -> Result<(), Failure> {
    let certificate = server.certificate();
    if certificate.is_none() && !manager::is_there() {
        return Ok(());
    }
    let mut asked = waiting(SignalKind::hangup())?;
    let lines = Arc::clone(lines);
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            let Some(certificate) = &certificate else { continue };
            match certificate.reload() {
                Ok(()) => lines.server("the certificate was read again"),
                Err(error) => {
                    let (told, cause) = ("the certificate stays the one before", &error);
                    lines.record(&Event::Failure { told, cause });
                }
            }
        }
    });
    Ok(())
}

/// What is to be pasted where the SDK runs.
fn greeting(url: &str, state: &Path) -> String {
    let state = quoted(&Text::from(state).to_string());
    format!(
        "export E2B_API_URL={url}\n\
         export E2B_SANDBOX_URL={url}\n\
         export E2B_VOLUME_API_URL={url}\n\
         export E2B_API_KEY=$(offleash key create --state {state})\n"
    )
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn explained(error: &offleash_api::ServeError) -> Failure {
    Failure::from_error(error).with_hint(error.hint())
}
